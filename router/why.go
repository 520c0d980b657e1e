package router

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Why explains the times of a schedule, or the time of a one-shot timer: whether and when the
// run fired or will fire, or why not. q.At selects times of a schedule; without it the answers
// are for the last time that the schedule has decided, for the next one and for triggers that
// wait. A one-shot timer has only one time, so q.At must be empty. Errors: bad_request,
// invalid_timer_id, not_found, unavailable.
func (s *Service) Why(ctx context.Context, q schemas.WhyRequest) (schemas.WhyReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.WhyReply, err error) {
		t, err := s.ops.Get(ctx, q.TimerRef)
		var old string
		if err != nil {
			var asOf time.Time
			if t, asOf, err = s.expired(ctx, q.TimerRef, err); err != nil {
				return reply, err
			}
			old = "the record has expired; this comes from the history as of " + schemas.FormatTime(asOf.UnixMilli())
		}
		if t.Record.Schedule == nil {
			if q.At != "" {
				return reply, schemas.Errorf(schemas.CodeBadRequest, "cannot explain a time: timer %s is not a schedule, so it has one time; leave out at", t.ID)
			}
			a := whyTimer(&t, s.nowMs())
			if old != "" {
				a.Notes = append(a.Notes, old)
			}
			if t.Record.Deferred() {
				a.Notes = append(a.Notes, s.whyDeferred(ctx, t.Record.Deferral.Flow)...)
			}
			if t.Record.AwaitsTurn() {
				a.Notes = append(a.Notes, s.whyTurn(ctx, &t)...)
			}
			reply.Answers = []schemas.Answer{a}
			return reply, nil
		}
		p, err := s.ops.schedulePlan(t.ID, &t.Record, "explain a time", s.calendars(ctx))
		if err != nil && schemas.CodeOf(err) != schemas.CodeUnavailable && len(t.Record.Schedule.Exclude) > 0 && t.Record.State.Waits() {
			reply.Answers = []schemas.Answer{whyUnplanned(&t.Record, err)}
			return reply, nil
		}
		if err != nil {
			return reply, err
		}
		if q.At == "" {
			reply.Answers = whyNow(p, &t.Record, s.nowMs())
			return reply, nil
		}
		from, to, ok := p.Calendar().Period(q.At)
		if !ok {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "at %.80q: write an RFC 3339 time, or in the schedule's zone a date such as 2027-03-28 or a local time such as 2027-03-28T02:30", q.At)
		}
		reply.Answers, reply.More = p.WhyBetween(&t.Record, s.nowMs(), from, to, schemas.MaxAnswers)
		for _, a := range p.WhyRequested(&t.Record) {
			if ms := a.At.UnixMilli(); from <= ms && ms <= to && !reply.More && len(reply.Answers) < schemas.MaxAnswers {
				reply.Answers = append(reply.Answers, a)
			}
		}
		return reply, nil
	})
}

// whyNow answers for the last nominal time that a schedule has decided, for the next one, and
// for each requested run (trigger, backfill) that has not fired.
func whyNow(p *recurrence.Plan, rec *schemas.Record, nowMs int64) []schemas.Answer {
	var answers []schemas.Answer
	var last int64
	for i := range rec.Schedule.Decisions {
		if d := &rec.Schedule.Decisions[i]; !d.Kind.Requested() {
			last = max(last, d.ToMs)
		}
	}
	if last > 0 {
		answers = append(answers, p.Why(rec, nowMs, last))
	}
	if rec.ScheduledMs > last && !rec.State.Final() {
		next := p.Why(rec, nowMs, rec.ScheduledMs)
		if p.NoneLeft(rec.Schedule) {
			next.Notes = append(next.Notes, noneLeft(rec.Schedule))
		}
		answers = append(answers, next)
	}
	if len(answers) == 0 {
		answers = append(answers, p.Why(rec, nowMs, nowMs))
	}
	return append(answers, p.WhyRequested(rec)...)
}

// whyUnplanned answers for a schedule that waits, because a calendar that it excludes does not exist or
// cannot be read.
func whyUnplanned(rec *schemas.Record, err error) schemas.Answer {
	return schemas.Answer{
		At: schemas.TimeOf(rec.DueMs), Local: schemas.FormatTime(rec.DueMs), Fate: schemas.FateWaiting, Reason: schemas.ReasonCalendar,
		Text: waitsFor(err),
	}
}

// whyTimer explains the state of a one-shot timer or of a run of a schedule.
func whyTimer(t *store.Timer, nowMs int64) schemas.Answer {
	r := &t.Record
	a := schemas.Answer{At: schemas.TimeOf(r.ScheduledMs), Local: schemas.FormatTime(r.ScheduledMs), Due: schemas.TimeOf(r.DueMs), Fate: schemas.FateFired, Run: r.Run}
	fired := fmt.Sprintf("Fired at %s, %s after it was due.", schemas.FormatTime(r.FirstMs()), time.Duration(max(r.FirstMs()-r.LateFromMs(), 0))*time.Millisecond)
	if r.FirstMs() != 0 && r.DueMs > r.FirstMs() {
		// A retry that waits, or waited, in the wheel replaced the due time.
		a.Due = a.At
		fired = fmt.Sprintf("Fired at %s, %s after its scheduled time.", schemas.FormatTime(r.FirstMs()), time.Duration(max(r.FirstMs()-max(r.ScheduledMs, r.AddedMs), 0))*time.Millisecond)
	}
	if r.DoneMs > 0 {
		a.Decided = schemas.TimeOf(r.DoneMs)
	}
	switch r.State {
	case schemas.StatePending, schemas.StatePaused:
		a.Fate, a.Run = schemas.FatePlanned, 0
		switch {
		case r.State == schemas.StatePaused:
			a.Text = fmt.Sprintf("Planned for %s, if it is resumed: it was paused%s.", schemas.FormatTime(r.DueMs), lastOperation(r, schemas.OperationPause))
			if r.PauseNote != "" {
				a.Notes = append(a.Notes, "Note of the pause: "+r.PauseNote)
			}
		case r.DueMs > nowMs:
			a.Text = fmt.Sprintf("Planned for %s.", schemas.FormatTime(r.DueMs))
		default:
			a.Text = fmt.Sprintf("Due since %s and not fired yet. If that takes longer than seconds, see belfry status (does each shard have an owner, and does its clock move?) and belfry doctor.", schemas.FormatTime(r.DueMs))
		}
	case schemas.StateDelivered:
		if r.Callback == "" {
			a.Text = fired + fmt.Sprintf(" Its event is on %s, or is published again now: its final record is not written yet.", schemas.SubjectFired(r.Service))
			break
		}
		a.Text = fired + fmt.Sprintf(" Attempt %d of %d of its callback has no result yet: the call runs, or waits for its turn.", r.Attempt+1, r.MaxAttempt)
	case schemas.StateRetrying:
		if r.AwaitsTurn() {
			a.Text = fired + fmt.Sprintf(" Its callback waits for its turn among the events of key %s. Attempts so far: %d.", r.Key, r.Attempt)
			break
		}
		if r.Deferred() {
			a.Text = fired + fmt.Sprintf(" Its callback waits for its slot at %s under the limit of %s (belfry flow show %s). Attempts so far: %d.", schemas.FormatTime(r.Deferral.SlotMs), r.Deferral.Flow, r.Deferral.Flow, r.Attempt)
			break
		}
		a.Text = fired + fmt.Sprintf(" Attempt %d of %d of its callback failed%s. The next attempt is due at %s.", r.Attempt, r.MaxAttempt, because(r), schemas.FormatTime(r.NextMs))
	case schemas.StateSuccess:
		a.Text = fired
		if r.Callback == "" {
			a.Text += fmt.Sprintf(" Its event is on %s.", schemas.SubjectFired(r.Service))
		} else {
			a.Text += fmt.Sprintf(" Attempt %d of %d of its callback succeeded at %s.", r.Attempt, r.MaxAttempt, schemas.FormatTime(r.DoneMs))
		}
	case schemas.StateFail:
		a.Text = fired
		if r.FiredMs == 0 {
			a.Fate, a.Run, a.Text = schemas.FateNone, 0, "Not fired."
		}
		a.Text += fmt.Sprintf(" It failed for good at %s after %d of %d attempts%s. Its dead letter is in belfry dead ls, and belfry dead replay tries again.", schemas.FormatTime(r.DoneMs), r.Attempt, r.MaxAttempt, because(r))
	case schemas.StateCancelled:
		a.Fate, a.Reason = schemas.FateNone, schemas.ReasonEnded
		a.Text = fmt.Sprintf("Not fired: it was cancelled%s.", lastOperation(r, schemas.OperationCancel))
		if r.FiredMs > 0 {
			a.Fate, a.Reason = schemas.FateFired, ""
			a.Text = fired + fmt.Sprintf(" It was cancelled%s, between attempts of its callback.", lastOperation(r, schemas.OperationCancel))
		}
	default:
		a.Fate, a.Text = schemas.FateUnknown, fmt.Sprintf("It is %s.", r.State)
	}
	if r.Moves > 0 {
		if op := lastOperation(r, schemas.OperationReschedule); op != "" {
			a.Notes = append(a.Notes, "It was rescheduled"+op+".")
		}
	}
	return a
}

// whyDeferred describes the hold or the present limit of a flow key; nil if they cannot be read. All tenants
// share the key of a host. A tenant therefore does not see the parts that may come from others: the reason of a
// hold, the note and the caller of a pause, and the error of a limit. Only a caller that sees all tenants sees the
// URL that was asked for a rate.
func (s *Service) whyDeferred(ctx context.Context, key string) []string {
	set, err := s.o.Store.RefreshFlows(ctx)
	if err != nil {
		return nil
	}
	shared := s.scope.Tenant == ""
	if text := whyHeld(set, key, s.nowMs(), shared); text != "" {
		return []string{text}
	}
	l, ok := set.Find(key)
	if !ok {
		return []string{fmt.Sprintf("No limit applies to flow %s any more: the event is called soon.", key)}
	}
	text := "The limit of flow " + key
	if l.Pattern != key {
		text += ", from " + l.Pattern + ","
	}
	switch {
	case l.Err != nil && !shared:
		return []string{text + " cannot be read, so its calls wait."}
	case l.Err != nil:
		return []string{text + " cannot be read, so its calls wait: " + l.Err.Error()}
	case l.Limit.Paused:
		text += fmt.Sprintf(" is paused since %s", schemas.FormatTime(l.PausedMs))
		if !shared {
			return []string{text + "."}
		}
		if l.PausedBy != "" {
			text += " by " + l.PausedBy
		}
		if l.Note != "" {
			text += ": " + l.Note
		}
		return []string{text + ". \"belfry flow resume " + l.Pattern + "\" ends the pause."}
	}
	var parts []string
	if l.Limit.Rate.Count > 0 {
		parts = append(parts, fmt.Sprintf("%s, burst %d", l.Limit.Rate, l.Limit.Burst))
	}
	if l.Limit.Parallel > 0 {
		parts = append(parts, fmt.Sprintf("%d at once", l.Limit.Parallel))
	}
	if len(parts) == 0 {
		return []string{text + " bounds no calls: the event is called soon."}
	}
	text += " is " + strings.Join(parts, ", ") + "."
	if l.Target != nil {
		target := l.Target.URL
		if !s.scope.All {
			target = key
		}
		text += fmt.Sprintf(" Its target %s allows %d calls a minute.", target, l.Target.PerMinute)
	}
	return []string{text}
}

// whyHeld explains the hold of a flow key, with its reason if that is wanted; "" if none stops its calls.
func whyHeld(set *store.FlowSet, key string, nowMs int64, reason bool) string {
	h, _ := set.HoldOf(key)
	p, atNs := h.Hold.Ask(nowMs * int64(time.Millisecond))
	if p == flow.Free {
		return ""
	}
	at := schemas.FormatTime(atNs / int64(time.Millisecond))
	text := fmt.Sprintf("The target of flow %s asked at %s for no calls until %s", key, schemas.FormatTime(h.AtMs), at)
	if h.Hold.OpenNs != 0 {
		text = fmt.Sprintf("The target of flow %s cannot be reached since %s; after %d probes the next is at %s", key, schemas.FormatTime(h.Hold.OpenNs/int64(time.Millisecond)), h.Hold.Probes, at)
	}
	if reason && h.Reason != "" {
		text += " (" + strings.TrimSuffix(h.Reason, ".") + ")"
	}
	return text + "."
}

// because returns the error of the last attempt, for the middle of a sentence.
func because(r *schemas.Record) string {
	if r.Outcome.Error == "" {
		return ""
	}
	return " (" + strings.TrimSuffix(r.Outcome.Error, ".") + ")"
}

// lastOperation returns the time and the caller of the last operation of a kind, for the middle
// of a sentence; "" if the record has none.
func lastOperation(r *schemas.Record, kind schemas.OperationKind) string {
	for _, op := range slices.Backward(r.History) {
		if op.Kind != kind {
			continue
		}
		text := " at " + schemas.FormatTime(op.AtMs)
		if by := op.Name(); by != "" {
			text += " by " + by
		}
		return text
	}
	return ""
}
