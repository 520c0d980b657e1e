package console

import (
	"net/http"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/token"
)

// showTail is the page of events as they fire. Its script follows /tail/events.
func showTail(q *request) (view, error) {
	return view{name: "tail", title: "Tail", data: q.text("service")}, nil
}

// follow passes the request to /v1/stream of the API, which checks the caller, bounds the streams and
// sends the fired events of a service.
func (c *Console) follow(w http.ResponseWriter, r *http.Request) {
	q := &request{Request: c.authenticated(r), console: c}
	if err := q.admit(token.ScopeRead); err != nil {
		status, _, detail := httpapi.Explain(err)
		http.Error(w, detail, status)
		return
	}
	stream := q.Clone(q.Context())
	stream.URL.Path, stream.URL.RawPath = httpapi.Prefix+"stream", ""
	c.o.API.ServeHTTP(w, stream)
}
