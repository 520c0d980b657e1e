package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/schemas"
)

const (
	// pageSize is the number of rows of a list.
	pageSize = 50
	// maxBulk bounds the timers of one bulk change.
	maxBulk = 500
)

// timersPage is the list of timers, and the form to find one.
type timersPage struct {
	Q, Source, Service, Group, State string
	States                           []string
	Timers                           []schemas.TimerInfo
	// Error and Host select by the last error and the callback's host; only with a search index.
	Error, Host string
	Indexed     bool
	// Filtered describes how complete Timers is if the search index selected them; otherwise nil.
	Filtered *asOf
	// Found are the entries of a search; AsOf says how complete it is.
	Searched bool
	Found    []schemas.TimerInfo
	AsOf     asOf
	// NotFound explains why nothing was found.
	NotFound string
	// More is the address of the next page.
	More string
	// Bulk is true if all timers that the filter selects can be changed.
	Bulk bool
}

// listTimers is the page of timers. With q it searches, see findTimers.
func listTimers(q *request) (view, error) {
	page := timersPage{Q: q.text("q"), Source: q.text("source"), Service: q.text("service"), Group: q.text("group"), State: q.text("state"), States: stateNames}
	page.Indexed, page.Host = q.index() != nil, q.text("host")
	if q.can.Payload { // errors are searched as they are, with the paths of callbacks
		page.Error = q.text("error")
	}
	if page.Q != "" || page.Indexed && page.Error+page.Host != "" {
		return q.findTimers(page)
	}
	list := schemas.ListRequest{Service: page.Service, Group: page.Group, Cursor: q.text("cursor"), Limit: pageSize}
	if page.State != "" {
		state, err := schemas.ParseState(page.State)
		if err != nil {
			return view{}, schemas.Errorf(schemas.CodeBadRequest, "state: %w", err)
		}
		list.States = []schemas.State{state}
	}
	page.Bulk = page.Service+page.Group != "" && (page.State == "" || slices.Contains([]schemas.State{schemas.StatePending, schemas.StatePaused, schemas.StateRetrying}, list.States[0]))
	if page.Service+page.Group+page.State != "" && q.listsByIndex(list.Cursor) {
		return q.filterTimers(page, list)
	}
	reply, err := q.ops.List(q.Context(), list)
	if err != nil {
		return view{}, err
	}
	for i := range reply.Timers {
		q.id.Conceal(&reply.Timers[i])
	}
	page.Timers, page.More = reply.Timers, q.more(reply.Cursor)
	return view{name: "timers", title: "Timers", data: page}, nil
}

// filterTimers lists the timers of a filter from the search index: by due time with the earliest
// first, or for a final state by the end with the latest first.
func (q *request) filterTimers(page timersPage, list schemas.ListRequest) (view, error) {
	search := schemas.SearchRequest{States: list.States, Service: list.Service, Group: list.Group, Limit: list.Limit, Cursor: list.Cursor}
	if len(list.States) > 0 && list.States[0].Final() {
		search.Sort, search.Descending = "done", true
	}
	reply, err := q.ops.Search(q.Context(), search)
	if err != nil {
		return view{}, err
	}
	for i := range reply.Timers {
		q.id.Conceal(&reply.Timers[i])
	}
	page.Timers, page.More, page.Filtered = reply.Timers, q.more(reply.Cursor), new(progressOf(q.index()))
	return view{name: "timers", title: "Timers", data: page}, nil
}

// stateNames are the states that timers can be in.
var stateNames = func() (names []string) {
	for s := schemas.State(1); s.Valid(); s++ {
		names = append(names, s.String())
	}
	return names
}()

// more returns the address of this page at a cursor; "" without one.
func (q *request) more(cursor string) string {
	if cursor == "" {
		return ""
	}
	query := q.URL.Query()
	query.Del("done")
	query.Set("cursor", cursor)
	return q.URL.Path + "?" + query.Encode()
}

// findTimers leads to the only timer that a text names, or lists what the search index has for it.
func (q *request) findTimers(page timersPage) (view, error) {
	if page.Q != "" {
		timer, err := q.find(page.Q, page.Source)
		if err != nil {
			return view{}, err
		}
		if timer != "" {
			return view{location: "/timers/" + timer}, nil
		}
	}
	r := q.index()
	if r == nil {
		page.NotFound = "No timer has this timer id, and none this id with source " + cmp.Or(page.Source, httpapi.DefaultSource) + ". Source and id together name a timer. " + noHistory
		return view{name: "timers", title: "Timers", data: page}, nil
	}
	found, err := q.search(r, visibility.Query{Text: page.Q, Source: page.Source, Error: page.Error, Host: page.Host, Descending: true, Limit: pageSize, Cursor: q.text("cursor")}, q.tenant())
	if err != nil {
		return view{}, err
	}
	page.Searched, page.AsOf, page.More = true, progressOf(r), q.more(found.Cursor)
	for i := range found.Entries {
		page.Found = append(page.Found, found.Entries[i].Timer)
	}
	if len(page.Found) > 0 || page.More != "" {
		return view{name: "timers", title: "Timers", data: page}, nil
	}
	page.NotFound = "The search index has no such timer. A text is a whole event id, source or type, or the start of an event id and a *."
	return view{name: "timers", title: "Timers", data: page}, nil
}

// find returns the timer with a timer id, the run with an identity, or the timer of the event with an id
// and source; "" if there is none. Without a source it tries httpapi.DefaultSource, the source of timers
// that were added by HTTP without one.
func (q *request) find(text, source string) (string, error) {
	refs := []schemas.TimerRef{{Timer: text}, {ID: text, Source: cmp.Or(source, httpapi.DefaultSource)}}
	if source != "" {
		refs = refs[1:]
	}
	for _, ref := range refs {
		info, err := q.ops.Describe(q.Context(), ref)
		switch code := schemas.CodeOf(err); {
		case err == nil:
			return info.Timer.String(), nil
		case code != schemas.CodeNotFound && code != schemas.CodeInvalidTimerID && code != schemas.CodeBadRequest:
			return "", err
		}
	}
	return "", nil
}

// bulkPage asks for a confirmation, or shows the result.
type bulkPage struct {
	// Path is the address of the form, and Button the text of its button.
	Path, Button string
	Timers       []bulkTimer
	Done         bool
	Failed       int
	// At is the new due time; "" for a cancel.
	At string
}

// bulkTimer is one timer of a bulk change.
type bulkTimer struct {
	schemas.TimerInfo
	ID26 string // the timer id as it was sent
	// Problem is the reason why the timer is not changed; "" for none.
	Problem string
}

// cancelMany cancels the selected timers if the form confirms it. Otherwise it shows their states.
func cancelMany(q *request) (view, error) {
	return q.changeMany(bulkPage{Path: "/timers/cancel", Button: "Cancel them"}, "Cancel %d timers?", "%d timers are cancelled", func(ref schemas.TimerRef) error {
		_, err := q.ops.Cancel(q.Context(), schemas.CancelRequest{TimerRef: ref}, q.caller())
		return err
	})
}

// moveMany gives the selected timers another due time if the form confirms it. Otherwise it shows
// their states.
func moveMany(q *request) (view, error) {
	at, err := q.dueTime()
	if err != nil {
		return view{}, err
	}
	return q.changeMany(bulkPage{Path: "/timers/reschedule", Button: "Reschedule them", At: at}, "Reschedule %d timers?", "%d timers are rescheduled", func(ref schemas.TimerRef) error {
		_, err := q.ops.Reschedule(q.Context(), schemas.RescheduleRequest{TimerRef: ref, At: at}, q.caller())
		return err
	})
}

// changeMany changes the selected timers one by one. ask and done are titles with a number.
func (q *request) changeMany(page bulkPage, ask, done string, change func(schemas.TimerRef) error) (view, error) {
	ids := slices.Compact(slices.Sorted(slices.Values(q.PostForm["timer"])))
	if len(ids) == 0 {
		return view{}, schemas.Errorf(schemas.CodeBadRequest, "no timer is selected")
	}
	if len(ids) > maxBulk {
		return view{}, schemas.Errorf(schemas.CodeBadRequest, "%d timers are selected; the limit is %d", len(ids), maxBulk)
	}
	page.Done = q.text("confirm") == "yes"
	for _, id := range ids {
		t := bulkTimer{ID26: id}
		ref := schemas.TimerRef{Timer: id}
		var err error
		if page.Done {
			err = change(ref)
		}
		info, derr := q.ops.Describe(q.Context(), ref)
		q.id.Conceal(&info)
		t.TimerInfo = info
		if err = errors.Join(err, derr); err != nil {
			t.Problem = q.id.ConcealText(err.Error())
		} else if !page.Done {
			t.Problem = page.refuses(&info)
		}
		if t.Problem != "" {
			page.Failed++
		}
		page.Timers = append(page.Timers, t)
	}
	title := ask
	if page.Done {
		title = done
	}
	return view{name: "bulk", title: fmt.Sprintf(title, len(ids)-page.Failed), data: page}, nil
}

// refuses returns the reason why the change of a timer would fail; "" if none is known.
func (p *bulkPage) refuses(info *schemas.TimerInfo) string {
	switch {
	case info.State.Final():
		return fmt.Sprintf("It has ended: %s.", info.State)
	case p.At != "" && info.Schedule != nil:
		return "A schedule has no due time: change when it runs on its page."
	case p.At != "" && !info.State.Waits():
		return fmt.Sprintf("It has fired: %s.", info.State)
	}
	return ""
}

// query returns an address with parameters.
func query(path string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	return path + "?" + values.Encode()
}
