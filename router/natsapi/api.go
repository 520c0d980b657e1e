package natsapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/strictjson"
	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// maxRequests bounds the requests that have a goroutine. It exceeds what the service
// admits, so that callers get the service's errors.
const maxRequests = 2 * router.MaxOperations

// api serves timers.api.
type api struct {
	o Options
	m *metrics
	// replies throttles log lines about reply subjects that are not inboxes.
	replies throttle.Log
	svc     *endpoint.Service
	permits chan struct{}

	mu      sync.Mutex
	closed  bool
	serving sync.WaitGroup
}

func newAPI(o Options, m *metrics) *api {
	return &api{o: o, m: m, permits: make(chan struct{}, maxRequests)}
}

// handler carries out a request and returns the answer: JSON in bytes, a store.Timer, or a
// value to encode as JSON.
type handler func(context.Context, *endpoint.Request) (any, error)

// start registers the micro service.
func (a *api) start() error {
	svc, err := a.o.Conn.Serve(endpoint.Config{
		Name: schemas.APIService, Version: a.o.Version, Inboxes: a.o.Inboxes, Refused: a.refused,
		Description: "Belfry: durable timers. Add, ask about, cancel, move and pause timers; operate schedules; limit callbacks; list and replay dead letters; list rejected adds.",
	})
	if err != nil {
		return fmt.Errorf("router: start the API: %w", err)
	}
	a.svc = svc
	// A request of Belfry's own account sees the timers of all tenants. A request through an
	// import of timers.api has the default tenant, and so has a request without a reply subject,
	// because it does not show its origin.
	own := a.verbs(a.o.Service, false)
	if a.o.Clock != nil {
		own = append(own, a.clockVerbs(a.o.Clock)...)
	}
	team := byName(a.verbs(a.o.Service.In(router.Scope{}), false))
	for _, v := range own {
		if slices.Contains(ofHistory, v.name) && !a.o.Service.HasHistory() {
			continue // a node that has an index answers
		}
		// micro's names are tokens, without dots.
		name := strings.ReplaceAll(v.name, ".", "-")
		imports := team[v.name]
		err := svc.Add(name, schemas.SubjectAPIPrefix+v.name, map[string]string{"description": v.doc, "format": "application/json"}, func(r *endpoint.Request) {
			if imports != nil && (r.Reply == "" || imported(r.Reply)) {
				imports(r)
				return
			}
			v.handle(r)
		})
		if err != nil {
			return fmt.Errorf("router: start the API: %w", err)
		}
	}
	return a.startTenants()
}

// ofHistory lists the verbs that only nodes with a search index serve.
var ofHistory = []string{"search", "counts"}

// verb is an operation of the API.
type verb struct {
	name, doc string
	handle    func(*endpoint.Request)
}

// verbs returns the operations of a service. groups lets callers of every account operate on
// groups, because the service sees only the caller's timers.
func (a *api) verbs(s *router.Service, groups bool) []verb {
	return []verb{
		{"add", "a CloudEvent as on timers.add; answered once it is stored", a.adder(s)},
		{"cancel", "cancel a timer that has not fired: {timer, by, revision} or {id, source, by, revision}", a.canceler(s, "cancel")},
		{"get", "one timer: {timer} or {id, source}, and claim", a.serve("get", query(s.Inspect))},
		{"reschedule", "move a pending timer: {timer, at, by} or {id, source, after, by}", a.serve("reschedule", control(s.Reschedule))},
		{"list", "timers by state, service, group, schedule; paged", a.serve("list", page(a, s.List, listPage))},
		{"export", "the events of timers, so that they can be published again: {timer}, {id, source}, or by state, service, group, schedule, tenant; paged", a.serve("export", page(a, s.Export, exportPage))},
		{"search", "timers by id alone, text, error, host and times, also after their records have expired; paged", a.serve("search", page(a, s.Search, searchPage))},
		{"counts", "numbers of timers by state, service and time: {service, from, to, bucket, by_service}", a.serve("counts", query(s.Counts))},
		{"dead.list", "dead letters by service or timer; paged", a.serve("dead.list", page(a, s.DeadList, deadPage))},
		{"rejected.list", "rejected adds, oldest first; paged", a.serve("rejected.list", page(a, s.RejectedList, rejectedPage))},
		{"order.list", "the ordering keys that have events, with the state of the event whose turn it is: {service, limit, cursor}; paged", a.serve("order.list", page(a, s.OrderList, orderPage))},
		{"service.list", "the services that have callbacks, or messages in a stream: {limit, cursor}; paged", a.serve("service.list", page(a, s.ServiceList, servicePage))},
		{"dead.replay", "call back again: {timer}, {id, source} or {service}; by", a.serve("dead.replay", control(s.DeadReplay))},
		{"bulk.cancel", "cancel a page of timers: {service, group, state, schedule, dry_run, by, limit, cursor}", a.serve("bulk.cancel", fitted(a, s.BulkCancel, bulkTimers))},
		{"bulk.reschedule", "move a page of timers to one due time: as bulk.cancel, and {at} or {after}", a.serve("bulk.reschedule", fitted(a, s.BulkReschedule, bulkTimers))},
		{"bulk.replay", "call back again for a page of dead letters: {service, timer, id, source, sequence, sequences, error_code, rate, dry_run, by, limit, cursor}", a.serve("bulk.replay", fitted(a, s.BulkReplay, bulkDead))},
		{"bulk.discard", "remove a page of dead letters for good: as bulk.replay, without rate", a.serve("bulk.discard", fitted(a, s.BulkDiscard, bulkDead))},
		{"schedule.pause", "pause a timer, a schedule, or a page of a group: {timer, note, by} or {group, cursor, note, by}", a.serve("schedule.pause", pause(s, groups))},
		{"schedule.resume", "resume a timer, a schedule, or a page of a group: {timer, catchup, by} or {group, cursor, catchup, by}", a.serve("schedule.resume", resume(s, groups))},
		{"schedule.trigger", "run a schedule now: {timer, allow, by}", a.serve("schedule.trigger", control(s.Trigger))},
		{"schedule.backfill", "run the nominal times of a past period: {timer, from, to, rate, again, allow, dry_run, by}", a.serve("schedule.backfill", a.backfiller(s))},
		{"schedule.update", "replace a schedule: a CloudEvent as in add, with the headers Belfry-If-Match and Belfry-By", a.serve("schedule.update", updater(s))},
		{"schedule.delete", "the same as cancel", a.canceler(s, "schedule.delete")},
		{"schedule.preview", "when a schedule runs and why: {timer, from, n} or {attributes, id, source, from, n}", a.serve("schedule.preview", page(a, s.Preview, previewPage))},
		{"schedule.why", "why a time of a schedule fired, will fire or did not: {timer, at}", a.serve("schedule.why", query(s.Why))},
		{"schedule.runs", "the runs of a schedule, newest first: {timer, limit, cursor}; paged", a.serve("schedule.runs", page(a, s.Runs, runsPage))},
		{"calendar.put", "store a calendar of dates that schedules exclude: {name, dates, revision, dry_run, by}", a.serve("calendar.put", ownAccount(calendarsShared, control(s.CalendarPut)))},
		{"calendar.get", "one calendar: {name}", a.serve("calendar.get", query(s.CalendarGet))},
		{"calendar.list", "all calendars, without their dates", a.serve("calendar.list", query(s.CalendarList))},
		{"calendar.delete", "delete a calendar that no schedule excludes: {name, revision, by}", a.serve("calendar.delete", ownAccount(calendarsShared, control(s.CalendarDelete)))},
		{"flow.set", "store the limit of a flow key or pattern: {key, rate, burst, parallel, circuit, pending, revision, dry_run, by}", a.serve("flow.set", ownAccount(flowsShared, control(s.FlowSet)))},
		{"flow.get", "the limit of a flow key or pattern, and its use: {key}", a.serve("flow.get", query(s.FlowGet))},
		{"flow.list", "all stored limits", a.serve("flow.list", query(s.FlowList))},
		{"flow.pause", "stop the calls of a flow key or pattern: {key, note, revision, by}", a.serve("flow.pause", ownAccount(flowsShared, control(s.FlowPause)))},
		{"flow.resume", "let the calls of a flow key or pattern begin again: {key, revision, by}", a.serve("flow.resume", ownAccount(flowsShared, control(s.FlowResume)))},
		{"flow.reset", "end the hold of a flow key, which an answer of its target has set: {key, by}", a.serve("flow.reset", ownAccount(flowsShared, control(s.FlowReset)))},
		{"flow.delete", "delete the limit of a flow key or pattern: {key, revision, by}", a.serve("flow.delete", ownAccount(flowsShared, control(s.FlowDelete)))},
	}
}

func byName(verbs []verb) map[string]func(*endpoint.Request) {
	m := make(map[string]func(*endpoint.Request), len(verbs))
	for _, v := range verbs {
		m[v.name] = v.handle
	}
	return m
}

// stop ends the subscriptions. Requests that have arrived are answered: by the service, or
// with an error once stop has returned.
func (a *api) stop() error {
	var err error
	if a.svc != nil {
		err = a.svc.Stop()
	}
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.serving.Wait() // every operation ends within router.OperationTimeout
	if err != nil {
		return fmt.Errorf("router: stop the API: %w", err)
	}
	return nil
}

// adder returns the handler of adds. It passes the add to the service, which answers it.
func (a *api) adder(s *router.Service) func(*endpoint.Request) {
	return func(r *endpoint.Request) {
		s.AddAsync(r.Header, r.Data, func(reply schemas.AddReply, err error) { a.respond("add", r, &reply, err) })
	}
}

// canceler returns the handler of a verb that cancels. It passes the cancel to the service,
// which answers it.
func (a *api) canceler(s *router.Service, verb string) func(*endpoint.Request) {
	return func(r *endpoint.Request) {
		q, ok := plainCancel(r.Data)
		if !ok {
			var err error
			if q, err = decode[schemas.CancelRequest](r); err != nil {
				a.respond(verb, r, nil, err)
				return
			}
		}
		svc := s
		if q.Revision != 0 {
			svc = s.AtRevision(q.Revision)
		}
		svc.CancelAsync(q, callerOf(r), func(t *store.Timer, err error) { a.respond(verb, r, t, err) })
	}
}

var (
	refBegin = []byte(`{"timer":"`)
	refBy    = []byte(`","by":"`)
	refEnd   = []byte(`"}`)
)

// plainCancel decodes a cancel of a timer id, with an optional name without escapes, as all
// clients in this module encode it. The JSON decoder takes four times as long.
func plainCancel(data []byte) (q schemas.CancelRequest, ok bool) {
	text, begins := bytes.CutPrefix(data, refBegin)
	text, ends := bytes.CutSuffix(text, refEnd)
	if !begins || !ends || len(text) < schemas.TimerIDLength {
		return q, false
	}
	id, rest := text[:schemas.TimerIDLength], text[schemas.TimerIDLength:]
	name, named := bytes.CutPrefix(rest, refBy)
	if !named && len(rest) > 0 || bytes.ContainsAny(name, `"\`) {
		return q, false
	}
	return schemas.CancelRequest{TimerRef: schemas.TimerRef{Timer: string(id)}, By: string(name)}, true
}

// serve returns the handler of an endpoint, which runs h on a goroutine of its own.
func (a *api) serve(verb string, h handler) func(*endpoint.Request) {
	return func(r *endpoint.Request) {
		if err := a.enter(); err != nil {
			a.respond(verb, r, nil, err)
			return
		}
		go func() {
			defer a.leave()
			ctx, cancel := context.WithTimeout(context.Background(), router.OperationTimeout)
			defer cancel()
			v, err := h(ctx, r)
			a.respond(verb, r, v, err)
		}()
	}
}

func (a *api) enter() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return schemas.Errorf(schemas.CodeUnavailable, "this router is stopping; nothing was done: try again")
	}
	select {
	case a.permits <- struct{}{}:
		a.serving.Add(1)
		return nil
	default:
		return schemas.Errorf(schemas.CodeUnavailable, "%d requests are being served, which is the limit; nothing was done: try again", cap(a.permits))
	}
}

func (a *api) leave() {
	<-a.permits
	a.serving.Done()
}

// query is the handler of an operation that reads.
func query[Q, R any](f func(context.Context, Q) (R, error)) handler {
	return func(ctx context.Context, r *endpoint.Request) (any, error) {
		q, err := decode[Q](r)
		if err != nil {
			return nil, err
		}
		return f(ctx, q)
	}
}

// control is the handler of an operation whose caller goes into the timer's history.
func control[Q, R any](f func(context.Context, Q, schemas.Caller) (R, error)) handler {
	return func(ctx context.Context, r *endpoint.Request) (any, error) {
		q, err := decode[Q](r)
		if err != nil {
			return nil, err
		}
		return f(ctx, q, callerOf(r))
	}
}

// answerSpare is room for the headers of an answer, in bytes.
const answerSpare = 1024

// page is the handler of an operation that returns a page. If a page does not fit one message, it
// asks for a smaller page. limits returns a pointer to the limit of a request, and the number of
// items on a page.
func page[Q, R any](a *api, f func(context.Context, Q) (R, error), limits func(*Q, *R) (limit *int, items int)) handler {
	return func(ctx context.Context, r *endpoint.Request) (any, error) {
		q, err := decode[Q](r)
		if err != nil {
			return nil, err
		}
		room := a.svc.MaxReply() - answerSpare
		for {
			reply, err := f(ctx, q)
			if err != nil {
				return nil, err
			}
			b, err := json.Marshal(reply)
			if err != nil {
				return nil, fmt.Errorf("router: encode the answer: %w", err)
			}
			limit, items := limits(&q, &reply)
			if len(b) <= room || items <= 1 {
				return b, nil
			}
			// The items differ in size: a little fewer than would fit on average.
			*limit = max(1, int(int64(items)*int64(room)/int64(len(b))*9/10))
		}
	}
}

// fitted is the handler of an operation on several items, whose answer lists them. It leaves out the
// last items that do not fit one message: a smaller page, as in page, would repeat the operation.
// keep keeps the first n items of an answer, and returns their number.
func fitted[Q, R any](a *api, f func(context.Context, Q, schemas.Caller) (R, error), keep func(r *R, n int) int) handler {
	return func(ctx context.Context, r *endpoint.Request) (any, error) {
		q, err := decode[Q](r)
		if err != nil {
			return nil, err
		}
		reply, err := f(ctx, q, callerOf(r))
		if err != nil {
			return nil, err
		}
		room := a.svc.MaxReply() - answerSpare
		for {
			b, err := json.Marshal(reply)
			if err != nil {
				return nil, fmt.Errorf("router: encode the answer: %w", err)
			}
			items := keep(&reply, schemas.MaxBulk)
			if len(b) <= room || items == 0 {
				return b, nil
			}
			keep(&reply, int(int64(items)*int64(room)/int64(len(b))*9/10))
		}
	}
}

func bulkTimers(r *schemas.BulkReply, n int) int {
	r.Timers = r.Timers[:min(n, len(r.Timers))]
	return len(r.Timers)
}

func bulkDead(r *schemas.BulkDeadReply, n int) int {
	r.Dead = r.Dead[:min(n, len(r.Dead))]
	return len(r.Dead)
}

func listPage(q *schemas.ListRequest, r *schemas.ListReply) (*int, int) {
	return &q.Limit, len(r.Timers)
}

func exportPage(q *schemas.ExportRequest, r *schemas.ExportReply) (*int, int) {
	return &q.Limit, len(r.Timers)
}

func searchPage(q *schemas.SearchRequest, r *schemas.SearchReply) (*int, int) {
	return &q.Limit, len(r.Timers)
}

func deadPage(q *schemas.DeadListRequest, r *schemas.DeadListReply) (*int, int) {
	return &q.Limit, len(r.Dead)
}

func rejectedPage(q *schemas.RejectedListRequest, r *schemas.RejectedListReply) (*int, int) {
	return &q.Limit, len(r.Rejected)
}

func orderPage(q *schemas.OrderListRequest, r *schemas.OrderListReply) (*int, int) {
	return &q.Limit, len(r.Keys)
}

func servicePage(q *schemas.ServiceListRequest, r *schemas.ServiceListReply) (*int, int) {
	return &q.Limit, len(r.Services)
}

func previewPage(q *schemas.PreviewRequest, r *schemas.PreviewReply) (*int, int) {
	return &q.N, len(r.Runs)
}

func runsPage(q *schemas.RunsRequest, r *schemas.RunsReply) (*int, int) {
	return &q.Limit, len(r.Runs)
}

// pause is the handler of schedule.pause.
func pause(s *router.Service, groups bool) handler {
	return forGroups(groups, s.Pause, s.PauseGroup, func(q schemas.PauseRequest) string { return q.Group })
}

// resume is the handler of schedule.resume.
func resume(s *router.Service, groups bool) handler {
	return forGroups(groups, s.Resume, s.ResumeGroup, func(q schemas.ResumeRequest) string { return q.Group })
}

// forGroups is the handler of an operation on one timer or on a group. Unless all is true, a
// group may have timers of several accounts, so only callers of Belfry's own account may operate
// on it. A request without a reply subject does not show its origin.
func forGroups[Q, R, G any](all bool, one func(context.Context, Q, schemas.Caller) (R, error), many func(context.Context, Q, schemas.Caller) (G, error), group func(Q) string) handler {
	return func(ctx context.Context, r *endpoint.Request) (any, error) {
		q, err := decode[Q](r)
		switch {
		case err != nil:
			return nil, err
		case group(q) == "":
			return one(ctx, q, callerOf(r))
		case !all && (r.Reply == "" || imported(r.Reply)):
			return nil, schemas.Errorf(schemas.CodeBadRequest, "a group may have timers of other accounts, so only Belfry's own account operates on it: name each timer")
		}
		return many(ctx, q, callerOf(r))
	}
}

// Reasons of ownAccount.
const (
	calendarsShared = "all accounts share the calendars, so only Belfry's own account changes them"
	flowsShared     = "all accounts share the limits of flow control, so only Belfry's own account changes them"
)

// ownAccount is the handler of an operation that only Belfry's own account may call; why is
// the text of the refusal.
func ownAccount(why string, h handler) handler {
	return func(ctx context.Context, r *endpoint.Request) (any, error) {
		if r.Reply == "" || imported(r.Reply) {
			return nil, schemas.Errorf(schemas.CodeBadRequest, "%s", why)
		}
		return h(ctx, r)
	}
}

// backfiller returns the handler of schedule.backfill. It leaves out the last times of a dry
// run that do not fit one message.
func (a *api) backfiller(s *router.Service) handler {
	return func(ctx context.Context, r *endpoint.Request) (any, error) {
		q, err := decode[schemas.BackfillRequest](r)
		if err != nil {
			return nil, err
		}
		reply, err := s.Backfill(ctx, q, callerOf(r))
		if err != nil {
			return nil, err
		}
		const timeBytes = len(`"2027-03-28T01:00:00.000Z",`)
		room := (a.svc.MaxReply() - answerSpare - timerBytes) / timeBytes
		reply.Times = reply.Times[:min(len(reply.Times), max(room, 0))]
		return reply, nil
	}
}

// timerBytes is room for a timer in an answer: its texts, attempts and history.
const timerBytes = 32 << 10

// updater returns the handler of schedule.update.
func updater(s *router.Service) handler {
	return func(ctx context.Context, r *endpoint.Request) (any, error) {
		first := func(name string) string {
			if v := r.Header[name]; len(v) > 0 {
				return v[0]
			}
			return ""
		}
		q := router.UpdateRequest{Revision: first(schemas.HeaderIfMatch), By: first(schemas.HeaderBy)}
		return s.Update(ctx, r.Header, r.Data, q, callerOf(r))
	}
}

// decode decodes the JSON object of a request. Every field must be a field of Q with the exact
// spelling, and must occur once: otherwise a misspelled filter would select everything. Empty data
// counts as an object without fields. Errors: bad_request.
func decode[Q any](r *endpoint.Request) (q Q, err error) {
	if len(r.Data) == 0 {
		return q, nil
	}
	if wrong := strictjson.Check(r.Data, &q); wrong != nil {
		return q, schemas.Errorf(schemas.CodeBadRequest, "the request has the %w: this operation has %s", wrong, fieldsOf(wrong.Fields))
	}
	d := json.NewDecoder(bytes.NewReader(r.Data))
	err = d.Decode(&q)
	if err == nil && len(bytes.TrimSpace(r.Data[d.InputOffset():])) > 0 {
		err = errors.New("more data follows the object")
	}
	if err != nil {
		return q, schemas.Errorf(schemas.CodeBadRequest, "the request is not the JSON object expected: %w", err)
	}
	return q, nil
}

// fieldsOf lists the names of the fields of an object.
func fieldsOf(names []string) string {
	if len(names) == 0 {
		return "no fields"
	}
	return "the fields " + strings.Join(names, ", ")
}

func encode(v any) ([]byte, error) {
	switch v := v.(type) {
	case []byte:
		return v, nil
	case schemas.TimerInfo:
		return v.Append(make([]byte, 0, 512)), nil
	case *store.Timer:
		info := schemas.FromRecord(v.ID, &v.Record, v.Rev)
		return info.Append(make([]byte, 0, 512)), nil
	case store.Timer:
		return encode(&v)
	}
	return json.Marshal(v)
}

// respond answers a request with v, or with an error.
func (a *api) respond(verb string, r *endpoint.Request, v any, err error) {
	if err == nil {
		var b []byte
		if b, err = encode(v); err == nil {
			err = r.Respond(b)
		}
		if err == nil {
			a.m.requests.WithLabelValues(verb, "ok").Inc()
			return
		}
	}
	code := string(schemas.CodeOf(err))
	if code == "" {
		code = string(schemas.CodeUnavailable)
	}
	a.m.requests.WithLabelValues(verb, code).Inc()
	text := router.HeaderText(err.Error())
	body, jerr := json.Marshal(schemas.ErrorReply{Code: code, Error: text, RetryAfterMs: schemas.RetryAfterOf(err).Milliseconds()})
	if jerr != nil {
		body = nil // strings and a number always encode
	}
	if err := r.Fail(code, text, body); err != nil {
		a.o.Log.Warn().Err(err).Str("verb", verb).Msg("request not answered")
	}
}

// refused counts and logs a request that was not carried out, because its reply subject is
// not an inbox.
func (a *api) refused(r *endpoint.Request) {
	a.m.replies.Inc()
	if suppressed, ok := a.replies.Allow(time.Now()); ok {
		a.o.Log.Warn().Str("subject", r.Subject).Str("reply", router.HeaderText(r.Reply)).Int("others_since_last_line", suppressed).
			Msg("request refused: its reply subject is not an inbox, so the answer could be a write that the requester is not permitted to make. If a client uses another inbox prefix, add it to the setting inbox-prefixes")
	}
}
