package httpapi

import (
	"net/http"

	"github.com/belfryio/belfry/schemas"
)

// withTrace adds the trace context of a request to the headers of its event, so that the timer
// carries it; header may be nil. An invalid context is ignored, as W3C Trace Context asks for.
func withTrace(header map[string][]string, request http.Header) map[string][]string {
	parent := request.Values(schemas.TraceParent)
	if len(parent) != 1 || !schemas.ValidTraceParent(parent[0]) {
		return header
	}
	if header == nil {
		header = map[string][]string{}
	}
	header[schemas.TraceParent] = parent
	if state := request.Values(schemas.TraceState); len(state) == 1 {
		header[schemas.TraceState] = state
	}
	return header
}
