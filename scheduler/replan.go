package scheduler

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/skipped"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file plans the schedules of a shard again when the basis of their plans changes: the zone data
// or the calendars. The clock states the basis on which all schedules of the shard are planned. When
// the owner's basis differs, it reads all records of the shard once, and writes each schedule whose
// next run moves, by compare-and-set, as an update does. So a run that fires at the same time comes
// either before the new plan or after it. Then the owner writes the new basis into the clock. If it
// dies before that, the next owner starts again; a schedule that is planned already does not change.
// The owner cannot plan records of a newer format. If the shard has any, the clock keeps the old
// basis, the coordinators assign the shard to a node that reads the format, and that node reads the
// shard again.
//
// During a rolling upgrade owners have different zone data. An owner whose data is older than the
// basis moves nothing, and states its own basis: its turns plan with that basis, so the next owner
// with newer data reads the shard again. An older router may add a schedule to the shard of a newer
// owner: the owner plans each such record that the tail delivers.
//
//	basis differs ──▶ read up to maxReplan schedules to be changed ──▶ write them ──▶ ... ──▶ Clock.Basis
//	                        ▲                                             │
//	                        └─────────────────────────────────────────────┘

const (
	// replanEvery is the interval at which an owner compares its basis with that of the
	// shard's plans. It delays the new plans after a change.
	replanEvery = time.Second
	// replanAgain is the pause after a failure.
	replanAgain = 5 * time.Second
	// maxReplan bounds the schedules that are kept in memory until they are written.
	maxReplan = 256
	// replanTries bounds the writes of one schedule: each lost compare-and-set means that another
	// writer has changed the schedule.
	replanTries = 20
	// maxReplanLines bounds the lines about single schedules for each change of the basis;
	// the line with their number follows.
	maxReplanLines = 100
	// maxOlderPlans bounds the schedules with older zone data that wait to be planned again.
	// If more come, the owner reads the shard.
	maxOlderPlans = 256
)

// Basis returns the basis of plans that use this zone data, without calendars; see
// store.Clock.Basis.
func Basis(zones *calendar.ZoneData) string { return "zones=" + zones.Release() }

// basis returns the basis of this node's plans, and the calendars in it. known is false while the
// calendars are not known.
func (t *Term) basis() (basis string, cals recurrence.Calendars, known bool) {
	if t.cfg.Calendars == nil {
		return Basis(t.zones()), nil, true
	}
	set, fresh := t.cfg.Calendars()
	if !fresh {
		return "", nil, false
	}
	if basis = Basis(t.zones()); set.Seq > 0 {
		basis += ";calendars=" + strconv.FormatUint(set.Seq, 10)
	}
	return basis, set, true
}

// calendarCopy returns the node's copy of the calendars, nil if there is none.
func (t *Term) calendarCopy() (set *store.CalendarSet) {
	if t.cfg.Calendars != nil {
		set, _ = t.cfg.Calendars()
	}
	return set
}

// zones returns the zone data of this node.
func (t *Term) zones() *calendar.ZoneData { return cmp.Or(t.cfg.Core.Zones, calendar.ProcessZones()) }

// replan keeps the plans of the shard's schedules on the node's basis until the term ends.
func (t *Term) replan(ctx context.Context) {
	partial := "" // the basis of all plans except of records of a newer format
	for pause := replanEvery; t.host.Pause(ctx, pause); {
		pause = replanEvery
		if t.state.Load() != 1 {
			continue
		}
		basis, cals, known := t.basis()
		if !known {
			continue
		}
		before := *t.planned.Load()
		ids, all := t.older.take()
		if older(basis, before) {
			t.planned.Store(&basis)
			before = basis
		}
		if (basis == before || basis == partial) && !all {
			err := t.replanSome(ctx, ids, cals)
			if t.failed("replan", err); err != nil {
				t.older.all()
			} else {
				t.older.done()
			}
			continue
		}
		moved, unread, err := t.replanAll(ctx, cals)
		t.failed("replan", err)
		if err != nil {
			if all {
				t.older.all()
			}
			pause = replanAgain
			continue
		}
		if moved > 0 {
			t.log.Info().Str("before", before).Str("after", basis).Int("schedules", moved).Msg("next runs of schedules moved: zone data or calendars have changed")
		}
		if partial = ""; unread > 0 {
			partial = basis
		} else {
			t.planned.Store(&basis)
		}
		t.older.done()
	}
}

// replanAll plans all schedules of the shard again. It returns the number of those whose next
// run has moved, and the number of records of a newer format, which it reports to the core.
func (t *Term) replanAll(ctx context.Context, cals recurrence.Calendars) (moved, unread int, err error) {
	for after, more := uint64(0), true; more; {
		var found []store.Timer
		more = false
		err := t.cfg.Store.EachSchedule(ctx, t.cfg.Shard, after, func(s store.Timer) (bool, error) {
			after = s.Rev
			if s.Unread != store.Readable {
				unread++
				t.put(EvNewer{ID: s.ID, Rev: s.Rev})
				return true, nil
			}
			scratch := s
			if changed, err := t.replanned(&scratch, cals); err != nil || !changed {
				t.failed("plan schedule", err)
				return true, nil // the schedule's turn reports a plan that fails; the other schedules continue
			}
			found = append(found, s)
			more = len(found) == maxReplan
			return !more, nil
		})
		if err != nil {
			return moved, unread, err
		}
		for _, s := range found {
			changed, err := t.replanOne(ctx, s, cals, moved < maxReplanLines)
			if err != nil {
				return moved, unread, err
			}
			if changed {
				moved++
			}
		}
	}
	return moved, unread, nil
}

// replanned changes the record of a schedule to its new plan, and reports whether that
// moves its next run.
func (t *Term) replanned(s *store.Timer, cals recurrence.Calendars) (bool, error) {
	plan, err := recurrence.Basis{Zones: t.zones(), Calendars: cals}.PlanOf(s.ID, s.Record.Schedule)
	if err != nil {
		return false, err
	}
	return plan.Replan(&s.Record, t.cfg.Time.EarliestNs()/int64(time.Millisecond)), nil
}

// replanOne writes the new plan of a schedule, counts it, and logs it if log is set.
func (t *Term) replanOne(ctx context.Context, s store.Timer, cals recurrence.Calendars, log bool) (moved bool, err error) {
	for try := 1; ; try++ {
		old := s.Record.Schedule
		if moved, err = t.replanned(&s, cals); err != nil || !moved {
			return false, err
		}
		w := store.Write{ID: s.ID, Rev: s.Rev, Record: &s.Record}
		if s.Record.State.Final() {
			w.TTL = t.cfg.Core.Retention
		}
		if _, err = t.cfg.Store.Update(ctx, w); err == nil {
			t.m.replanned.Inc()
			t.m.skipped.Add(skipped.Between(old, s.Record.Schedule)...)
			if log {
				t.log.Info().Stringer("schedule", s.ID).Str("source", s.Record.Source).Str("id", s.Record.EventID).
					Str("before", schemas.FormatTime(old.NextMs)).Str("after", schemas.FormatTime(s.Record.Schedule.NextMs)).Msg("next run of a schedule moved")
			}
			return true, nil
		}
		if !isRevision(err) || try == replanTries {
			return false, err
		}
		if s, err = t.cfg.Store.GetAsOf(ctx, s.ID, s.Rev); err != nil {
			if gone(err) {
				return false, nil
			}
			return false, err
		}
		if s.Record.Schedule == nil {
			return false, nil // the schedule is gone, and a one-shot timer has its id
		}
	}
}

// older reports whether a basis has older zone data than another, and nothing else differs.
func older(basis, than string) bool {
	a, restA, _ := strings.Cut(basis, ";")
	b, restB, _ := strings.Cut(than, ";")
	return than != "" && restA == restB && a < b
}

// olderPlans has the schedules that the tail delivered and that were planned with zone data older than
// this build's, or with another copy of their calendars than the node's. It is safe for concurrent use.
type olderPlans struct {
	mu   sync.Mutex
	ids  []schemas.TimerID
	full bool
	// busy states that noted schedules may not be planned yet. The clock then states no basis,
	// so that the next owner reads the shard if this one dies.
	busy bool
}

// note notes a record of the tail. zones and cals are the zone data of the owner and its copy of the
// calendars, which may be nil. A record that is not a schedule costs one comparison.
func (o *olderPlans) note(t *store.Timer, zones *calendar.ZoneData, cals *store.CalendarSet) {
	s := t.Record.Schedule
	if s == nil || t.Record.State.Final() {
		return
	}
	if olderZones := s.Zones != "" && s.Zones < zones.Release(); !olderZones && !otherCalendars(s, cals) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = true
	if len(o.ids) < maxOlderPlans {
		o.ids = append(o.ids, t.ID)
	} else {
		o.full = true
	}
}

// otherCalendars reports whether the last turn or change of a schedule followed another copy of
// its calendars than cals. A router, or the turn itself, may decide by a copy that is older and
// still fresh, and store the schedule after the owner has planned all of them by a newer copy.
func otherCalendars(s *schemas.Schedule, cals *store.CalendarSet) bool {
	if len(s.Exclude) == 0 || cals == nil {
		return false
	}
	x, err := cals.Exclusions(s.Exclude)
	return err == nil && x.Revision != s.Calendars // with an error the schedule waits
}

// all makes the owner read the shard.
func (o *olderPlans) all() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.full, o.busy = true, true
}

// done notes that the schedules of the last take are planned.
func (o *olderPlans) done() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = o.full || len(o.ids) > 0
}

// waiting reports whether noted schedules may not be planned yet.
func (o *olderPlans) waiting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.busy
}

// take returns the schedules that were noted. full is true if there were more than maxOlderPlans.
func (o *olderPlans) take() (ids []schemas.TimerID, full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ids, full = o.ids, o.full
	o.ids, o.full = nil, false
	return ids, full
}

// replanSome plans the schedules that note has noted.
func (t *Term) replanSome(ctx context.Context, ids []schemas.TimerID, cals recurrence.Calendars) error {
	for i, id := range ids {
		s, err := t.cfg.Store.Get(ctx, id)
		switch {
		case gone(err), err == nil && s.Record.Schedule == nil:
			continue
		case err != nil:
			return err
		}
		if _, err := t.replanOne(ctx, s, cals, i < maxReplanLines); err != nil {
			return err
		}
	}
	return nil
}

// gone reports whether an error means that there is no record that this build can plan.
func gone(err error) bool {
	return errors.Is(err, schemas.ErrNotFound) || errors.Is(err, schemas.ErrNewer) || errors.Is(err, schemas.ErrDamaged)
}
