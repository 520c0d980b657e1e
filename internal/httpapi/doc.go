// Package httpapi serves the operations of a router over HTTP, under /v1/. It is the HTTP
// sibling of router/natsapi: it decodes requests, calls the operations and encodes answers. The
// document openapi.yaml describes every request and answer.
//
// # Guarantees
//
//   - An answer of 2xx to an add has the guarantee of router.Stored: JetStream has acknowledged
//     the record.
//   - An event that is added by HTTP and by NATS is one timer: both use the parser
//     schemas.ParseAdd, and httpapi changes no byte of an event's data.
//   - A request with an invalid method, path, parameter or field is refused before it has any
//     effect. Unknown parameters and fields are invalid.
//   - An error is an application/problem+json (RFC 9457) with a schemas.Code, or one of the codes
//     in problem.go.
//   - A change with If-Match is made only at that revision.
//
// # Failures
//
// The router refuses requests beyond its limits (admission control), and so does this package
// beyond maxRequests and maxHeldBytes, with 503 and Retry-After. Every other 503 may have taken
// effect; repeating an add or a cancel is safe. A request is bounded by router.OperationTimeout and
// by the time-outs of the HTTP server, and its body by the largest event that the store accepts.
// A client that sends or reads slowly does not block other clients: see places.go.
//
// A stream of fired events lasts until its client leaves; see stream.go.
//
// # Access
//
// Config.Authorize checks the caller of each request. On a node that needs no tokens, it admits
// callers without a name; guard.go refuses such a request if a web page caused it.
package httpapi
