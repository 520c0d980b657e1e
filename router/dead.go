package router

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// maxReplay bounds the dead letters that one call replays.
const maxReplay = 500

// letter is a decoded dead letter.
type letter struct {
	info  schemas.DeadInfo
	claim schemas.Claim
	spec  schemas.Spec
	fired schemas.Fired
	raw   *store.Letter
	// sealed is the error of decrypting the callback. The record still has the callback
	// until it expires.
	sealed error
}

// readLetter decodes a dead letter.
func (s *Service) readLetter(m *store.Letter) (letter, error) {
	l := letter{raw: m}
	var err error
	if l.claim, err = schemas.ParseClaim(m.Get(schemas.HeaderClaim)); err != nil {
		return l, err
	}
	if _, l.spec, l.fired, err = schemas.ParseFired(m.Header, m.Data); err != nil {
		return l, err
	}
	l.spec.Of(schemas.ServiceOfSubject(m.Subject))
	if sealed := m.Get(schemas.HeaderCallback); sealed != "" {
		l.spec.Callback, l.sealed = s.o.Store.OpenCallback(l.claim.Timer, sealed)
	}
	l.info = schemas.DeadInfo{
		Sequence: m.Sequence, Timer: l.claim.Timer, ID: l.spec.EventID, Source: l.spec.Source, Type: l.spec.Type,
		Scheduled: schemas.TimeOf(l.fired.ScheduledMs), Died: m.Stored.UTC(), Attempts: l.claim.Attempt,
		ErrorCode: m.Get(schemas.HeaderErrorCode), ErrorData: m.Get(schemas.HeaderError), Consumer: m.Get(schemas.HeaderConsumer),
	}
	l.info.Tenant, l.info.Service = schemas.SplitService(l.spec.Service)
	l.info.Host = callbackHost(l.spec.Callback)
	if !l.claim.Schedule.IsZero() {
		l.info.Schedule, l.info.Run = l.claim.Schedule, l.claim.Run
	}
	return l, nil
}

// callbackHost returns the host of an HTTP callback; "" for any other.
func callbackHost(callback string) string {
	u, err := url.Parse(callback)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	return strings.ToLower(u.Host)
}

// DeadList returns a page of dead letters. Errors: bad_request, invalid_timer_id,
// unavailable.
func (s *Service) DeadList(ctx context.Context, q schemas.DeadListRequest) (schemas.DeadListReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.DeadListReply, err error) {
		dq := store.DeadQuery{Service: q.Service, Cursor: q.Cursor, Limit: q.Limit}
		if dq.Service, dq.Tenant, err = s.scope.selects(q.Service); err != nil {
			return reply, err
		}
		if q.TimerRef != (schemas.TimerRef{}) {
			if dq.TimerID, dq.Run, err = s.scope.deadRef(q.TimerRef); err != nil {
				return reply, err
			}
		}
		page, err := s.o.Store.DeadList(ctx, dq)
		if err != nil {
			return reply, err
		}
		reply = schemas.DeadListReply{Dead: make([]schemas.DeadInfo, 0, len(page.Letters)), Cursor: page.Cursor}
		for _, m := range page.Letters {
			l, _ := s.deadInfo(m)
			reply.Dead = append(reply.Dead, l.info)
		}
		return reply, nil
	})
}

// deadInfo is readLetter, but also describes a letter that cannot be decoded.
func (s *Service) deadInfo(m *store.Letter) (letter, error) {
	l, err := s.readLetter(m)
	if err != nil {
		tenant, service := schemas.SplitService(schemas.ServiceOfSubject(m.Subject))
		l.info = schemas.DeadInfo{Sequence: m.Sequence, Service: service, Tenant: tenant, Died: m.Stored.UTC(), ErrorCode: string(schemas.CodeDamaged), ErrorData: err.Error()}
	}
	return l, err
}

// deadRef returns the timer whose dead letters a request names, and the run if it names one.
func (sc *Scope) deadRef(ref schemas.TimerRef) (id schemas.TimerID, run uint32, err error) {
	if r, ok := ref.Run(); ok {
		return r.Timer, r.Run, nil
	}
	id, err = ref.Resolve(sc.Tenant)
	return id, 0, err
}

// DeadReplay puts dead letters back into the wheel: they are due at once, with all attempts
// again. A letter is removed only after its record is written, so an interrupted replay can be
// repeated. A letter that cannot be replayed stays. from is the verified part of the
// caller, q.By the caller's own claim. Errors: bad_request, invalid_timer_id, not_found,
// conflict, damaged, too_large, store_full, unavailable.
func (s *Service) DeadReplay(ctx context.Context, q schemas.ReplayRequest, from schemas.Caller) (schemas.ReplayReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.ReplayReply, err error) {
		by, err := claimed(from, q.By)
		if err != nil {
			return reply, err
		}
		dq := store.DeadQuery{Limit: maxReplay}
		if dq.Service, dq.Tenant, err = s.scope.selects(q.Service); err != nil {
			return reply, err
		}
		if q.Limit != 0 {
			if q.Limit < 1 || q.Limit > maxReplay {
				return reply, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, maxReplay)
			}
			dq.Limit = q.Limit
		}
		one := q.TimerRef != (schemas.TimerRef{})
		switch {
		case one == (q.Service != ""):
			return reply, schemas.Errorf(schemas.CodeBadRequest, "select the dead letters to replay: by timer (timer, or id and source), or by service")
		case one:
			if dq.TimerID, dq.Run, err = s.scope.deadRef(q.TimerRef); err != nil {
				return reply, err
			}
		}
		if one && s.diedAt(ctx, &dq) {
			reply, err := s.replay(ctx, dq, one, by)
			if reply.Replayed > 0 || schemas.CodeOf(err) != schemas.CodeNotFound {
				return reply, err
			}
			dq.Since, dq.Until = time.Time{}, time.Time{}
		}
		return s.replay(ctx, dq, one, by)
	})
}

// diedWithin bounds the time between a dead letter and the end of its timer by the record.
const diedWithin = time.Minute

// diedAt limits a query for the letters of a timer to the time at which the timer failed by its record, so that
// the others need not be read. It returns false if there is no such time. The letter may still be outside of it:
// after a crash between the letter and the record, for example.
func (s *Service) diedAt(ctx context.Context, dq *store.DeadQuery) bool {
	id := dq.TimerID
	if dq.Run != 0 {
		id = schemas.RunTimer(id, dq.Run)
	}
	t, err := s.o.Store.Get(ctx, id)
	if err != nil || t.Record.State != schemas.StateFail || t.Record.DoneMs == 0 {
		return false
	}
	done := schemas.TimeOf(t.Record.DoneMs)
	dq.Since, dq.Until = done.Add(-diedWithin), done.Add(diedWithin)
	return true
}

// replay replays the letters that a query selects: all of one timer, or one page of a
// service.
func (s *Service) replay(ctx context.Context, dq store.DeadQuery, one bool, by schemas.Caller) (schemas.ReplayReply, error) {
	reply := schemas.ReplayReply{Timers: []schemas.TimerID{}}
	var refused error
	for {
		page, err := s.o.Store.DeadList(ctx, dq)
		if err != nil {
			return partly(ctx, reply, err)
		}
		for _, m := range page.Letters {
			l, err := s.readLetter(m)
			if err == nil {
				err = s.replayOne(ctx, l, 0, by)
			}
			switch code := schemas.CodeOf(err); {
			case err == nil:
				reply.Replayed++
				reply.Timers = append(reply.Timers, l.claim.Timer)
			case code == schemas.CodeUnavailable || code == schemas.CodeStoreFull || code == "":
				return partly(ctx, reply, err)
			default:
				refused = err
				s.o.Log.Error().Err(err).Uint64("sequence", m.Sequence).Msg("the dead letter cannot be replayed: it stays in the stream")
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
		return reply, refused
	case one && reply.Replayed == 0:
		return reply, schemas.Errorf(schemas.CodeNotFound, "no dead letter of timer %s", dq.TimerID)
	}
	return reply, nil
}

// partly returns reply if letters were replayed before the error, else the error.
func partly(ctx context.Context, reply schemas.ReplayReply, err error) (schemas.ReplayReply, error) {
	if reply.Replayed == 0 || errors.Is(ctx.Err(), context.Canceled) {
		return reply, err
	}
	reply.More = true
	return reply, nil
}

// replayOne puts one letter back, due at dueMs (Unix milliseconds), but not before the present. Errors:
// bad_request for a letter of a consumer of fired events (the Go client's Handle); conflict if its id
// belongs to another timer meanwhile; unavailable while functions has published the letter but not yet
// written the record.
func (s *Service) replayOne(ctx context.Context, l letter, dueMs int64, by schemas.Caller) error {
	if c := l.info.Consumer; c != "" {
		return schemas.Errorf(schemas.CodeBadRequest, "dead letter %d is from consumer %s of %s and has no callback to replay; publishing the event again would reach every consumer: add it under another id", l.raw.Sequence, c, schemas.SubjectFired(l.info.Service))
	}
	body, err := schemas.StripFired(l.raw.Header, l.raw.Data)
	if err != nil {
		return schemas.Errorf(schemas.CodeDamaged, "dead letter %d: %w", l.raw.Sequence, err)
	}
	if l.undeliverable() {
		if err := body.CheckSize(s.o.Store.MaxMessage()); err != nil {
			return schemas.Errorf(schemas.CodeTooLarge, "dead letter %d was not replayed, because it would become a dead letter again: %w", l.raw.Sequence, err)
		}
	}
	for {
		t, err := s.o.Store.GetAsOf(ctx, l.claim.Timer, l.claim.Revision)
		older := errors.Is(err, store.ErrBehind) // the record may be from before the claim
		if older {
			t, err = s.o.Store.Get(ctx, l.claim.Timer)
		}
		missing := errors.Is(err, schemas.ErrNotFound)
		if err != nil && !missing {
			return err
		}
		again, err := l.replayable(t.Record, missing)
		if err != nil {
			return err
		}
		if !again {
			if older && !t.Record.State.Final() {
				// By an earlier record the letter seems to be replayed. A write shows whether it is the newest one:
				// then the stream has lost the claim, and the timer fires again.
				if _, err := rewrite(ctx, s.o.Store, &t); err != nil {
					return schemas.Errorf(schemas.CodeUnavailable, "the newest record of timer %s cannot be read at present; nothing was changed: try again (%w)", l.claim.Timer, err)
				}
			}
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
		rec.Replay(body, l.spec.MaxAttempts, !l.undeliverable(), s.nowMs(), by)
		if dueMs > rec.DueMs {
			rec.DueMs, rec.NextMs = dueMs, dueMs
		}
		if l.claim.Deferred > 0 && rec.Attempt == 0 {
			// The event was on timers.fired before it waited for its slot.
			rec.Deferral = &schemas.Deferral{Count: l.claim.Deferred}
		}
		_, err = s.o.Store.Update(ctx, store.Write{ID: t.ID, Rev: t.Rev, Record: &rec})
		if err == nil {
			s.audit(&store.Timer{ID: l.claim.Timer, Record: rec})
			break
		}
		if !errors.Is(err, store.ErrRevision) {
			return err
		}
	}
	return s.o.Store.DeadDelete(ctx, l.raw.Sequence)
}

// undeliverable reports whether the letter's event was never published, so that its callback was never
// made.
func (l *letter) undeliverable() bool { return l.info.ErrorCode == schemas.ReasonUndeliverable }

// replayable reports whether a letter's record must be written. If not, and without an
// error, an earlier replay has written it.
func (l *letter) replayable(rec schemas.Record, missing bool) (bool, error) {
	switch {
	case missing:
		return true, nil
	case rec.Hash != l.claim.Hash:
		return false, schemas.Errorf(schemas.CodeConflict, "source %.200q and id %.200q belong to another timer now, which is %s; its dead letter %d stays", rec.Source, rec.EventID, rec.State, l.raw.Sequence)
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

// record restores the letter's record after it has expired.
func (l *letter) record() schemas.Record {
	r := l.claim.Record(&l.spec, l.fired)
	r.Retry = l.spec.Shared()
	return r
}
