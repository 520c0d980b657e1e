package console

import (
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/schemas"
)

// noHistory explains which pages need the search index, and how to turn it on.
const noHistory = "This node keeps no search index, so it finds no timer by parts of its name, and shows no numbers over time. The role visibility keeps one: add it to the setting roles of this node (with nats-url, also set history-folder)."

// asOf describes how complete an answer of the search index is.
type asOf struct {
	At time.Time
	// Note explains which timers may be missing; "" for a complete answer.
	Note string
}

// index returns the search index of this node; nil without one.
func (q *request) index() visibility.Reader { return q.console.o.History() }

// listsByIndex reports whether the search index answers a list with a filter at a cursor. It finds the
// timers of a filter without reading all records. An incomplete index does not answer, and the
// index does not continue a list that began with records.
func (q *request) listsByIndex(cursor string) bool {
	r := q.index()
	if r == nil || cursor != "" {
		return r != nil && !strings.Contains(cursor, ".") // as cursors of records have
	}
	p := r.Progress()
	return p.Problem == "" && !p.CatchingUp && !p.CountsOnly && !p.AsOf.IsZero()
}

// tenant returns the tenant whose entries the caller may search; nil for all.
func (q *request) tenant() *string {
	if q.id.AllTenants {
		return nil
	}
	return &q.id.Tenant
}

// progressOf describes the progress of a search index.
func progressOf(r visibility.Reader) asOf {
	p := r.Progress()
	a := asOf{At: p.AsOf}
	switch {
	case p.Problem != "":
		a.Note = "Nothing newer is written: " + p.Problem
	case p.CountsOnly:
		a.Note = "Timers change faster than the index can be written, so newer changes are only counted."
	case p.CatchingUp:
		a.Note = "The index is catching up, so timers are missing."
	}
	return a
}

// search returns the entries of a query, of the caller's tenants or of one of them.
func (q *request) search(r visibility.Reader, query visibility.Query, tenant *string) (visibility.Page, error) {
	query.Tenant = tenant
	page, err := r.Search(q.Context(), query)
	for i := range page.Entries {
		q.concealEntry(&page.Entries[i])
	}
	return page, err
}

// concealEntry removes from an entry what the caller may not see.
func (q *request) concealEntry(e *visibility.Entry) {
	q.id.Conceal(&e.Timer)
	if !q.can.Payload {
		e.Attributes = nil
	}
}

// remembered returns the entry in the search index of the timer in the path, whose record is gone.
// Without an entry it returns the error gone.
func (q *request) remembered(gone error) (visibility.Entry, error) {
	r := q.index()
	if r == nil {
		return visibility.Entry{}, gone
	}
	id, err := q.ref().Resolve(q.id.Tenant)
	if err != nil {
		return visibility.Entry{}, gone
	}
	e, err := r.Get(q.Context(), id)
	if err != nil || !q.id.AllTenants && e.Timer.Tenant != q.id.Tenant {
		return visibility.Entry{}, gone
	}
	q.concealEntry(&e)
	return e, nil
}

// showRemembered is the page of a timer whose record is gone.
func showRemembered(q *request, gone error, claim *schemas.ClaimInfo) (view, error) {
	e, err := q.remembered(gone)
	if err != nil {
		return view{}, err
	}
	info := e.Timer
	info.Claim = claim
	page := timerPage{Timer: info, Steps: stepsOf(&info, e.Epoch), From: &asOf{At: e.Stored}}
	page.Why.Text = "Belfry has forgotten its record, so the same event would be another timer. This is from the history."
	return view{name: "timer", title: info.ID, data: page}, nil
}

// lateness returns the quantiles of the lateness of entries that have fired since a time, in
// milliseconds; ok is false if none has.
func lateness(entries []visibility.Entry, since time.Time) (p50, p99 int64, ok bool) {
	var late []int64
	for i := range entries {
		t := &entries[i].Timer
		if t.Schedule != nil || t.Fired.IsZero() || t.Fired.Before(since) || movedAfter(t) {
			continue
		}
		late = append(late, max(t.Fired.UnixMilli()-max(t.Scheduled.UnixMilli(), t.Added.UnixMilli()), 0))
	}
	if len(late) == 0 {
		return 0, 0, false
	}
	slices.Sort(late)
	return late[len(late)/2], late[(len(late)*99)/100], true
}

// movedAfter reports whether an operation changed the timer. Its lateness may then count from another
// due time, which an entry does not have.
func movedAfter(t *schemas.TimerInfo) bool { return len(t.History) > 0 }
