// Package console serves the web pages of a node, at /. It is a client of the same operations as
// the HTTP API, with the same callers, scopes and limits, and shows a caller no more than the API.
//
// # Pages
//
// The table routes lists all pages. Every page is a plain URL with its state in the query, rendered on
// the server, and works without JavaScript, but for what moves: a page that changes by itself asks
// for itself again (htmx), and the tail follows the stream of the API (Server-Sent Events). A form is
// sent with POST, and answered with a redirect to a page that says what was done.
//
// # Guarantees
//
//   - Every text that comes from an event, a callee or a request is escaped by html/template. The
//     content security policy admits only the scripts and styles of this package, none in a page.
//   - A change needs a request from a page of this origin (http.CrossOriginProtection), and a scope.
//   - A form names the revision of the timer that the page showed, if it replaces what the page showed.
//
// # Sessions
//
// With tokens, a caller logs in with one, or at an OpenID Connect provider, which gives one; see oidc.go. The session is in the memory of this node, bounded by
// maxSessions and sessionTime; the cookie has only a random name for it. Every request compares the
// token again, so a token that was removed or has expired ends its sessions. A restart ends all.
package console
