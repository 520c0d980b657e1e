package router

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// maxReplay is how many dead letters one call replays.
const maxReplay = 500

// letter is a dead letter, read.
type letter struct {
	info  schemas.DeadInfo
	claim schemas.Claim
	spec  schemas.Spec
	fired schemas.Fired
	raw   *jetstream.RawStreamMsg
	// sealed is the error of decrypting the callback. The record still has the callback
	// until it expires.
	sealed error
}

// readLetter decodes a dead letter.
func (r *Router) readLetter(m *jetstream.RawStreamMsg) (letter, error) {
	l := letter{raw: m}
	var err error
	if l.claim, err = schemas.ParseClaim(m.Header.Get(schemas.HeaderClaim)); err != nil {
		return l, err
	}
	if _, l.spec, l.fired, err = schemas.ParseFired(m.Header, m.Data); err != nil {
		return l, err
	}
	if sealed := m.Header.Get(schemas.HeaderCallback); sealed != "" {
		l.spec.Callback, l.sealed = r.o.Store.OpenCallback(l.claim.Timer, sealed)
	}
	l.info = schemas.DeadInfo{
		Sequence: m.Sequence, Timer: l.claim.Timer, ID: l.spec.EventID, Source: l.spec.Source, Type: l.spec.Type, Service: l.spec.Service,
		Scheduled: schemas.TimeOf(l.fired.ScheduledMs), Died: m.Time.UTC(), Attempts: l.claim.Attempt,
		ErrorCode: m.Header.Get(schemas.HeaderErrorCode), ErrorData: m.Header.Get(schemas.HeaderError), Consumer: m.Header.Get(schemas.HeaderConsumer),
	}
	return l, nil
}

func (r *Router) deadList(ctx context.Context, q schemas.DeadListRequest) (any, error) {
	dq := store.DeadQuery{Service: q.Service, Cursor: q.Cursor}
	if q.TimerRef != (schemas.TimerRef{}) {
		var err error
		if dq.TimerID, err = q.Resolve(); err != nil {
			return nil, err
		}
	}
	return r.fit(q.Limit, func(limit int) (any, int, error) {
		dq.Limit = limit
		page, err := r.o.Store.DeadList(ctx, dq)
		if err != nil {
			return nil, 0, err
		}
		reply := schemas.DeadListReply{Dead: make([]schemas.DeadInfo, 0, len(page.Letters)), Cursor: page.Cursor}
		for _, m := range page.Letters {
			l, err := r.readLetter(m)
			if err != nil {
				// Still a dead letter: show that it is there.
				l.info = schemas.DeadInfo{Sequence: m.Sequence, Service: schemas.ServiceOfSubject(m.Subject), Died: m.Time.UTC(), ErrorCode: string(schemas.CodeDamaged), ErrorData: err.Error()}
			}
			reply.Dead = append(reply.Dead, l.info)
		}
		return reply, len(reply.Dead), nil
	})
}

// replay puts dead letters back into the wheel, due now, with their attempts
// renewed. A letter is removed only after its record waits, so that a replay
// that is interrupted can be repeated. A letter that cannot be replayed stays.
func (r *Router) replay(ctx context.Context, q schemas.ReplayRequest, from schemas.Caller) (any, error) {
	by, err := claimed(from, q.By)
	if err != nil {
		return nil, err
	}
	dq := store.DeadQuery{Service: q.Service, Limit: maxReplay}
	if q.Limit != 0 {
		if q.Limit < 1 || q.Limit > maxReplay {
			return nil, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, maxReplay)
		}
		dq.Limit = q.Limit
	}
	one := q.TimerRef != (schemas.TimerRef{})
	switch {
	case one == (q.Service != ""):
		return nil, schemas.Errorf(schemas.CodeBadRequest, "name what to replay: a timer (timer, or id and source), or a service")
	case one:
		var err error
		if dq.TimerID, err = q.Resolve(); err != nil {
			return nil, err
		}
	}
	reply := schemas.ReplayReply{Timers: []schemas.TimerID{}}
	var refused error
	for {
		page, err := r.o.Store.DeadList(ctx, dq)
		if err != nil {
			return partly(ctx, reply, err)
		}
		for _, m := range page.Letters {
			l, err := r.readLetter(m)
			if err == nil {
				err = r.replayOne(ctx, l, by)
			}
			switch code := schemas.CodeOf(err); {
			case err == nil:
				reply.Replayed++
				reply.Timers = append(reply.Timers, l.claim.Timer)
			case code == schemas.CodeUnavailable || code == schemas.CodeStoreFull || code == "":
				return partly(ctx, reply, err)
			default:
				refused = err
				r.o.Log.Error().Err(err).Uint64("sequence", m.Sequence).Msg("dead letter cannot be replayed; it stays")
			}
		}
		reply.More = page.Cursor != ""
		dq.Cursor = page.Cursor
		if page.Cursor == "" || reply.Replayed >= dq.Limit || !one && reply.Replayed > 0 {
			break
		}
	}
	switch {
	case reply.Replayed == 0 && refused != nil && !reply.More:
		return nil, refused
	case one && reply.Replayed == 0:
		return nil, schemas.Errorf(schemas.CodeNotFound, "no dead letter of timer %s", dq.TimerID)
	}
	return reply, nil
}

// partly answers with what was replayed before an error, or before the time was
// up; if that is nothing, with the error.
func partly(ctx context.Context, reply schemas.ReplayReply, err error) (any, error) {
	if reply.Replayed == 0 || errors.Is(ctx.Err(), context.Canceled) {
		return nil, err
	}
	reply.More = true
	return reply, nil
}

// replayOne puts one letter back. Errors: bad_request for one of a consumer of
// fired events (the Go client's Handle); conflict if its id is another timer's
// by now; unavailable while functions is about to write the failure down.
func (r *Router) replayOne(ctx context.Context, l letter, by schemas.Caller) error {
	if c := l.info.Consumer; c != "" {
		return schemas.Errorf(schemas.CodeBadRequest, "dead letter %d is from consumer %s of %s and has no callback to replay; publishing the event again would reach every consumer: add it under another id", l.raw.Sequence, c, schemas.SubjectFired(l.info.Service))
	}
	body, err := schemas.StripFired(l.raw.Header, l.raw.Data)
	if err != nil {
		return schemas.Errorf(schemas.CodeDamaged, "dead letter %d: %w", l.raw.Sequence, err)
	}
	if l.undeliverable() {
		if err := body.CheckSize(r.o.Store.MaxMessage()); err != nil {
			return schemas.Errorf(schemas.CodeTooLarge, "dead letter %d was not replayed, because it would become a dead letter again: %w", l.raw.Sequence, err)
		}
	}
	for {
		t, err := r.o.Store.Get(ctx, l.claim.Timer)
		missing := errors.Is(err, schemas.ErrNotFound)
		if err != nil && !missing {
			return err
		}
		again, err := l.replayable(t.Record, missing)
		if err != nil {
			return err
		}
		if !again {
			break
		}
		rec := t.Record
		if missing && l.sealed != nil {
			return schemas.Errorf(schemas.CodeDamaged, "dead letter %d was not replayed, because its record has expired and its callback cannot be decrypted: %w", l.raw.Sequence, l.sealed)
		}
		if missing {
			t = store.Timer{ID: l.claim.Timer}
			rec = l.record()
		}
		rec.Replay(body, l.spec.MaxAttempts, !l.undeliverable(), r.nowMs(), by)
		_, err = r.o.Store.Update(ctx, store.Write{ID: t.ID, Rev: t.Rev, Record: &rec})
		if err == nil {
			r.audit(l.claim.Timer, &rec)
			break
		}
		if !errors.Is(err, store.ErrRevision) {
			return err
		}
	}
	return r.o.Store.DeadDelete(ctx, l.raw.Sequence)
}

// undeliverable reports whether the letter's event was never published, and so
// never called back.
func (l *letter) undeliverable() bool { return l.info.ErrorCode == schemas.ReasonUndeliverable }

// replayable tells whether a letter's record is to be put back. If it is not, and
// there is no error, a former replay has done so.
func (l *letter) replayable(rec schemas.Record, missing bool) (bool, error) {
	switch {
	case missing:
		return true, nil
	case rec.Hash != l.claim.Hash:
		return false, schemas.Errorf(schemas.CodeConflict, "source %.200q and id %.200q are another timer's by now, which is %s; its dead letter %d stays", rec.Source, rec.EventID, rec.State, l.raw.Sequence)
	case rec.State == schemas.StateFail:
		return true, nil
	case l.undeliverable() && rec.FiredMs == l.claim.FiredMs && (rec.State == schemas.StateDelivered || rec.State == schemas.StatePending || rec.State == schemas.StateRetrying):
		// The letter is published before the record is written, and a replay changes
		// FiredMs.
		return false, schemas.Errorf(schemas.CodeUnavailable, "the failure of timer %s is still being written; nothing was changed: try again", l.claim.Timer)
	case rec.Attempt < l.claim.Attempt && (rec.State == schemas.StateDelivered || rec.State == schemas.StateRetrying):
		// The letter is published before the record is written.
		return false, schemas.Errorf(schemas.CodeUnavailable, "the failure of timer %s is still being written; nothing was changed: try again", l.claim.Timer)
	}
	return false, nil
}

// record is the letter's, made anew after its expiry.
func (l *letter) record() schemas.Record {
	return schemas.Record{
		Run: l.claim.Run, Attempt: l.claim.Attempt, ScheduledMs: l.fired.ScheduledMs, AddedMs: l.claim.AddedMs, FiredMs: l.claim.FiredMs,
		Hash: l.claim.Hash, Service: l.spec.Service, Group: l.spec.Group, Callback: l.spec.Callback,
		Source: l.spec.Source, EventID: l.spec.EventID, Type: l.spec.Type,
	}
}
