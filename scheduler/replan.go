package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file plans the schedules of a shard again when something changes that their next runs
// depend on: the basis of the plans. The clock states the basis on which all schedules of the
// shard are planned. When the owner's basis differs, it reads all records of the shard once,
// and writes each schedule whose next run moves, by compare-and-set, as an update does. So a
// run that fires at the same time comes either before the new plan or after it. Then it
// writes the new basis into the clock. If the owner dies before that, the next owner starts
// again; a schedule that is planned already does not change.
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
	// replanTries bounds the writes of one schedule: each lost compare-and-set means that
	// somebody else has changed the schedule.
	replanTries = 20
)

// Basis returns what the plans of this build's schedules are based on.
func Basis() string { return "zones=" + calendar.ZoneDataVersion }

// replan keeps the plans of the shard's schedules on the node's basis until the term ends.
func (t *Term) replan(ctx context.Context) {
	for pause := replanEvery; t.host.Pause(ctx, pause); {
		pause = replanEvery
		basis := Basis()
		if basis == *t.planned.Load() || t.state.Load() != 1 {
			continue
		}
		moved, err := t.replanAll(ctx)
		t.failed("replan", err)
		if err != nil {
			pause = replanAgain
			continue
		}
		if moved > 0 {
			t.log.Info().Str("before", *t.planned.Load()).Str("after", basis).Int("schedules", moved).Msg("next runs of schedules moved: what they depend on has changed")
		}
		t.planned.Store(&basis)
	}
}

// replanAll plans all schedules of the shard again, and returns the number of those whose
// next run has moved.
func (t *Term) replanAll(ctx context.Context) (moved int, err error) {
	for after, more := uint64(0), true; more; {
		var found []store.Timer
		more = false
		err := t.cfg.Store.EachSchedule(ctx, t.cfg.Shard, after, func(s store.Timer) (bool, error) {
			after = s.Rev
			scratch := s
			if changed, err := t.replanned(&scratch); err != nil || !changed {
				t.failed("plan schedule", err)
				return true, nil // a plan that fails is the turn's affair; the others go on
			}
			found = append(found, s)
			more = len(found) == maxReplan
			return !more, nil
		})
		if err != nil {
			return moved, err
		}
		for _, s := range found {
			changed, err := t.replanOne(ctx, s)
			if err != nil {
				return moved, err
			}
			if changed {
				moved++
			}
		}
	}
	return moved, nil
}

// replanned changes the record of a schedule to its new plan, and reports whether that
// moves its next run.
func (t *Term) replanned(s *store.Timer) (bool, error) {
	plan, err := recurrence.PlanOf(s.ID, s.Record.Schedule)
	if err != nil {
		return false, err
	}
	return plan.Replan(&s.Record, t.cfg.Time.EarliestNs()/int64(time.Millisecond)), nil
}

// replanOne writes the new plan of a schedule.
func (t *Term) replanOne(ctx context.Context, s store.Timer) (moved bool, err error) {
	for try := 1; ; try++ {
		if moved, err = t.replanned(&s); err != nil || !moved {
			return false, err
		}
		w := store.Write{ID: s.ID, Rev: s.Rev, Record: &s.Record}
		if s.Record.State.Final() {
			w.TTL = t.cfg.Core.Retention
		}
		if _, err = t.cfg.Store.Update(ctx, w); err == nil || !isRevision(err) || try == replanTries {
			return err == nil, err
		}
		if s, err = t.cfg.Store.Get(ctx, s.ID); err != nil {
			if errors.Is(err, schemas.ErrNotFound) || errors.Is(err, schemas.ErrNewer) || errors.Is(err, schemas.ErrDamaged) {
				return false, nil
			}
			return false, err
		}
		if s.Record.Schedule == nil {
			return false, nil // the schedule is gone, and a one-shot timer has its id
		}
	}
}
