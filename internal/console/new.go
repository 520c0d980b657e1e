package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/schemas"
)

// previewRuns is the number of next runs that a form shows.
const previewRuns = 20

// field is a field of the form for a new timer or schedule, and its attribute of the event.
type field struct {
	Name, Label, Hint string
	attribute         string
	// recurs is true for an attribute that decides when a schedule runs.
	recurs bool
	Value  string
	// Problem is the error of the value; "" for none.
	Problem string
}

// The fields of the form, by group.
var (
	whenFields = []field{
		{Name: "in", Label: "due in", Hint: "15m, 2h30m or P1D", attribute: schemas.AttrAfter},
		{Name: "at", Label: "due at", Hint: "2033-12-24T18:00:00+01:00", attribute: schemas.AttrAt},
		{Name: "cron", Label: "cron", Hint: "30 2 * * MON-FRI", attribute: schemas.AttrCron, recurs: true},
		{Name: "every", Label: "every", Hint: "15m or P1D", attribute: schemas.AttrEvery, recurs: true},
		{Name: "tz", Label: "time zone", Hint: "Europe/Berlin", attribute: schemas.AttrZone, recurs: true},
	}
	whatFields = []field{
		{Name: "svc", Label: "service", Hint: "orders", attribute: schemas.AttrService},
		{Name: "callback", Label: "callback", Hint: "https://shop.example/expired", attribute: schemas.AttrCallback},
		{Name: "id", Label: "id", attribute: "id"},
		{Name: "source", Label: "source", Hint: httpapi.DefaultSource, attribute: "source"},
		{Name: "type", Label: "type", Hint: httpapi.DefaultType, attribute: "type"},
		{Name: "group", Label: "group", attribute: schemas.AttrGroup},
	}
	moreFields = []field{
		{Name: "start", Label: "start", Hint: "2033-01-01T00:00:00Z", attribute: schemas.AttrStart, recurs: true},
		{Name: "end", Label: "end", Hint: "2034-01-01T00:00:00Z", attribute: schemas.AttrEnd, recurs: true},
		{Name: "limit", Label: "runs at most", Hint: "10", attribute: schemas.AttrLimit, recurs: true},
		{Name: "jitter", Label: "jitter", Hint: "30s", attribute: schemas.AttrJitter, recurs: true},
		{Name: "exclude", Label: "excluded calendars", Hint: "holidays", attribute: schemas.AttrExclude, recurs: true},
		{Name: "misfire", Label: "after an outage", Hint: "one, all or skip", attribute: schemas.AttrMisfire, recurs: true},
		{Name: "overlap", Label: "if runs overlap", Hint: "skip, queue, allow or replace", attribute: schemas.AttrOverlap, recurs: true},
		{Name: "expect", Label: "success expected within", Hint: "30m", attribute: schemas.AttrExpect},
		{Name: "maxattempts", Label: "attempts", Hint: "12", attribute: schemas.AttrMaxAttempts},
		{Name: "backoff", Label: "backoff", Hint: "1s..10m", attribute: schemas.AttrBackoff},
		{Name: "timeout", Label: "time-out", Hint: "30s", attribute: schemas.AttrTimeout},
		{Name: "key", Label: "ordering key", attribute: schemas.AttrKey},
		{Name: "flow", Label: "flow key", attribute: schemas.AttrFlow},
	}
)

// newPage is the form for a new timer or schedule.
type newPage struct {
	When, What, More []field
	MoreOpen         bool
	Data             string
	Preview          preview
	// Problem says why the timer was not stored.
	Problem string
}

// preview has the next due times of a timer or schedule.
type preview struct {
	// Problem is the error of the add; "" if it would succeed.
	Problem string
	Due     time.Time // of a timer that fires once
	Remark  string
	Zone    string
	Reply   *schemas.PreviewReply
}

// showNew is the form, with a preview of the timer in the query.
func showNew(q *request) (view, error) {
	page := q.newPage()
	page.Preview = q.preview(&page)
	return view{name: "new", title: "New timer or schedule", data: page}, nil
}

// newPage returns the form with the values of the request.
func (q *request) newPage() newPage {
	if q.text("id") == "" {
		q.Form.Set("id", uuid.NewString()) // so that a form that is sent twice is one timer
	}
	page := newPage{When: q.fill(whenFields), What: q.fill(whatFields), More: q.fill(moreFields), Data: q.Form.Get("data")}
	page.MoreOpen = slices.ContainsFunc(page.More, func(f field) bool { return f.Value != "" })
	return page
}

// fill returns fields with the values of the request.
func (q *request) fill(fields []field) []field {
	out := slices.Clone(fields)
	for i := range out {
		out[i].Value = q.text(out[i].Name)
	}
	return out
}

// all returns the fields of the form.
func (p *newPage) all() []*field {
	var out []*field
	for _, group := range [][]field{p.When, p.What, p.More} {
		for i := range group {
			out = append(out, &group[i])
		}
	}
	return out
}

// event returns the event of the form in binary mode.
func (p *newPage) event() (header map[string][]string, data []byte) {
	header = map[string][]string{"ce-specversion": {"1.0"}, "ce-source": {httpapi.DefaultSource}, "ce-type": {httpapi.DefaultType}}
	for _, f := range p.all() {
		if f.Value != "" {
			header["ce-"+f.attribute] = []string{schemas.EncodeHeader(f.Value)}
		}
	}
	data = []byte(p.Data)
	switch {
	case len(data) == 0:
	case json.Valid(data):
		header["content-type"] = []string{"application/json"}
	default:
		header["content-type"] = []string{"text/plain; charset=utf-8"}
	}
	return header, data
}

// explain sets Problem of the field of an error, and returns the error's text for the whole form.
func (p *newPage) explain(err error) string {
	attribute := schemas.AttributeOf(err)
	for _, f := range p.all() {
		if f.attribute == attribute && attribute != "" {
			f.Problem = err.Error()
		}
	}
	return err.Error()
}

// preview returns when the timer of the form would fire, or why it would be refused.
func (q *request) preview(p *newPage) preview {
	attributes, when := map[string]string{}, false
	for _, f := range p.all() {
		if f.Value != "" && f.recurs {
			attributes[f.attribute] = f.Value
		}
		when = when || f.Value != "" && slices.Contains([]string{"in", "at", "cron", "every"}, f.Name)
	}
	if !when {
		return preview{}
	}
	header, data := p.event()
	now := q.console.o.NowMs()
	_, spec, err := schemas.ParseAdd(header, data, now, schemas.Limits{Tenant: q.id.Tenant})
	if err != nil {
		return preview{Problem: p.explain(err)}
	}
	if spec.Recurrence == nil {
		return preview{Due: schemas.TimeOf(spec.DueMs), Remark: schemas.PastDueRemark(spec.DueMs, now)}
	}
	reply, err := q.ops.Preview(q.Context(), schemas.PreviewRequest{TimerRef: schemas.TimerRef{ID: spec.EventID, Source: spec.Source}, Attributes: attributes, N: previewRuns})
	if err != nil {
		return preview{Problem: p.explain(err)}
	}
	return preview{Reply: &reply, Zone: cmp.Or(spec.Recurrence.Zone, "UTC")}
}

// addNew adds the timer of the form.
func addNew(q *request) (view, error) {
	page := q.newPage()
	header, data := page.event()
	reply, err := q.ops.Add(q.Context(), header, data)
	if err == nil {
		notice := "added"
		if reply.Duplicate {
			notice = "duplicate"
		}
		return view{location: pathOf(reply.Timer), notice: notice}, nil
	}
	status, _, detail := httpapi.Explain(err)
	if status >= http.StatusInternalServerError && !errors.Is(err, schemas.ErrUnavailable) {
		return view{}, err
	}
	page.explain(err)
	page.Problem = strings.TrimSpace(detail)
	page.Preview = q.preview(&page)
	return view{status: status, name: "new", title: "New timer or schedule", data: page}, nil
}
