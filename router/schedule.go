package router

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file has the operations that change schedules, and the pauses of one-shot timers.
// Like those in operations.go, each reads the record, changes it and writes it by
// compare-and-set, again after each conflict. So a run that fires at the same time comes
// either before the operation or after it.

// Pause makes a timer or schedule wait until Resume. Pausing it again with the same note is
// no error. Errors: those of Get, already_fired, already_done.
func (o *Operations) Pause(ctx context.Context, id schemas.TimerID, note string, by schemas.Caller) (store.Timer, error) {
	return o.change(ctx, id, func(rec *schemas.Record) (e edit, err error) {
		if rec.Schedule == nil {
			e.unchanged, err = rec.Pause(o.NowMs(), note, by)
			return e, err
		}
		// Otherwise a schedule that waits for a deleted calendar could not be paused.
		p, err := o.schedulePlan(id, rec, "pause", recurrence.KnownCalendars(o.calendars(ctx)))
		if err == nil {
			e.unchanged, err = p.Pause(rec, o.NowMs(), note, by)
		}
		return e, err
	})
}

// Resume lets a paused timer or schedule fire again. catchUp says what happens to the
// nominal times that a schedule missed. Resuming a timer that is not paused is no error.
// Errors: those of Get, already_fired, already_done.
func (o *Operations) Resume(ctx context.Context, id schemas.TimerID, catchUp schemas.Misfire, by schemas.Caller) (store.Timer, error) {
	return o.change(ctx, id, func(rec *schemas.Record) (e edit, err error) {
		if rec.Schedule == nil {
			e.unchanged, err = rec.Resume(o.NowMs(), by)
			return e, err
		}
		p, err := o.plan(ctx, id, rec.Schedule)
		if err == nil {
			e.unchanged, err = p.Resume(rec, o.NowMs(), catchUp, by)
		}
		return e, err
	})
}

// Trigger requests an extra run of a schedule at once. Requests with the same id are one run, so a
// request can be repeated after a lost answer. Errors: those of Get, bad_request for a one-shot
// timer, already_done, unavailable if schemas.MaxManual runs wait.
func (o *Operations) Trigger(ctx context.Context, id schemas.TimerID, request uint64, allow bool, by schemas.Caller) (store.Timer, error) {
	return o.schedule(ctx, id, "trigger", func(p *recurrence.Plan, rec *schemas.Record) (edit, error) {
		unchanged, err := p.Trigger(rec, o.NowMs(), request, allow, by)
		return edit{unchanged: unchanged}, err
	})
}

// Backfill starts a backfill of a schedule, and returns the nominal times that it fires; if
// there are none, it changes nothing. A request whose id is in Progress.Requests changes nothing.
// Errors: those of Get, bad_request, conflict while another backfill is under way, already_done.
func (o *Operations) Backfill(ctx context.Context, id schemas.TimerID, q recurrence.BackfillRequest, by schemas.Caller) (t store.Timer, times []int64, err error) {
	t, err = o.schedule(ctx, id, "backfill", func(p *recurrence.Plan, rec *schemas.Record) (edit, error) {
		if slices.Contains(rec.Schedule.Requests, q.Request) {
			return edit{unchanged: true}, nil // an earlier write of this request; its answer was lost
		}
		var err error
		times, err = p.Backfill(rec, o.NowMs(), q, by)
		return edit{unchanged: len(times) == 0}, err
	})
	return t, times, err
}

// Update replaces the definition and the recurrence of a schedule by those of next, a record
// that NewRecord has made. rev is the revision that the record must have; 0 for any. It
// returns the next schemas.UpdateTimes nominal times before and after the update. An update to
// the schedule's present event changes nothing. Errors: those of Get, bad_request for a
// one-shot timer, conflict for another revision, invalid_attribute if no run would be left,
// already_done.
func (o *Operations) Update(ctx context.Context, id schemas.TimerID, next *schemas.Record, rev uint64, by schemas.Caller) (t store.Timer, before, after []int64, err error) {
	t, err = o.changeAt(ctx, id, func(rec *schemas.Record, at uint64) (edit, error) {
		// Otherwise a schedule that waits for a deleted calendar could not be updated.
		p, err := o.schedulePlan(id, rec, "update", recurrence.KnownCalendars(o.calendars(ctx)))
		if err != nil {
			return edit{}, err
		}
		before = upcoming(p, rec)
		if rec.Hash == next.Hash && !rec.State.Final() {
			after = before
			return edit{unchanged: true}, nil
		}
		if rev != 0 && at != rev {
			return edit{}, revisionError("the schedule has revision %d, not %d: get it, check what has changed, and update it again; a run changes the revision, too", at, rev)
		}
		if p, err = p.Update(rec, next, o.NowMs(), by, o.calendars(ctx)); err != nil {
			return edit{}, err
		}
		if after = upcoming(p, rec); len(after) == 0 && (rec.Schedule.NextMs == 0 || len(before) > 0) {
			return edit{}, noRunLeft(rec.Schedule)
		}
		if err := recurrence.CheckHorizon(rec.Schedule.NextDueMs, o.NowMs(), o.MaxHorizon); err != nil {
			return edit{}, err
		}
		if o.Register != nil && rec.Callback != "" {
			if err := o.Register(ctx, rec.Service); err != nil {
				return edit{}, err
			}
		}
		// A redelivery of the first add would be a conflict with the updated record.
		return edit{forgetAdd: true}, nil
	})
	return t, before, after, err
}

// noRunLeft is the error of an update that would end its schedule.
func noRunLeft(s *schemas.Schedule) error {
	if s.LimitReached() {
		return schemas.Errorf(schemas.CodeInvalidAttribute, "timerlimit is %d, and %d runs have fired: raise it, or end the schedule with delete", s.Limit, s.Fired)
	}
	return schemas.Errorf(schemas.CodeInvalidAttribute, "the schedule would have no further run: check timerstart, timerend and timerexclude, or end it with delete")
}

// schedule applies an operation to a schedule.
func (o *Operations) schedule(ctx context.Context, id schemas.TimerID, operation string, f func(*recurrence.Plan, *schemas.Record) (edit, error)) (store.Timer, error) {
	return o.change(ctx, id, func(rec *schemas.Record) (edit, error) {
		p, err := o.schedulePlan(id, rec, operation, o.calendars(ctx))
		if err != nil {
			return edit{}, err
		}
		return f(p, rec)
	})
}

// schedulePlan returns the plan of a schedule, and an error of bad_request for a one-shot
// timer.
func (o *Operations) schedulePlan(id schemas.TimerID, rec *schemas.Record, operation string, cals recurrence.Calendars) (*recurrence.Plan, error) {
	if rec.Schedule != nil {
		return recurrence.Basis{Zones: o.Zones, Calendars: cals}.PlanOf(id, rec.Schedule)
	}
	if o := rec.Origin; o != nil {
		return nil, schemas.Errorf(schemas.CodeBadRequest, "cannot %s: timer %s is a run of schedule %s; name the schedule", operation, id, o.Schedule)
	}
	return nil, schemas.Errorf(schemas.CodeBadRequest, "cannot %s: timer %s is not a schedule", operation, id)
}

// upcoming returns the next schemas.UpdateTimes nominal times of a schedule.
func upcoming(p *recurrence.Plan, rec *schemas.Record) []int64 {
	s := rec.Schedule
	times := []int64{}
	for at, ok, n := s.NextMs, s.NextMs != 0 && !p.NoneLeft(s), s.RunsLeft(schemas.UpdateTimes); ok && n > 0; n-- {
		times = append(times, at)
		at, ok = p.Calendar().Next(at)
	}
	return times
}

// Pause pauses a timer or schedule. from is the verified part of the caller, q.By the
// caller's own claim. Errors: bad_request, invalid_timer_id, not_found, already_fired,
// already_done, unavailable.
func (s *Service) Pause(ctx context.Context, q schemas.PauseRequest, from schemas.Caller) (store.Timer, error) {
	return control(ctx, s, q.TimerRef, q.By, from, func(ctx context.Context, id schemas.TimerID, by schemas.Caller) (t store.Timer, err error) {
		if err := schemas.CheckNote(q.Note); err != nil {
			return t, err
		}
		return s.ops.Pause(ctx, id, q.Note, by)
	})
}

// Resume resumes a timer or schedule. Caller and errors are as in Pause.
func (s *Service) Resume(ctx context.Context, q schemas.ResumeRequest, from schemas.Caller) (store.Timer, error) {
	return control(ctx, s, q.TimerRef, q.By, from, func(ctx context.Context, id schemas.TimerID, by schemas.Caller) (t store.Timer, err error) {
		catchUp, err := catchUpOf(q.CatchUp)
		if err != nil {
			return t, err
		}
		return s.ops.Resume(ctx, id, catchUp, by)
	})
}

// catchUpOf returns the policy of a resume.
func catchUpOf(word string) (schemas.Misfire, error) {
	if word == "" {
		return schemas.MisfireSkip, nil
	}
	m, err := schemas.ParseMisfire(word)
	if err != nil {
		return m, schemas.Errorf(schemas.CodeBadRequest, "catchup: %w", err)
	}
	return m, nil
}

// Trigger requests an extra run of a schedule at once. Caller and errors are as in Pause. After
// unavailable, the run may have been requested; a request with a name can be repeated.
func (s *Service) Trigger(ctx context.Context, q schemas.TriggerRequest, from schemas.Caller) (store.Timer, error) {
	return control(ctx, s, q.TimerRef, q.By, from, func(ctx context.Context, id schemas.TimerID, by schemas.Caller) (store.Timer, error) {
		request := rand.Uint64() | 1
		switch {
		case len(q.Request) > schemas.MaxRequestName:
			return store.Timer{}, schemas.Errorf(schemas.CodeBadRequest, "request has %d bytes; the limit is %d", len(q.Request), schemas.MaxRequestName)
		case q.Request != "":
			request = schemas.RequestID(q.Request)
		}
		return s.ops.Trigger(ctx, id, request, q.Allow, by)
	})
}

// control carries out an operation on one timer.
func control[T any](ctx context.Context, s *Service, ref schemas.TimerRef, claim string, from schemas.Caller, f func(context.Context, schemas.TimerID, schemas.Caller) (T, error)) (T, error) {
	return do(ctx, s, s.quick, func(ctx context.Context) (v T, err error) {
		by, err := claimed(from, claim)
		if err != nil {
			return v, err
		}
		return atRef(ctx, &s.ops, ref, func(ctx context.Context, id schemas.TimerID) (T, error) { return f(ctx, id, by) })
	})
}

// groupPage is the number of timers that one request to a group changes.
const groupPage = 200

// PauseGroup pauses a page of the pending timers and schedules of a group. Repeating it is
// safe: timers that are paused already are not selected. Errors: bad_request, unavailable.
func (s *Service) PauseGroup(ctx context.Context, q schemas.PauseRequest, from schemas.Caller) (schemas.GroupReply, error) {
	if err := schemas.CheckNote(q.Note); err != nil {
		return schemas.GroupReply{}, err
	}
	return s.group(ctx, q.TimerRef, store.ListQuery{States: []schemas.State{schemas.StatePending}, Group: q.Group, Cursor: q.Cursor}, q.By, from,
		func(ctx context.Context, id schemas.TimerID, by schemas.Caller) error {
			_, err := s.ops.Pause(ctx, id, q.Note, by)
			return err
		})
}

// ResumeGroup resumes a page of the paused timers and schedules of a group. It is otherwise
// as PauseGroup.
func (s *Service) ResumeGroup(ctx context.Context, q schemas.ResumeRequest, from schemas.Caller) (schemas.GroupReply, error) {
	catchUp, err := catchUpOf(q.CatchUp)
	if err != nil {
		return schemas.GroupReply{}, err
	}
	return s.group(ctx, q.TimerRef, store.ListQuery{States: []schemas.State{schemas.StatePaused}, Group: q.Group, Cursor: q.Cursor}, q.By, from,
		func(ctx context.Context, id schemas.TimerID, by schemas.Caller) error {
			_, err := s.ops.Resume(ctx, id, catchUp, by)
			return err
		})
}

// group applies an operation to a page of timers.
func (s *Service) group(ctx context.Context, ref schemas.TimerRef, q store.ListQuery, claim string, from schemas.Caller, f func(context.Context, schemas.TimerID, schemas.Caller) error) (schemas.GroupReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.GroupReply, err error) {
		by, err := claimed(from, claim)
		if err != nil {
			return reply, err
		}
		if q.Group == "" || ref != (schemas.TimerRef{}) {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "name either a timer or a group")
		}
		// Belfry's own account operates on groups of the default tenant: another tenant may use
		// the same name.
		q.Limit, q.Tenant = groupPage, &s.scope.Tenant
		page, err := s.o.Store.List(ctx, q)
		if err != nil {
			return reply, err
		}
		errs := make(chan error, len(page.Timers))
		each(page.Timers, func(t store.Timer) { errs <- f(ctx, t.ID, by) })
		for range page.Timers {
			switch err := <-errs; schemas.CodeOf(err) {
			case "":
				if err != nil {
					return reply, err
				}
				reply.Changed++
			case schemas.CodeAlreadyFired, schemas.CodeAlreadyDone, schemas.CodeNotFound, schemas.CodeInvalidAttribute:
				reply.Refused++
			default:
				return reply, schemas.Errorf(schemas.CodeOf(err), "%w; some timers of the group were changed: repeat the request", err)
			}
		}
		reply.Cursor = page.Cursor
		return reply, nil
	})
}

// Backfill starts a backfill, or only returns its nominal times (q.DryRun). Caller and
// errors are as in Pause; further errors: conflict.
func (s *Service) Backfill(ctx context.Context, q schemas.BackfillRequest, from schemas.Caller) (schemas.BackfillReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.BackfillReply, err error) {
		by, err := claimed(from, q.By)
		if err != nil {
			return reply, err
		}
		r, err := backfillOf(q)
		if err != nil {
			return reply, err
		}
		r.Request = rand.Uint64() | 1
		id, err := q.Resolve(s.scope.Tenant)
		if err != nil {
			return reply, err
		}
		var t store.Timer
		var times []int64
		if q.DryRun {
			t, times, err = s.ops.backfillTimes(ctx, id, r)
		} else {
			t, times, err = s.ops.Backfill(ctx, id, r, by)
		}
		if err != nil {
			return reply, err
		}
		reply = schemas.BackfillReply{Timer: schemas.FromRecord(t.ID, &t.Record, t.Rev), Count: len(times)}
		if q.DryRun {
			reply.Times = timesOf(times)
		}
		return reply, nil
	})
}

// backfillTimes returns the nominal times that a backfill would fire.
func (o *Operations) backfillTimes(ctx context.Context, id schemas.TimerID, q recurrence.BackfillRequest) (t store.Timer, times []int64, err error) {
	t, err = o.schedule(ctx, id, "backfill", func(p *recurrence.Plan, rec *schemas.Record) (edit, error) {
		scratch := *rec
		var err error
		times, err = p.Backfill(&scratch, o.NowMs(), q, schemas.Caller{})
		return edit{unchanged: true, dry: true}, err
	})
	return t, times, err
}

// backfillOf reads a request.
func backfillOf(q schemas.BackfillRequest) (r recurrence.BackfillRequest, err error) {
	r = recurrence.BackfillRequest{Again: q.Again, Allow: q.Allow}
	for _, x := range []struct {
		name, text string
		ms         *int64
	}{{"from", q.From, &r.FromMs}, {"to", q.To, &r.ToMs}} {
		if *x.ms, err = schemas.ParseTime(x.text); err != nil {
			return r, schemas.Errorf(schemas.CodeBadRequest, "%s %.80q: %w", x.name, x.text, err)
		}
	}
	if q.Rate == "" {
		return r, nil
	}
	if r.Every, err = schemas.ParseDuration(q.Rate); err != nil {
		return r, schemas.Errorf(schemas.CodeBadRequest, "rate %.80q: %w", q.Rate, err)
	}
	if r.Every < 0 || r.Every > maxBackfillRate {
		return r, schemas.Errorf(schemas.CodeBadRequest, "rate %s: the least time between two runs must be 0s to %s", r.Every, maxBackfillRate)
	}
	return r, nil
}

// maxBackfillRate bounds the time between two runs of a backfill.
const maxBackfillRate = 24 * time.Hour

// UpdateRequest has the parameters of an update, in addition to its event.
type UpdateRequest struct {
	// Revision is the revision that the schedule must have; empty for any.
	Revision string
	// By is the caller's own claim; see schemas.CancelRequest.
	By string
}

// Update replaces a schedule by an event of the same id and source. Caller and errors are as
// in Pause; further errors: those of Add, and conflict for another revision.
func (s *Service) Update(ctx context.Context, header map[string][]string, data []byte, q UpdateRequest, from schemas.Caller) (schemas.UpdateReply, error) {
	return do(ctx, s, s.quick, func(ctx context.Context) (reply schemas.UpdateReply, err error) {
		by, err := claimed(from, q.By)
		if err != nil {
			return reply, err
		}
		var rev uint64
		if q.Revision != "" {
			if rev, err = strconv.ParseUint(q.Revision, 10, 64); err != nil || rev == 0 {
				return reply, schemas.Errorf(schemas.CodeBadRequest, "%s %.40q is not a revision; write the number that get answers", schemas.HeaderIfMatch, q.Revision)
			}
		}
		a := &Add{Header: header, Data: data, AddedMs: s.nowMs(), Tenant: s.scope.Tenant}
		if err := s.validate(a, parseUpdate); err != nil {
			return reply, err
		}
		if a.Record.Schedule == nil {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "the event has neither timercron nor timerevery: an update replaces a schedule by a whole event; for a one-shot timer use reschedule")
		}
		var before, after []int64
		t, err := afterAdds(ctx, &s.ops, func() (t store.Timer, err error) {
			t, before, after, err = s.ops.Update(ctx, a.Spec.Timer, &a.Record, rev, by)
			return t, err
		})
		if err != nil {
			return reply, err
		}
		return schemas.UpdateReply{Timer: schemas.FromRecord(t.ID, &t.Record, t.Rev), Before: timesOf(before), After: timesOf(after)}, nil
	})
}

// Preview returns the next runs of a schedule, with the reasons for their times. Errors: bad_request,
// invalid_timer_id, invalid_attribute, not_found, unavailable.
func (s *Service) Preview(ctx context.Context, q schemas.PreviewRequest) (schemas.PreviewReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.PreviewReply, err error) {
		n := q.N
		if n == 0 {
			n = schemas.DefaultPreview
		}
		if n < 1 || n > schemas.MaxPreview {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "n is %d; it must be 1 to %d", q.N, schemas.MaxPreview)
		}
		fromMs := s.nowMs()
		if q.From != "" {
			if fromMs, err = schemas.ParseTime(q.From); err != nil {
				return reply, schemas.Errorf(schemas.CodeBadRequest, "from %.80q: %w", q.From, err)
			}
		}
		p, sched, err := s.previewed(ctx, q)
		if err != nil {
			return reply, err
		}
		if len(q.Attributes) == 0 && sched.NextMs == 0 {
			n = 0 // it has ended
		}
		if q.From == "" {
			fromMs = max(fromMs, sched.NextMs)
		}
		n = sched.RunsLeft(n)
		return recurrence.Preview(p.Calendar(), fromMs, n, sched.JitterMs > 0), nil
	})
}

// previewed returns the plan that a preview shows.
func (s *Service) previewed(ctx context.Context, q schemas.PreviewRequest) (*recurrence.Plan, *schemas.Schedule, error) {
	if len(q.Attributes) == 0 {
		t, err := s.ops.Get(ctx, q.TimerRef)
		if err != nil {
			return nil, nil, err
		}
		p, err := s.ops.schedulePlan(t.ID, &t.Record, "preview", s.calendars(ctx))
		return p, t.Record.Schedule, err
	}
	if q.Timer != "" {
		return nil, nil, schemas.Errorf(schemas.CodeBadRequest, "timer and attributes are both set: preview either a stored schedule or attributes")
	}
	event := map[string]string{}
	maps.Copy(event, q.Attributes)
	event["specversion"], event["type"], event["id"], event["source"] = "1.0", "preview", cmp.Or(q.ID, "preview"), cmp.Or(q.Source, "preview")
	data, err := json.Marshal(event)
	if err != nil {
		return nil, nil, schemas.Errorf(schemas.CodeBadRequest, "attributes: %w", err)
	}
	a := &Add{Header: map[string][]string{}, Data: data, AddedMs: s.nowMs(), Tenant: s.scope.Tenant}
	if err := s.validate(a, s.parse); err != nil {
		return nil, nil, err
	}
	if a.Record.Schedule == nil {
		return nil, nil, schemas.Errorf(schemas.CodeBadRequest, "the attributes have neither timercron nor timerevery")
	}
	p, err := s.ops.plan(ctx, a.Spec.Timer, a.Record.Schedule)
	return p, a.Record.Schedule, err
}

func timesOf(ms []int64) []time.Time {
	times := make([]time.Time, len(ms))
	for i, at := range ms {
		times[i] = schemas.TimeOf(at)
	}
	return times
}
