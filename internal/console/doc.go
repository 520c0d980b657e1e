// Package console serves the web pages of a node, at /. It is a client of the same operations as
// the HTTP API, with the same callers, scopes and limits, and shows a caller no more than the API.
//
// # Pages
//
// The table routes lists all pages. Every page is a plain URL with its state in the query, rendered on
// the server, and works without JavaScript. Two kinds of pages change by themselves, and need it: a
// page that requests itself again (htmx), and the tail, which follows the stream of the API
// (Server-Sent Events). A form is sent with POST, and answered with a redirect to a page that shows
// the result.
//
// # Guarantees
//
//   - Every text that comes from an event, a callee or a request is escaped by html/template. The
//     content security policy admits only the scripts and styles of this package, none in a page.
//   - A change needs a request from a page of this origin (http.CrossOriginProtection), and a scope.
//   - A form that replaces values on its page names the revision of the timer on that page, so it
//     fails if the timer has changed since.
//
// # Sessions
//
// On a node with tokens, a caller logs in with a token, or at an OpenID Connect provider, which issues
// one; see oidc.go. Sessions are in the memory of this node, bounded by maxSessions and sessionTime.
// The cookie has only the random name of a session. Every request checks the token again, so a token
// that was removed or has expired ends its sessions. A restart ends all sessions.
package console
