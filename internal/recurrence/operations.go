package recurrence

import (
	"cmp"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// This file has the operations on schedules. Each changes a record in memory; the caller
// writes it by compare-and-set on the revision that it has read. Times are Unix
// milliseconds of the cluster's clock. Each adds by to the record's history.

// MaxBackfill bounds the nominal times of one backfill.
const MaxBackfill = 10_000

// Pause stops the schedule: until Resume, only runs of Trigger and Backfill fire. A run that
// waits for the previous one keeps waiting. It returns unchanged for a paused schedule with
// the same note. Errors: schemas.CodeAlreadyDone for a final state, schemas.CodeBadRequest
// for a note that is too long.
func (p *Plan) Pause(rec *schemas.Record, nowMs int64, note string, by schemas.Caller) (unchanged bool, err error) {
	if err := open(rec, "pause"); err != nil {
		return false, err
	}
	if len(note) > schemas.MaxPauseNote {
		return false, schemas.Errorf(schemas.CodeBadRequest, "note has %d bytes; the limit is %d", len(note), schemas.MaxPauseNote)
	}
	if rec.State == schemas.StatePaused && rec.Schedule.PauseNote == note {
		return true, nil
	}
	s := rec.Schedule.Clone()
	s.PauseNote = note
	if rec.State != schemas.StatePaused {
		p.pauseExpected(s, nowMs)
	}
	rec.Schedule, rec.State = s, schemas.StatePaused
	rec.Note(schemas.Operation{Kind: schemas.OperationPause, AtMs: nowMs, Caller: by})
	p.replan(rec, nowMs)
	return false, nil
}

// Resume starts a paused schedule again. catchUp is the policy for the nominal times that were
// due during the pause; timergrace does not apply to them. With schemas.MisfireSkip none of
// them fires, nor does a run that waited. A schedule without a run left is completed. It
// returns unchanged for a schedule that is not paused. Errors: schemas.CodeAlreadyDone.
func (p *Plan) Resume(rec *schemas.Record, nowMs int64, catchUp schemas.Misfire, by schemas.Caller) (unchanged bool, err error) {
	if err := open(rec, "resume"); err != nil {
		return false, err
	}
	if rec.State != schemas.StatePaused {
		return true, nil
	}
	s := rec.Schedule.Clone()
	s.PauseNote, s.PausedUntilMs, s.CatchUp = "", nowMs, nil
	s.Counted, s.CountedMs, s.CaughtUp = 0, 0, 0
	p.rezone(s, nowMs)
	p.resumeExpected(s, nowMs)
	if s.NextMs != 0 && s.NextDueMs <= nowMs {
		s.CatchUp = &catchUp
	}
	if w := s.Waiting; w != nil {
		s.Waiting = nil
		if catchUp == schemas.MisfireSkip {
			s.Decide(schemas.Decision{Kind: schemas.DecisionPaused, FromMs: w.NominalMs, ToMs: w.NominalMs, Count: 1, AtMs: nowMs})
		} else {
			s.Waiting = &schemas.WaitingRun{NominalMs: w.NominalMs, DueMs: max(w.DueMs, nowMs), Missed: w.Missed}
		}
	}
	rec.Schedule, rec.State = s, schemas.StatePending
	rec.Note(schemas.Operation{Kind: schemas.OperationResume, AtMs: nowMs, Caller: by})
	p.replan(rec, nowMs)
	return false, nil
}

// Trigger asks for a run now, also of a paused schedule. The run has a number of its own, does
// not move the schedule and does not count towards timerlimit. While the previous run is
// open it follows timeroverlap, unless allow is set. It returns unchanged if the schedule
// remembers the request, even if the schedule has ended since. Errors:
// schemas.CodeAlreadyDone, schemas.CodeUnavailable if schemas.MaxManual runs have not fired
// yet.
func (p *Plan) Trigger(rec *schemas.Record, nowMs int64, request uint64, allow bool, by schemas.Caller) (unchanged bool, err error) {
	if request != 0 && slices.Contains(rec.Schedule.Requests, request) {
		return true, nil
	}
	if err := open(rec, "trigger"); err != nil {
		return false, err
	}
	s := rec.Schedule.Clone()
	if len(s.Manual) >= schemas.MaxManual {
		return false, schemas.Errorf(schemas.CodeUnavailable, "%d runs that were asked for have not fired yet, which is the limit: try again later", schemas.MaxManual)
	}
	s.AddManual(schemas.ManualRun{AtMs: nowMs, Allow: allow}, request)
	rec.Schedule = s
	rec.Note(schemas.Operation{Kind: schemas.OperationTrigger, AtMs: nowMs, Caller: by})
	p.replan(rec, nowMs)
	return false, nil
}

// BackfillRequest describes a backfill. FromMs and ToMs are inclusive.
type BackfillRequest struct {
	FromMs, ToMs int64
	// Every is the least time between two runs.
	Every time.Duration
	// Again also fires nominal times that have fired already. Allow fires a run also while
	// the previous one is open; otherwise it waits, whatever timeroverlap says.
	Again, Allow bool
	// Request is remembered in Progress.Requests; 0 for none.
	Request uint64
}

// Times returns the nominal times that a backfill fires, oldest first. It leaves out nominal
// times that the schedule itself has yet to decide, such as those of a pause, about which
// Resume decides. Errors:
// schemas.CodeBadRequest for a period that ends before it begins, is not past, or has more
// than MaxBackfill nominal times.
func (p *Plan) Times(rec *schemas.Record, nowMs int64, q BackfillRequest) ([]int64, error) {
	times, _, err := p.times(rec.Schedule, nowMs, q)
	return times, err
}

// times returns the nominal times that a backfill fires, and the times that it leaves out.
func (p *Plan) times(s *schemas.Schedule, nowMs int64, q BackfillRequest) (times []int64, except []schemas.Span, err error) {
	switch {
	case q.FromMs > q.ToMs:
		return nil, nil, schemas.Errorf(schemas.CodeBadRequest, "the backfill ends (%s) before it begins (%s)", schemas.FormatTime(q.ToMs), schemas.FormatTime(q.FromMs))
	case q.ToMs > nowMs:
		return nil, nil, schemas.Errorf(schemas.CodeBadRequest, "the backfill ends at %s, which is not past: a backfill fires nominal times of the past", schemas.FormatTime(q.ToMs))
	}
	undecided := p.firstUndecided(s, nowMs)
	n, fires := 0, true
	for at := range p.calendar.Between(q.FromMs, q.ToMs) {
		if n++; n > MaxBackfill {
			return nil, nil, schemas.Errorf(schemas.CodeBadRequest, "the period has more than %d nominal times, which is the limit: backfill a shorter one", MaxBackfill)
		}
		before := fires
		switch fires = backfills(s, at, undecided, q.Again); {
		case fires:
			times = append(times, at)
		case before:
			except = append(except, schemas.Span{FromMs: at, ToMs: at})
		default:
			except[len(except)-1].ToMs = at
		}
	}
	return times, except, nil
}

// backfills reports whether a backfill fires a nominal time. It leaves out nominal times that
// the schedule has yet to decide, from undecidedMs on, and, without again, times that may have
// fired.
func backfills(s *schemas.Schedule, nominalMs, undecidedMs int64, again bool) bool {
	switch {
	case undecidedMs != 0 && nominalMs >= undecidedMs, s.Waiting != nil && nominalMs == s.Waiting.NominalMs:
		return false
	}
	return again || !s.MayHaveFired(nominalMs)
}

// Backfill starts a backfill and returns the nominal times that it fires. It changes nothing
// if there are none. A schedule has one backfill at a time. Its runs also fire while the
// schedule is paused. Errors: those of Times, schemas.CodeConflict while another one is under
// way, schemas.CodeAlreadyDone.
func (p *Plan) Backfill(rec *schemas.Record, nowMs int64, q BackfillRequest, by schemas.Caller) ([]int64, error) {
	if err := open(rec, "backfill"); err != nil {
		return nil, err
	}
	if b := rec.Schedule.Backfill; b != nil {
		return nil, schemas.Errorf(schemas.CodeConflict, "a backfill is under way, from %s to %s: wait until it is done", schemas.FormatTime(b.NextMs), schemas.FormatTime(b.ToMs))
	}
	times, except, err := p.times(rec.Schedule, nowMs, q)
	if err != nil || len(times) == 0 {
		return nil, err
	}
	s := rec.Schedule.Clone()
	first, last := times[0], times[len(times)-1]
	s.Backfill = &schemas.Backfill{NextMs: first, ToMs: last, EveryMs: q.Every.Milliseconds(), DueMs: nowMs, Allow: q.Allow}
	for _, e := range except {
		if first < e.FromMs && e.ToMs < last {
			s.Backfill.Except = append(s.Backfill.Except, e)
		}
	}
	s.AddRequest(q.Request)
	rec.Schedule = s
	rec.Note(schemas.Operation{Kind: schemas.OperationBackfill, AtMs: nowMs, Caller: by})
	p.replan(rec, nowMs)
	return times, nil
}

// Update replaces definition and recurrence of a schedule by those of next, a record that
// NewRecord has made. The schedule keeps its progress: the number of runs, what was
// decided, what was asked for, and its anchor, unless next has another timerstart. A schedule
// without a run left is completed, unless it is paused. It returns the plan of the changed
// schedule. Errors: schemas.CodeAlreadyDone, schemas.CodeInvalidAttribute, and those of cals.
//
// p is the plan until now. If a calendar that the schedule excluded does not exist any more, make
// p with KnownCalendars.
//
// Nominal times that have passed and are not decided remain undecided if both recurrences have
// the same ones: the new policies decide them. Otherwise they are skipped
// (schemas.DecisionUpdated), and the schedule goes on with the first nominal time after
// nowMs. A backfill ends then: ask for the rest again.
func (p *Plan) Update(rec *schemas.Record, next *schemas.Record, nowMs int64, by schemas.Caller, cals Calendars) (*Plan, error) {
	if err := open(rec, "update"); err != nil {
		return nil, err
	}
	s := rec.Schedule.Clone()
	p.rezone(s, nowMs)
	p.leave(s, nowMs)
	s.Recurrence = next.Schedule.Recurrence
	if s.StartMs != 0 {
		s.AnchorMs = s.StartMs
	}
	plan, err := Basis{Zones: p.calendar.Zones(), Calendars: cals}.PlanOf(next.TimerID(), s)
	if err != nil {
		return nil, err
	}
	if s.ExpectMs == 0 {
		s.Expected = nil
	}
	if !sameTimes(rec.Schedule, s) {
		p.move(plan, s, nowMs, rec.State == schemas.StatePaused)
		// If the cluster's clock was set back, the old plan is recorded beyond nowMs. The new plan
		// decides from nowMs on, and its times on excluded dates there are not recorded yet.
		s.PassedMs = min(s.PassedMs, max(nowMs, reached(s)))
	}
	if err := plan.checkExpect(s.NextMs); err != nil {
		return nil, err
	}
	s.Renumber(rec.Schedule.Exclude) // the decisions until now follow the old list
	s.PassedMs, s.Calendars = plan.from(s, nowMs), plan.calendar.Revision()
	if w := s.Waiting; w != nil && s.LimitReached() {
		s.Waiting = nil
		s.Decide(schemas.Decision{Kind: schemas.DecisionUpdated, FromMs: w.NominalMs, ToMs: w.NominalMs, Count: 1, AtMs: nowMs})
	}
	addedMs := rec.AddedMs
	rec.Definition = next.Definition
	rec.AddedMs, rec.MaxAttempt, rec.Schedule = addedMs, next.MaxAttempt, s
	rec.Note(schemas.Operation{Kind: schemas.OperationUpdate, AtMs: nowMs, Caller: by})
	plan.replan(rec, nowMs)
	return plan, nil
}

// sameTimes reports whether two versions of a schedule have the same nominal and due times,
// and NextMs still holds.
func sameTimes(old, s *schemas.Schedule) bool {
	a, b := &old.Recurrence, &s.Recurrence
	ended := old.NextMs == 0 && a.Limit != b.Limit // a higher limit starts the schedule again
	return !ended && old.AnchorMs == s.AnchorMs && a.Cron == b.Cron && a.Every == b.Every && a.Zone == b.Zone &&
		a.StartMs == b.StartMs && a.EndMs == b.EndMs && a.JitterMs == b.JitterMs && a.DST == b.DST && a.Days == b.Days &&
		a.ExcludeMode == b.ExcludeMode && slices.Equal(a.Exclude, b.Exclude)
}

// move makes a schedule follow another plan. p is the plan until now. The nominal times of a
// pause have no deadline: pauseExpected has added the deadlines that had passed by then.
func (p *Plan) move(to *Plan, s *schemas.Schedule, nowMs int64, paused bool) {
	passed := p.passed(s, nowMs)
	if keep := s.NextMs != 0 && s.NextMs <= nowMs && p.agrees(to, s.NextMs, nowMs); !keep {
		s.CatchUp, s.CaughtUp = nil, 0
		if passed.n > 0 {
			s.Decide(schemas.Decision{Kind: schemas.DecisionUpdated, FromMs: passed.first, ToMs: passed.last, Count: passed.n, AtMs: nowMs})
			if !paused && s.NextMs != 0 {
				p.expect(s, schemas.DecisionUpdated, passed, 0, nowMs)
			}
		}
		p.passAll(s, nowMs)
		s.NextMs, _ = to.after(max(nowMs, reached(s)))
	}
	s.Counted, s.CountedMs = 0, 0
	s.DoneKey = 0 // a key of the old recurrence
	to.setNext(s, s.NextMs, nowMs)
	s.ChangedMs = to.changed(s, nowMs)
	// The backfill leaves out the times that fired under the old recurrence. Times of the new
	// one may have fired, too, before an earlier update.
	s.Backfill = nil
}

// changed returns Progress.ChangedMs of a schedule that follows the plan from nowMs on: the
// first time that the plan decides. That may be on an excluded date, before NextMs: it is
// recorded as excluded, or fires if the calendar changes before it is due.
func (p *Plan) changed(s *schemas.Schedule, nowMs int64) int64 {
	after := max(nowMs, reached(s))
	first := cmp.Or(s.NextMs, after+1)
	if p.excludes() {
		if at, ok := p.all.Next(after); ok {
			first = min(first, at)
		}
	}
	return first
}

// reached returns the last nominal time that is decided or waits; 0 for none.
func reached(s *schemas.Schedule) int64 {
	at := s.DecidedMs()
	if s.Waiting != nil {
		at = max(at, s.Waiting.NominalMs)
	}
	return at
}

// passed returns the nominal times up to nowMs that are not decided and do not wait. Those
// beyond MaxBackfill are in the range but not counted.
func (p *Plan) passed(s *schemas.Schedule, nowMs int64) span {
	at := s.NextMs
	switch {
	case at == 0: // the limit was reached, or the end
		at, _ = p.after(reached(s))
	case p.excluded(at) != 0:
		at, _ = p.after(at)
	}
	times := p.walk(at, nowMs, MaxBackfill)
	if times.n == MaxBackfill {
		times.last, _ = p.calendar.Prev(nowMs + 1)
	}
	return times
}

// walk returns the nominal times from fromMs, one of p or 0 for none, to toMs, at most the first most of them.
func (p *Plan) walk(fromMs, toMs int64, most uint32) (times span) {
	for at := fromMs; at != 0 && at <= toMs && times.n < most; at, _ = p.after(at) {
		times.add(at)
	}
	return times
}

// from returns Progress.PassedMs of a schedule that an update has moved to the plan.
func (p *Plan) from(s *schemas.Schedule, nowMs int64) int64 {
	switch {
	case !p.excludes():
		return 0
	case s.NextMs == 0:
		return max(s.PassedMs, nowMs)
	}
	return max(s.PassedMs, min(nowMs, s.NextMs-1))
}

// agrees reports whether two plans have the same nominal times from fromMs, one of p, to
// nowMs.
func (p *Plan) agrees(to *Plan, fromMs, nowMs int64) bool {
	a := fromMs
	b, _ := to.after(fromMs - 1)
	for looked := 0; looked < maxLook; looked++ {
		switch {
		case a == 0 || a > nowMs:
			return b == 0 || b > nowMs
		case a != b:
			return false
		}
		a, _ = p.after(a)
		b, _ = to.after(b)
	}
	return false
}

// replan sets the due time of a schedule after an operation.
func (p *Plan) replan(rec *schemas.Record, nowMs int64) {
	t := turn{p: p, s: rec.Schedule, now: nowMs}
	t.Record = *rec
	t.plan(rec.State == schemas.StatePending)
	t.Record.MovedFrom(rec.DueMs)
	*rec = t.Record
}

// open returns an error for a schedule that has ended.
func open(rec *schemas.Record, operation string) error {
	switch rec.State {
	case schemas.StatePending, schemas.StatePaused:
		return nil
	case schemas.StateDelivered:
		return schemas.Errorf(schemas.CodeAlreadyDone, "cannot %s: the schedule fired its last run at %s; to run it again, add it under another id", operation, schemas.FormatTime(rec.FiredMs))
	case schemas.StateCompleted:
		return schemas.Errorf(schemas.CodeAlreadyDone, "cannot %s: the schedule ended at %s; to run it again, add it under another id", operation, schemas.FormatTime(rec.DoneMs))
	}
	return schemas.Errorf(schemas.CodeAlreadyDone, "cannot %s: the schedule is %s; to run it again, add it under another id", operation, rec.State)
}
