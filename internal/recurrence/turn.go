package recurrence

import (
	"math"
	"slices"

	"github.com/belfryio/belfry/schemas"
)

const (
	// maxLook bounds the nominal times that one turn looks at: about a millisecond of work.
	maxLook = 1000
	// recheckMs is the interval at which a schedule whose run waits for the previous one is
	// due. The owner turns it sooner when the result of the previous run arrives.
	recheckMs = 60_000
	// onTimeMs is the lateness up to which MisfireSkip fires the latest of several due nominal
	// times. Without it a schedule whose turns are always later than its period would never
	// fire.
	onTimeMs = 10_000
)

// Claim identifies the owner that makes a turn.
type Claim struct {
	// Epoch is the owner's clock epoch.
	Epoch uint64
	// Before is the revision of the record that the turn's record replaces or, if that is
	// later, the sequence before which the owner pins the applied offset.
	Before uint64
	// Result is the result of the run that NeedsResult names. Without it Turn assumes that
	// expected runs have succeeded, as a prediction does.
	Result *Result
}

// Run is a run to fire.
type Run struct {
	Number    uint32
	NominalMs int64
	Missed    uint32
	Trigger   schemas.Trigger
}

// Turn is the decision about a schedule at one time.
type Turn struct {
	// Record is the schedule's record after the turn. Its state is delivered if Run or
	// Overdue is the last: the owner completes it after that was published. It is completed
	// if no run is left and none fires.
	Record schemas.Record
	// Run is the run to fire; nil for none.
	Run *Run
	// Overdue is the overdue event to publish; nil for none. A turn has no more than one of
	// Run and Overdue.
	Overdue *schemas.Overdue
	// Skipped are the nominal times that the turn skipped, by reason.
	Skipped []schemas.Decision
	// EndsRun is the number of the run that must get no further attempt, because another one
	// waits for it (OverlapReplace); 0 for none. Turns repeat it while the run is open.
	EndsRun uint32
}

// NeedsLast reports whether Turn must know if the last run of the schedule is open: its
// callback has no result.
func NeedsLast(rec *schemas.Record) bool {
	s := rec.Schedule
	if rec.Callback == "" || s.Last.Run == 0 {
		return false
	}
	return s.Overlap != schemas.OverlapAllow
}

// Turn decides what the schedule of a record in state pending or paused does at nowMs, the
// cluster's time in Unix milliseconds. open reports whether the callback of the last run has
// no result; see NeedsLast.
func (p *Plan) Turn(rec *schemas.Record, nowMs int64, open bool, c Claim) Turn {
	t := turn{p: p, s: rec.Schedule.Clone(), now: nowMs, claim: c, last: rec.Schedule.Last.Run}
	t.Record = *rec
	t.Record.Schedule = t.s
	t.blocked = open && NeedsLast(rec)
	p.rezone(t.s, nowMs)
	active := rec.State == schemas.StatePending
	if t.follow() {
		switch {
		case t.expected(active):
		case active && t.waiting():
		case t.manual():
		case active && t.nominal():
		case t.backfill():
		}
		t.pass(t.undecided(), false)
	}
	t.plan(active)
	return t.Turn
}

// turn is a Turn in the making.
type turn struct {
	Turn
	p     *Plan
	s     *schemas.Schedule
	now   int64
	claim Claim
	// blocked: the callback of run last has no result, and timeroverlap forbids a run meanwhile.
	blocked bool
	last    uint32
}

// skip records nominal times that do not fire.
func (t *turn) skip(kind schemas.DecisionKind, times span, run uint32) {
	if times.n == 0 {
		return
	}
	d := schemas.Decision{Kind: kind, FromMs: times.first, ToMs: times.last, Count: times.n, Run: run, AtMs: t.now}
	t.s.Decide(d)
	t.Skipped = append(t.Skipped, d)
}

// fire claims the next run.
func (t *turn) fire(r Run) {
	r.Number = t.Record.Run
	if t.Record.Run < math.MaxUint32 {
		t.Record.Run++
	}
	t.Run = &r
	t.s.Last = schemas.LastRun{
		Run: r.Number, NominalMs: r.NominalMs, DueMs: t.Record.DueMs, ClaimedMs: t.now,
		Epoch: t.claim.Epoch, Before: t.claim.Before, Missed: r.Missed, Trigger: r.Trigger,
	}
	d := schemas.Decision{FromMs: r.NominalMs, ToMs: r.NominalMs, Count: 1, Run: r.Number, AtMs: t.now}
	switch r.Trigger {
	case schemas.TriggerManual:
		d.Kind = schemas.DecisionTriggered
	case schemas.TriggerBackfill:
		d.Kind = schemas.DecisionBackfilled
		if t.continues(&d) {
			t.s.Extend(d)
			return
		}
	default:
		d.Kind = schemas.DecisionFired
		t.s.Fired = sum(t.s.Fired, 1)
	}
	t.s.Decide(d)
}

// continues reports whether a run of a backfill follows the last range without a nominal
// time between.
func (t *turn) continues(d *schemas.Decision) bool {
	n := len(t.s.Decisions)
	if n == 0 {
		return false
	}
	last := &t.s.Decisions[n-1]
	if last.Kind != d.Kind || d.Run != last.Run+last.Count || last.ToMs < t.s.ChangedMs && d.FromMs >= t.s.ChangedMs {
		return false
	}
	next, _ := t.p.after(last.ToMs)
	return next == d.FromMs
}

// late reports whether a run is later than timergrace.
func (t *turn) late(dueMs int64) bool { return t.s.GraceMs > 0 && t.now-dueMs > t.s.GraceMs }

// waiting fires the run that waited for the previous one.
func (t *turn) waiting() bool {
	w := t.s.Waiting
	switch {
	case w == nil:
		return false
	case t.p.excluded(w.NominalMs) != 0:
		t.s.Waiting = nil
		t.skip(schemas.DecisionExcluded, span{first: w.NominalMs, last: w.NominalMs, n: 1}, t.p.excluded(w.NominalMs))
		t.unexpect(w.NominalMs)
		return false
	case t.late(w.DueMs):
		t.s.Waiting = nil
		t.skip(schemas.DecisionGrace, span{first: w.NominalMs, last: w.NominalMs, n: 1}, 0) // Expected has it
		return false
	case t.blocked, t.now < w.DueMs: // the cluster's clock may have been set back
		return false
	}
	t.s.Waiting = nil
	t.fire(Run{NominalMs: w.NominalMs, Missed: w.Missed})
	t.expectWaiting(w.NominalMs)
	return true
}

// manual fires the first run that somebody asked for and that may fire.
func (t *turn) manual() bool {
	for i, m := range t.s.Manual {
		skip := t.blocked && !m.Allow
		if skip && t.s.Overlap != schemas.OverlapSkip {
			continue // it waits, like a run of the schedule
		}
		t.s.Manual = slices.Concat(t.s.Manual[:i], t.s.Manual[i+1:])
		if skip {
			t.skip(schemas.DecisionTriggerOverlap, span{first: m.AtMs, last: m.AtMs, n: 1}, t.last)
		} else {
			t.fire(Run{NominalMs: m.AtMs, Trigger: schemas.TriggerManual})
		}
		return true
	}
	return false
}

// span is a range of nominal times.
type span struct {
	first, last int64
	before      int64 // the time before last; 0 if it is not known
	n           uint32
}

func (s *span) add(ms int64) {
	if s.n == 0 {
		s.first = ms
	}
	s.before, s.last = s.last, ms
	s.n = sum(s.n, 1)
}

// butLast returns the span without its last time.
func (s span) butLast(p *Plan) span {
	if s.n < 2 {
		return span{}
	}
	if s.before == 0 {
		before, ok := p.calendar.Prev(s.last)
		if s.before = before; !ok {
			s.before = s.first
		}
	}
	return span{first: s.first, last: s.before, n: s.n - 1}
}

// policy is the rule by which a turn decides several due nominal times.
type policy struct {
	schemas.Misfire
	// resumed: the times were due during a pause. Times due after untilMs are decided later.
	resumed bool
	untilMs int64
}

// drops reports whether all times are skipped.
func (p policy) drops() bool { return p.resumed && p.Misfire == schemas.MisfireSkip }

// policy returns the policy for the next nominal time, which is due.
func (t *turn) policy() policy {
	s := t.s
	if s.CatchUp != nil && s.NextDueMs <= s.PausedUntilMs {
		return policy{Misfire: *s.CatchUp, resumed: true, untilMs: min(t.now, s.PausedUntilMs)}
	}
	s.CatchUp = nil
	return policy{Misfire: s.Misfire, untilMs: t.now}
}

// nominal decides the nominal times that are due.
func (t *turn) nominal() bool {
	s := t.s
	if s.NextMs == 0 || s.NextDueMs > t.now {
		return false
	}
	by := t.policy()
	each := by.Misfire == schemas.MisfireAll && s.CaughtUp < schemas.MaxCatchUp && !t.blocked
	due, dueMs := t.counted(by, each)
	next, nextDue := s.NextMs, s.NextDueMs
	if due.n > 0 {
		next, nextDue = t.after(due.last)
	}
	var late span
	for looked := 0; looked < maxLook && next != 0 && nextDue <= by.untilMs && (!each || due.n == 0); looked++ {
		if !by.resumed && t.late(nextDue) {
			late.add(next)
		} else {
			due.add(next)
			dueMs = nextDue
		}
		next, nextDue = t.after(next)
	}
	more := next != 0 && nextDue <= by.untilMs
	t.skip(schemas.DecisionGrace, late, 0)
	t.expect(schemas.DecisionGrace, late, 0)
	if more && due.n > 0 && !each && !by.drops() {
		t.setNext(due.first)
		s.Counted, s.CountedMs = due.n, due.last
		return true
	}
	t.setNext(next)
	s.Counted, s.CountedMs = 0, 0
	if due.n > 0 {
		t.decide(by, due, dueMs)
	}
	switch {
	case !more:
		s.CaughtUp = 0
		if by.resumed {
			s.CatchUp = nil
		}
	case each && due.n > 0:
		s.CaughtUp++
	}
	return true
}

// counted returns the nominal times that earlier turns have counted, and the due time of the
// last one. If the last one is later than timergrace, counted skips them all and returns none.
// It also returns none with each: then the caller fires them one by one.
func (t *turn) counted(by policy, each bool) (times span, dueMs int64) {
	s := t.s
	if s.Counted == 0 || each {
		return span{}, 0
	}
	times = span{first: s.NextMs, last: s.CountedMs, n: s.Counted}
	dueMs = t.p.calendar.DueMs(s.CountedMs)
	if by.resumed || !t.late(dueMs) {
		return times, dueMs
	}
	t.skip(schemas.DecisionGrace, times, 0)
	t.expect(schemas.DecisionGrace, times, 0)
	next, _ := t.after(s.CountedMs)
	t.setNext(next)
	return span{}, 0
}

// after returns the nominal time that follows one of this turn, and its due time.
func (t *turn) after(nominalMs int64) (nextMs, dueMs int64) {
	if s := t.s; nominalMs == s.NextMs && s.Zones > t.p.release() {
		return t.p.afterNewer(s)
	}
	return t.p.after(nominalMs)
}

// setNext makes a nominal time the next one. The time that is the next one already keeps the
// zone data with which it was planned.
func (t *turn) setNext(nextMs int64) {
	if nextMs != t.s.NextMs || t.s.Zones == "" {
		t.s.DoneKey = 0 // the times that follow are planned with one release
		t.p.setNext(t.s, nextMs, t.now)
	}
}

// decide decides nominal times that are due, and not later than timergrace. dueMs is the due
// time of the last one. No other one is due, unless each is to fire.
func (t *turn) decide(by policy, due span, dueMs int64) {
	s := t.s
	switch {
	case by.drops():
		t.skip(schemas.DecisionPaused, due, 0)
		return
	case t.blocked && s.Overlap == schemas.OverlapSkip:
		t.skip(schemas.DecisionOverlap, due, t.last)
		t.expect(schemas.DecisionOverlap, due, 0)
		return
	case by.Misfire == schemas.MisfireSkip && due.n > 1 && t.now-dueMs > onTimeMs:
		t.skip(schemas.DecisionMisfire, due, 0)
		t.expect(schemas.DecisionMisfire, due, 0)
		return
	}
	rest, r := due.butLast(t.p), Run{NominalMs: due.last}
	if by.Misfire == schemas.MisfireSkip {
		t.skip(schemas.DecisionMisfire, rest, 0)
		t.expect(schemas.DecisionMisfire, rest, 0)
		rest, due = span{}, span{first: due.last, last: due.last, n: 1}
	}
	r.Missed = rest.n
	if t.blocked {
		if by.resumed {
			dueMs = t.now // timergrace does not apply to the times of a pause
		}
		t.wait(r, rest, dueMs)
		t.expect(schemas.DecisionQueue, due, 0)
		return
	}
	t.skip(schemas.DecisionCoalesced, rest, t.Record.Run)
	t.fire(r)
	t.expect(schemas.DecisionFired, due, t.Run.Number)
}

// wait holds a run back until the previous run has concluded. It takes the place of a run
// that waits already, and of the rest of the nominal times that are due.
func (t *turn) wait(r Run, rest span, dueMs int64) {
	if old := t.s.Waiting; old != nil {
		t.s.Waiting = nil
		t.skip(schemas.DecisionQueue, span{first: old.NominalMs, last: old.NominalMs, n: 1}, t.last)
		r.Missed = sum(r.Missed, sum(old.Missed, 1))
	}
	t.skip(schemas.DecisionQueue, rest, t.last)
	t.s.Waiting = &schemas.WaitingRun{NominalMs: r.NominalMs, DueMs: dueMs, Missed: r.Missed}
}

// backfill fires the next run of a backfill.
func (t *turn) backfill() bool {
	b := t.s.Backfill
	if b == nil || b.DueMs > t.now || t.blocked && !b.Allow {
		return false
	}
	at := b.NextMs
	if t.p.excluded(at) != 0 {
		next, _ := t.p.after(at)
		t.s.Backfill = t.p.goOn(b, next)
		return false
	}
	b.Fired = sum(b.Fired, 1)
	b.DueMs = t.now + b.EveryMs
	next, _ := t.p.after(at)
	t.s.Backfill = t.p.goOn(b, next)
	t.fire(Run{NominalMs: at, Trigger: schemas.TriggerBackfill})
	return true
}

// goOn lets a backfill go on with a nominal time, or the first one after it that fires. It
// returns nil if none is left.
func (p *Plan) goOn(b *schemas.Backfill, nextMs int64) *schemas.Backfill {
	for _, e := range b.Except {
		if e.FromMs <= nextMs && nextMs <= e.ToMs {
			nextMs, _ = p.after(e.ToMs)
		}
	}
	if nextMs == 0 || nextMs > b.ToMs {
		return nil
	}
	b.NextMs = nextMs
	return b
}

// plan sets the schedule's due time, or ends the schedule.
func (t *turn) plan(active bool) {
	s, r := t.s, &t.Record
	r.Moves++ // not a new timer
	if s.LimitReached() {
		s.NextMs, s.NextDueMs, s.Counted, s.CountedMs = 0, 0, 0, 0
	}
	due := int64(math.MaxInt64)
	if active && s.NextMs != 0 {
		due = s.NextDueMs
		if t.p.excludes() && s.PassedMs < t.undecided() {
			due = min(due, t.now) // more times on excluded dates are to be recorded
		}
	}
	// The run that this turn fires is open from now on.
	blocked := t.blocked || t.Run != nil && NeedsLast(r)
	// waits returns when a run that waits for the previous one may fire.
	waits := func(at int64, allow bool) int64 {
		if blocked && !allow {
			return max(at, t.now+recheckMs)
		}
		return at
	}
	held := false // a run that OverlapReplace fires next
	if active && s.Waiting != nil {
		due, held = min(due, waits(max(t.now, s.Waiting.DueMs), false)), true
	}
	for _, m := range s.Manual {
		due = min(due, waits(t.now, m.Allow || s.Overlap == schemas.OverlapSkip))
		held = held || !m.Allow
	}
	if b := s.Backfill; b != nil {
		due = min(due, waits(b.DueMs, b.Allow))
	}
	if len(s.Expected) > 0 {
		due = min(due, s.Expected[0].DeadlineMs)
	}
	if held && t.blocked && s.Overlap == schemas.OverlapReplace {
		t.EndsRun = t.last
	}
	r.ScheduledMs = s.NextMs
	if due != math.MaxInt64 {
		r.DueMs, r.Queued = due, true
		return
	}
	r.Queued = false
	switch {
	case !active: // paused
	case t.Run != nil || t.Overdue != nil:
		r.State, r.FiredMs, r.Epoch = schemas.StateDelivered, t.now, t.claim.Epoch
	default:
		// An operation has no epoch: the owner counts its own claims only.
		r.State, r.DoneMs, r.Epoch = schemas.StateCompleted, t.now, t.claim.Epoch
	}
}

// sum adds two counts without overflow.
func sum(a, b uint32) uint32 { return uint32(min(uint64(a)+uint64(b), math.MaxUint32)) }
