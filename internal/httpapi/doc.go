// Package httpapi serves the operations of a router over HTTP, under /v1/. It is the HTTP
// sibling of router/natsapi: it decodes requests, calls the operations and encodes answers. The
// document openapi.yaml describes every request and answer.
//
// # Guarantees
//
//   - An answer of 2xx to an add has the guarantee of router.Stored: JetStream has acknowledged
//     the record.
//   - The same event is the same timer, whether it comes by HTTP or by NATS: both have the parser
//     schemas.ParseAdd, and httpapi changes no byte of an event's data.
//   - A request that has a mistake in its method, path, parameters or fields is refused before it
//     has any effect. Unknown parameters and fields are mistakes.
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
// A client that sends or reads slowly keeps no other out: see places.go.
//
// A stream of fired events lasts until its client leaves; see stream.go.
//
// # Access
//
// Config.Authorize decides about each request. A request that it admits without a name, because
// no token is needed, must come from no browser: see guard.go.
package httpapi
