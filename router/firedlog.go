package router

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of a firedLog.
const (
	// firedLogMax is how many events it remembers, some 30 bytes each.
	firedLogMax = 1 << 20
	// firedLogKeep is how long it does so after somebody asked.
	firedLogKeep = time.Minute
)

// firedLog remembers which timers' first events it has read in TIMERS_FIRED, so
// that a backlog's batches read each event once, not each batch all of them.
type firedLog struct {
	read func(ctx context.Context, after uint64, since time.Time, fn func(msgID string) bool) (uint64, error)
	max  int
	keep time.Duration

	mu      sync.Mutex
	ids     map[schemas.TimerID]struct{} // nil: nothing read
	sinceMs int64                        // of what was read
	after   uint64                       // the last that was read
	// tooMany says until when it is no use to try.
	tooMany time.Time
	forget  *time.Timer
}

func newFiredLog(s Store) *firedLog {
	return &firedLog{read: s.FiredAfter, max: firedLogMax, keep: firedLogKeep}
}

// find tells which timers have fired since. ok is false if that is too much to
// remember.
func (l *firedLog) find(ctx context.Context, sinceMs int64, ids []schemas.TimerID) (fired map[schemas.TimerID]struct{}, ok bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.tooMany) {
		return nil, false, nil
	}
	if l.ids == nil || sinceMs < l.sinceMs {
		l.ids, l.sinceMs, l.after = map[schemas.TimerID]struct{}{}, sinceMs, 0
	}
	after, err := l.read(ctx, l.after, time.UnixMilli(l.sinceMs), func(msgID string) bool {
		if text, first := strings.CutSuffix(msgID, firstRun); first {
			// What is no timer's is somebody else's.
			if id, err := schemas.ParseTimerID(text); err == nil {
				l.ids[id] = struct{}{}
			}
		}
		return len(l.ids) <= l.max
	})
	switch {
	case err != nil:
		// What was read stays; it is read again.
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
	if l.forget == nil {
		l.forget = time.AfterFunc(l.keep, l.clear)
	} else {
		l.forget.Reset(l.keep)
	}
	return fired, true, nil
}

// firstRun ends the message id of a timer's first event.
const firstRun = ".1"

// clear forgets all.
func (l *firedLog) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = nil
}
