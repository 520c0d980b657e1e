package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file carries out the actions of schedules.

const (
	// endRunTries bounds the writes that end a run. A lost compare-and-set means that the run has made progress,
	// which cannot happen often in this time, or that a server has answered which led the stream before.
	endRunTries = 15
	// endRunPause is the first pause between them, and endRunMaxPause the longest. All take 11 s.
	endRunPause    = 50 * time.Millisecond
	endRunMaxPause = time.Second
)

// createRuns carries out the ActCreateRuns of one pass.
func (t *Term) createRuns(all []ActCreateRun) {
	t.later(0, func(ctx context.Context) {
		writes := make([]store.Write, 0, len(all))
		ids := make([]schemas.TimerID, 0, len(all))
		for _, a := range all {
			if a.Rev != 0 {
				rev, err := t.replaceRun(ctx, a)
				t.failed("create run", err)
				t.put(EvRunCreated{ID: a.ID, Rev: rev, Err: err})
				continue
			}
			ids = append(ids, a.ID)
			writes = append(writes, store.Write{ID: a.ID, Record: a.Record})
		}
		for i, res := range t.cfg.Store.Create(ctx, writes) {
			if !isRevision(res.Err) && !store.Permanent(res.Err) {
				t.failed("create run", res.Err)
			}
			t.put(EvRunCreated{ID: ids[i], Rev: res.Rev, Err: res.Err})
		}
	})
}

// putIndexes carries out the ActIndex of one pass that are ahead of a claim. Schedules that
// are due in the same tick share index entries: many schedules have the same next due time.
func (t *Term) putIndexes(all []ActIndex) {
	type group struct {
		tick  int64
		delay time.Duration // after a failure; see ActIndex
	}
	shared := make(map[group][]schemas.TimerID, 2)
	for _, a := range all {
		g := group{a.Tick, a.Delay}
		shared[g] = append(shared[g], a.Record)
	}
	for _, a := range all { // in the order of the actions, so that a simulation can be repeated
		g := group{a.Tick, a.Delay}
		ids := shared[g]
		if ids == nil {
			continue
		}
		delete(shared, g)
		t.later(g.delay, func(ctx context.Context) {
			err := t.cfg.Store.PutIndexes(ctx, a.Tick, ids)
			t.failed("index", err)
			for _, id := range ids {
				t.put(EvIndexed{ID: id, Record: id, Tick: a.Tick, Ahead: true, Err: err})
			}
		})
	}
}

// replaceRun carries out an ActCreateRun that replaces a revision.
func (t *Term) replaceRun(ctx context.Context, a ActCreateRun) (rev uint64, err error) {
	if err := t.cfg.Store.PutIndex(ctx, a.ID, t.cfg.Core.Geometry.Tick(a.Record.DueMs)); err != nil {
		return 0, err
	}
	return t.cfg.Store.Update(ctx, store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record})
}

// look reports whether the callback of a run has no result. A run without a record has
// concluded: its record has expired. A damaged record counts as concluded too, because
// nothing would ever conclude it, and the schedule must not stop for it. The callback of a
// record of a newer format counts as open: a node of that version works on it.
//
// The state is that of the record, and 0 for a run without a readable record.
func (t *Term) look(ctx context.Context, a ActLook) (state schemas.RunState, open bool, err error) {
	got, err := t.cfg.Store.Get(ctx, a.Run)
	if errors.Is(err, schemas.ErrNotFound) { // a record that is not the newest one only delays the schedule
		got, err = t.cfg.Store.GetAsOf(ctx, a.Run, a.Seen)
	}
	switch {
	case err == nil:
		return got.Record.RunState, !got.Record.State.Final(), nil
	case errors.Is(err, schemas.ErrNotFound), errors.Is(err, schemas.ErrDamaged):
		return state, false, nil
	case errors.Is(err, schemas.ErrNewer) && !a.Result:
		return state, true, nil
	}
	return state, false, err
}

// publishOverdue publishes an overdue event.
func (t *Term) publishOverdue(a ActOverdue) {
	log := t.log.Warn()
	suppressed, ok := t.overdueLog.Allow(time.Unix(0, 0).Add(t.host.Monotonic()))
	if !ok {
		log = t.log.Debug() // the metric counts every case
	}
	log.Str("event", a.Msg.MsgID).Str("subject", a.Msg.Subject).Uint32("count", a.Count).Int("suppressed", suppressed).
		Msg("schedule is overdue: no success by the deadline of timerexpect")
	t.cfg.Store.PublishAsync(a.Msg, func(_ uint64, duplicate bool, err error) {
		switch {
		case store.Permanent(err): // its dead letter is logged
		case err != nil:
			t.failed("publish overdue", err)
		case !duplicate:
			t.m.overdue.Add(float64(a.Count))
		}
		t.put(EvPublished{ID: a.ID, Duplicate: duplicate, Err: err})
	})
}

// endRun carries out ActEndRun.
func (t *Term) endRun(ctx context.Context, a ActEndRun) error {
	pause := endRunPause
	for try := 1; ; try++ {
		err := t.tryEndRun(ctx, a)
		if err == nil || !isRevision(err) && !errors.Is(err, store.ErrBehind) || try == endRunTries || !t.host.Pause(ctx, pause) {
			return err
		}
		pause = min(2*pause, endRunMaxPause)
	}
}

func (t *Term) tryEndRun(ctx context.Context, a ActEndRun) error {
	got, err := t.cfg.Store.GetAsOf(ctx, a.ID, a.Seen)
	if err != nil {
		return err
	}
	w := store.Write{ID: a.ID, Rev: got.Rev, Record: &got.Record}
	if !recurrence.EndRun(w.Record, t.cfg.Time.EarliestNs()/int64(time.Millisecond), a.By) {
		return nil
	}
	if w.Record.State.Final() {
		w.TTL = t.cfg.Core.Retention
	}
	_, err = t.cfg.Store.Update(ctx, w)
	return err
}

// skipped counts and logs nominal times that a schedule has skipped.
func (t *Term) skipped(a ActSkipped) {
	t.m.skipped.Add(a.Skipped...)
	for _, d := range a.Skipped {
		log := t.log.Info()
		suppressed, ok := t.skipLog.Allow(time.Unix(0, 0).Add(t.host.Monotonic()))
		if !ok {
			log = t.log.Debug() // the metric counts every case
		}
		log.Stringer("schedule", a.ID).Stringer("reason", d.Kind).Uint32("count", d.Count).Time("from", time.UnixMilli(d.FromMs)).Time("to", time.UnixMilli(d.ToMs)).
			Int("suppressed", suppressed).Msg("schedule skipped nominal times")
	}
}
