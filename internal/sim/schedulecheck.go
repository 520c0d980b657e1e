package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file checks schedules. It compares each stored revision of a schedule's record with
// the one before: which nominal times the record has passed, which decisions it has added,
// and which run it claims. It expands nominal times with package calendar, and uses nothing
// of package recurrence.

// The properties of schedules.
const (
	// PropDecided: each nominal time ends as fired, or as skipped with a reason, once.
	PropDecided = "each nominal time is decided exactly once"
	// PropReasons: the reason of a skip was true when it was decided.
	PropReasons = "skips have reasons that are true"
	// PropOverlap: no run begins while the run before has no result, unless timeroverlap or
	// the request allows it.
	PropOverlap = "no run overlaps the run before"
	// PropObeyed: an acknowledged change is stored, and everything claimed later obeys it.
	PropObeyed = "an acknowledged pause, update or delete is obeyed"
	// PropRuns: runs are numbered from 1 without gaps, and each is on timers.fired with the
	// attributes of its claim.
	PropRuns = "runs are numbered without gaps"
	// PropBackfill: a backfill fires only nominal times that are past, decided and not fired.
	PropBackfill = "a backfill does not fire a nominal time that fired"
)

// maxExpanded bounds the nominal times of one decision. Schedules have no period below a
// second, and no simulation is longer.
const maxExpanded = 5000

// scheduled sees a revision of a schedule's record.
func (c *checker) scheduled(s *schedule, was, now store.Timer) {
	r, old := &now.Record, &was.Record
	if r.Schedule == nil {
		c.fail(PropState, "%s: its record has no schedule", s)
		return
	}
	if !s.known {
		c.begun(s, now)
		return
	}
	if was.ID.IsZero() {
		c.fail(PropState, "%s: its record was created again", s)
		return
	}
	op := newOperation(old.History, r.History)
	if r.State != old.State || op != nil {
		s.changed = c.w.now
	}
	s.left[old.State] = c.w.now
	c.obeyed(s, old, r, op)
	added, ok := addedDecisions(renumbered(old, r), r.Schedule.Decisions)
	if !ok {
		c.fail(PropDecided, "%s: its decisions %+v became %+v", s, old.Schedule.Decisions, r.Schedule.Decisions)
		return
	}
	c.planned(s, r)
	if s.zoned {
		c.zonedRevision(s, was, now, op, added)
		return
	}
	ran := c.claimedRun(s, was, now)
	c.decisions(s, old, r, added, op, ran)
	c.firesIncluded(s, old, op)
	if op != nil && op.Kind == schemas.OperationUpdate {
		c.updated(s, old, r, op)
	}
	c.plannedRight(s, old, r)
}

// begun sees the first revision of a schedule's record.
func (c *checker) begun(s *schedule, now store.Timer) {
	r := &now.Record
	p := &r.Schedule.Progress
	s.known, s.anchor, s.bornHalf = true, r.AddedMs, s.half
	if r.Schedule.StartMs != 0 {
		s.anchor = r.Schedule.StartMs
	}
	if !equalRules(&r.Schedule.Recurrence, &s.rules[0]) {
		c.fail(PropState, "%s: recurrence %+v was stored as %+v", s, s.rules[0], r.Schedule.Recurrence)
	}
	var err error
	if s.cal, err = compile(s.id, &s.rules[0], s.anchor); err != nil {
		c.fail(PropState, "%s: %v", s, err)
		return
	}
	c.w.trace("%s: %+v", s, r.Schedule.Recurrence)
	s.checkedMs = max(r.AddedMs, r.Schedule.StartMs-1)
	if s.zoned {
		if first, _ := c.w.zones.grid(s.rules[0].Cron).Next(s.checkedMs + c.w.zones.offset(p.Zones)); p.NextKey != first || p.NextMs != first-c.w.zones.offset(p.Zones) {
			c.fail(PropZones, "%s: added at %s, its first run is at %s; want %s", s, c.w.ms(r.AddedMs), c.local(p.NextKey), c.local(first))
		}
		return
	}
	if s.excludes {
		if p.NextMs == 0 || !c.nextIs(s, p.NextMs, s.checkedMs) {
			c.fail(PropDecided, "%s: added at %s, its first run is at %s", s, c.w.ms(r.AddedMs), c.w.ms(p.NextMs))
		}
		return
	}
	if first, ok := s.cal.Next(s.checkedMs); !ok || p.NextMs != first || r.Run != 1 || p.Last.Run != 0 {
		c.fail(PropDecided, "%s: added at %s, its first run %d is at %s; want run 1 at %s, %v", s, c.w.ms(r.AddedMs), r.Run, c.w.ms(p.NextMs), c.w.ms(first), ok)
	}
}

// equalRules reports whether two recurrences are the same, as stored.
func equalRules(a, b *schemas.Recurrence) bool {
	x, y := *a, *b
	return sameCalendars(a, b) && x.Cron == y.Cron && x.Every == y.Every && x.Zone == y.Zone && x.StartMs == y.StartMs && x.EndMs == y.EndMs && x.Limit == y.Limit &&
		x.JitterMs == y.JitterMs && x.DST == y.DST && x.Misfire == y.Misfire && x.GraceMs == y.GraceMs && x.Overlap == y.Overlap && x.ExpectMs == y.ExpectMs
}

// newOperation is the operation that a revision adds to the history, nil for none.
func newOperation(was, now []schemas.Operation) *schemas.Operation {
	n := len(now)
	if n == 0 || len(was) > 0 && was[len(was)-1] == now[n-1] {
		return nil
	}
	return &now[n-1]
}

// overwrites reports whether one request may be stored twice. Its first write had no answer, another operation was stored next,
// and the repeated write conflicted with that. For an update, a pause or a resume the repetition is a valid later write. A trigger
// or a backfill must be stored once, because it would fire again.
func overwrites(k schemas.OperationKind) bool {
	return k == schemas.OperationUpdate || k == schemas.OperationPause || k == schemas.OperationResume
}

// obeyed checks that only operations change the state and the definition of a schedule, and
// that a client asked for each operation.
func (c *checker) obeyed(s *schedule, old, r *schemas.Record, op *schemas.Operation) {
	kind := schemas.OperationKind(0)
	if op != nil {
		kind = op.Kind
		q := s.requests[op.By]
		switch {
		case q == nil || q.kind != op.Kind:
			c.fail(PropObeyed, "%s: nobody asked for %s by %q", s, op.Kind, op.By)
			return
		case q.stored != 0 && (s.latest == q || !overwrites(q.kind)):
			c.fail(PropObeyed, "%s: %s by %q was stored at %s and again", s, op.Kind, op.By, c.w.rel(q.stored))
		}
		q.stored, s.latest = c.w.now, q
	}
	paused, was := r.State == schemas.StatePaused, old.State == schemas.StatePaused
	switch {
	case paused && !was && kind != schemas.OperationPause, was && !paused && kind != schemas.OperationResume && kind != schemas.OperationCancel && r.State != schemas.StateCompleted:
		c.fail(PropObeyed, "%s: %s became %s by %q", s, old.State, r.State, kind)
	case r.State == schemas.StateCancelled && kind != schemas.OperationCancel:
		c.fail(PropObeyed, "%s: cancelled without a request", s)
	}
	if kind != schemas.OperationUpdate && (!equalRules(&r.Schedule.Recurrence, &old.Schedule.Recurrence) || r.Hash != old.Hash) {
		c.fail(PropObeyed, "%s: the definition of an update was lost: %+v became %+v", s, old.Schedule.Recurrence, r.Schedule.Recurrence)
	}
	switch kind {
	case schemas.OperationPause:
		s.pausedMs = op.AtMs
	case schemas.OperationResume:
		s.resumedMs = op.AtMs
	case schemas.OperationBackfill:
		s.again = s.requests[op.By].again
	case schemas.OperationTrigger, schemas.OperationUpdate, schemas.OperationCancel, 0:
	default:
		c.fail(PropObeyed, "%s: %s", s, kind)
	}
}

// planned checks when the wheel acts on a schedule next, and that the index names it there.
func (c *checker) planned(s *schedule, r *schemas.Record) {
	p := &r.Schedule.Progress
	// Newer zone data, or a change of a calendar, may move the next run to an instant that has
	// passed. It is due then at the time of that plan, by the clock of the node that made it. The
	// cluster's clock may have been set back since the node read it.
	moved := (c.w.zones != nil || s.excludes) && r.DueMs*int64(time.Millisecond) <= c.w.net.latest(c.w.oldestReading()-int64(underWay))
	if r.State == schemas.StatePending && p.NextMs != 0 && (r.DueMs > p.NextDueMs && !moved || !r.Queued) {
		c.fail(PropDecided, "%s: its next run is due %s, and the wheel acts at %s", s, c.w.ms(p.NextDueMs), c.w.ms(r.DueMs))
	}
	if r.Queued && !s.half && !c.w.server.Indexed(s.id, c.w.p.geo.Tick(r.DueMs)) {
		c.fail(PropIndexed, "%s: due %s", s, c.w.ms(r.DueMs))
	}
}

// underWay bounds the time from a decision to its write: the slowest request.
const underWay = 7 * time.Second

// oldestReading returns the true time of the oldest reading of the cluster's clock that a node
// uses.
func (w *world) oldestReading() int64 {
	oldest := w.now
	for _, n := range w.nodes {
		if len(n.readings) > 0 {
			oldest = min(oldest, n.readings[0])
		}
	}
	return oldest
}

// claimedRun sees the run that a revision claims, nil for none.
func (c *checker) claimedRun(s *schedule, was, now store.Timer) *run {
	w := c.w
	old, p := &was.Record.Schedule.Progress, &now.Record.Schedule.Progress
	l := &p.Last
	if *l == old.Last {
		return nil
	}
	n := l.Run
	if s.runs[n] != nil {
		c.fail(PropRuns, "%s: run %d was claimed again", s, n)
		return nil
	}
	waited := old.Waiting != nil && l.Trigger == schemas.TriggerSchedule && l.NominalMs == old.Waiting.NominalMs
	if n != s.numbers+1 {
		c.fail(PropRuns, "%s: run %d follows run %d", s, n, s.numbers)
	}
	s.numbers = max(s.numbers, n)
	r := &run{s: s, number: n, nominalMs: l.NominalMs, claimedMs: l.ClaimedMs, missed: l.Missed, trigger: l.Trigger, waited: waited}
	r.dueMs = min(l.NominalMs, l.ClaimedMs) // the node that was asked may be ahead of the leader's time
	if l.Trigger == schemas.TriggerSchedule {
		if r.dueMs = s.cal.DueMs(l.NominalMs); waited {
			r.dueMs = s.waitingDueMs // an update may have changed the jitter since
		}
		s.counted++
	}
	r.life = &life{n: s.n, id: schemas.RunTimer(s.id, n), service: s.service, callback: s.callback, bornAt: w.now, late: s.late, claimed: w.now, claimedDueMs: r.dueMs, promised: w.now}
	r.run, r.quietFrom = r, max(s.changed, c.includedFrom(s, l.NominalMs), c.w.calendars.heldUntil(s, w.now))
	if s.callback {
		r.fails, r.refuses = max(0, s.d.IntN(10)-6), s.d.oneIn(12)
	}
	s.runs[n], w.byID[r.id] = r, r.life
	w.stats.Runs++
	w.trace("%s: run %d of %s, missed %d, %s", s, n, w.ms(l.NominalMs), l.Missed, l.Trigger)
	if l.Trigger == schemas.TriggerSchedule && l.ClaimedMs < r.dueMs || r.dueMs*int64(time.Millisecond) > w.net.latest(w.now-int64(time.Hour)) {
		c.fail(PropEarly, "%s: run %d, due %s, was claimed as of %s", s, n, w.ms(r.dueMs), w.ms(l.ClaimedMs))
	}
	if limit := s.rule(&was.Record).Limit; limit > 0 && l.Trigger == schemas.TriggerSchedule && s.counted > limit {
		c.fail(PropDecided, "%s: run %d is beyond the limit of %d", s, n, limit)
	}
	c.overlaps(s, r, &was.Record)
	return r
}

// rule is the recurrence of a stored record.
func (*schedule) rule(r *schemas.Record) *schemas.Recurrence { return &r.Schedule.Recurrence }

// overlaps checks that a run which is claimed may begin.
func (c *checker) overlaps(s *schedule, r *run, old *schemas.Record) {
	last := s.runs[old.Schedule.Last.Run]
	if last == nil || !s.callback || s.rule(old).Overlap == schemas.OverlapAllow || last.final {
		return
	}
	switch r.trigger {
	case schemas.TriggerManual:
		if slices.Contains(old.Schedule.Manual, schemas.ManualRun{AtMs: r.nominalMs, Allow: true}) {
			return
		}
	case schemas.TriggerBackfill:
		if b := old.Schedule.Backfill; b != nil && b.Allow {
			return
		}
	case schemas.TriggerSchedule:
	}
	c.fail(PropOverlap, "%s: run %d was claimed while run %d has no result", s, r.number, last.number)
}

// --- events ---

// ran sees the event of a run on timers.fired.
func (c *checker) ran(s *schedule, number uint32, e fake.Event) {
	w := c.w
	r := s.runs[number]
	if r == nil {
		c.fail(PropRuns, "%s: run %d was published without a claim", s, number)
		return
	}
	w.stats.RunsFired++
	c.firedOnce(r.life, e)
	if r.dueMs*int64(time.Millisecond) > w.net.latest(w.now-int64(time.Hour)) {
		c.fail(PropEarly, "%s, due %s, was published early", r, w.ms(r.dueMs))
	}
	header := func(name string) string { return e.Header.Get("ce-" + name) }
	want := map[string]string{
		schemas.AttrRun: strconv.FormatUint(uint64(number), 10), schemas.AttrScheduled: schemas.FormatTime(r.nominalMs), "timermissed": "", "timertrigger": "",
	}
	if r.missed > 0 {
		want["timermissed"] = strconv.FormatUint(uint64(r.missed), 10)
	}
	switch r.trigger {
	case schemas.TriggerManual:
		want["timertrigger"] = "manual"
	case schemas.TriggerBackfill:
		want["timertrigger"] = "backfill"
	case schemas.TriggerSchedule:
	}
	for name, text := range want {
		if got := header(name); got != text {
			c.fail(PropRuns, "%s: %s is %q on its event; want %q", r, name, got, text)
		}
	}
}
