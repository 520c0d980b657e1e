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
	// firedLookupMax bounds the timers in memory, about 55 bytes each.
	firedLookupMax = 1 << 20
	// firedLookupKeep is how long the ids stay in memory after the last search. After a search
	// that found too many events, find also refuses searches for this time.
	firedLookupKeep = time.Minute
)

// firedLookup finds timers whose first event is in TIMERS_FIRED. It keeps the ids and times of the
// events that it has read, so the many batches of a backlog read each event once. Safe for
// concurrent use.
type firedLookup struct {
	// read is FiredReader.FiredAfter.
	read func(ctx context.Context, subjects []string, after uint64, since time.Time, fn func(msgID string, atMs int64) bool) (uint64, error)
	max  int
	keep time.Duration

	mu sync.Mutex
	// lastMs has the time of the last such event of each timer, in Unix milliseconds; nil if no events are in memory.
	lastMs  map[schemas.TimerID]int64
	sinceMs int64  // lastMs has all events since this time, in Unix milliseconds
	after   uint64 // the last sequence in lastMs
	// tooMany is the time until which find refuses searches, because the stream had more than
	// max events.
	tooMany time.Time
	timer   *time.Timer // calls clear
}

func newFiredLookup(r FiredReader) *firedLookup {
	return &firedLookup{read: r.FiredAfter, max: firedLookupMax, keep: firedLookupKeep}
}

// find returns the time of the last first event of each timer of ids that has one, in Unix milliseconds. It finds all such
// events since sinceMs, and some older ones. ok is false if TIMERS_FIRED has events of more than max timers since
// then: the caller must search in another way. Errors: schemas.ErrUnavailable.
func (l *firedLookup) find(ctx context.Context, sinceMs int64, ids []schemas.TimerID) (lastMs map[schemas.TimerID]int64, ok bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.tooMany) {
		return nil, false, nil
	}
	if l.lastMs == nil || sinceMs < l.sinceMs {
		l.lastMs, l.sinceMs, l.after = map[schemas.TimerID]int64{}, sinceMs, 0
	}
	after, err := l.read(ctx, nil, l.after, time.UnixMilli(l.sinceMs), func(msgID string, atMs int64) bool {
		if id, ok := firstFired(msgID); ok {
			l.lastMs[id] = max(l.lastMs[id], atMs)
		}
		return len(l.lastMs) <= l.max
	})
	switch {
	case err != nil:
		// Keep the ids read so far. after is unchanged, so the next search reads their events again.
		return nil, false, err
	case len(l.lastMs) > l.max:
		l.lastMs, l.tooMany = nil, time.Now().Add(l.keep)
		return nil, false, nil
	}
	l.after = after
	lastMs = map[schemas.TimerID]int64{}
	for _, id := range ids {
		if ms, known := l.lastMs[id]; known {
			lastMs[id] = ms
		}
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(l.keep, l.clear)
	} else {
		l.timer.Reset(l.keep)
	}
	return lastMs, true, nil
}

// firstRunSuffix ends the message id of a timer's first event.
const firstRunSuffix = ".1"

// firstFired returns the timer whose first event has a message id; false for the id of another event. Message ids
// that do not parse belong to other publishers.
func firstFired(msgID string) (schemas.TimerID, bool) {
	text, first := strings.CutSuffix(msgID, firstRunSuffix)
	if !first {
		return schemas.TimerID{}, false
	}
	id, err := schemas.ParseTimerID(text)
	return id, err == nil
}

// clear drops the events.
func (l *firedLookup) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastMs = nil
}
