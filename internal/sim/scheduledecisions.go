package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file checks what became of nominal times: each is decided once, for a reason that is
// true.

// addedDecisions returns the decisions that a revision has added to those of the one before;
// false if it has changed others. Of an extended range, the result has only the new part.
func addedDecisions(was, now []schemas.Decision) (added []schemas.Decision, ok bool) {
	if len(was) == 0 {
		return now, true
	}
	last := was[len(was)-1]
	at := -1
	for i := len(now) - 1; i >= 0 && at < 0; i-- {
		if d := now[i]; d.Kind == last.Kind && d.FromMs == last.FromMs && d.Run == last.Run && d.Count >= last.Count {
			at = i
		}
	}
	if at < 0 || at+1 > len(was) || at+1 < len(was) && len(now) != schemas.MaxDecisions || !slices.Equal(now[:at], was[len(was)-1-at:len(was)-1]) {
		return nil, false
	}
	if d := now[at]; d.Count > last.Count {
		gained := schemas.Decision{Kind: d.Kind, FromMs: last.ToMs + 1, ToMs: d.ToMs, Count: d.Count - last.Count, Run: d.Run, AtMs: d.AtMs}
		if d.Kind.Fires() {
			gained.Run += last.Count
		}
		added = append(added, gained)
	} else if d != last {
		return nil, false
	}
	return append(added, now[at+1:]...), true
}

// expand returns the nominal times of a decision.
func (c *checker) expand(s *schedule, fromMs, toMs int64) (out []int64) {
	for at := range s.cal.Between(fromMs, toMs) {
		if out = append(out, at); len(out) > maxExpanded {
			c.fail(PropDecided, "%s: more than %d nominal times from %s to %s", s, maxExpanded, c.w.ms(fromMs), c.w.ms(toMs))
			break
		}
	}
	return out
}

// decisions checks that a revision decides the nominal times that it passes, and no others.
// ran is the run that it claims, nil for none.
func (c *checker) decisions(s *schedule, old, r *schemas.Record, added []schemas.Decision, op *schemas.Operation, ran *run) {
	var got []int64
	var byDecision [][]int64
	s.before = s.lastMs
	for _, d := range added {
		times := c.decision(s, old, r, d, op, ran)
		got = append(got, times...)
		byDecision = append(byDecision, times)
		for _, at := range times {
			if k, twice := s.decided[at]; twice {
				c.fail(PropDecided, "%s: %s was %s, and now %s", s, c.w.ms(at), k, d.Kind)
			}
			s.decided[at] = d.Kind
			s.lastMs = max(s.lastMs, at)
			c.w.stats.decide(d.Kind)
		}
	}
	var want []int64
	if !s.excludes {
		want = c.passed(s, old, r, op, got)
	}
	if w := old.Schedule.Waiting; w != nil {
		want = append(want, w.NominalMs)
	}
	if w := r.Schedule.Waiting; w != nil {
		if before := old.Schedule.Waiting; before == nil || before.NominalMs != w.NominalMs {
			s.waitingDueMs = s.cal.DueMs(w.NominalMs)
		}
		got = append(got, w.NominalMs)
		s.lastMs = max(s.lastMs, w.NominalMs)
	}
	c.missed(s, old, added, ran)
	if r.State == schemas.StateCancelled {
		want = slices.DeleteFunc(want, func(at int64) bool { return !slices.Contains(got, at) })
	}
	slices.Sort(got)
	slices.Sort(want)
	if s.excludes {
		c.undecided(s, old, r, op)
	} else if !slices.Equal(got, want) {
		c.fail(PropDecided, "%s: passes %v, and decides %v, as %+v", s, c.times(want), c.times(got), added)
	}
	if next := r.Run; next != s.numbers+1 {
		c.fail(PropRuns, "%s: its next run is %d after run %d", s, next, s.numbers)
	}
	c.asked(s, old, r, added, op)
	c.expects(s, old, r, added, byDecision, op, ran)
}

func (c *checker) times(all []int64) (out []string) {
	for _, at := range all {
		out = append(out, c.w.ms(at))
	}
	return out
}

// passed returns the nominal times from the old next one to the new.
func (c *checker) passed(s *schedule, old, r *schemas.Record, op *schemas.Operation, decided []int64) []int64 {
	from, next := old.Schedule.NextMs, r.Schedule.NextMs
	switch {
	case op != nil && op.Kind == schemas.OperationUpdate:
		if next == from && next != 0 && len(decided) == 0 {
			return nil // both recurrences have the same nominal times until now
		}
		// The new recurrence counts from the update on. A schedule that has reached its limit
		// may go on.
		return c.expand(s, cmp.Or(from, s.before+1), op.AtMs)
	case from == 0:
		return nil
	case next == from:
		return nil
	case next != 0:
		return c.expand(s, from, next-1)
	}
	// None is left: all are decided, or the limit is reached.
	last := from - 1
	for _, at := range decided {
		last = max(last, at)
	}
	if w := r.Schedule.Waiting; w != nil {
		last = max(last, w.NominalMs)
	}
	if !s.limited(s.rule(old)) {
		if at, more := s.cal.Next(last); more {
			c.fail(PropDecided, "%s: ends before %s", s, c.w.ms(at))
		}
	}
	return c.expand(s, from, last)
}

// limited reports whether a schedule has fired as often as its limit allows.
func (s *schedule) limited(rule *schemas.Recurrence) bool {
	return rule.Limit > 0 && s.counted >= rule.Limit
}

// decision checks one decision, and returns the nominal times that it decides.
func (c *checker) decision(s *schedule, old, r *schemas.Record, d schemas.Decision, op *schemas.Operation, ran *run) []int64 {
	c.w.trace("%s: %s %s to %s, %d, run %d", s, d.Kind, c.w.ms(d.FromMs), c.w.ms(d.ToMs), d.Count, d.Run)
	if d.Kind.Fires() {
		if ran == nil || ran.number != d.Run || d.Count != 1 || d.ToMs != ran.nominalMs || kindOf(ran.trigger) != d.Kind {
			c.fail(PropDecided, "%s: %+v without a claim of that run", s, d)
			return nil
		}
		switch d.Kind {
		case schemas.DecisionFired:
			c.ranIn(s, old, ran)
			return []int64{d.ToMs}
		case schemas.DecisionBackfilled:
			c.backfilled(s, old, d.ToMs)
		}
		c.w.stats.decide(d.Kind)
		return nil
	}
	if op != nil && op.Kind == schemas.OperationCancel {
		// The run that waits for the run before, and the runs that clients asked for.
		if w := old.Schedule.Waiting; w != nil && d.Kind == schemas.DecisionCancelled && d.FromMs <= w.NominalMs && w.NominalMs <= d.ToMs {
			return []int64{w.NominalMs}
		}
		return nil
	}
	if d.Kind == schemas.DecisionExcluded {
		return c.excludedTimes(s, old, d, op)
	}
	if d.Kind == schemas.DecisionTriggerOverlap {
		c.reason(s, old, r, d, []int64{d.ToMs}, op, ran)
		return nil
	}
	if w := old.Schedule.Waiting; w != nil && d.ToMs == w.NominalMs && d.Count == 1 {
		// An update may have replaced the recurrence of the run that waits.
		c.reason(s, old, r, d, []int64{d.ToMs}, op, ran)
		return []int64{d.ToMs}
	}
	from := d.FromMs
	if next := old.Schedule.NextMs; next != 0 && next <= d.ToMs {
		from = max(from, next) // a range that began before an update
	}
	var waited []int64
	if w := old.Schedule.Waiting; w != nil && d.FromMs <= w.NominalMs && w.NominalMs < from {
		waited = append(waited, w.NominalMs)
	}
	count := int(d.Count) - len(waited)
	times := c.timesOf(s, old, from, d.ToMs, count, op)
	if s.excludes && len(times) != count && len(waited) == 0 {
		// A calendar no longer excludes a date before the planned time, which has passed since.
		times = c.timesOf(s, old, d.FromMs, d.ToMs, count, op)
	}
	times = slices.Concat(waited, times)
	if d.Count != uint32(len(times)) {
		c.fail(PropDecided, "%s: %+v has the nominal times %v", s, d, c.times(times))
	}
	c.reason(s, old, r, d, times, op, ran)
	return times
}

// kindOf is the decision about the run of a trigger.
func kindOf(t schemas.Trigger) schemas.DecisionKind {
	switch t {
	case schemas.TriggerManual:
		return schemas.DecisionTriggered
	case schemas.TriggerBackfill:
		return schemas.DecisionBackfilled
	}
	return schemas.DecisionFired
}

// resumed reports whether a turn on a record decides a time, due at dueMs, as one of a pause that has ended. The turn
// may decide later times, too, for example if all times of the pause are excluded.
func resumed(r *schemas.Record, dueMs int64) bool {
	return r.Schedule.CatchUp != nil && max(r.Schedule.NextDueMs, dueMs) <= r.Schedule.PausedUntilMs
}

// misfire is the policy that a turn on a record follows for a time that is due at dueMs.
func misfire(r *schemas.Record, dueMs int64) schemas.Misfire {
	if resumed(r, dueMs) {
		return *r.Schedule.CatchUp
	}
	return r.Schedule.Misfire
}

// ranIn checks the run of a nominal time against the policies.
func (c *checker) ranIn(s *schedule, old *schemas.Record, ran *run) {
	if old.State == schemas.StatePaused {
		c.fail(PropObeyed, "%s: run %d of %s was claimed while the schedule was paused", s, ran.number, c.w.ms(ran.nominalMs))
	}
	if ran.waited {
		return
	}
	claimedMs, until := ran.claimedMs, ran.claimedMs
	if resumed(old, ran.dueMs) {
		until = min(until, old.Schedule.PausedUntilMs)
	}
	missed := c.laterDue(s, ran.nominalMs, until, true)
	switch policy := misfire(old, ran.dueMs); {
	case missed && policy == schemas.MisfireSkip, missed && policy == schemas.MisfireOne:
		c.fail(PropReasons, "%s: run %d of %s was claimed at %s, and a later one was due", s, ran.number, c.w.ms(ran.nominalMs), c.w.ms(claimedMs))
	case !resumed(old, ran.dueMs) && s.rule(old).GraceMs > 0 && claimedMs-ran.dueMs > s.rule(old).GraceMs:
		c.fail(PropReasons, "%s: run %d, due %s, was claimed at %s, later than the grace", s, ran.number, c.w.ms(ran.dueMs), c.w.ms(claimedMs))
	}
}

// backfilled checks a nominal time that a backfill fires.
func (c *checker) backfilled(s *schedule, old *schemas.Record, at int64) {
	p := &old.Schedule.Progress
	if p.Backfill == nil {
		c.fail(PropBackfill, "%s: %s is backfilled without a request", s, c.w.ms(at))
		return
	}
	if w := p.Waiting; w != nil && w.NominalMs == at || p.NextMs != 0 && at >= p.NextMs {
		c.fail(PropBackfill, "%s: %s is backfilled before it is decided", s, c.w.ms(at))
	}
	was, known := s.decided[at]
	if known && was.Fires() && !s.again {
		c.fail(PropBackfill, "%s: %s was %s and is backfilled", s, c.w.ms(at), was)
	}
	if known {
		s.decided[at] = schemas.DecisionBackfilled
	}
}

// laterDue reports whether a nominal time after another one is due at a time: with each version
// of the calendars that the decision may follow, or with one of them.
func (c *checker) laterDue(s *schedule, afterMs, untilMs int64, each bool) bool {
	possible := c.possible(s)
	later := 0
	for _, cal := range possible {
		if next, more := cal.Next(afterMs); more && cal.DueMs(next) <= untilMs {
			later++
		}
	}
	return later > 0 && (!each || later == len(possible))
}

// misfireLate is the lateness up to which the latest of several due nominal times fires
// although timermisfire is skip.
const misfireLate = 10 * time.Second

// lookSlack is how long before its claim the owner may have seen that a run was open.
const lookSlack = 30 * time.Second

// reason checks that the reason of a skip is true.
func (c *checker) reason(s *schedule, old, r *schemas.Record, d schemas.Decision, times []int64, op *schemas.Operation, ran *run) {
	wrong := func(format string, args ...any) {
		c.fail(PropReasons, "%s: %s to %s were skipped as %s at %s: "+format, append([]any{s, c.w.ms(d.FromMs), c.w.ms(d.ToMs), d.Kind, c.w.ms(d.AtMs)}, args...)...)
	}
	kind := schemas.OperationKind(0)
	if op != nil {
		kind = op.Kind
	}
	rule := s.rule(old)
	if old.State == schemas.StatePaused && kind == 0 && d.Kind != schemas.DecisionTriggerOverlap {
		wrong("the schedule was paused")
	}
	last, firstDue := int64(0), int64(0)
	if len(times) > 0 {
		last, firstDue = times[len(times)-1], s.cal.DueMs(times[0])
	}
	laterDue := c.laterDue(s, last, d.AtMs, false)
	waits := r.Schedule.Waiting
	switch d.Kind {
	case schemas.DecisionOverlap, schemas.DecisionTriggerOverlap, schemas.DecisionQueue:
		before := s.runs[d.Run]
		switch {
		case (rule.Overlap == schemas.OverlapSkip) == (d.Kind == schemas.DecisionQueue), before == nil, d.Run != old.Schedule.Last.Run:
			wrong("run %d, overlap %d", d.Run, rule.Overlap)
		case before.final && c.w.now-before.finalAt > int64(c.lookSlack()):
			wrong("run %d had a result at %s", d.Run, c.w.rel(before.finalAt))
		case d.Kind == schemas.DecisionQueue && (waits == nil || waits.NominalMs <= last):
			wrong("no later run waits")
		}
	case schemas.DecisionCoalesced:
		if ran == nil || ran.number != d.Run || ran.nominalMs <= last || !laterDue || misfire(old, firstDue) != schemas.MisfireOne {
			wrong("run %d did not fire for it, or timermisfire is %d", d.Run, misfire(old, firstDue))
		}
	case schemas.DecisionMisfire:
		lone := len(times) < 2 || d.AtMs-s.cal.DueMs(last) <= misfireLate.Milliseconds()
		if misfire(old, firstDue) != schemas.MisfireSkip || !laterDue && lone {
			wrong("timermisfire is %d, and no later one was due", misfire(old, firstDue))
		}
	case schemas.DecisionGrace:
		waited := old.Schedule.Waiting != nil && old.Schedule.Waiting.NominalMs == last
		dueMs := s.cal.DueMs(last)
		if waited {
			dueMs = s.waitingDueMs // an update may have changed the jitter since
		}
		paused := resumed(old, dueMs) && !waited && dueMs <= s.resumedMs // such times are skipped as paused
		if rule.GraceMs == 0 || paused || d.AtMs-dueMs <= rule.GraceMs {
			wrong("it was due %s, the grace is %d ms", c.w.ms(dueMs), rule.GraceMs)
		}
	case schemas.DecisionPaused:
		// After a resume: what was due until then. At the resume: the run that waited.
		waited := kind == schemas.OperationResume && old.Schedule.Waiting != nil && old.Schedule.Waiting.NominalMs == last
		if !waited && (misfire(old, firstDue) != schemas.MisfireSkip || !resumed(old, firstDue) || s.cal.DueMs(last) > s.resumedMs) {
			wrong("it was paused until %s", c.w.ms(s.resumedMs))
		}
	case schemas.DecisionUpdated:
		if kind != schemas.OperationUpdate || last > op.AtMs {
			wrong("no update")
		}
	default:
		if kind != schemas.OperationCancel {
			wrong("unknown reason")
		}
	}
}

// lookSlack is how old the look at a run may be on which a claim is based.
func (c *checker) lookSlack() time.Duration {
	if c.w.p.faults {
		return lookSlack
	}
	return onTimeBound
}

// missed checks for how many nominal times a run stands, beside its own.
func (c *checker) missed(s *schedule, old *schemas.Record, added []schemas.Decision, ran *run) {
	w := old.Schedule.Waiting
	if w == nil {
		s.queued = 0
	}
	coalesced := uint32(0)
	for _, d := range added {
		if w != nil && d.Kind != schemas.DecisionQueue && !d.Kind.Requested() && !d.Kind.Fires() && d.FromMs <= w.NominalMs && w.NominalMs <= d.ToMs {
			s.queued = 0 // the run that waited is skipped; a range of requests only lies around its time
		}
		switch d.Kind {
		case schemas.DecisionCoalesced:
			coalesced += d.Count
		case schemas.DecisionQueue:
			s.queued += d.Count
		}
	}
	if ran == nil {
		return
	}
	want := coalesced
	if ran.waited {
		want = s.queued
	}
	if ran.missed != want {
		c.fail(PropReasons, "%s stands for %d missed nominal times, and says %d", ran, want, ran.missed)
	}
}

// asked checks the runs that somebody asked for: each is decided once.
func (c *checker) asked(s *schedule, old, r *schemas.Record, added []schemas.Decision, op *schemas.Operation) {
	was, now := old.Schedule.Manual, r.Schedule.Manual
	switch {
	case op != nil && op.Kind == schemas.OperationTrigger:
		if len(now) != len(was)+1 || !slices.Equal(now[:len(was)], was) {
			c.fail(PropObeyed, "%s: a trigger changed %+v to %+v", s, was, now)
		}
		return
	case r.State == schemas.StateCancelled || slices.Equal(was, now):
		return
	}
	for i, m := range was {
		if !slices.Equal(slices.Concat(was[:i], was[i+1:]), now) {
			continue
		}
		for _, d := range added {
			if d.ToMs == m.AtMs && (d.Kind == schemas.DecisionTriggered || d.Kind == schemas.DecisionTriggerOverlap) {
				return
			}
		}
	}
	c.fail(PropDecided, "%s: of the runs that were asked for, %+v, only %+v are left, decided as %+v", s, was, now, added)
}

// updated sees a schedule get another recurrence.
func (c *checker) updated(s *schedule, old, r *schemas.Record, op *schemas.Operation) {
	q := s.requests[op.By]
	if q == nil {
		return // obeyed has complained
	}
	rule := &s.rules[q.rule]
	if !equalRules(s.rule(r), rule) {
		c.fail(PropObeyed, "%s: the update to %+v was stored as %+v", s, *rule, *s.rule(r))
	}
	if rule.StartMs != 0 {
		s.anchor = rule.StartMs
	}
	cal, err := compile(s.id, rule, s.anchor)
	if err != nil {
		c.fail(PropState, "%s: %v", s, err)
		return
	}
	next := r.Schedule.NextMs
	// A change of the calendars may have made a time that has passed the next run. The update
	// follows that change first, and keeps the time if the new recurrence has it, too;
	// plannedRight checks that.
	kept := next > s.lastMs && next <= op.AtMs && slices.ContainsFunc(c.known(s), func(cal *calendar.Schedule) bool { return isNominal(cal, next) })
	s.cal, s.applied[q.rule] = cal, true
	s.ruleInForce, s.updatedAt, s.updatedMs = q.rule, c.w.now, op.AtMs
	c.w.trace("%s: %+v", s, *rule)
	if s.excludes {
		if next != 0 && next != old.Schedule.NextMs && !kept && !c.nextIs(s, next, max(op.AtMs, s.lastMs)) {
			c.fail(PropDecided, "%s: updated at %s, its next run is at %s", s, c.w.ms(op.AtMs), c.w.ms(next))
		}
		return
	}
	if next != 0 && next == old.Schedule.NextMs && next <= op.AtMs {
		return // passed has seen to it that nothing was decided
	}
	want, ok := cal.Next(max(op.AtMs, s.lastMs))
	if !ok || s.limited(rule) {
		want = 0
	}
	if next == old.Schedule.NextMs && sameTimes(s.rule(old), rule) {
		return
	}
	if next != want {
		c.fail(PropDecided, "%s: updated at %s, its next run is at %s; want %s", s, c.w.ms(op.AtMs), c.w.ms(next), c.w.ms(want))
	}
}

// sameTimes reports whether two recurrences have the same nominal times.
func sameTimes(a, b *schemas.Recurrence) bool {
	x := *a
	x.Misfire, x.GraceMs, x.Overlap, x.Limit, x.ExpectMs = b.Misfire, b.GraceMs, b.Overlap, b.Limit, b.ExpectMs
	return equalRules(&x, b)
}

// decidedMs returns the time of what the claim of a schedule decides, in Unix milliseconds; 0 if
// it decides nothing. A claim that only plans the next due time keeps the decisions of earlier
// claims and operations. If the cluster's clock was set back since, their times are in the
// future, which is allowed. A claim whose record has changed since it was read is refused, so it
// decides nothing.
func (c *checker) decidedMs(w store.Write) (ms int64) {
	was, err := c.w.server.Record(w.ID)
	if err != nil || was.Rev != w.Rev || was.Record.Schedule == nil {
		return 0
	}
	old, s := was.Record.Schedule, w.Record.Schedule
	if n, m := len(s.Decisions), len(old.Decisions); n > 0 && (m == 0 || s.Decisions[n-1] != old.Decisions[m-1]) {
		ms = s.Decisions[n-1].AtMs
	}
	if s.Last != old.Last {
		ms = max(ms, s.Last.ClaimedMs)
	}
	if s.Alarm != old.Alarm {
		ms = max(ms, s.Alarm.ClaimedMs)
	}
	return ms
}
