package router

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Results of an add, as the metric's label has them.
const (
	resultAccepted  = "accepted"
	resultDuplicate = "duplicate"
	resultRejected  = "rejected"
)

// add is one add under way: from the stream (msg set) or from the API (reply set).
type add struct {
	hdr     nats.Header
	data    []byte
	addedMs int64
	seq     uint64
	msg     jetstream.Msg
	reply   func(schemas.AddReply, error)

	spec schemas.Spec
	rec  schemas.Record
}

// batcher groups adds: whatever waits while others are being written.
type batcher struct {
	r     *Router
	in    chan *add
	slots chan struct{}
}

func newBatcher(r *Router) *batcher {
	return &batcher{r: r, in: make(chan *add, maxBatch), slots: make(chan struct{}, maxParallel)}
}

// put blocks while the batcher is full: the back-pressure of the way in.
func (b *batcher) put(a *add) { b.in <- a }

func (b *batcher) close() { close(b.in) }

func (b *batcher) loop() {
	var wg sync.WaitGroup
	defer wg.Wait()
	for a := range b.in {
		b.slots <- struct{}{}
		batch := b.gather(a)
		wg.Go(func() {
			defer func() { <-b.slots }()
			b.r.process(batch)
		})
	}
}

// gather takes what waits, without waiting for more.
func (b *batcher) gather(first *add) []*add {
	batch := append(make([]*add, 0, 16), first)
	for len(batch) < maxBatch {
		select {
		case a, ok := <-b.in:
			if !ok {
				return batch
			}
			batch = append(batch, a)
		default:
			return batch
		}
	}
	return batch
}

// process validates and writes a batch.
func (r *Router) process(batch []*add) {
	r.m.batch.Observe(float64(len(batch)))
	todo := batch[:0:0]
	for _, a := range batch {
		if err := r.validate(a); err != nil {
			r.reject(a, err)
			continue
		}
		todo = append(todo, a)
	}
	for wait := retryPause; len(todo) > 0; wait = min(2*wait, retryMax) {
		todo = r.write(todo)
		if len(todo) == 0 {
			return
		}
		for _, a := range todo {
			// Not a redelivery yet; a failure to say so only means one more duplicate.
			_ = a.msg.InProgress()
		}
		if !pause(r.run, wait) {
			return
		}
	}
}

// validate parses an add. A panic in parsing is a refusal of this add alone.
func (r *Router) validate(a *add) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.o.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("an add made the parser panic; it is rejected")
			err = schemas.Errorf(schemas.CodeInvalidEvent, "the event cannot be parsed: %v", p)
		}
	}()
	body, spec, err := schemas.ParseAdd(a.hdr, a.data, a.addedMs, r.o.Limits)
	if err != nil {
		return err
	}
	a.spec = spec
	a.rec = schemas.Record{
		State: schemas.StatePending, Queued: true, Run: 1, MaxAttempt: spec.MaxAttempts,
		DueMs: spec.DueMs, ScheduledMs: spec.DueMs, AddedMs: a.addedMs, Hash: spec.Hash,
		Service: spec.Service, Group: spec.Group, Callback: spec.Callback, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Body: body,
	}
	return nil
}

// write creates the records and returns the adds that have to be tried again.
// Adds of one timer are written one after the other, in their order.
func (r *Router) write(adds []*add) (again []*add) {
	for len(adds) > 0 {
		var now, later []*add
		seen := make(map[schemas.TimerID]struct{}, len(adds))
		for _, a := range adds {
			if _, twice := seen[a.spec.Timer]; twice {
				later = append(later, a)
				continue
			}
			seen[a.spec.Timer] = struct{}{}
			now = append(now, a)
		}
		again = append(again, r.create(now)...)
		adds = later
	}
	return again
}

func (r *Router) create(adds []*add) (again []*add) {
	ready := adds[:0:0]
	for _, a := range adds {
		switch done, err := r.prepare(a); {
		case err != nil:
			again = r.failed(again, a, err)
		case !done:
			ready = append(ready, a)
		}
	}
	if len(ready) == 0 {
		return again
	}
	writes := make([]store.Write, len(ready))
	for i, a := range ready {
		writes[i] = store.Write{ID: a.spec.Timer, Record: &a.rec}
	}
	for i, res := range r.o.Store.Create(r.run, writes) {
		a := ready[i]
		err := res.Err
		if errors.Is(err, store.ErrRevision) {
			if err = r.exists(a); err == nil {
				continue
			}
		}
		switch {
		case err != nil:
			again = r.failed(again, a, err)
		default:
			r.accept(a, resultAccepted, &a.rec)
		}
	}
	return again
}

// prepare does what comes before the record: the service is registered, and an
// add that may have fired and expired already is looked up. done says that the
// add needs no record.
func (r *Router) prepare(a *add) (done bool, err error) {
	if a.spec.Callback != "" {
		if err := r.o.Store.RegisterService(r.run, a.spec.Service); err != nil {
			return false, err
		}
	}
	// Only a record that could have been made by an earlier delivery of this very
	// add, and could have concluded and expired since, leaves no trace of its own.
	expired := max(a.rec.DueMs, a.addedMs) + r.o.Store.Retention().Milliseconds()
	if a.msg == nil || expired > r.o.Time.LatestNs()/int64(time.Millisecond) {
		return false, nil
	}
	id := a.spec.Timer.MsgID(1)
	subjects := []string{schemas.SubjectFired(a.spec.Service)}
	found, err := r.o.Store.FiredSince(r.run, subjects, time.UnixMilli(a.rec.DueMs-1000), map[string]struct{}{id: {}})
	if err != nil {
		return false, err
	}
	if _, fired := found[id]; fired {
		a.rec.State = schemas.StateSuccess
		r.accept(a, resultDuplicate, &a.rec)
		return true, nil
	}
	return false, nil
}

// exists settles an add whose record is there: a duplicate, or a conflict.
func (r *Router) exists(a *add) error {
	t, err := r.o.Store.Get(r.run, a.spec.Timer)
	if errors.Is(err, schemas.ErrNotFound) {
		return schemas.Errorf(schemas.CodeUnavailable, "the record expired while it was looked at")
	}
	if err != nil {
		return err
	}
	if t.Record.Hash != a.rec.Hash {
		r.reject(a, schemas.Errorf(schemas.CodeConflict, "source %.200q and id %.200q are taken by another timer, %s, which is %s: use another id, or reschedule that one",
			a.spec.Source, a.spec.EventID, a.spec.Timer, t.Record.State))
		return nil
	}
	if t.Record.Queued {
		// The first try may have died, or failed, between index entry and record.
		if err := r.o.Store.PutIndex(r.run, t.ID, r.o.Store.Geometry().Tick(t.Record.DueMs)); err != nil {
			return err
		}
	}
	r.accept(a, resultDuplicate, &t.Record)
	return nil
}

// failed keeps a stream's add for another try, and answers an API's.
func (r *Router) failed(again []*add, a *add, err error) []*add {
	if a.msg == nil {
		a.reply(schemas.AddReply{}, err)
		return again
	}
	r.m.requests.WithLabelValues("store", string(schemas.CodeOf(err))).Inc()
	r.o.Log.Warn().Err(err).Uint64("sequence", a.seq).Msg("add not stored; trying again")
	return append(again, a)
}

func (r *Router) accept(a *add, result string, rec *schemas.Record) {
	r.m.adds.WithLabelValues(result).Inc()
	if a.msg == nil {
		a.reply(schemas.AddReply{Timer: a.spec.Timer, Due: schemas.FormatTime(rec.DueMs), Duplicate: result == resultDuplicate, State: rec.State}, nil)
		return
	}
	r.ack(a)
}

func (r *Router) ack(a *add) {
	if err := a.msg.Ack(); err != nil {
		r.o.Log.Warn().Err(err).Uint64("sequence", a.seq).Msg("add stored and not acknowledged; it comes again, as a duplicate")
	}
}

// reject answers, or puts the add on timers.rejected before it is acknowledged.
func (r *Router) reject(a *add, reason error) {
	code := schemas.CodeOf(reason)
	r.m.adds.WithLabelValues(resultRejected).Inc()
	r.m.rejected.WithLabelValues(string(code)).Inc()
	if a.msg == nil {
		a.reply(schemas.AddReply{}, reason)
		return
	}
	m := store.Msg{Subject: schemas.SubjectRejected, Header: nats.Header{}, Data: a.data, MsgID: "add." + strconv.FormatUint(a.seq, 10)}
	for name, values := range a.hdr {
		if lower := strings.ToLower(name); !strings.HasPrefix(lower, "nats-") && !strings.HasPrefix(lower, "belfry-") {
			m.Header[name] = values
		}
	}
	m.Header[schemas.HeaderErrorCode] = []string{string(code)}
	m.Header[schemas.HeaderError] = []string{headerText(reason.Error())}
	m.Header[schemas.HeaderOriginalSequence] = []string{strconv.FormatUint(a.seq, 10)}
	for wait := retryPause; ; wait = min(2*wait, retryMax) {
		_, _, err := r.o.Store.Publish(r.run, m)
		if err == nil {
			r.ack(a)
			return
		}
		if errors.Is(err, nats.ErrMaxPayload) || schemas.CodeOf(err) == schemas.CodeTooLarge || isTooLarge(err) {
			// Original and reason do not fit one message: the start of it does.
			m.Data = m.Data[:min(len(m.Data), 64<<10)]
			m.Header[schemas.HeaderError] = []string{headerText(fmt.Sprintf("%v (cut to its first %d bytes)", reason, len(m.Data)))}
		}
		r.o.Log.Warn().Err(err).Uint64("sequence", a.seq).Msg("rejected add cannot be published; trying again")
		if !pause(r.run, wait) {
			return
		}
	}
}

func isTooLarge(err error) bool {
	var api *jetstream.APIError
	const messageExceedsMaximum = 10054
	return errors.As(err, &api) && api.ErrorCode == messageExceedsMaximum
}

// headerText makes any text fit one header line.
func headerText(s string) string {
	if len(s) > 1000 {
		s = s[:1000]
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
}
