package console

import (
	"context"
	"net/http"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/token"
)

// showTail is the page of events as they fire. Its script follows /tail/events.
func showTail(q *request) (view, error) {
	return view{name: "tail", title: "Tail", data: q.text("service")}, nil
}

// follow passes the request to /v1/stream of the API, which checks the caller, bounds the streams and
// sends the fired events of a service. The stream ends with the session.
func (c *Console) follow(w http.ResponseWriter, r *http.Request) {
	q := &request{Request: c.authenticated(r), console: c}
	if err := q.admit(token.ScopeRead); err != nil {
		status, _, detail := httpapi.Explain(err)
		http.Error(w, detail, status)
		return
	}
	ctx := q.Context()
	if r.Header.Get("Authorization") != q.Header.Get("Authorization") { // the token is that of the session
		var cancel context.CancelFunc
		ctx, cancel = c.sessions.within(ctx, sessionName(r))
		defer cancel()
	}
	stream := q.Clone(ctx)
	stream.URL.Path, stream.URL.RawPath = httpapi.Prefix+"stream", ""
	c.o.API.ServeHTTP(w, stream)
}
