package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file checks schedules that exclude calendars. A decision follows one version of the
// calendars. Which one it was, the checker does not know: a copy may be up to
// store.CalendarFresh old, and a write may take long. So a decision is right if one of the
// versions that it may have followed makes it right.

// The properties of schedules that exclude calendars.
const (
	// PropExcluded: no claim that is decided after the acknowledgement of a change fires a
	// nominal time on a date that the calendars exclude. While one of the calendars does not
	// exist, nothing of the schedule fires.
	PropExcluded = "an excluded date does not fire"
	// PropIncluded: a nominal time is skipped as excluded only if a calendar contains its date.
	// When a calendar no longer does, times on the date fire.
	PropIncluded = "a date that is not excluded fires"
	// PropCalendars: an acknowledged change of a calendar is stored.
	PropCalendars = "an acknowledged calendar is stored"
)

const (
	// oldestCopy bounds the age of the calendars that a stored decision follows: a copy is
	// fresh, but the write of a paused process may take long.
	oldestCopy = 60 * time.Second
	// replanned bounds the time from a change, or the last fault, until the owners have planned
	// their schedules again: the poll of the copy, scheduler's replanEvery, and replanAgain
	// after a failure.
	replanned = 7 * time.Second
	// lateDecision bounds the lateness of a decision once everything is repaired.
	lateDecision = 3 * time.Second
)

// calOf returns the nominal times of a schedule with a version of the calendars; false if one
// of its calendars did not exist.
func (s *schedule) calOf(v *calendarVersion) (*calendar.Schedule, bool) {
	key := calKey{s.ruleInForce, v.seq}
	if cal, ok := s.cals[key]; ok {
		return cal, cal != nil
	}
	x, err := v.Exclusions(s.rules[s.ruleInForce].Exclude)
	if err != nil {
		s.cals[key] = nil
		return nil, false
	}
	cal := s.excluding(x)
	s.cals[key] = cal
	return cal, true
}

// excluding returns the nominal times of a schedule without dates.
func (s *schedule) excluding(x *calendar.Exclusions) *calendar.Schedule {
	rule := s.rules[s.ruleInForce]
	spec := specOf(s.id, &rule, s.anchor)
	spec.Exclude, spec.ExcludeShift = x, rule.ExcludeMode
	cal, err := calendar.New(spec)
	if err != nil {
		panic(err) // begun and updated have compiled the same recurrence
	}
	return cal
}

// calKey names the nominal times of one of the rules with a version of the calendars.
type calKey struct {
	rule int
	seq  uint64
}

// possible returns the nominal times with each version that a decision stored now may follow.
func (c *checker) possible(s *schedule) (out []*calendar.Schedule) {
	if !s.excludes {
		return []*calendar.Schedule{s.cal}
	}
	for _, v := range c.w.calendars.since(c.w.now - int64(oldestCopy)) {
		if cal, ok := s.calOf(v); ok {
			out = append(out, cal)
		}
	}
	return out
}

// known returns the nominal times with each version that an update stored now may follow for the
// times until then: to an update, a calendar that does not exist has no dates.
func (c *checker) known(s *schedule) (out []*calendar.Schedule) {
	if !s.excludes {
		return []*calendar.Schedule{s.cal}
	}
	rule := s.rules[s.ruleInForce]
	for _, v := range c.w.calendars.since(c.w.now - int64(oldestCopy)) {
		if cal, ok := s.calOf(v); ok {
			out = append(out, cal)
			continue
		}
		all := calendarVersion{dates: map[string][]string{}}
		for _, name := range rule.Exclude {
			all.dates[name] = v.dates[name]
		}
		x, err := all.Exclusions(rule.Exclude)
		if err != nil {
			panic(err) // the dates are valid, and all exist
		}
		out = append(out, s.excluding(x))
	}
	return out
}

// isNominal reports whether an instant is a nominal time.
func isNominal(cal *calendar.Schedule, ms int64) bool {
	next, ok := cal.Next(ms - 1)
	return ok && next == ms
}

// nextIs reports whether a time, 0 for none, is the first nominal time after another one.
func (c *checker) nextIs(s *schedule, next, afterMs int64) bool {
	return slices.ContainsFunc(c.possible(s), func(cal *calendar.Schedule) bool {
		want, _ := cal.Next(afterMs)
		return want == next
	})
}

// claimsExcluded checks the claim of a schedule's run that a term is about to send.
func (c *checker) claimsExcluded(t *term, w store.Write) {
	l := c.w.byID[w.ID]
	if l == nil || l.sched == nil || !l.sched.excludes || !l.sched.known {
		return
	}
	s, last := l.sched, &w.Record.Schedule.Last
	was, err := c.w.server.Record(w.ID)
	if err != nil || was.Rev != w.Rev || *last == was.Record.Schedule.Last {
		return // refused, or no run
	}
	for _, v := range c.w.calendars.inForce() {
		cal, ok := s.calOf(v)
		if ok && (last.Trigger == schemas.TriggerManual || cal.ExcludedBy(last.NominalMs) == 0 || isNominal(cal, last.NominalMs)) {
			return
		}
	}
	c.fail(PropExcluded, "%s: %s claims run %d of %s, whose date is excluded by %v", s, t.n.name, last.Run, c.w.ms(last.NominalMs), s.rules[s.ruleInForce].Exclude)
}

// excludedTimes returns the nominal times of a decision of DecisionExcluded, and checks them.
func (c *checker) excludedTimes(s *schedule, old *schemas.Record, d schemas.Decision, op *schemas.Operation) []int64 {
	c.w.stats.decide(d.Kind)
	if !s.excludes {
		c.fail(PropReasons, "%s: %+v, and the schedule excludes no calendars", s, d)
	}
	times := c.expand(s, d.FromMs, d.ToMs)
	if w := old.Schedule.Waiting; w != nil && d.ToMs == w.NominalMs && d.Count == 1 {
		times = []int64{w.NominalMs} // an update may have replaced the recurrence of the run that waits
	}
	if d.Count != uint32(len(times)) {
		c.fail(PropDecided, "%s: %+v has the nominal times %v", s, d, c.times(times))
	}
	updated := op != nil && op.Kind == schemas.OperationUpdate
	for _, at := range times {
		c.excludedRight(s, at, d, updated)
	}
	return times
}

// excludedRight checks that a nominal time is skipped as excluded by calendars that contain its
// date.
func (c *checker) excludedRight(s *schedule, at int64, d schemas.Decision, updated bool) {
	k := c.w.calendars
	if k == nil {
		return
	}
	var ever []uint32
	for _, v := range k.versions {
		if cal, ok := s.calOf(v); ok {
			ever = append(ever, cal.ExcludedBy(at))
		}
	}
	if updated {
		for _, cal := range c.known(s) {
			ever = append(ever, cal.ExcludedBy(at))
		}
	}
	if slices.Max(append(ever, 0)) == 0 {
		c.fail(PropIncluded, "%s: %s is skipped as excluded, and was in none of the calendars", s, c.w.ms(at))
	}
	if !updated && d.Run != 0 && !slices.Contains(ever, d.Run) { // an update renumbers the calendars
		c.fail(PropReasons, "%s: %s is skipped as excluded by the calendars %b, which never contained it together", s, c.w.ms(at), d.Run)
	}
	if cal, since := c.stable(s); cal != nil && at > since {
		if by := cal.ExcludedBy(at); by == 0 || !updated && by != d.Run {
			c.fail(PropIncluded, "%s: %s is skipped as excluded by the calendars %b; since %s it is excluded by %b", s, c.w.ms(at), d.Run, c.w.ms(since), by)
		}
	}
}

// includedFrom returns the true time at which the newest change that made an instant a nominal
// time of a schedule is in force; 0 if no change has. A change is in force when it is
// acknowledged, store.CalendarFresh after it was stored. A run that it adds before that is late.
func (c *checker) includedFrom(s *schedule, nominalMs int64) (from int64) {
	if !s.excludes {
		return 0
	}
	had := true
	for _, v := range c.w.calendars.versions {
		cal, ok := s.calOf(v)
		has := ok && isNominal(cal, nominalMs)
		if has && !had {
			from = v.at + int64(store.CalendarFresh)
		}
		had = has
	}
	return from
}

// stable returns the nominal times of a schedule if they have not changed for so long that each
// owner follows them, and the time of the change, in Unix milliseconds. It returns nil after a
// recent change of the schedule or of its calendars, and while there are faults.
func (c *checker) stable(s *schedule) (cal *calendar.Schedule, sinceMs int64) {
	k := c.w.calendars
	if !s.excludes {
		return nil, 0
	}
	v := k.newest()
	since := max(v.at+int64(replanned), s.bornAt, s.updatedAt)
	if c.w.p.faults {
		since = max(since, c.w.faultless()+int64(replanned))
	}
	cal, ok := s.calOf(v)
	if !ok {
		return nil, 0
	}
	// The cluster's clock may have been set back since.
	return cal, max((since+c.skew())/int64(time.Millisecond), s.updatedMs, v.atMs+replanned.Milliseconds())
}

// undecided checks that no nominal time before the last decided one is left without a
// decision. Times on excluded dates are recorded before the first later one.
func (c *checker) undecided(s *schedule, old, r *schemas.Record, op *schemas.Operation) {
	to := s.lastMs
	if op != nil && op.Kind == schemas.OperationUpdate {
		if to = max(to, op.AtMs); r.Schedule.NextMs != 0 {
			to = min(to, r.Schedule.NextMs-1)
		}
		if s.limited(s.rule(old)) || old.Schedule.NextMs == 0 {
			s.checkedMs = max(s.checkedMs, to) // what follows the last run is not decided
		}
	}
	waits := func(at int64) bool { w := r.Schedule.Waiting; return w != nil && w.NominalMs == at }
	for _, at := range c.expand(s, s.checkedMs+1, to) {
		if _, ok := s.decided[at]; !ok && !waits(at) {
			c.fail(PropDecided, "%s: %s has no decision, and later times have", s, c.w.ms(at))
		}
	}
	s.checkedMs = max(s.checkedMs, to)
	if cal, since := c.stable(s); cal != nil && to > since {
		for at := range cal.Between(max(since, r.AddedMs+1), to) { // the first run is after the add
			if _, ok := s.decided[at]; !ok && !waits(at) {
				c.fail(PropIncluded, "%s: %s has no decision, and later times have", s, c.w.ms(at))
			}
		}
	}
}

// firesIncluded checks, when a schedule is paused or ends, that it has decided the nominal times
// on dates that are no longer excluded.
func (c *checker) firesIncluded(s *schedule, old *schemas.Record, op *schemas.Operation) {
	if op == nil || op.Kind != schemas.OperationCancel && op.Kind != schemas.OperationPause || old.State != schemas.StatePending || s.limited(s.rule(old)) {
		return
	}
	cal, since := c.stable(s)
	if cal == nil {
		return
	}
	since = max(since, old.AddedMs+1, s.resumedMs+lateDecision.Milliseconds())
	for at := range cal.Between(since, op.AtMs-lateDecision.Milliseconds()) {
		c.w.stats.Included++
		if w := old.Schedule.Waiting; s.decided[at] == 0 && (w == nil || w.NominalMs != at) {
			c.fail(PropIncluded, "%s: %s has no decision; its next run is planned for %s", s, c.w.ms(at), c.w.ms(old.Schedule.NextMs))
		}
	}
}

// plannedRight checks that the next run of a schedule is one of its nominal times.
func (c *checker) plannedRight(s *schedule, old, r *schemas.Record) {
	next := r.Schedule.NextMs
	if next == 0 || next == old.Schedule.NextMs {
		return
	}
	if !slices.ContainsFunc(c.possible(s), func(cal *calendar.Schedule) bool { return isNominal(cal, next) }) {
		c.fail(PropDecided, "%s: its next run is at %s, which is no nominal time", s, c.w.ms(next))
	}
	if k, twice := s.decided[next]; twice {
		c.fail(PropDecided, "%s: its next run is at %s, which was %s", s, c.w.ms(next), k)
	}
}

// timesOf returns the nominal times of a decision about the range from fromMs, which has count of
// them. Times that were skipped as excluded are not among them. op is the operation that decides, nil for
// none. A next run that was planned on
// the date to which it had moved is decided there, also if it would not move any more.
func (c *checker) timesOf(s *schedule, old *schemas.Record, fromMs, toMs int64, count int, op *schemas.Operation) (times []int64) {
	if !s.excludes {
		return c.expand(s, fromMs, toMs)
	}
	next, possible := old.Schedule.NextMs, c.possible(s)
	if op != nil && op.Kind == schemas.OperationUpdate {
		possible = c.known(s)
	}
	for _, cal := range possible {
		times = nil
		if fromMs <= next && next <= toMs && !isNominal(cal, next) && cal.ExcludedBy(next) == 0 {
			times = append(times, next)
		}
		for at := range cal.Between(fromMs, toMs) {
			if s.decided[at] != schemas.DecisionExcluded {
				times = append(times, at)
			}
		}
		if len(times) == count {
			break
		}
	}
	return times
}

// renumbered returns the decisions of a record as an update to other calendars leaves them.
func renumbered(old, r *schemas.Record) []schemas.Decision {
	s := old.Schedule.Clone()
	was := s.Exclude
	s.Exclude = r.Schedule.Exclude
	s.Renumber(was)
	return s.Decisions
}

// sameCalendars reports whether two recurrences exclude the same calendars.
func sameCalendars(a, b *schemas.Recurrence) bool {
	return slices.Equal(a.Exclude, b.Exclude) && cmp.Or(a.ExcludeMode, "skip") == cmp.Or(b.ExcludeMode, "skip")
}
