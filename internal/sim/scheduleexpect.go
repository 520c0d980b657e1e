package sim

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/schemas"
)

// This file checks overdue events (timerexpect). It keeps its own list of the nominal times that
// wait for a success, made from the decisions of each revision, and compares each overdue event
// with it.

// PropOverdue means that each decided nominal time without a success by its deadline has one
// overdue event, not before the deadline. The others have none.
const PropOverdue = "an overdue event for each nominal time without a success by its deadline"

// expectEnd is how long before the end of a simulation a deadline must have passed, so that its
// overdue event must exist.
const expectEnd = time.Second

// newExpect draws timerexpect for the n-th recurrence of a schedule, in milliseconds; 0 for none.
// It has draws of its own, so that all others stay the same.
func (s *schedule) newExpect(seed uint64, n int, r *schemas.Recurrence) int64 {
	d := dice{rand.New(rand.NewPCG(seed, uint64(s.n)<<16|uint64(n)))}
	if !s.callback || d.oneIn(4) {
		return 0
	}
	return r.JitterMs + 1000 + d.Int64N(12_000)
}

// watch are nominal times that wait for a success.
type watch struct {
	times      []int64
	deadlineMs int64
	run        uint32 // 0 for none
	// closed: there was an overdue event, or none is to come.
	closed bool
	pause  bool // added by a pause
}

func (x *watch) last() int64 { return x.times[len(x.times)-1] }

// overdueEvent is an overdue event that was claimed.
type overdueEvent struct {
	schemas.Overdue
	events []copyOf
}

// expects sees a revision that may add nominal times that wait for a success, or remove some.
// decided has the nominal times of each decision in added.
func (c *checker) expects(s *schedule, old, r *schemas.Record, added []schemas.Decision, decided [][]int64, op *schemas.Operation, ran *run) {
	c.alarmed(s, old, r)
	kind := schemas.OperationKind(0)
	if op != nil {
		kind = op.Kind
	}
	if kind == schemas.OperationPause && old.State != schemas.StatePaused {
		s.dropWatches(op.AtMs)
		if next, ms := old.Schedule.NextMs, r.Schedule.ExpectMs; next != 0 && ms != 0 {
			had := len(s.watches)
			c.watch(s, r, c.expand(s, next, op.AtMs-ms), op.AtMs, 0)
			for _, x := range s.watches[had:] {
				x.pause = true
			}
		}
		return
	}
	if kind == schemas.OperationResume {
		s.unwatch(op.AtMs, r.Schedule.NextMs)
	}
	if r.State == schemas.StateCancelled || r.State == schemas.StateFail || r.Schedule.ExpectMs == 0 {
		s.dropWatches(0)
		return
	}
	if kind == schemas.OperationUpdate && (old.State == schemas.StatePaused || old.Schedule.NextMs == 0) {
		return // nominal times of a pause, or after the last run
	}
	// What a revision decides for the same reason shares a deadline. A run stands for the times
	// that it coalesces, a run that waits for those whose place it takes.
	together := map[schemas.DecisionKind][]int64{}
	atMs := int64(0)
	before, waits := old.Schedule.Waiting, r.Schedule.Waiting
	for i, d := range added {
		if before != nil {
			decided[i] = slices.DeleteFunc(slices.Clone(decided[i]), func(at int64) bool { return at == before.NominalMs })
		}
		k := d.Kind
		switch k {
		case schemas.DecisionCoalesced:
			k = schemas.DecisionFired
		case schemas.DecisionPaused:
			continue
		}
		together[k], atMs = append(together[k], decided[i]...), d.AtMs
	}
	if waits != nil && (before == nil || before.NominalMs != waits.NominalMs) {
		together[schemas.DecisionQueue] = append(together[schemas.DecisionQueue], waits.NominalMs)
	}
	for _, k := range [...]schemas.DecisionKind{
		schemas.DecisionGrace, schemas.DecisionOverlap, schemas.DecisionMisfire, schemas.DecisionQueue, schemas.DecisionFired, schemas.DecisionUpdated,
	} {
		number := uint32(0)
		if k == schemas.DecisionFired && ran != nil {
			number = ran.number
		}
		c.watch(s, r, together[k], atMs, number)
	}
	if ran == nil || !ran.waited {
		return
	}
	for _, x := range s.watches {
		if !x.closed && x.run == 0 && x.last() == ran.nominalMs && x.deadlineMs > ran.claimedMs {
			x.run = ran.number
		}
	}
}

// unwatch updates the watches at a resume. It removes nominal times of a pause after now and from nextMs on: they are not
// decided, because the cluster's clock was set back. nextMs is 0 if all nominal times are decided.
func (s *schedule) unwatch(nowMs, nextMs int64) {
	if nextMs == 0 {
		return
	}
	for _, x := range s.watches {
		if x.closed || !x.pause {
			continue
		}
		was := x.last()
		left := slices.DeleteFunc(slices.Clone(x.times), func(at int64) bool { return at > nowMs && at >= nextMs })
		if x.closed = len(left) == 0; !x.closed {
			x.times = left
			x.deadlineMs -= was - x.last()
		}
	}
}

// dropWatches closes what has a deadline after a time.
func (s *schedule) dropWatches(afterMs int64) {
	for _, x := range s.watches {
		x.closed = x.closed || x.deadlineMs > afterMs
	}
}

// watch adds nominal times that were decided at a time. Those whose deadlines have passed have
// none in common with the others, and no run.
func (c *checker) watch(s *schedule, r *schemas.Record, times []int64, atMs int64, number uint32) {
	expect := r.Schedule.ExpectMs
	slices.Sort(times)
	// The deadlines of nominal times before a resume were decided by the pause.
	times = slices.DeleteFunc(times, func(at int64) bool { return at <= max(r.Schedule.PausedUntilMs, s.pauseWatchedMs) })
	if len(times) == 0 {
		return
	}
	passed := 0
	for passed < len(times) && times[passed]+expect <= atMs {
		passed++
	}
	if passed > 0 {
		s.watches = append(s.watches, &watch{times: times[:passed], deadlineMs: times[passed-1] + expect})
	}
	if passed < len(times) {
		s.watches = append(s.watches, &watch{times: times[passed:], deadlineMs: times[len(times)-1] + expect, run: number})
	}
	// The design merges the two earliest if there are more. No schedule of a simulation has as many.
	if len(r.Schedule.Expected) >= schemas.MaxExpected {
		c.fail(PropOverdue, "%s: %d nominal times wait for a success; this checker expects fewer", s, len(r.Schedule.Expected))
	}
}

// alarmed checks the overdue event that a revision claims.
func (c *checker) alarmed(s *schedule, old, r *schemas.Record) {
	w, a, all := c.w, r.Schedule.Alarm, r.Schedule.Overdue
	if a == old.Schedule.Alarm {
		return
	}
	if a.Run != old.Schedule.Alarm.Run+1 || len(all) == 0 {
		c.fail(PropOverdue, "%s: overdue event %d follows %d", s, a.Run, old.Schedule.Alarm.Run)
		return
	}
	o := all[len(all)-1]
	w.stats.Overdue++
	w.trace("%s: overdue, %s to %s, %d, deadline %s, run %d %s", s, w.ms(o.FromMs), w.ms(o.ToMs), o.Count, w.ms(o.DeadlineMs), o.Run, o.State)
	if o.AtMs < o.DeadlineMs || o.DeadlineMs*int64(time.Millisecond) > w.net.latest(w.now-int64(time.Hour)) {
		c.fail(PropOverdue, "%s: %s was overdue at %s, before its deadline %s", s, w.ms(o.ToMs), w.ms(o.AtMs), w.ms(o.DeadlineMs))
	}
	count, deadlineMs := 0, int64(0)
	for _, x := range s.watches {
		if !x.closed && x.run == o.Run && o.FromMs <= x.times[0] && x.last() <= o.ToMs && x.deadlineMs <= o.DeadlineMs {
			x.closed = true
			if x.pause {
				s.pauseWatchedMs = max(s.pauseWatchedMs, x.last())
			}
			count += len(x.times)
			deadlineMs = max(deadlineMs, x.deadlineMs)
		}
	}
	if count != int(o.Count) || deadlineMs != o.DeadlineMs {
		c.fail(PropOverdue, "%s: %s to %s are overdue as %d times of run %d, deadline %s; %d such times wait, until %s",
			s, w.ms(o.FromMs), w.ms(o.ToMs), o.Count, o.Run, w.ms(o.DeadlineMs), count, w.ms(deadlineMs))
	}
	// A success shortly before the claim may be later than the owner's look at the run. A success
	// whose record has expired is not known.
	if ran := s.runs[o.Run]; ran != nil && ran.succeeded(o.DeadlineMs) && w.now-ran.finalAt > int64(c.lookSlack()) {
		if _, err := w.server.Record(ran.id); err == nil {
			c.fail(PropOverdue, "%s succeeded at %s, and is overdue at %s", ran, w.ms(ran.successMs), w.ms(o.DeadlineMs))
		}
	}
	s.overdue = append(s.overdue, &overdueEvent{Overdue: o})
}

// succeeded reports whether a run has a success that was recorded by a deadline.
func (r *run) succeeded(byMs int64) bool { return r.successMs != 0 && r.successMs <= byMs }

// overdue sees an event on timers.overdue.
func (c *checker) overdue(e fake.Event) {
	w := c.w
	c.published[e.MsgID] = true
	parts := strings.Split(e.MsgID, ".")
	id, err := schemas.ParseTimerID(parts[0])
	if err != nil || w.byID[id] == nil || w.byID[id].sched == nil || len(parts) != 3 {
		c.fail(PropOverdue, "an overdue event of no schedule: %q", e.MsgID)
		return
	}
	s := w.byID[id].sched
	i := slices.IndexFunc(s.overdue, func(o *overdueEvent) bool { return strconv.FormatInt(o.ToMs, 10) == parts[1] })
	if i < 0 {
		c.fail(PropOverdue, "%s: %s was published without a claim", s, e.MsgID)
		return
	}
	o := s.overdue[i]
	if n := len(o.events); n > 0 {
		// As in firedOnce, the leaders' clocks measure the dedup window.
		last := o.events[n-1]
		if leapt := last.stampNs+int64(w.p.dedup) <= e.StampNs && w.now-last.real < int64(w.p.dedup); !leapt {
			c.fail(PropOverdue, "%s: %s was published at %s and again", s, e.MsgID, w.rel(last.real))
		}
	}
	o.events = append(o.events, copyOf{real: w.now, stampNs: e.StampNs})
	if got, want := e.Header.Get("ce-"+schemas.AttrOverdue), schemas.FormatTime(o.DeadlineMs); got != want {
		c.fail(PropOverdue, "%s: %s has the deadline %q; want %s", s, e.MsgID, got, want)
	}
}

// overdueLeft describes an overdue event that was claimed and is not published; "" for none.
func (s *schedule) overdueLeft(w *world) string {
	for _, o := range s.overdue {
		if len(o.events) == 0 {
			return "has no overdue event for " + w.ms(o.ToMs)
		}
	}
	return ""
}

// expectedAtEnd checks that nothing without a success has passed its deadline without an event.
func (c *checker) expectedAtEnd(s *schedule) {
	now := c.w.net.serverTime(c.w.net.leaderOf(fake.StreamClock)) / int64(time.Millisecond)
	for _, x := range s.watches {
		if x.closed || x.deadlineMs > now-expectEnd.Milliseconds() {
			continue
		}
		if ran := s.runs[x.run]; ran == nil || !ran.succeeded(x.deadlineMs) {
			c.fail(PropOverdue, "%s: %s to %s of run %d have no success by %s, and no overdue event", s, c.w.ms(x.times[0]), c.w.ms(x.last()), x.run, c.w.ms(x.deadlineMs))
		}
	}
}
