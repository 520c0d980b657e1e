package httpapi

import (
	"net/http"

	"github.com/belfryio/belfry/schemas"
)

// This file is what the console has in common with the API: it calls the same operations, and shows
// a caller no more.

// Conceal removes from a timer what the caller may not see.
func (i Identity) Conceal(info *schemas.TimerInfo) { i.asRequest().conceal(info) }

// ConcealText returns a text about a callback, such as an error, as the caller may see it.
func (i Identity) ConcealText(text string) string { return i.asRequest().concealText(text) }

// ConcealOutcome removes from the outcome of a run what the caller may not see; nil is no outcome.
func (i Identity) ConcealOutcome(o *schemas.OutcomeInfo) { i.asRequest().concealOutcome(o) }

func (i Identity) asRequest() *request { return &request{id: i} }

// AdmitHost returns an *Error for a caller without a name that names a host on loopback by anything
// but loopback; see guard.go.
func (i Identity) AdmitHost(r *http.Request, loopback bool) error {
	return (&API{o: Config{Loopback: loopback}}).checkHost(i, r)
}

// Explain returns the status, the title and the detail of the answer to a request that failed.
func Explain(err error) (status int, title, detail string) {
	p := problemOf(err)
	return p.Status, p.Title, p.Detail
}
