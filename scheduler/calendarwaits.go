package scheduler

import (
	"slices"
	"strings"
	"sync"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// calendarWaits are the calendars that do not exist, for which due schedules of a shard wait. A
// schedule that waits is turned again at least every maxRetryDelay. It is safe for concurrent use.
type calendarWaits struct {
	mu     sync.Mutex
	byName map[string]calendarWait // at most store.MaxCalendarWaits
}

// calendarWait is the last schedule that was found to wait for a calendar, and when, in Unix
// nanoseconds of the cluster's time.
type calendarWait struct {
	schedule schemas.TimerID
	atNs     int64
}

// calendarWaitNs is the age from which a calendarWait counts as over.
const calendarWaitNs = int64(5 * maxRetryDelay)

// note notes a schedule that cannot be planned.
func (w *calendarWaits) note(a ActUnplanned, nowNs int64) {
	if a.Calendar == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expire(nowNs)
	if _, known := w.byName[a.Calendar]; !known && len(w.byName) == store.MaxCalendarWaits {
		return
	}
	if w.byName == nil {
		w.byName = map[string]calendarWait{}
	}
	w.byName[a.Calendar] = calendarWait{a.ID, nowNs}
}

// expire removes the schedules that have not waited for some time.
func (w *calendarWaits) expire(nowNs int64) {
	for name, c := range w.byName {
		if nowNs-c.atNs > calendarWaitNs {
			delete(w.byName, name)
		}
	}
}

// list adds the calendars to into.
func (w *calendarWaits) list(into map[string]schemas.TimerID, nowNs int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expire(nowNs)
	for name, c := range w.byName {
		into[name] = c.schedule
	}
}

// CalendarWaits returns the calendars that do not exist, for which due schedules of this node's
// shards wait, by name; at most store.MaxCalendarWaits.
func (s *Scheduler) CalendarWaits() []store.CalendarWait {
	all := map[string]schemas.TimerID{}
	for _, sh := range s.shards {
		sh.waits.list(all, s.o.Time.EarliestNs())
	}
	var out []store.CalendarWait
	for name, id := range all {
		out = append(out, store.CalendarWait{Calendar: name, Schedule: id})
	}
	slices.SortFunc(out, func(a, b store.CalendarWait) int { return strings.Compare(a.Calendar, b.Calendar) })
	return out[:min(len(out), store.MaxCalendarWaits)]
}
