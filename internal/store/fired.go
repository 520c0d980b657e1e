package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// FiredSince returns the message ids among ids that were published since a time on the given
// subjects of TIMERS_FIRED, TIMERS_RETRY, TIMERS_DEAD and TIMERS_OVERDUE. It reads every message
// of the subjects since then, so it is for recovery and audits. In TIMERS_RETRY it ignores the
// time and reads all messages of the subjects. Errors: schemas.ErrUnavailable.
func (e *Events) FiredSince(ctx context.Context, subjects []string, since time.Time, ids map[string]struct{}) (map[string]struct{}, error) {
	found := map[string]struct{}{}
	for stream, prefix := range map[string]string{schemas.StreamFired: schemas.SubjectFiredPrefix, schemas.StreamRetry: schemas.SubjectRetryPrefix, schemas.StreamDead: schemas.SubjectDeadPrefix,
		schemas.StreamOverdue: schemas.SubjectOverduePrefix} {
		var filter []string
		for _, sub := range subjects {
			if strings.HasPrefix(sub, prefix) {
				filter = append(filter, sub)
			}
		}
		if len(filter) == 0 {
			continue
		}
		find := e.findIDs
		if stream == schemas.StreamRetry {
			find = e.findQueued // a work queue refuses a second consumer of a subject
		}
		if err := find(ctx, stream, filter, since, ids, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// findIDs adds the ids that were published to a stream since a time to found.
func (e *Events) findIDs(ctx context.Context, stream string, filter []string, since time.Time, ids, found map[string]struct{}) error {
	slices.Sort(filter)
	return e.find(ctx, stream, jet.Range{Filters: filter, Since: since, HeadersOnly: true}, ids, found)
}

// find adds the ids that are in a range of a stream to found.
func (e *Events) find(ctx context.Context, stream string, events jet.Range, ids, found map[string]struct{}) error {
	return e.jet.Scan(ctx, stream, events, func(m jet.Msg) (bool, error) {
		id := jet.MsgID(m.Header)
		if _, asked := ids[id]; asked {
			found[id] = struct{}{}
		}
		return len(found) < len(ids), nil
	})
}

// followSpare is room in a request of FollowFired for subjects and headers of the server, in bytes.
const followSpare = 64 << 10

// firedEventsBound bounds the time of FiredEvents.
const firedEventsBound = 10 * time.Second

// FollowFired passes the events of a subject of TIMERS_FIRED to fn, in their order and one at a
// time: the events after a sequence, or if the stream has not come to that, the events that are stored from
// now on. First it calls begun with the sequence after which it begins. It has few messages in
// memory, so fn may take long. It continues after failures, without a gap, until ctx ends; events
// that have left the stream are missing. Errors, before begun: schemas.ErrUnavailable.
func (e *Events) FollowFired(ctx context.Context, subject string, after uint64, begun func(after uint64), fn func(*Letter), interrupted func(error)) error {
	info, err := e.jet.Stream(ctx, schemas.StreamFired)
	if err != nil {
		return err
	}
	after = min(after, info.State.LastSeq)
	begun(after)
	e.jet.FollowSlowly(ctx, schemas.StreamFired, subject, after, e.jet.MaxPayload()+followSpare, func(m *jet.Msg) { fn(letterOf(m)) }, interrupted)
	return nil
}

// FiredEvents passes the events of a subject that TIMERS_FIRED has now after a sequence to fn, in their
// order, until fn returns false. It has few messages in memory, as FollowFired. Errors: schemas.ErrUnavailable;
// what fn has got then follows the sequence without a gap, too.
func (e *Events) FiredEvents(ctx context.Context, subject string, after uint64, fn func(*Letter) bool) error {
	last, err := e.jet.Last(ctx, schemas.StreamFired, subject)
	switch {
	case errors.Is(err, schemas.ErrNotFound), err == nil && last.Sequence <= after:
		return nil
	case err != nil:
		return err
	}
	// The last event may leave the stream meanwhile. Then the next one, or the end of the time, ends this.
	following, end := context.WithTimeout(ctx, firedEventsBound)
	defer end()
	done := false
	var failed error
	e.jet.FollowSlowly(following, schemas.StreamFired, subject, after, e.jet.MaxPayload()+followSpare, func(m *jet.Msg) {
		if !done && (!fn(letterOf(m)) || m.Sequence >= last.Sequence) {
			done = true
			end()
		}
	}, func(err error) { failed = err })
	if done {
		return nil
	}
	return schemas.Errorf(schemas.CodeUnavailable, "read %s: the events up to %d did not come within %s: %w", schemas.StreamFired, last.Sequence, firedEventsBound, cmp.Or(ctx.Err(), failed, following.Err()))
}

// FiredNewest returns the sequence of the newest event of TIMERS_FIRED, whatever its subject; 0 if it never had
// one. Errors: schemas.ErrUnavailable.
func (e *Events) FiredNewest(ctx context.Context) (uint64, error) {
	info, err := e.jet.Stream(ctx, schemas.StreamFired)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

// Bounds of FindFired.
const (
	// findFiredMax bounds the events that it reads, findFiredBatch those of one request, and
	// findFiredBytes the bytes of one answer.
	findFiredMax   = 4096
	findFiredBatch = 512
	findFiredBytes = 1 << 20
)

// FindFired returns the sequence in TIMERS_FIRED of the event with a message id, among the events of a
// service since a time; 0 if the stream no longer has it, or it is not among the first findFiredMax of
// them. Any replica may answer and be behind. Errors: schemas.ErrUnavailable.
func (e *Events) FindFired(ctx context.Context, service, msgID string, since time.Time) (uint64, error) {
	get := jet.Get{NextFor: schemas.SubjectFired(service), StartTime: &since, Batch: findFiredBatch, MaxBytes: findFiredBytes}
	if e.moved != nil { // since is a moved time, and the stream has the server's
		get.StartTime, get.Seq = nil, 1
	}
	for read := 0; read < findFiredMax; {
		a, err := e.jet.Direct(ctx, schemas.StreamFired, get)
		if err != nil || len(a.Msgs) == 0 {
			return 0, err
		}
		for _, m := range a.Msgs {
			if jet.MsgID(m.Header) == msgID {
				return m.Sequence, nil
			}
		}
		read += len(a.Msgs)
		get.StartTime, get.Seq = nil, a.Msgs[len(a.Msgs)-1].Sequence+1
	}
	return 0, nil
}

// FiredAfter passes to fn the message id and the time (Unix milliseconds) of each event of TIMERS_FIRED after a
// sequence or, if that is 0 or not in this stream, since a time. subjects are those of the events; none means all.
// It stops when fn returns false. It returns the sequence to continue from, with the same subjects. Errors:
// schemas.ErrUnavailable.
func (e *Events) FiredAfter(ctx context.Context, subjects []string, after uint64, since time.Time, fn func(msgID string, atMs int64) bool) (uint64, error) {
	const all = schemas.SubjectFiredPrefix + "*"
	if len(subjects) == 0 {
		subjects = []string{all}
	}
	events := jet.Range{Filters: subjects, HeadersOnly: true, Since: since}
	if after > 0 {
		switch m, err := e.jet.Last(ctx, schemas.StreamFired, all); {
		case errors.Is(err, schemas.ErrNotFound), err == nil && m.Sequence == after:
			return after, nil
		case err != nil:
			return after, err
		case m.Sequence < after:
			after = 0
		default:
			events.AfterSeq, events.Since = after, time.Time{}
		}
	}
	err := e.jet.Scan(ctx, schemas.StreamFired, events, func(m jet.Msg) (bool, error) {
		after = m.Sequence
		return fn(jet.MsgID(m.Header), m.Time.UnixMilli()), nil
	})
	return after, err
}

// findQueued is findIDs for a work queue. It reads the messages of the subjects by direct
// gets, whatever their time, until it has found all ids.
func (e *Events) findQueued(ctx context.Context, stream string, filter []string, _ time.Time, ids, found map[string]struct{}) error {
	for _, subject := range filter {
		for after := uint64(0); ; {
			msgs, more, err := e.jet.Next(ctx, stream, subject, after, scanBatch)
			if err != nil {
				return err
			}
			for _, m := range msgs {
				after = m.Sequence
				if id := jet.MsgID(m.Header); id != "" {
					if _, asked := ids[id]; asked {
						found[id] = struct{}{}
					}
				}
			}
			if len(found) == len(ids) {
				return nil
			}
			if more == 0 || len(msgs) == 0 {
				break
			}
		}
	}
	return nil
}
