package httpapi

import (
	"io"
	"net/http"

	"github.com/belfryio/belfry/schemas"
)

// This file exports the rules of the API about callers for the console, so that the console shows a caller no
// more than the API does, and shares its memory limits.

// Conceal removes the parts of a timer that the caller may not see.
func (i Identity) Conceal(info *schemas.TimerInfo) { i.asRequest().conceal(info) }

// ConcealText returns a text about a callback, such as an error, without the parts that the caller may
// not see.
func (i Identity) ConcealText(text string) string { return i.asRequest().concealText(text) }

// ConcealOutcome removes the parts of a run's outcome that the caller may not see. o may be nil.
func (i Identity) ConcealOutcome(o *schemas.OutcomeInfo) { i.asRequest().concealOutcome(o) }

func (i Identity) asRequest() *request { return &request{id: i} }

// AdmitHost returns an *Error if the caller has no name, the listener is on loopback, and the header
// Host is not localhost or a loopback address; see guard.go.
func (i Identity) AdmitHost(r *http.Request, loopback bool) error {
	return (&API{o: Config{Loopback: loopback}}).checkHost(i, r)
}

// Explain returns the status, the title and the detail of the answer to a request that failed.
func Explain(err error) (status int, title, detail string) {
	p := problemOf(err)
	return p.Status, p.Title, p.Detail
}

// HoldBody counts the bytes of a body as they arrive, until release is called, for the memory that bodies and
// answers of the API share, and for the share of the caller; see places.go. Reading beyond a limit returns an
// error of schemas.CodeUnavailable.
func (a *API) HoldBody(id Identity, body io.ReadCloser) (counted io.ReadCloser, release func()) {
	p := &place{of: a.places, holder: holderOf(id)}
	return &heldBody{bodyReader{body, p}, body}, p.end
}

// heldBody is a body whose bytes count.
type heldBody struct {
	bodyReader
	io.Closer
}
