// Package app wires Belfry together: the NATS server or a connection to one, the
// store, the cluster's time, the roles, and the HTTP server for health and
// metrics. cmd/belfry maps flags to Options; tests embed the same App. A process can run
// any number of Apps: the package has no global state, handles no signals and never exits
// the process.
//
// # Life
//
//	New    checks the options, takes the data folder's lock and the HTTP port
//	Start  serves health, starts the server, opens the store, starts the roles
//	Stop   drains: router and functions, then the scheduler (which releases its
//	       clocks), the store, the connection, and the server last
//	Run    Start, wait for the context, Stop within StopTimeout
//
// Each acquired resource pushes its release onto one stack. Stop unwinds the stack, and so
// do New and Start if they fail, so no resource remains. Stop may be called more than once,
// and without Start.
//
// # The embedded server
//
// If the embedded server can no longer write to its data folder, the node restarts it in
// place as soon as the disk has free space; see embedded. For the roles that is like the
// restart of any server: they lose their connection and reconnect.
//
// # Access
//
// The node listens on addresses other than loopback only with authentication, unless
// Options.Insecure is set. Package accounts defines the accounts of the embedded server's
// users.
//
// # Errors
//
// ErrInUse means that a port or the data folder is in use; ErrUnreachable that no server
// answers. Errors of schemas.CodeConfig mean invalid settings, or a server that does not
// meet the requirements, such as a server without JetStream. Each error is one line with the
// cause and the remedy.
//
// # Health
//
// /healthz answers 200 while the process is alive. /readyz answers 200 when the store
// answers, the cluster's time is known and the roles have started, and otherwise 503 with
// the missing condition in its body. /metrics serves Prometheus metrics. With
// Options.HTTPTokens or Options.HTTPToken, that body and /metrics need a token.
//
// The HTTP API of package httpapi is under /v1/ on a node with a router. It answers 503 until the
// roles have started.
package app
