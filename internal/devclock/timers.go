package devclock

import (
	"slices"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// timers has the last revision of each record, from the tails of the shards.
type timers struct {
	mu      sync.Mutex
	all     map[schemas.TimerID]*timer
	seen    []uint64 // by shard
	changes uint64
	changed chan struct{} // has an entry after a change
}

// timer is the part of a record that a Mover needs. Times are Unix milliseconds.
type timer struct {
	rev      uint64
	state    schemas.State
	due      int64 // when it fires next, 0 if it does not wait for that
	done     int64 // when it ended
	learned  time.Time
	order    orderKey
	schedule bool // a schedule without an end
}

type orderKey struct{ service, key string }

func newTimers(shards int) *timers {
	return &timers{all: map[schemas.TimerID]*timer{}, seen: make([]uint64, shards), changed: make(chan struct{}, 1)}
}

// note takes a revision from the tail of a shard.
func (s *timers) note(shard int, t *store.Timer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	s.seen[shard] = max(s.seen[shard], t.Rev)
	if t.Unread == store.Readable {
		r := &t.Record
		e := &timer{rev: t.Rev, state: r.State, learned: time.Now()}
		if r.Pending() {
			e.due = r.DueMs
		}
		if r.State.Final() {
			e.done = r.DoneMs
		}
		if r.Key != "" {
			e.order = orderKey{r.Service, r.Key}
		}
		if sch := r.Schedule; sch != nil {
			e.schedule = sch.EndMs == 0 && sch.Limit == 0
		}
		s.all[t.ID] = e
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// view is the state of all timers at a time of the clock.
type view struct {
	changes uint64
	seen    []uint64
	// open has the timers that are due or have fired, and have no result.
	open []schemas.TimerID
	// next is the first due time after now, 0 if there is none; pending counts them.
	next    int64
	pending int
}

func (s *timers) at(nowMs int64) view {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := view{changes: s.changes, seen: slices.Clone(s.seen)}
	// An event that waits for its turn behind a later retry has no result before that.
	behind := map[orderKey]bool{}
	for _, t := range s.all {
		if t.order.key != "" && t.state == schemas.StateRetrying && t.due > nowMs {
			behind[t.order] = true
		}
	}
	for id, t := range s.all {
		switch {
		case t.due > nowMs:
			v.pending++
			if v.next == 0 || t.due < v.next {
				v.next = t.due
			}
		case t.due > 0, (t.state == schemas.StateDelivered || t.state == schemas.StateRetrying) && !behind[t.order]:
			v.open = append(v.open, id)
		}
	}
	slices.SortFunc(v.open, func(a, b schemas.TimerID) int { return slices.Compare(a[:], b[:]) })
	return v
}

// endless returns at most most schedules that wait for a run and have no end.
func (s *timers) endless(most int) (ids []schemas.TimerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.all {
		if t.schedule && t.due > 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b schemas.TimerID) int { return slices.Compare(a[:], b[:]) })
	return ids[:min(len(ids), most)]
}

// expired removes and returns the revisions of the timers that ended before a time. learned is the
// time at which the Mover read the newest of them.
func (s *timers) expired(beforeMs int64) (revs map[schemas.TimerID]uint64, learned time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revs = map[schemas.TimerID]uint64{}
	for id, t := range s.all {
		if t.state.Final() && t.done < beforeMs {
			revs[id] = t.rev
			if t.learned.After(learned) {
				learned = t.learned
			}
			delete(s.all, id)
		}
	}
	return revs, learned
}
