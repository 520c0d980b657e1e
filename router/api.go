package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// serveAPI registers the micro service. Every endpoint answers errors in micro's
// headers, with schemas.Code as the error code.
func (r *Router) serveAPI() error {
	svc, err := endpoint.New(r.o.Store.Conn(), endpoint.Config{
		Name: schemas.APIService, Version: r.o.Version, Inboxes: r.o.Inboxes, Refused: r.refuseReply,
		Description: "Belfry: durable timers. Add, ask about, cancel and move timers; list and replay dead letters; list rejected adds.",
	})
	if err != nil {
		return fmt.Errorf("router: start the API: %w", err)
	}
	r.svc = svc
	endpoints := []struct {
		verb, doc string
		slow      bool
		handle    func(context.Context, *nats.Msg) (any, error)
	}{
		{"get", "one timer: {timer} or {id, source}", false, handler(r.get)},
		{"reschedule", "move a pending timer: {timer, at, by} or {id, source, after, by}", false, control(r.reschedule)},
		{"list", "timers by state, service, group; paged", true, handler(r.list)},
		{"dead.list", "dead letters by service or timer; paged", true, handler(r.deadList)},
		{"rejected.list", "rejected adds, oldest first; paged", true, handler(r.rejectedList)},
		{"dead.replay", "call back again: {timer}, {id, source} or {service}; by", true, control(r.replay)},
	}
	add := func(verb, doc string, h nats.MsgHandler) error {
		err := svc.Add(endpointName(verb), schemas.SubjectAPIPrefix+verb, map[string]string{"description": doc, "format": "application/json"}, h)
		if err != nil {
			return errors.Join(fmt.Errorf("router: start the API: %w", err), svc.Stop())
		}
		return nil
	}
	if err := add("add", "a CloudEvent as on timers.add; answered once it is stored", r.handleAdd); err != nil {
		return err
	}
	if err := add("cancel", "cancel a timer that has not fired: {timer, by} or {id, source, by}", r.handleCancel); err != nil {
		return err
	}
	for _, e := range endpoints {
		slots := r.quick
		if e.slow {
			slots = r.slow
		}
		h := func(req *nats.Msg) {
			r.serve(e.verb, req, slots, func() (any, error) {
				ctx, cancel := context.WithTimeoutCause(r.run, apiTimeout, errSlow)
				defer cancel()
				return e.handle(ctx, req)
			})
		}
		if err := add(e.verb, e.doc, h); err != nil {
			return err
		}
	}
	return nil
}

var (
	// errClosed answers requests that come while the router stops.
	errClosed = schemas.Errorf(schemas.CodeUnavailable, "this router is stopping; nothing was done: try again")
	// errSlow answers requests that took too long.
	errSlow = schemas.Errorf(schemas.CodeUnavailable, "the request took longer than %s; it may have taken effect", apiTimeout)
)

// endpointName has no dots: micro's names are tokens.
func endpointName(verb string) string {
	b := []byte(verb)
	for i, c := range b {
		if c == '.' {
			b[i] = '-'
		}
	}
	return string(b)
}

// handler decodes a request of a verb.
func handler[Q any](f func(context.Context, Q) (any, error)) func(context.Context, *nats.Msg) (any, error) {
	return func(ctx context.Context, req *nats.Msg) (any, error) {
		q, err := decode[Q](req)
		if err != nil {
			return nil, err
		}
		return f(ctx, q)
	}
}

// control is handler for a verb whose caller goes into the timer's history.
func control[Q any](f func(context.Context, Q, schemas.Caller) (any, error)) func(context.Context, *nats.Msg) (any, error) {
	return func(ctx context.Context, req *nats.Msg) (any, error) {
		q, err := decode[Q](req)
		if err != nil {
			return nil, err
		}
		return f(ctx, q, callerOf(req))
	}
}

func decode[Q any](req *nats.Msg) (q Q, err error) {
	if len(req.Data) == 0 {
		return q, nil
	}
	if err := json.Unmarshal(req.Data, &q); err != nil {
		return q, schemas.Errorf(schemas.CodeBadRequest, "the request is not the JSON object expected: %w", err)
	}
	return q, nil
}

// enter takes a place for a request, or answers it.
func (r *Router) enter(verb string, req *nats.Msg, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
	default:
		r.respond(verb, req, nil, schemas.Errorf(schemas.CodeUnavailable, "%d requests of this kind are being served, which is the limit; nothing was done: try again", cap(places)))
		return false
	}
	if !r.open() {
		<-places
		r.respond(verb, req, nil, errClosed)
		return false
	}
	return true
}

// leave gives the place back.
func (r *Router) leave(places chan struct{}) {
	<-places
	r.api.Done()
}

// serve runs one request beside others, up to a bound.
func (r *Router) serve(verb string, req *nats.Msg, places chan struct{}, f func() (any, error)) {
	if !r.enter(verb, req, places) {
		return
	}
	go r.finish(verb, req, places, f)
}

// finish runs a request that has a place, answers it, and gives the place back.
func (r *Router) finish(verb string, req *nats.Msg, places chan struct{}, f func() (any, error)) {
	defer r.leave(places)
	v, err := r.contain(f)
	r.respond(verb, req, v, err)
}

// contain turns a panic into an error of this request alone.
func (r *Router) contain(f func() (any, error)) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.m.panics.Inc()
			r.o.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("a request made the router panic")
			v, err = nil, schemas.Errorf(schemas.CodeUnavailable, "the request made this router panic: %v", p)
		}
	}()
	return f()
}

// appender is an answer that encodes itself as JSON.
type appender interface{ Append(b []byte) []byte }

// timerAnswer is what requests about one timer are answered with.
type timerAnswer struct{ t *store.Timer }

func (a timerAnswer) Append(b []byte) []byte {
	info := schemas.FromRecord(a.t.ID, &a.t.Record, a.t.Rev)
	return info.Append(b)
}

func encode(v any) ([]byte, error) {
	switch v := v.(type) {
	case []byte:
		return v, nil
	case appender:
		return v.Append(make([]byte, 0, 512)), nil
	}
	return json.Marshal(v)
}

// respond answers; bytes are JSON already.
func (r *Router) respond(verb string, req *nats.Msg, v any, err error) {
	code := "ok"
	if err == nil {
		var b []byte
		if b, err = encode(v); err == nil {
			err = r.answer(req, nil, b)
		}
		if err == nil {
			r.m.requests.WithLabelValues(verb, code).Inc()
			return
		}
	}
	c := schemas.CodeOf(err)
	if c == "" {
		c = schemas.CodeUnavailable
	}
	r.m.requests.WithLabelValues(verb, string(c)).Inc()
	text := headerText(err.Error())
	body, jerr := json.Marshal(map[string]string{"code": string(c), "error": text})
	if jerr != nil {
		body = nil // a map of strings always encodes
	}
	hdr := nats.Header{micro.ErrorHeader: {text}, micro.ErrorCodeHeader: {string(c)}}
	if err := r.answer(req, hdr, body); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		r.o.Log.Warn().Err(err).Str("verb", verb).Msg("request not answered")
	}
}

// answer sends a reply, unless the request asks for none. Package endpoint has refused
// requests whose reply subject is not an inbox.
func (r *Router) answer(req *nats.Msg, hdr nats.Header, data []byte) error {
	if req.Reply == "" {
		return nil
	}
	return r.o.Store.Conn().PublishMsg(&nats.Msg{Subject: req.Reply, Header: hdr, Data: data})
}

// refuseReply counts and logs a request that was not executed, because its reply subject
// is not an inbox.
func (r *Router) refuseReply(m *nats.Msg) {
	r.m.replies.Inc()
	if others, ok := r.replies.note(time.Now()); ok {
		r.o.Log.Warn().Str("subject", m.Subject).Str("reply", headerText(m.Reply)).Int("others_since_last_line", others).
			Msg("request refused: its reply subject is not an inbox, so the answer could be a write that the requester is not permitted to make. If a client uses another inbox prefix, add it to the setting inbox-prefixes")
	}
}

// handleAdd hands an API add to the batcher, which answers it.
func (r *Router) handleAdd(req *nats.Msg) {
	select {
	case r.adds <- struct{}{}:
	default:
		r.respond("add", req, nil, schemas.Errorf(schemas.CodeUnavailable, "%d adds are being served, which is the limit; nothing was done: try again, or publish to %s", cap(r.adds), schemas.SubjectAdd))
		return
	}
	if !r.open() {
		<-r.adds
		r.respond("add", req, nil, errClosed)
		return
	}
	a := &add{
		hdr: req.Header, data: req.Data,
		addedMs: (r.o.Time.LatestNs() + int64(time.Millisecond) - 1) / int64(time.Millisecond),
	}
	started := make(chan struct{})
	var timer *time.Timer
	a.reply = func(reply schemas.AddReply, err error) {
		<-started
		timer.Stop()
		defer r.api.Done()
		<-r.adds
		r.respond("add", req, &reply, err)
	}
	timer = r.deadline(a)
	close(started)
	r.batcher.put(a)
}

func (r *Router) nowMs() int64 { return r.o.Time.LatestNs() / int64(time.Millisecond) }

func info(t store.Timer) schemas.TimerInfo { return schemas.FromRecord(t.ID, &t.Record, t.Rev) }

// find reads the timer that a request names.
func (r *Router) find(ctx context.Context, ref schemas.TimerRef) (store.Timer, error) {
	id, err := ref.Resolve()
	if err != nil {
		return store.Timer{}, err
	}
	t, err := r.o.Store.Get(ctx, id)
	if errors.Is(err, schemas.ErrNotFound) {
		return t, schemas.Errorf(schemas.CodeNotFound, "no timer %s: it was never added, is still on its way from timers.add, or its record has expired (after %s)", id, r.o.Store.Retention())
	}
	return t, err
}

func (r *Router) get(ctx context.Context, q schemas.TimerRef) (any, error) {
	t, err := r.find(ctx, q)
	if err != nil {
		return nil, err
	}
	return timerAnswer{&t}, nil
}

// change replaces a record by what f makes of it, as often as it takes to meet
// no other writer.
func (r *Router) change(ctx context.Context, ref schemas.TimerRef, f func(*schemas.Record) (ttl time.Duration, unchanged bool, err error)) (any, error) {
	for {
		t, err := r.find(ctx, ref)
		if err != nil {
			return nil, err
		}
		ttl, unchanged, err := f(&t.Record)
		if err != nil {
			return nil, err
		}
		if unchanged {
			return timerAnswer{&t}, nil
		}
		rev, err := r.o.Store.Update(ctx, store.Write{ID: t.ID, Rev: t.Rev, Record: &t.Record, TTL: ttl})
		switch {
		case err == nil:
			t.Rev = rev
			r.audit(t.ID, &t.Record)
			return timerAnswer{&t}, nil
		case !errors.Is(err, store.ErrRevision):
			return nil, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
	}
}

// cancelTimer cancels a timer that waits: pending, or queued for a retry. To
// cancel a cancelled timer again is no error.
func (r *Router) cancelTimer(ctx context.Context, ref schemas.TimerRef, by schemas.Caller) (any, error) {
	return r.change(ctx, ref, func(rec *schemas.Record) (time.Duration, bool, error) {
		unchanged, err := rec.Cancel(r.nowMs(), by)
		if err == nil && !unchanged {
			err = r.forgetAdd(ctx, rec)
		}
		return r.o.Store.Retention(), unchanged, err
	})
}

// forgetAdd sees to it that an add which a dead router has stored, and not
// acknowledged, does not come back after the record has expired.
func (r *Router) forgetAdd(ctx context.Context, rec *schemas.Record) error {
	return r.o.Store.ForgetAdd(ctx, rec.AddedMs, func(h map[string][]string, data []byte) bool {
		_, spec, err := r.parse(h, data, rec.AddedMs, r.o.Limits)
		return err == nil && spec.Source == rec.Source && spec.EventID == rec.EventID
	})
}

// reschedule moves a pending timer.
func (r *Router) reschedule(ctx context.Context, q schemas.RescheduleRequest, from schemas.Caller) (any, error) {
	by, err := claimed(from, q.By)
	if err != nil {
		return nil, err
	}
	due, err := r.newDue(q)
	if err != nil {
		return nil, err
	}
	return r.change(ctx, q.TimerRef, func(rec *schemas.Record) (time.Duration, bool, error) {
		before := rec.DueMs
		err := rec.Reschedule(due, r.nowMs(), by)
		if err == nil && due < before {
			// It may fire, and expire, before the add's own due time would have its
			// fired event looked for.
			err = r.forgetAdd(ctx, rec)
		}
		return 0, false, err
	})
}

func (r *Router) newDue(q schemas.RescheduleRequest) (int64, error) {
	horizon := r.o.Limits.MaxHorizon
	if horizon == 0 {
		horizon = schemas.DefaultLimitHorizon
	}
	now := r.nowMs() + 1
	var due int64
	switch {
	case (q.At == "") == (q.After == ""):
		return 0, schemas.Errorf(schemas.CodeBadRequest, "give either at or after")
	case q.At != "":
		var err error
		if due, err = schemas.ParseTime(q.At); err != nil {
			return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "at %.80q: %w", q.At, err)
		}
	default:
		d, err := schemas.ParseDuration(q.After)
		if err != nil {
			return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "after %.80q: %w", q.After, err)
		}
		if d < 0 || d > horizon {
			return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "after %s: must be 0s to %s", d, horizon)
		}
		due = now + (d + time.Millisecond - 1).Milliseconds()
	}
	if due-now > horizon.Milliseconds() {
		return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "%s is further ahead than the limit of %s", schemas.FormatTime(due), horizon)
	}
	return due, nil
}

func (r *Router) list(ctx context.Context, q schemas.ListRequest) (any, error) {
	return r.fit(q.Limit, func(limit int) (any, int, error) {
		page, err := r.o.Store.List(ctx, store.ListQuery{States: q.States, Service: q.Service, Group: q.Group, Cursor: q.Cursor, Limit: limit})
		if err != nil {
			return nil, 0, err
		}
		reply := schemas.ListReply{Timers: make([]schemas.TimerInfo, 0, len(page.Timers)), Cursor: page.Cursor}
		for _, t := range page.Timers {
			reply.Timers = append(reply.Timers, info(t))
		}
		return reply, len(reply.Timers), nil
	})
}

// answerSpare is what an answer's headers take of a message at most.
const answerSpare = 1024

// fit reads a page with a smaller limit if it is too large for one message.
func (r *Router) fit(limit int, read func(limit int) (page any, n int, err error)) (any, error) {
	room := int(r.o.Store.Conn().MaxPayload()) - answerSpare
	for {
		page, n, err := read(limit)
		if err != nil {
			return nil, err
		}
		b, err := json.Marshal(page)
		if err != nil {
			return nil, fmt.Errorf("router: encode the answer: %w", err)
		}
		if len(b) <= room || n <= 1 {
			return b, nil
		}
		// The items differ in size: a little fewer than would fit on average.
		limit = max(1, int(int64(n)*int64(room)/int64(len(b))*9/10))
	}
}
