// Package app wires Belfry together: the NATS server or a connection to one, the
// store, the cluster's time, the roles, and the HTTP server for health and
// metrics. cmd/belfry maps flags to Options; tests embed the same thing, as often
// in one process as they like: there is no global state, no signal handler and no
// exit in here.
//
// # Life
//
//	New    checks the options, takes the data folder's lock and the HTTP port
//	Start  serves health, starts the server, opens the store, starts the roles
//	Stop   drains: router and functions, then the scheduler (which releases its
//	       clocks), the store, the connection, and the server last
//	Run    Start, wait for the context, Stop within StopTimeout
//
// Whatever was acquired put its release on one stack. Stop unwinds it, and so do
// a New and a Start that fail: nothing is left behind in any case. Stop may be
// called more than once, and without Start.
//
// # The embedded server
//
// It is restarted in place when it cannot write to its data folder any more, once
// there is room; see embedded. The roles see what they see when another server is
// restarted: their connection is lost, and comes back.
//
// # Access
//
// Nothing listens beyond loopback without authentication, unless Options.Insecure says
// so. The users of the embedded server are in accounts as package accounts lays them out.
//
// # Errors
//
// ErrInUse tells a busy port or data folder, ErrUnreachable a server that cannot
// be reached or does not answer; errors of schemas.CodeConfig tell settings that
// cannot be, among them a server without JetStream or one that is too old. Each
// is one line that says what to do.
//
// # Health
//
// /healthz answers 200 while the process lives. /readyz answers 200 when the
// store answers, the cluster's time is known and the roles have started, and 503
// otherwise; its body says which of them is missing. /metrics is Prometheus's. With
// Options.HTTPToken, that body and /metrics need the token.
package app
