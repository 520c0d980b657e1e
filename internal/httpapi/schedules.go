package httpapi

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// pauseTimer is POST /v1/timers/{timer}/pause.
func pauseTimer(q *request) (answer, error) {
	var b struct {
		Note string `json:"note"`
		By   string `json:"by"`
	}
	if err := q.options(&b); err != nil {
		return answer{}, err
	}
	t, err := q.ops.Pause(q.Context(), schemas.PauseRequest{TimerRef: q.ref(), Note: b.Note, By: b.By}, q.caller())
	return q.recordAnswer(&t, err)
}

// resumeTimer is POST /v1/timers/{timer}/resume.
func resumeTimer(q *request) (answer, error) {
	var b struct {
		CatchUp string `json:"catchup"`
		By      string `json:"by"`
	}
	if err := q.options(&b); err != nil {
		return answer{}, err
	}
	t, err := q.ops.Resume(q.Context(), schemas.ResumeRequest{TimerRef: q.ref(), CatchUp: b.CatchUp, By: b.By}, q.caller())
	return q.recordAnswer(&t, err)
}

// pauseGroup is POST /v1/groups/{group}/pause: one page of the group.
func pauseGroup(q *request) (answer, error) {
	var b struct {
		Note   string `json:"note"`
		By     string `json:"by"`
		Cursor string `json:"cursor"`
	}
	if err := cmp.Or(q.severalTimers(), q.options(&b)); err != nil {
		return answer{}, err
	}
	page, err := q.ops.PauseGroup(q.Context(), schemas.PauseRequest{Group: q.PathValue("group"), Note: b.Note, By: b.By, Cursor: b.Cursor}, q.caller())
	return answer{status: http.StatusOK, body: page}, err
}

// resumeGroup is POST /v1/groups/{group}/resume: one page of the group.
func resumeGroup(q *request) (answer, error) {
	var b struct {
		CatchUp string `json:"catchup"`
		By      string `json:"by"`
		Cursor  string `json:"cursor"`
	}
	if err := cmp.Or(q.severalTimers(), q.options(&b)); err != nil {
		return answer{}, err
	}
	page, err := q.ops.ResumeGroup(q.Context(), schemas.ResumeRequest{Group: q.PathValue("group"), CatchUp: b.CatchUp, By: b.By, Cursor: b.Cursor}, q.caller())
	return answer{status: http.StatusOK, body: page}, err
}

// triggerSchedule is POST /v1/timers/{timer}/trigger. The header Idempotency-Key names the request.
func triggerSchedule(q *request) (answer, error) {
	var b struct {
		Allow bool   `json:"allow"`
		By    string `json:"by"`
	}
	name, err := idempotencyKey(q.Header)
	if err == nil {
		err = q.options(&b)
	}
	if err != nil {
		return answer{}, err
	}
	t, err := q.ops.Trigger(q.Context(), schemas.TriggerRequest{TimerRef: q.ref(), Allow: b.Allow, By: b.By, Request: name}, q.caller())
	return q.recordAnswer(&t, err)
}

// backfillSchedule is POST /v1/timers/{timer}/backfill.
func backfillSchedule(q *request) (answer, error) {
	var b struct {
		From   string `json:"from"`
		To     string `json:"to"`
		Rate   string `json:"rate"`
		Again  bool   `json:"again"`
		Allow  bool   `json:"allow"`
		DryRun bool   `json:"dry_run"`
		By     string `json:"by"`
	}
	if err := q.options(&b); err != nil {
		return answer{}, err
	}
	reply, err := q.ops.Backfill(q.Context(), schemas.BackfillRequest{TimerRef: q.ref(), From: b.From, To: b.To, Rate: b.Rate, Again: b.Again, Allow: b.Allow, DryRun: b.DryRun, By: b.By}, q.caller())
	q.conceal(&reply.Timer)
	return answer{status: http.StatusOK, body: reply, revision: reply.Timer.Revision}, err
}

// updateSchedule is PUT /v1/timers/{timer}. An event with the fields of POST /v1/timers replaces the
// event of the schedule. The schedule keeps its id and source, and its type unless the request has
// another.
func updateSchedule(q *request) (answer, error) {
	if err := jsonBody(q.Header); err != nil {
		return answer{}, err
	}
	body, err := q.body(q.api.o.MaxEvent())
	if err != nil {
		return answer{}, err
	}
	d, err := draftOf(body)
	if err != nil {
		return answer{}, err
	}
	// An update compares the revision itself, because repeating a successful update is no error.
	ops, err := q.api.o.Service(q.id, 0)
	if err != nil {
		return answer{}, err
	}
	was, err := ops.Describe(q.Context(), q.ref())
	if err != nil {
		return answer{}, err
	}
	d.setDefault("id", was.ID)
	d.setDefault("source", was.Source)
	d.setDefault("type", was.Type)
	// Tenant, source and id name the timer to update. It must be the timer in the path.
	if id := schemas.NewTenantTimerID(q.id.Tenant, d.text("source"), d.text("id")); id.String() != q.PathValue("timer") {
		return answer{}, badRequest("source and id of the event name timer %s, and the path another one: leave both out; a schedule of a tenant is updated with a token of that tenant", id)
	}
	u := router.UpdateRequest{By: q.query.Get("by")}
	if q.revision != 0 {
		u.Revision = strconv.FormatUint(q.revision, 10)
	}
	reply, err := ops.Update(q.Context(), nil, d.event(), u, q.caller())
	if err != nil {
		return answer{}, addError(err, false)
	}
	q.conceal(&reply.Timer)
	return answer{status: http.StatusOK, body: reply, revision: reply.Timer.Revision}, nil
}

// why is GET /v1/timers/{timer}/why.
func why(q *request) (answer, error) {
	reply, err := q.ops.Why(q.Context(), schemas.WhyRequest{TimerRef: q.ref(), At: q.query.Get("at")})
	for i := range reply.Answers {
		a := &reply.Answers[i]
		a.Text = q.concealText(a.Text)
		for n := range a.Notes {
			a.Notes[n] = q.concealText(a.Notes[n])
		}
	}
	return answer{status: http.StatusOK, body: reply}, err
}

// listRuns is GET /v1/timers/{timer}/runs.
func listRuns(q *request) (answer, error) {
	limit, err := q.number("limit", schemas.MaxRuns)
	if err != nil {
		return answer{}, err
	}
	page, err := q.ops.Runs(q.Context(), schemas.RunsRequest{TimerRef: q.ref(), Limit: limit, Cursor: q.query.Get("cursor")})
	for i := range page.Runs {
		q.concealOutcome(page.Runs[i].Outcome)
	}
	return answer{status: http.StatusOK, body: page}, err
}

// previewTimer is GET /v1/timers/{timer}/preview.
func previewTimer(q *request) (answer, error) {
	return q.preview(schemas.PreviewRequest{TimerRef: q.ref()})
}

// recurrenceFields are the fields that decide when a schedule runs.
var recurrenceFields = []string{"cron", "every", "tz", "start", "end", "limit", "jitter", "dst", "days", "misfire", "overlap", "exclude", "excludeshift"}

// previewNames returns the parameters of GET /v1/preview.
func previewNames() []string {
	return append(slices.Clone(recurrenceFields), "id", "source", "from", "n")
}

// previewFields is GET /v1/preview, of a schedule that need not exist.
func previewFields(q *request) (answer, error) {
	p := schemas.PreviewRequest{TimerRef: schemas.TimerRef{ID: q.query.Get("id"), Source: q.query.Get("source")}, Attributes: map[string]string{}}
	for _, f := range fields {
		if text := q.query.Get(f.name); text != "" && slices.Contains(recurrenceFields, f.name) {
			p.Attributes[f.attribute] = text
		}
	}
	if len(p.Attributes) == 0 {
		return answer{}, badRequest("give cron or every")
	}
	ans, err := q.preview(p)
	if err != nil {
		return answer{}, addError(err, false)
	}
	return ans, nil
}

// preview answers with a preview of the next runs. It reads the parameters from and n.
func (q *request) preview(p schemas.PreviewRequest) (answer, error) {
	var err error
	if p.N, err = q.number("n", schemas.MaxPreview); err != nil {
		return answer{}, err
	}
	p.From = q.query.Get("from")
	reply, err := q.ops.Preview(q.Context(), p)
	return answer{status: http.StatusOK, body: reply}, err
}

// limit returns the parameter limit of a list, 0 for none.
func (q *request) limit() (int, error) { return q.number("limit", store.MaxListLimit) }

// number returns a parameter that is a number from 1 to most, 0 for none.
func (q *request) number(name string, most int) (int, error) {
	if !q.query.Has(name) {
		return 0, nil
	}
	n, err := strconv.Atoi(q.query.Get(name))
	if err != nil || n < 1 || n > most {
		return 0, badField(name, "must be a number from 1 to %d", most)
	}
	return n, nil
}

// options decodes the JSON body of a request into v. An empty body leaves v unchanged.
func (q *request) options(v any) error {
	body, err := q.body(maxSmallBody)
	if err != nil || len(body) == 0 {
		return err
	}
	if err := jsonBody(q.Header); err != nil {
		return err
	}
	return decode(body, v)
}
