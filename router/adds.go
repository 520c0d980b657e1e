package router

import (
	"context"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Add adds the timer of an event and waits until it is stored. Errors: those of
// schemas.ParseAdd, conflict, too_many_services, limited, store_full, unavailable. After unavailable
// the timer may have been stored; adding it again is safe.
func (s *Service) Add(ctx context.Context, header map[string][]string, data []byte) (schemas.AddReply, error) {
	type answer struct {
		reply schemas.AddReply
		err   error
	}
	done := make(chan answer, 1)
	s.AddAsync(header, data, func(reply schemas.AddReply, err error) { done <- answer{reply, err} })
	select {
	case a := <-done:
		return a.reply, a.err
	case <-ctx.Done():
		return schemas.AddReply{}, schemas.Errorf(schemas.CodeUnavailable, "the timer may have been stored: add it again (%w)", context.Cause(ctx))
	}
}

// AddAsync is Add without a waiting goroutine. done is called once, from any goroutine,
// within OperationTimeout; it must not block. The caller must not change header and data
// afterwards.
func (s *Service) AddAsync(header map[string][]string, data []byte, done func(schemas.AddReply, error)) {
	if !s.adds.take(s.scope.Tenant) {
		done(schemas.AddReply{}, schemas.Errorf(schemas.CodeUnavailable, "%d adds are being served%s, which is the limit; nothing was done: try again, or publish to %s", s.adds.most(s.scope.Tenant), s.scope.whose(), schemas.SubjectAdd))
		return
	}
	if !s.gate.enter() {
		s.adds.release(s.scope.Tenant)
		done(schemas.AddReply{}, errClosed)
		return
	}
	w := &waitingAdd{s: s, done: done}
	w.Header, w.Data, w.Receiver, w.Tenant = header, data, w, s.scope.Tenant
	// Rounded up: a timer counted from the add is never early.
	w.AddedMs = (s.o.Time.LatestNs() + int64(time.Millisecond) - 1) / int64(time.Millisecond)
	s.beginTrace(&w.Add)
	w.timer = time.AfterFunc(OperationTimeout, w.expire)
	s.batcher.put(&w.Add)
}

// waitingAdd is an add whose caller waits.
type waitingAdd struct {
	Add
	s     *Service
	timer *time.Timer
	done  func(schemas.AddReply, error)
}

// Settle implements Receiver.
func (w *waitingAdd) Settle(o Outcome) {
	w.timer.Stop()
	w.finish(o)
}

func (w *waitingAdd) expire() {
	if w.take() {
		err := schemas.Errorf(schemas.CodeUnavailable, "the timer was not stored within %s; it may be yet: add it again", OperationTimeout)
		w.expireTrace(err)
		w.finish(Outcome{Result: Delayed, Err: err})
	}
}

func (w *waitingAdd) finish(o Outcome) {
	defer w.s.leave(w.s.adds)
	w.done(o.Reply())
}

// AddAll stores a group of 1 to MaxBatch adds. Their receivers receive the outcomes later:
// AddAll returns when the processing of the group has started. While maxParallel groups are
// processed it blocks, until ctx ends, which slows the reader of TIMERS_ADD down. The outcome
// of adds that were not
// processed is Delayed.
func (s *Service) AddAll(ctx context.Context, adds []*Add) {
	err := error(errClosed)
	if s.gate.enter() {
		defer s.gate.leave()
		for _, a := range adds {
			s.beginTrace(a)
		}
		if err = s.batcher.run(ctx, adds); err == nil {
			return
		}
	}
	for _, a := range adds {
		outcomes{s}.Delay(a, err)
	}
}

// process validates and writes a group. When it returns, every add of the group is settled, with two
// exceptions: the limiter settles adds of limited services, and the lingerer keeps adds that wait for others.
func (s *Service) process(group []*Add) {
	valid := make([]*Add, 0, len(group))
	var refused []refusal
	for _, a := range group {
		if a.settled.Load() {
			continue // OperationTimeout has passed: its caller has an answer
		}
		if err := s.validate(a, s.parse); err != nil {
			if schemas.CodeOf(err) == schemas.CodeUnavailable {
				outcomes{s}.Delay(a, err)
				continue
			}
			refused = append(refused, refusal{a, err})
			continue
		}
		valid = append(valid, a)
	}
	ready := s.linger.pass(s.limiter.unlimited(valid), s.nowMs(), time.Now())
	s.write(ready)
	s.linger.written(ready)
	// After the valid adds, because timers.rejected may fail.
	each(refused, func(f refusal) { outcomes{s}.Reject(f.a, f.reason) })
}

// write stores valid adds. Adds of tenants from the stream have a separate dedup check, because their
// stream has a separate consumer.
func (s *Service) write(valid []*Add) {
	if len(valid) == 0 {
		return
	}
	s.m.batch.Observe(float64(len(valid)))
	tenants := 0
	for _, a := range valid {
		if a.Account != "" {
			tenants++
		}
	}
	switch tenants {
	case 0:
		s.writer.Write(s.run, valid)
		return
	case len(valid):
		s.tenantWriter.Write(s.run, valid)
		return
	}
	own := make([]*Add, 0, tenants)
	rest := make([]*Add, 0, len(valid)-tenants)
	for _, a := range valid {
		if a.Account != "" {
			own = append(own, a)
		} else {
			rest = append(rest, a)
		}
	}
	s.writer.Write(s.run, rest)
	s.tenantWriter.Write(s.run, own)
}

// refusal is an invalid add.
type refusal struct {
	a      *Add
	reason error
}

// validate parses an add and makes its record. An error of CodeUnavailable delays the add,
// any other rejects it. A panic of the parser rejects this add alone.
func (s *Service) validate(a *Add, parse parser) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.m.panics.Inc()
			s.o.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("the parser panicked on an add: the add is rejected")
			err = schemas.Errorf(schemas.CodeInvalidEvent, "the event cannot be parsed: %v", p)
		}
	}()
	if err := s.checkTenant(a); err != nil {
		return err
	}
	limits := s.o.Limits
	limits.Tenant = a.Tenant
	limits.MaxMessage = s.o.Store.MaxMessage() // of the server to which this node is connected at present
	var calendars recurrence.Calendars = addCalendars{s}
	if a.Tenant != "" {
		calendars = recurrence.UnknownCalendars // checkOfTenant refuses every calendar, so that no tenant learns which ones exist
	}
	rec, spec, err := parse(a.Header, a.Data, a.AddedMs, limits, calendars)
	if err != nil {
		return err
	}
	if a.Tenant != "" {
		if err := s.checkOfTenant(&spec); err != nil {
			return err
		}
		if err := s.callbacks.Load().CheckService(spec.Service); err != nil {
			return schemas.Errorf(schemas.CodeInvalidAttribute, "%s: %w", schemas.AttrService, err).About(schemas.AttrService)
		}
	}
	if spec.Callback != "" {
		if err := s.callbacks.Load().Check(spec.Callback, spec.Service); err != nil {
			return schemas.Errorf(schemas.CodeInvalidAttribute, "%s %q: %w", schemas.AttrCallback, schemas.RedactURL(spec.Callback), err).About(schemas.AttrCallback)
		}
	}
	if spec.Recurrence != nil {
		if err := s.o.Store.CanSchedule(); err != nil {
			return err
		}
	}
	if spec.Key != "" {
		if err := s.o.Store.CanOrder(); err != nil {
			return err
		}
	}
	a.Spec, a.Record = spec, rec
	s.carryTrace(a, limits.MaxMessage)
	return nil
}

// sameTimer reports whether an add made a record; see Operations.SameTimer.
func (s *Service) sameTimer(account string, header map[string][]string, data []byte, rec *schemas.Record) bool {
	if tenant, ok := s.tenantOf(account); !ok || tenant != schemas.TenantOf(rec.Service) {
		return false
	}
	_, spec, err := s.parse(header, data, rec.AddedMs, s.o.Limits, recurrence.UnknownCalendars)
	return err == nil && spec.Source == rec.Source && spec.EventID == rec.EventID
}

// outcomes counts the outcomes of adds and passes them to the receivers.
type outcomes struct{ s *Service }

// Store implements Sink.
func (o outcomes) Store(a *Add, result Result, rec *schemas.Record) {
	if !a.take() {
		return
	}
	o.s.m.adds.WithLabelValues(result.String()).Inc()
	a.endTrace(result, nil)
	a.Receiver.Settle(Outcome{Result: result, Timer: a.Spec.Timer, State: rec.State, DueMs: rec.DueMs, AddedMs: rec.AddedMs})
}

// Delay implements Sink.
func (o outcomes) Delay(a *Add, err error) {
	if !a.take() {
		return
	}
	if a.Seq != 0 {
		code := schemas.CodeOf(err)
		if code == "" {
			code = schemas.CodeUnavailable
		}
		o.s.m.delayed.WithLabelValues(string(code)).Inc()
	}
	a.endTrace(Delayed, err)
	a.Receiver.Settle(Outcome{Result: Delayed, Err: err})
}

// Reject implements Sink. An add of the stream is published to timers.rejected first.
func (o outcomes) Reject(a *Add, reason error) {
	if a.Seq != 0 {
		if err := o.s.publishRejected(a, reason); err != nil {
			o.Delay(a, err)
			return
		}
	}
	if !a.take() {
		return
	}
	o.s.m.adds.WithLabelValues(Rejected.String()).Inc()
	o.s.m.rejected.WithLabelValues(string(schemas.CodeOf(reason))).Inc()
	if a.Seq != 0 {
		o.s.logRejection(a, reason)
	}
	a.endTrace(Rejected, reason)
	a.Receiver.Settle(Outcome{Result: Rejected, Err: reason})
}

// publishRejected publishes an add to timers.rejected. An add that does not fit a message
// together with its reason is enclosed or split into parts; see store.PublishLetter.
func (s *Service) publishRejected(a *Add, reason error) error {
	if err := s.breakers.rejects.allow(); err != nil {
		return err
	}
	seq := strconv.FormatUint(a.Seq, 10)
	header := make(map[string][]string, len(a.Header)+3)
	for name, values := range a.Header {
		if !schemas.ReservedHeader(name) {
			header[name] = values
		}
	}
	header[schemas.HeaderErrorCode] = []string{string(schemas.CodeOf(reason))}
	header[schemas.HeaderError] = []string{HeaderText(reason.Error())}
	header[schemas.HeaderOriginalSequence] = []string{seq}
	if a.Account != "" {
		header[schemas.HeaderAccount] = []string{a.Account}
	}
	if a.Tenant != "" {
		header[schemas.HeaderTenant] = []string{a.Tenant}
	}
	// The message id makes a redelivered add one rejection.
	_, err := s.o.Store.PublishLetter(s.run, store.Msg{Subject: schemas.SubjectRejected, Header: header, Data: a.Data, MsgID: "add." + seq})
	s.breakers.rejects.note(err)
	return err
}

// logRejection logs an add that was put on timers.rejected.
func (s *Service) logRejection(a *Add, reason error) {
	suppressed, ok := s.rejections.Allow(time.Now())
	if !ok {
		return
	}
	e := s.o.Log.Warn()
	if source, id := eventName(a.Header, a.Data); source != "" || id != "" {
		e = e.Str("source", HeaderText(source)).Str("id", HeaderText(id))
	}
	e.Str("code", string(schemas.CodeOf(reason))).Err(reason).Uint64("sequence", a.Seq).
		Int("others_since_last_line", suppressed).Msg("add rejected: see belfry rejected ls")
}

// maxHeaderText bounds the text of an error in a header, in bytes.
const maxHeaderText = 1000

// HeaderText returns text as one header line: valid UTF-8 without control characters, at
// most maxHeaderText bytes of it.
func HeaderText(text string) string {
	if len(text) > maxHeaderText {
		text = text[:maxHeaderText]
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
}
