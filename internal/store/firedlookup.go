package store

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of a firedLookup.
const (
	// firedLookupMax bounds the timer ids in memory, about 30 bytes each.
	firedLookupMax = 1 << 20
	// firedLookupKeep is how long the ids stay in memory after the last search. After a search
	// that found too many events, find also refuses searches for this time.
	firedLookupKeep = time.Minute
)

// firedLookup finds timers whose first event is in TIMERS_FIRED. It keeps the ids of the
// events that it has read, so the many batches of a backlog read each event once. Safe for
// concurrent use.
type firedLookup struct {
	// read is FiredReader.FiredAfter.
	read func(ctx context.Context, after uint64, since time.Time, fn func(msgID string) bool) (uint64, error)
	max  int
	keep time.Duration

	mu      sync.Mutex
	ids     map[schemas.TimerID]struct{} // nil if no events are in memory
	sinceMs int64                        // ids has all events since this time, in Unix milliseconds
	after   uint64                       // the last sequence in ids
	// tooMany is the time until which find refuses searches, because the stream had more than
	// max events.
	tooMany time.Time
	timer   *time.Timer // calls clear
}

func newFiredLookup(r FiredReader) *firedLookup {
	return &firedLookup{read: r.FiredAfter, max: firedLookupMax, keep: firedLookupKeep}
}

// find returns the subset of ids, the timers that fired since sinceMs (Unix milliseconds). ok is
// false if TIMERS_FIRED has more than max events since then: the caller must search in
// another way. Errors: schemas.ErrUnavailable.
func (l *firedLookup) find(ctx context.Context, sinceMs int64, ids []schemas.TimerID) (fired map[schemas.TimerID]struct{}, ok bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.tooMany) {
		return nil, false, nil
	}
	if l.ids == nil || sinceMs < l.sinceMs {
		l.ids, l.sinceMs, l.after = map[schemas.TimerID]struct{}{}, sinceMs, 0
	}
	after, err := l.read(ctx, l.after, time.UnixMilli(l.sinceMs), func(msgID string) bool {
		if text, first := strings.CutSuffix(msgID, firstRunSuffix); first {
			// Message ids that do not parse belong to other publishers.
			if id, err := schemas.ParseTimerID(text); err == nil {
				l.ids[id] = struct{}{}
			}
		}
		return len(l.ids) <= l.max
	})
	switch {
	case err != nil:
		// Keep the ids read so far. after is unchanged, so the next search reads their events again.
		return nil, false, err
	case len(l.ids) > l.max:
		l.ids, l.tooMany = nil, time.Now().Add(l.keep)
		return nil, false, nil
	}
	l.after = after
	fired = map[schemas.TimerID]struct{}{}
	for _, id := range ids {
		if _, known := l.ids[id]; known {
			fired[id] = struct{}{}
		}
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(l.keep, l.clear)
	} else {
		l.timer.Reset(l.keep)
	}
	return fired, true, nil
}

// firstRunSuffix ends the message id of a timer's first event.
const firstRunSuffix = ".1"

// clear drops the ids.
func (l *firedLookup) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = nil
}
