package console

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/schemas"
)

const (
	// maxSlowest bounds the slowest calls that a page shows.
	maxSlowest = 5
	// callSample bounds the timers whose calls a page counts: that many of the timers that ended last,
	// and that many of the timers that wait for another attempt.
	callSample = visibility.MaxLimit
)

// servicePage is the page of one service.
type servicePage struct {
	Missing string
	AsOf    asOf
	*serviceRow
	// Calls is the number of the calls below; Bad is the share of them that failed, P50 and P99 are their
	// durations.
	Calls    int
	Bad      string
	P50, P99 int64 // milliseconds
	Slowest  []call
	// Latest is the call that began last; nil for none.
	Latest *call
}

// call is one attempt of a callback.
type call struct {
	schemas.AttemptInfo
	Timer schemas.TimerInfo
}

// showService is the page of a service: its numbers, and its last calls.
func showService(q *request) (view, error) {
	name, tenant := q.PathValue("service"), q.text("tenant")
	v := view{name: "service", title: name}
	r := q.index()
	if r == nil {
		v.data = servicePage{Missing: noHistory}
		return v, nil
	}
	if !q.id.AllTenants {
		if q.Form.Has("tenant") && tenant != q.id.Tenant {
			return view{}, httpapi.Refused(http.StatusForbidden, "", "this service belongs to another tenant")
		}
		tenant = q.id.Tenant
	}
	rows, err := q.services(r, name, &tenant)
	if err != nil {
		return view{}, err
	}
	if len(rows) == 0 {
		return view{}, schemas.Errorf(schemas.CodeNotFound, "the search index has no timer of service %.80q", name)
	}
	page := servicePage{AsOf: progressOf(r), serviceRow: rows[0]}
	var calls []call
	for i, query := range []visibility.Query{
		{Service: name, Sort: visibility.SortDone, Descending: true, Limit: callSample},
		{Service: name, States: []schemas.State{schemas.StateRetrying}, Limit: callSample},
	} {
		found, err := q.search(r, query, &tenant)
		if err != nil {
			return view{}, err
		}
		if i == 0 && len(found.Entries) > 0 {
			page.Last = &found.Entries[0].Timer
		}
		calls = append(calls, callsOf(found.Entries)...)
	}
	page.count(calls)
	v.data = page
	return v, nil
}

// callsOf returns the calls of entries.
func callsOf(entries []visibility.Entry) (calls []call) {
	for i := range entries {
		for _, a := range entries[i].Timer.LastAttempts {
			calls = append(calls, call{a, entries[i].Timer})
		}
	}
	return calls
}

// count sets the numbers of the page from calls.
func (p *servicePage) count(calls []call) {
	if p.Calls = len(calls); p.Calls == 0 {
		return
	}
	var bad int64
	p.Latest = &calls[0]
	for i := range calls {
		if calls[i].Error != "" {
			bad++
		}
		if calls[i].At.After(p.Latest.At) {
			p.Latest = &calls[i]
		}
	}
	latest := *p.Latest
	p.Latest, p.Bad = &latest, share(bad, int64(p.Calls))
	slices.SortFunc(calls, func(a, b call) int { return cmp.Or(cmp.Compare(b.TookMs, a.TookMs), b.At.Compare(a.At)) })
	p.Slowest = calls[:min(len(calls), maxSlowest)]
	p.P50, p.P99 = int64(calls[len(calls)/2].TookMs), int64(calls[len(calls)/100].TookMs)
}
