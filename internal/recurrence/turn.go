package recurrence

import (
	"math"

	"github.com/belfryio/belfry/schemas"
)

const (
	// maxLook bounds the nominal times that one turn decides: about a millisecond of work.
	maxLook = 1000
	// recheckMs is when a schedule whose run waits for the previous one looks again. The
	// owner looks sooner, when the result of the previous run arrives.
	recheckMs = 60_000
)

// Claim identifies the owner that makes a turn.
type Claim struct {
	// Epoch is the owner's clock epoch.
	Epoch uint64
	// Before is the revision of the record that the turn's record replaces.
	Before uint64
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
	// Record is the schedule's record after the turn. Its state is delivered if Run is the
	// last run: the owner completes it after Run was published. It is completed if no run is
	// left and none fires.
	Record schemas.Record
	// Run is the run to fire; nil for none.
	Run *Run
	// Skipped are the nominal times that the turn skipped, by reason.
	Skipped []schemas.Decision
	// EndsRun is the number of the run that must get no further attempt (OverlapReplace); 0
	// for none.
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
	t := turn{p: p, s: rec.Schedule.Clone(), now: nowMs, claim: c}
	t.Record = *rec
	t.Record.Schedule = t.s
	t.blocked = open && NeedsLast(rec)
	active := rec.State == schemas.StatePending
	switch {
	case active && t.waiting():
	case t.manual():
	case active && t.nominal():
	case t.backfill():
	}
	t.plan(active)
	return t.Turn
}

// turn is a Turn in the making.
type turn struct {
	Turn
	p       *Plan
	s       *schemas.Schedule
	now     int64
	claim   Claim
	blocked bool
}

// skip records nominal times that do not fire.
func (t *turn) skip(d schemas.Decision) {
	if d.Count == 0 {
		return
	}
	d.AtMs = t.now
	t.s.Decide(d)
	t.Skipped = append(t.Skipped, d)
}

// fire claims a run. dueMs is the time at which the wheel acted.
func (t *turn) fire(r Run, kind schemas.DecisionKind) {
	t.Run = &r
	t.s.Last = schemas.LastRun{
		Run: r.Number, NominalMs: r.NominalMs, DueMs: t.Record.DueMs, ClaimedMs: t.now,
		Epoch: t.claim.Epoch, Before: t.claim.Before, Missed: r.Missed, Trigger: r.Trigger,
	}
	t.s.Decide(schemas.Decision{Kind: kind, FromMs: r.NominalMs, ToMs: r.NominalMs, Count: 1, Run: r.Number, AtMs: t.now})
}

// number returns the number of the next run and uses it up.
func (t *turn) number() uint32 {
	n := t.Record.Run
	if t.Record.Run < math.MaxUint32 {
		t.Record.Run++
	}
	return n
}

// waiting fires the run that waited for the previous one.
func (t *turn) waiting() bool {
	w := t.s.Waiting
	if w == nil || t.blocked {
		return false
	}
	t.s.Waiting = nil
	t.fire(Run{Number: w.Run, NominalMs: w.NominalMs, Missed: w.Missed}, schemas.DecisionFired)
	return true
}

// manual fires the first run that somebody asked for.
func (t *turn) manual() bool {
	if len(t.s.Manual) == 0 {
		return false
	}
	m := t.s.Manual[0]
	if t.blocked && !m.Allow {
		if t.s.Overlap != schemas.OverlapSkip {
			return false // it waits, like a run of the schedule
		}
		t.s.Manual = t.s.Manual[1:]
		t.skip(schemas.Decision{Kind: schemas.DecisionOverlap, FromMs: m.AtMs, ToMs: m.AtMs, Count: 1, Run: t.s.Last.Run})
		return true
	}
	t.s.Manual = t.s.Manual[1:]
	t.fire(Run{Number: t.number(), NominalMs: m.AtMs, Trigger: schemas.TriggerManual}, schemas.DecisionTriggered)
	return true
}

// span is a range of nominal times.
type span struct {
	first, last int64
	n           uint32
}

func (s *span) add(ms int64) {
	if s.n == 0 {
		s.first = ms
	}
	s.last = ms
	s.n++
}

// decision returns the decision about the times of a span.
func (s span) decision(kind schemas.DecisionKind, run uint32) schemas.Decision {
	return schemas.Decision{Kind: kind, FromMs: s.first, ToMs: s.last, Count: s.n, Run: run}
}

// nominal decides the nominal times that are due.
func (t *turn) nominal() bool {
	s := t.s
	if s.NextMs == 0 || s.NextDueMs > t.now {
		return false
	}
	policy := s.Misfire
	resumed := s.CatchUp != nil
	if resumed {
		policy = *s.CatchUp
	}
	one := policy == schemas.MisfireAll && s.CaughtUp < schemas.MaxCatchUp && !t.blocked
	var late, paused, due, last span
	next, nextDue := s.NextMs, s.NextDueMs
	for looked := 0; looked < maxLook && next != 0 && nextDue <= t.now; looked++ {
		switch {
		case resumed && policy == schemas.MisfireSkip && next <= s.PausedUntilMs:
			paused.add(next)
		case !resumed && s.GraceMs > 0 && t.now-nextDue > s.GraceMs:
			late.add(next)
		default:
			due.add(next)
			last = span{next, next, 1}
		}
		next, nextDue = t.p.after(next)
		if one && due.n > 0 {
			break
		}
	}
	s.NextMs, s.NextDueMs = next, nextDue
	more := next != 0 && nextDue <= t.now
	t.skip(paused.decision(schemas.DecisionPaused, 0))
	t.skip(late.decision(schemas.DecisionGrace, 0))
	if due.n > 0 {
		t.due(policy, due, last.first, more)
	}
	if !more {
		s.CatchUp, s.CaughtUp = nil, 0
		if t.Run == nil {
			s.Missed = 0
		}
	}
	return true
}

// due decides nominal times that are neither late beyond the grace nor paused. lastMs is the
// latest of them; more is true if others follow that are due, too.
func (t *turn) due(policy schemas.Misfire, due span, lastMs int64, more bool) {
	s := t.s
	missed := due.n > 1 || more || s.Missed > 0 || s.CaughtUp > 0
	switch {
	case t.blocked && s.Overlap == schemas.OverlapSkip:
		t.skip(due.decision(schemas.DecisionOverlap, s.Last.Run))
	case missed && policy == schemas.MisfireSkip:
		s.Missed = sum(s.Missed, due.n)
		t.skip(due.decision(schemas.DecisionMisfire, 0))
	case t.blocked:
		t.wait(due, lastMs)
	case missed && policy == schemas.MisfireAll && s.CaughtUp < schemas.MaxCatchUp:
		s.CaughtUp++
		t.run(lastMs, 0)
	case more:
		// The last of them fires for all, in a later turn.
		s.Missed = sum(s.Missed, due.n)
		t.skip(due.decision(schemas.DecisionCoalesced, t.Record.Run))
	default:
		t.coalesce(due, lastMs, t.Record.Run)
		missed := sum(s.Missed, due.n-1)
		s.Missed = 0
		t.run(lastMs, missed)
	}
}

// coalesce skips all nominal times of a span but the last.
func (t *turn) coalesce(due span, lastMs int64, run uint32) {
	if due.n < 2 {
		return
	}
	before, ok := t.p.calendar.Prev(lastMs)
	if !ok {
		before = due.first
	}
	t.skip(span{due.first, before, due.n - 1}.decision(schemas.DecisionCoalesced, run))
}

// run fires the run of a nominal time.
func (t *turn) run(nominalMs int64, missed uint32) {
	t.s.Fired++
	t.fire(Run{Number: t.number(), NominalMs: nominalMs, Missed: missed}, schemas.DecisionFired)
}

// wait holds the run of the latest nominal time back until the previous run has concluded.
// It takes the place of a run that waits already, and keeps its number.
func (t *turn) wait(due span, lastMs int64) {
	s := t.s
	if s.Overlap == schemas.OverlapReplace {
		t.EndsRun = s.Last.Run
	}
	w := schemas.WaitingRun{NominalMs: lastMs, DueMs: t.now, Missed: sum(s.Missed, due.n-1)}
	if old := s.Waiting; old != nil {
		w.Run, w.Missed = old.Run, sum(sum(w.Missed, old.Missed), 1)
		t.skip(span{old.NominalMs, old.NominalMs, 1}.decision(schemas.DecisionQueue, old.Run))
	} else {
		s.Fired++
		w.Run = t.number()
	}
	t.coalesce(due, lastMs, w.Run)
	s.Missed, s.Waiting = 0, &w
}

// backfill fires the next run of a backfill.
func (t *turn) backfill() bool {
	b := t.s.Backfill
	if b == nil || b.DueMs > t.now || t.blocked && !b.Allow {
		return false
	}
	at := b.NextMs
	for looked := 0; at != 0 && at <= b.ToMs && looked < maxLook && !b.Again && t.s.MayHaveFired(at); looked++ {
		b.Skipped++
		at, _ = t.p.after(at)
	}
	switch {
	case at == 0 || at > b.ToMs:
		t.s.Backfill = nil
		return true
	case !b.Again && t.s.MayHaveFired(at):
		b.NextMs = at // the next turn goes on
		return true
	}
	b.Fired++
	b.DueMs = t.now + b.EveryMs
	if b.NextMs, _ = t.p.after(at); b.NextMs == 0 || b.NextMs > b.ToMs {
		t.s.Backfill = nil
	}
	t.fire(Run{Number: t.number(), NominalMs: at, Trigger: schemas.TriggerBackfill}, schemas.DecisionBackfilled)
	return true
}

// plan sets when the schedule is due next, or ends it.
func (t *turn) plan(active bool) {
	s, r := t.s, &t.Record
	r.Moves++ // not a new timer
	if s.Limit > 0 && s.Fired >= s.Limit {
		s.NextMs, s.NextDueMs = 0, 0
	}
	due := int64(math.MaxInt64)
	if active && s.NextMs != 0 {
		due = s.NextDueMs
	}
	// The run that this turn fires is open from now on.
	blocked := t.blocked || t.Run != nil && NeedsLast(r)
	recheck := func(at int64) int64 {
		if blocked {
			return max(at, t.now+recheckMs)
		}
		return at
	}
	if s.Waiting != nil {
		due = min(due, recheck(t.now))
	}
	if len(s.Manual) > 0 {
		if s.Manual[0].Allow || s.Overlap == schemas.OverlapSkip {
			due = min(due, t.now)
		} else {
			due = min(due, recheck(t.now))
		}
	}
	if b := s.Backfill; b != nil {
		if b.Allow {
			due = min(due, b.DueMs)
		} else {
			due = min(due, recheck(b.DueMs))
		}
	}
	r.ScheduledMs = s.NextMs
	if due != math.MaxInt64 {
		r.DueMs, r.Queued = due, true
		return
	}
	r.Queued = false
	switch {
	case !active: // paused
	case t.Run != nil:
		r.State, r.FiredMs, r.Epoch = schemas.StateDelivered, t.now, t.claim.Epoch
	default:
		r.State, r.DoneMs = schemas.StateCompleted, t.now
	}
}

// sum adds two counts without overflow.
func sum(a, b uint32) uint32 { return uint32(min(uint64(a)+uint64(b), math.MaxUint32)) }
