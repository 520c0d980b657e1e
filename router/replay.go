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
}

// readLetter decodes a dead letter.
func readLetter(m *jetstream.RawStreamMsg) (letter, error) {
	l := letter{raw: m}
	var err error
	if l.claim, err = schemas.ParseClaim(m.Header.Get(schemas.HeaderClaim)); err != nil {
		return l, err
	}
	if _, l.spec, l.fired, err = schemas.ParseFired(m.Header, m.Data); err != nil {
		return l, err
	}
	l.info = schemas.DeadInfo{
		Sequence: m.Sequence, Timer: l.claim.Timer, ID: l.spec.EventID, Source: l.spec.Source, Type: l.spec.Type, Service: l.spec.Service,
		Scheduled: schemas.FormatTime(l.fired.ScheduledMs), Died: schemas.FormatTime(m.Time.UnixMilli()), Attempts: l.claim.Attempt,
		ErrorCode: m.Header.Get(schemas.HeaderErrorCode), ErrorData: m.Header.Get(schemas.HeaderError),
	}
	return l, nil
}

func (r *Router) deadList(ctx context.Context, q schemas.DeadListRequest) (any, error) {
	dq := store.DeadQuery{Service: q.Service, Cursor: q.Cursor, Limit: q.Limit}
	if q.TimerRef != (schemas.TimerRef{}) {
		var err error
		if dq.TimerID, err = q.Resolve(); err != nil {
			return nil, err
		}
	}
	page, err := r.o.Store.DeadList(ctx, dq)
	if err != nil {
		return nil, err
	}
	reply := schemas.DeadListReply{Dead: make([]schemas.DeadInfo, 0, len(page.Letters)), Cursor: page.Cursor}
	for _, m := range page.Letters {
		l, err := readLetter(m)
		if err != nil {
			// Still a dead letter: show that it is there.
			l.info = schemas.DeadInfo{Sequence: m.Sequence, Service: schemas.ServiceOfSubject(m.Subject), Died: schemas.FormatTime(m.Time.UnixMilli()), ErrorCode: string(schemas.CodeUnknownFormat), ErrorData: err.Error()}
		}
		reply.Dead = append(reply.Dead, l.info)
	}
	return reply, nil
}

// replay puts dead letters back into the wheel, due now, with their attempts
// renewed. A letter is removed only after its record waits, so that a replay
// that is interrupted can be repeated.
func (r *Router) replay(ctx context.Context, q schemas.ReplayRequest) (any, error) {
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
	for {
		page, err := r.o.Store.DeadList(ctx, dq)
		if err != nil {
			return nil, err
		}
		for _, m := range page.Letters {
			l, err := readLetter(m)
			if err != nil {
				r.o.Log.Error().Err(err).Uint64("sequence", m.Sequence).Msg("dead letter cannot be replayed: it cannot be decoded")
				continue
			}
			if err := r.replayOne(ctx, l); err != nil {
				return nil, err
			}
			reply.Replayed++
			reply.Timers = append(reply.Timers, l.claim.Timer)
		}
		reply.More = page.Cursor != ""
		dq.Cursor = page.Cursor
		if page.Cursor == "" || reply.Replayed >= dq.Limit || !one && reply.Replayed > 0 {
			break
		}
	}
	if one && reply.Replayed == 0 {
		return nil, schemas.Errorf(schemas.CodeNotFound, "no dead letter of timer %s", dq.TimerID)
	}
	return reply, nil
}

func (r *Router) replayOne(ctx context.Context, l letter) error {
	body, err := schemas.StripFired(l.raw.Header, l.raw.Data)
	if err != nil {
		return err
	}
	if err := r.o.Store.RegisterService(ctx, l.spec.Service); err != nil {
		return err
	}
	for {
		t, err := r.o.Store.Get(ctx, l.claim.Timer)
		missing := errors.Is(err, schemas.ErrNotFound)
		if err != nil && !missing {
			return err
		}
		if !missing && t.Record.State != schemas.StateFail {
			break // replayed before, or another timer's by now
		}
		rec := t.Record
		if missing {
			t = store.Timer{ID: l.claim.Timer}
			rec = schemas.Record{
				Run: l.claim.Run, Attempt: l.claim.Attempt, ScheduledMs: l.fired.ScheduledMs, AddedMs: l.claim.AddedMs, FiredMs: l.claim.FiredMs,
				Hash: l.claim.Hash, Service: l.spec.Service, Group: l.spec.Group, Callback: l.spec.Callback,
				Source: l.spec.Source, EventID: l.spec.EventID, Type: l.spec.Type,
			}
		}
		rec.State, rec.Queued, rec.Body, rec.DoneMs = schemas.StateRetrying, true, body, 0
		rec.DueMs = r.nowMs()
		rec.NextMs = rec.DueMs
		// At least 1, so that it goes to functions alone: timers.fired had it.
		rec.Attempt = max(rec.Attempt, 1)
		rec.MaxAttempt = rec.Attempt + l.spec.MaxAttempts
		_, err = r.o.Store.Update(ctx, store.Write{ID: t.ID, Rev: t.Rev, Record: &rec})
		if err == nil {
			break
		}
		if !errors.Is(err, store.ErrRevision) {
			return err
		}
	}
	return r.o.Store.DeadDelete(ctx, l.raw.Sequence)
}
