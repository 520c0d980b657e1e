package router

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// maxWalk bounds the nominal times that Runs computes backwards from the last one of a
// range of decisions, each at about 20 steps of the calendar.
const maxWalk = 200

// Runs returns a page of the runs of a schedule, newest first. Errors: bad_request,
// invalid_timer_id, not_found, unavailable.
func (s *Service) Runs(ctx context.Context, q schemas.RunsRequest) (schemas.RunsReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.RunsReply, err error) {
		limit := q.Limit
		if limit == 0 {
			limit = schemas.DefaultRuns
		}
		if limit < 1 || limit > schemas.MaxRuns {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, schemas.MaxRuns)
		}
		t, err := s.ops.Get(ctx, q.TimerRef)
		if err != nil {
			return reply, err
		}
		p, err := s.ops.schedulePlan(t.ID, &t.Record, "list the runs", s.calendars(ctx))
		if err != nil {
			return reply, err
		}
		before := uint64(t.Record.Run)
		if q.Cursor != "" {
			if before, err = strconv.ParseUint(q.Cursor, 10, 32); err != nil {
				return reply, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q does not come from an answer of runs", q.Cursor)
			}
			before = min(before, uint64(t.Record.Run))
		} else {
			for _, d := range slices.Backward(t.Record.Schedule.Decisions) {
				reply.Decisions = append(reply.Decisions, t.Record.Schedule.Info(&d))
			}
		}
		h := runHistory{id: t.ID, rec: &t.Record, plan: p}
		reply.Runs = []schemas.RunInfo{}
		for n := before; n > 1 && len(reply.Runs) < limit; n-- {
			reply.Runs = append(reply.Runs, h.run(uint32(n-1)))
		}
		if n := before - uint64(len(reply.Runs)); n > 1 {
			reply.Cursor = strconv.FormatUint(n, 10)
		}
		return reply, s.readRuns(ctx, t.ID, reply.Runs)
	})
}

// readRuns completes runs from their own records, which runs with a callback have.
func (s *Service) readRuns(ctx context.Context, id schemas.TimerID, runs []schemas.RunInfo) error {
	var mu sync.Mutex
	var failed error
	all := make([]*schemas.RunInfo, len(runs))
	for i := range runs {
		all[i] = &runs[i]
	}
	each(all, func(r *schemas.RunInfo) {
		t, err := s.o.Store.Get(ctx, schemas.RunTimer(id, r.Run))
		switch {
		case err == nil:
			addRecord(r, &t, s.nowMs())
		case errors.Is(err, schemas.ErrNotFound):
		default:
			mu.Lock()
			failed = err
			mu.Unlock()
		}
	})
	return failed
}

// addRecord completes a run from its record. nowMs is the cluster's time.
func addRecord(r *schemas.RunInfo, t *store.Timer, nowMs int64) {
	info := schemas.FromRecord(t.ID, &t.Record, t.Rev)
	r.Timer, r.Scheduled, r.State, r.Fired, r.Done, r.Attempts, r.Outcome = t.ID, info.Scheduled, info.State, info.Fired, info.Done, info.Attempts, info.Outcome
	if o := info.Origin; o != nil {
		r.Missed, r.Trigger = o.Missed, o.Trigger
	}
	if o := t.Record.Origin; o != nil && o.DeadlineMs != 0 {
		success := t.Record.State == schemas.StateSuccess
		r.Overdue = success && t.Record.DoneMs > o.DeadlineMs || !success && nowMs > o.DeadlineMs
	}
}

// runHistory describes the runs of a schedule from its record.
type runHistory struct {
	id   schemas.TimerID
	rec  *schemas.Record
	plan *recurrence.Plan
	// walked are the last nominal times of the range walkedAt, newest first.
	walked   []int64
	walkedAt int
}

// run describes a run.
func (h *runHistory) run(n uint32) schemas.RunInfo {
	s := h.rec.Schedule
	r := schemas.RunInfo{Run: n, ID: schemas.RunID{Timer: h.id, Run: n}.String()}
	if h.rec.Callback == "" {
		r.State = schemas.StateSuccess // it fired, and has no callback
	}
	for i := range s.Decisions {
		d := &s.Decisions[i]
		if !d.Kind.Fires() || n < d.Run || n-d.Run >= d.Count {
			continue
		}
		if ms := h.nominal(i, d.Count-1-(n-d.Run)); ms != 0 {
			r.Scheduled = schemas.TimeOf(ms)
		}
		switch d.Kind {
		case schemas.DecisionTriggered:
			r.Trigger = schemas.TriggerManual.String()
		case schemas.DecisionBackfilled:
			r.Trigger = schemas.TriggerBackfill.String()
		}
		if n == d.Run+d.Count-1 {
			r.Fired = schemas.TimeOf(d.AtMs) // the record keeps only that of the last run of a range
		}
	}
	if l := &s.Last; l.Run == n {
		r.Scheduled, r.Fired, r.Missed = schemas.TimeOf(l.NominalMs), schemas.TimeOf(l.ClaimedMs), l.Missed
	}
	return r
}

// nominal returns a nominal time of a range of decisions, counted back from its last, or 0 if
// it is not known.
func (h *runHistory) nominal(at int, back uint32) int64 {
	d := &h.rec.Schedule.Decisions[at]
	switch {
	case back == 0:
		return d.ToMs
	case back == d.Count-1:
		return d.FromMs
	case d.Kind != schemas.DecisionFired || back > maxWalk || d.FromMs < h.rec.Schedule.ChangedMs:
		return 0 // requests, far back, or of an older recurrence
	}
	if h.walked == nil || h.walkedAt != at {
		h.walked, h.walkedAt = []int64{d.ToMs}, at
	}
	for uint32(len(h.walked)) <= back {
		ms, ok := h.plan.Calendar().Prev(h.walked[len(h.walked)-1])
		if !ok || ms < d.FromMs {
			return 0
		}
		h.walked = append(h.walked, ms)
	}
	return h.walked[back]
}
