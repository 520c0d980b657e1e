package sim

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/mutate"
	"github.com/belfryio/belfry/internal/testsize"
)

// maxPlantSeeds bounds the seeds within which the simulation must find every planted bug.
// docs/architecture.md states the number.
const maxPlantSeeds = 600

// TestPlantedBugsAreFound: with each planted bug, one of the first seeds fails and violates a
// property that the bug threatens.
func TestPlantedBugsAreFound(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "many seeds")
	testsize.NotRace(t, "one goroutine at a time runs")
	threatens := map[Plant][]string{
		PlantUnfenced:    {PropState, PropCancel, PropOnce, PropEarly},
		PlantEarlyAck:    {PropKept},
		PlantEarlyMark:   {PropMark, PropKept},
		PlantTailDropped: {PropKept, PropMark, PropSwept},
		PlantBlindCancel: {PropState, PropCancel},
		PlantEndless:     {PropFlow},

		PlantCachedCancel:   {PropState, PropCancel},
		PlantUnstableLetter: {PropFlow},
		PlantStaleRead:      {PropCalled},
		PlantTailGap:        {PropKept, PropMark, PropSwept},
	}
	for _, plant := range Plants {
		t.Run(string(plant), func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= maxPlantSeeds; seed++ {
				for _, v := range Run(Config{Seed: seed, Plant: plant}).Violations {
					for _, p := range threatens[plant] {
						if v.Property == p {
							t.Logf("found by seed %d: %s", seed, v)
							return
						}
					}
				}
			}
			t.Fatalf("not found by %d seeds", maxPlantSeeds)
		})
	}
}

// mutant is a bug in production code that the simulation runs: a change of one source file.
// The simulation must find it within the given number of seeds.
type mutant struct {
	name, file, from, to string
	seeds                int
	test                 string // the test that finds it; TestSeeds if empty
}

var mutants = slices.Concat(seedMutants, newerMutants, damageMutants, returnedMutants, nearMutants, feedMutants, scheduleMutants, flowMutants, quotaMutants)

// newerMutants are found by TestNewerRecords.
var newerMutants = []mutant{
	{"the tail passes a record of a newer format", "scheduler/newer.go", "seq: t.Rev})", "seq: 0})", 60, "TestNewerRecords"},
	{"the index load passes a record of a newer format", "scheduler/readahead.go", "\t\tk.holdWatermark(r)\n", "\t\t_ = r\n", 60, "TestNewerRecords"},
	{"a scan passes a record of a newer format", "scheduler/newer.go", "tick: k.watermark + 1})", "tick: noPin})", 600, "TestNewerRecords"},
	{"the clock does not state the level that the shard needs", "scheduler/core.go", "c.Needs = max(c.Needs, k.cfg.Level+1)", "c.Needs = max(c.Needs, 0)", 60, "TestNewerRecords"},
	{"a node remembers a level that the clock has lost", "scheduler/coordinator.go", "s.needs = s.clock.Needs", "s.needs = max(s.needs, s.clock.Needs)", 1000, "TestNewerRecords"},
	{"a shard goes to a node that cannot read its records", "scheduler/coordinator.go", "if k.levels[node] >= k.needs[shard] {", "if true {", 60, "TestNewerRecords"},
}

// damageMutants are found by TestDamagedRecords. Mutants of package fake stand for the same
// bugs in package store, because the conformance suite tests both packages.
var damageMutants = []mutant{
	{"a damaged record is read again and again", "scheduler/fire.go", " || errors.Is(err, schemas.ErrDamaged)\n", "\n", 20, "TestDamagedRecords"},
	{"a count takes a damaged record for a lost timer", "scheduler/recount.go", "accounted = n + c.result.Unread", "accounted = n", 60, "TestDamagedRecords"},
	{"a record's checksum is not verified", "schemas/record_encode.go", "if fields < prefixBytes || crc32.Checksum(b[:fields], castagnoli) != binary.LittleEndian.Uint32(b[fields:]) {", "if fields < prefixBytes {", 20, "TestDamagedRecords"},
	{"a clock passes a damaged record before it is reported", "internal/sim/fake/streams.go", "if err := c.report(ctx, shard); err != nil {", "if err := error(nil); err != nil {", 300, "TestDamagedRecords"},
	{"a damaged record is passed without a report", "internal/sim/fake/damagedrecord.go", "t, err := viewOf(m, c.Reads())\n\tc.note(m, err)\n\treturn", "t, err := viewOf(m, c.Reads())\n\treturn", 20, "TestDamagedRecords"},
	{"a load stops at a damaged record", "internal/sim/fake/records.go", "if t, ok := c.decode(m); ok {\n\t\t\t\tout", "t, ok := c.decode(m)\n\t\t\tif !ok {\n\t\t\t\tbreak\n\t\t\t}\n\t\t\t{\n\t\t\t\tout", 60, "TestDamagedRecords"},
	{"a load fails at a damaged record", "internal/sim/fake/records.go", "if t, ok := c.decode(m); ok {\n\t\t\t\tout", "t, ok := c.decode(m)\n\t\t\tif !ok {\n\t\t\t\treturn errBehind\n\t\t\t}\n\t\t\t{\n\t\t\t\tout", 60, "TestDamagedRecords"},
	{"an inspection forgets the report of the owner before", "internal/sim/fake/damagedrecord.go", "was, err := c.recall(ctx, shard)\n\tif err != nil {\n\t\treturn in, err", "was, err := c.s.report(shard), error(nil)\n\tif err != nil {\n\t\treturn in, err", 60, "TestDamagedRecords"},
	{"a damaged record is repaired with a revision before the last good one", "internal/sim/fake/damagedrecord.go", "for was != nil && was.rec == nil {\n\t\twas = was.older\n\t}\n", "for was.older != nil {\n\t\twas = was.older\n\t}\n", 300, "TestDamagedRecords"},
}

// nearMutants are found by TestNearTimers.
var nearMutants = []mutant{
	{"a timer in memory stays there when its record changes", "internal/store/near.go", "\tn.remove(t.ID)\n\tnewer", "\tnewer", 20, "TestNearTimers"},
	{"a timer in memory stays there when it is moved to a later time", "internal/store/near.go", "\tn.remove(t.ID)\n\tnewer", "\tif !t.Record.Pending() || keep {\n\t\tn.remove(t.ID)\n\t}\n\tnewer", 60, "TestNearTimers"},
}

// returnedMutants are found by TestReturnedTimers.
var returnedMutants = []mutant{
	{"an owner does not look for void records after a lost connection", "scheduler/ended.go", "e.suspect || !first", "e.suspect || !first && n == 0", 20, "TestReturnedTimers"},
	{"an owner does not look for void records when it takes a shard", "scheduler/ended.go", "\te.suspect = true // nobody", "\te.voidAt = 1 << 62 // nobody", 300, "TestReturnedTimers"},
	{"a look that began before a lost connection counts as the look after it", "scheduler/ended.go", "false, e.suspect || err != nil", "false, err != nil", 300, "TestReturnedTimers"},
	{"an owner that cannot look for void records gives up", "scheduler/ended.go", "false, e.suspect || err != nil", "false, e.suspect", 300, "TestReturnedTimers"},
	{"a new owner does not list what the last one had noted", "scheduler/ended.go", "e.forgot = e.complete < clock.Tail", "e.forgot = false", 60, "TestReturnedTimers"},
	{"a new owner that cannot read the final records lists nothing", "scheduler/ended.go", "e.forgot = e.forgot || err != nil", "e.forgot = e.forgot || err == nil && false", 300, "TestReturnedTimers"},
	{"the list counts as complete while a write is under way", "scheduler/ended.go", "len(e.noted) == 0 && !e.writing &&", "len(e.noted) == 0 &&", 300, "TestReturnedTimers"},
	{"the list counts as complete while a scan is under way", "scheduler/ended.go", "!e.writing && !e.scanning &&", "!e.writing &&", 300, "TestReturnedTimers"},
	{"an owner never writes the list", "scheduler/ended.go", "case now >= e.nextAt, len(e.noted)", "case now < 0, len(e.noted)", 20, "TestReturnedTimers"},
	{"a list that was not written is forgotten", "scheduler/ended.go", "\t\t\t\te.add(timers...)\n", "", 60, "TestReturnedTimers"},
	{"a timer that was moved to an earlier time is not listed", "scheduler/ended.go", "rec.LastWaitMs()-rec.DoneMs <= r.keepMs", "rec.DueMs-rec.DoneMs <= r.keepMs", 20, "TestReturnedTimers"},
	{"a rewrite of the list drops what was listed", "scheduler/ended.go", "passed := min(clock.TimeMs, clock.SweptMs)", "passed := max(clock.TimeMs, 1<<62)", 60, "TestReturnedTimers"},
	{"the list voids timers that were added again", "internal/store/endedlist.go", "t.Rev < e.Rev && t.StoredMs <= e.StoredMs && t.Record.AddedMs == e.AddedMs", "e.Rev > 0", 20, "TestReturnedTimers"},
	{"the list voids what a repeated add has written again", "internal/store/endedlist.go", "t.Rev < e.Rev && t.StoredMs <= e.StoredMs && ", "", 150, "TestReturnedTimers"},
	{"a count forgets the changes of the failed one before", "scheduler/recount.go", "if p.kept = p.running.changed; p.running.tooMuch", "if p.running.tooMuch", 600, "TestReturnedTimers"},
}

var seedMutants = []mutant{
	{"wheel cascade skipped", "scheduler/wheel/wheel.go", "w.cascade(l)\n", "l.head, l.tail = nil, nil\n", 10, ""},
	{"the tail does not know what is being loaded", "scheduler/readahead.go", "r.horizon = max(r.horizon, last)\n", "\n", 10, ""},
	{"load from a replica that is behind", "scheduler/readahead.go", "Seen: k.tailSeen,", "Seen: 0,", 2000, ""},
	{"a late record does not hold the tail", "scheduler/core.go", "pin = t.Rev\n\t}\n\tswitch {", "pin = 0\n\t}\n\tswitch {", 10, ""},
	{"claims of predecessors are not confirmed", "scheduler/core.go", "(r.Epoch != k.epoch || repaired) && tick <= k.ahead.horizon", "repaired", 300, ""},
	{"lease trusted for longer than it is", "scheduler/lease.go", "t.until = start + t.duration - t.duration/leaseMargin", "t.until = start + 2*t.duration", 200, ""},
	{"latest instead of earliest time", "internal/sim/node.go", "\tlo, _ := n.bounds()\n\treturn lo\n", "\t_, hi := n.bounds()\n\treturn hi\n", 10, ""},
	{"an owner without a lease writes over a damaged clock", "scheduler/lease.go", "if !t.Trusted(now) {\n\t\t\treturn Lost", "if false {\n\t\t\treturn Lost", 1500, ""},
	{"a damaged clock is taken at once", "scheduler/coordinator.go", "free := !s.damaged && (", "free := s.damaged || (", 1500, ""},
	{"a resumed shard reuses epochs", "internal/sim/fake/damage.go", "max(c.Epoch, uint64(nowMs))", "c.Epoch", 1500, ""},
	{"a damaged clock is never taken", "scheduler/coordinator.go", "if s.ownership != ownershipNone || !s.seen || s.newer {", "if s.ownership != ownershipNone || !s.seen || s.newer || s.damaged {", 1500, ""},

	{"a claim stays in the count of pending timers", "scheduler/fire.go", "\te.wasPending = false\n\tk.pending.left(e.id, e.rev)\n", "\te.wasPending = false\n\tk.pending.note(e.id, countChange{rev: e.rev})\n", 10, ""},
	{"a claim that is stored after its answer stays in the count", "scheduler/fire.go", "x.unclearMs = before.extra.unclearMs", "x.unclearMs = 0", 300, ""},
	{"a claim that a former leader refuses and the leader stores stays in the count", "scheduler/fire.go", "\t\te.noteUnclear()\n", "\t\tif !isRevision(ev.Err) || e.rec.Schedule != nil {\n\t\t\te.noteUnclear()\n\t\t}\n", 800, ""},
	{"the count of an owner that died is taken over", "scheduler/coordinator.go", "c.PendingUnknown || s.damaged || s.clock.Owner != \"\"", "c.PendingUnknown || s.damaged", 60, ""},
	{"a count misses the changes that come by the tail", "scheduler/recount.go", "\t\tif change.pending {\n\t\t\tn++", "\t\tif change.pending {\n\t\t\tn += 0", 300, ""},

	{"a shard stays in the node's backlog after its due timers have fired", "scheduler/backlog.go", "\t\tm.of.shards.Add(-1)\n", "", 60, ""},

	// Bugs that this simulation has found in Belfry.
	{"a scan is answered by a replica that is behind", "internal/sim/fake/records.go", "if upTo < newest {", "if upTo < newest && newest == 0 {", 6000, ""},
	{"due timers that a move leaves stay in the wheel", "scheduler/fire.go", "if tick || !k.due.left {", "if !k.due.left {", 60, ""},
	{"what is not due any more is claimed", "scheduler/fire.go", "if e.rec.DueMs > k.now && !e.woken() {", "if false {", 1000, ""},
	{"late adds are not audited", "scheduler/fire.go", "passed := e.pin != 0 && e.rec.DueMs", "passed := e.pin < 0 && e.rec.DueMs", 300, ""},
	{"late adds count as missed timers", "scheduler/sweep.go", "if t.Rev <= tail {", "if t.Rev <= tail || true {", 300, ""},
	{"a publish that is refused for good is repeated", "scheduler/fire.go", "case store.Permanent(ev.Err):\n\t\tk.refuse(e", "case false:\n\t\tk.refuse(e", 20, ""},
	{"a claim that is refused for good is repeated", "scheduler/fire.go", "case store.Permanent(ev.Err):\n\t\tk.refuseClaim", "case k.now < 0:\n\t\tk.refuseClaim", 60, ""},
	{"a refused timer lets the watermark pass before it has failed", "scheduler/undeliverable.go", "\tk.do(ActFail{ID: e.id, Rev: e.rev, Record: &rec})\n", "\tk.do(ActFail{ID: e.id, Rev: e.rev, Record: &rec})\n\tk.done(e)\n", 300, ""},
	{"an old dead letter is repeated without a look", "scheduler/fire.go", "\tif e.refused() != \"\" {\n\t\treturn deadTarget(e)", "\tif e.refused() == \"never\" {\n\t\treturn deadTarget(e)", 1000, ""},
	{"a callback's result drops the history", "scheduler/fire.go", "if r.Extended() {", "if false {", 60, ""},
	{"an attempt takes the place of the one before", "schemas/attempt.go", "len(keep)-MaxKeptAttempts+1)", "len(keep))", 60, ""},
}

// scheduleMutants are found by seeds with schedules.
var scheduleMutants = []mutant{
	{"a schedule fires early", "internal/recurrence/turn.go", "untilMs: t.now}", "untilMs: t.now + 1500}", 20, ""},
	{"the last claim of an earlier owner is not completed", "scheduler/schedulerecovery.go", "if l.Run == 0 || l.Epoch == k.epoch {", "if l.Run == 0 || l.Epoch != 0 {", 100, ""},
	{"a claim of a run that is stored after its answer is not completed", "scheduler/schedulerecovery.go", "e.unclear() && t.Rev > e.rev && !k.isClaimOf", "e.unclear() && t.Rev < e.rev && !k.isClaimOf", 600, ""},
	{"a claim that a former leader refuses and the leader stores is not completed", "scheduler/fire.go", "\t\te.noteUnclear()\n", "\t\tif !isRevision(ev.Err) {\n\t\t\te.noteUnclear()\n\t\t}\n", 500, ""},
	{"a run is published without its record", "scheduler/fire.go", "if r.Origin != nil && e.rev == 0 {", "if r.Origin != nil && e.rev == 0 && r.Run == 0 {", 20, ""},
	{"a claim does not wait for the index entry of the next due time", "scheduler/schedule.go", "if next := &r.turn.Record; next.Queued {", "if next := &r.turn.Record; next.Queued && next.DueMs == 0 {", 60, ""},
	{"a claim does not wait for the last run's event", "scheduler/schedule.go", "if run == nil || !run.unpublished() {", "if run == nil || !run.unpublished() || run.rev < 1<<60 {", 300, ""},
	{"a look at the last run always finds a result", "scheduler/perform.go", "Open: open, Err: err}", "Open: open && a.Run.IsZero(), Err: err}", 20, ""},
	{"a turn does not see a pause", "internal/recurrence/turn.go", "active := rec.State == schemas.StatePending", "active := rec.State != schemas.StateCancelled", 20, ""},
	{"a claim of a schedule is not a compare-and-set", "internal/sim/term.go", "if t.w.cfg.Plant == PlantUnfenced {", "if w.Record.Schedule != nil {", 60, ""},
	{"coalesced nominal times are not recorded", "internal/recurrence/turn.go", "t.skip(schemas.DecisionCoalesced, rest, t.Record.Run)", "t.skip(schemas.DecisionCoalesced, span{}, t.Record.Run)", 20, ""},
	{"a run reuses the number of the one before", "internal/recurrence/turn.go", "t.Record.Run++", "t.Record.Run += 0", 20, ""},
	{"a backfill is acknowledged and not stored", "router/schedule.go", "edit{unchanged: len(times) == 0}, err", "edit{unchanged: len(times) != 1}, err", 20, ""},
	{"a claim of a schedule is dated ahead", "internal/recurrence/turn.go", "ClaimedMs: t.now,", "ClaimedMs: t.now + 1000,", 20, ""},
	{"a backfill fires nominal times that fired", "internal/recurrence/operations.go", "return again || !s.MayHaveFired(nominalMs)", "return again || nominalMs > 0", 60, ""},
	{"a backfill fires nominal times that are not decided", "internal/recurrence/operations.go", "case undecidedMs != 0 && nominalMs >= undecidedMs,", "case undecidedMs != 0 && nominalMs >= undecidedMs && again,", 150, ""},
	{"paused schedules are not counted", "schemas/state.go", "return s == StatePending || s == StatePaused", "return s == StatePending", 60, ""},

	{"an overdue event is before its deadline", "internal/recurrence/expect.go", "for len(s.Expected) > 0 && s.Expected[0].DeadlineMs <= t.now {", "for len(s.Expected) > 0 && s.Expected[0].DeadlineMs <= t.now+1500 {", 20, ""},
	{"a success does not prevent an overdue event", "internal/recurrence/expect.go", "r.State == schemas.StateSuccess && r.DoneMs <= e.DeadlineMs)", "r.State == schemas.StateSuccess && r.DoneMs < 0)", 20, ""},
	{"an overdue event is lost when its owner dies before it is published", "scheduler/schedulerecovery.go", " || k.resumes(a, t.Rev) {", " || k.resumes(a, t.Rev) && a.Run == 0 {", 100, ""},
	{"an overdue event is lost when the next one is claimed before it is published", "scheduler/schedule.go", "if len(s.Expected) > 0 && s.Alarm.Run != 0 && k.blocked(", "if len(s.Expected) > 0 && s.Alarm.Run == 0 && k.blocked(", 1500, ""},
	{"a nominal time without a run has no overdue event", "internal/recurrence/expect.go", "if e.Run != 0 && (r == nil", "if e.Run == 0 || (r == nil", 20, ""},

	{"far entries that were written later are not read", "internal/store/far.go", "return e.as == mark })", "return e.as.Period == mark.Period })", 300, ""},
	{"the owner does not read a change of a calendar", "internal/store/freshcopy.go", "if restored || set.sequence() > held.set.sequence() {", "if restored {", 60, ""},
	{"a change of a calendar is acknowledged at once", "internal/store/freshcopy.go", "if !c.clock.Pause(ctx, c.period) {", "if !c.clock.Pause(ctx, 0) {", 300, ""},
	{"a copy of the calendars is used for ever", "internal/store/freshcopy.go", "c.clock.Now().Sub(held.asOf) < c.period", "true", 300, ""},
	{"a decision by earlier calendars is claimed", "scheduler/schedule.go", "r.plan.Calendar().Revision() != x.Revision {", "r.plan.Calendar().Revision() > x.Revision {", 60, ""},
	{"a date that is excluded after the plan fires", "internal/recurrence/exclude.go", "if s.NextMs <= t.now && p.excluded(s.NextMs) != 0 {", "if s.NextMs <= t.now && p.excluded(s.NextMs) == 1<<20 {", 60, ""},
	{"times on excluded dates are not recorded", "internal/recurrence/exclude.go", "for _, e := range list {", "for _, e := range list[:0] {", 20, ""},
	{"a date that is no longer excluded waits for the next plan", "internal/recurrence/replan.go", "if s.NextMs <= nowMs || len(s.Exclude) == 0 {", "if s.NextMs != 0 {", 600, ""},
	{"a new plan after a change of a calendar repeats a time that was decided", "internal/recurrence/replan.go", "next := p.undecidedSince(s, nowMs)", "next := p.undone(s, nowMs-2000)", 60, ""},
	{"a run that moves to the next date is doubled", "internal/recurrence/exclude.go", "next, _ := p.after(s.NextMs)\n\t\tt.setNext(next)", "next, _ := p.after(s.NextMs - 86_400_000)\n\t\tt.setNext(next)", 300, ""},
	{"a schedule whose calendar does not exist fires", "internal/store/calendars.go", "case !ok || c.deleted:", "case !ok:", 60, ""},

	{"older zone data plans a run again that newer data has planned", "internal/recurrence/zones.go", "s.Zones >= p.release()", "s.Zones == p.release()", 60, ""},
	{"newer zone data forgets the pending run", "internal/recurrence/zones.go", "p.calendar.NextKey(reached(s), s.NextKey); ok", "p.calendar.NextKey(reached(s), s.NextKey+1); ok", 60, ""},
	{"newer zone data does not move the next run", "internal/recurrence/zones.go", "p.moveNext(s, p.rezoned(s, nowMs), nowMs)", "p.moveNext(s, s.NextMs, nowMs)", 60, ""},
	{"older zone data repeats a local time that newer data has planned", "internal/recurrence/zones.go", "p.calendar.NextKey(s.NextMs, s.NextKey+1)", "p.calendar.NextKey(s.NextMs, s.NextKey-60_000)", 60, ""},

	{"a run is taken for concluded by an answer from before its claim", "scheduler/schedule.go", "Result: result, Seen: r.lookSeen,", "Result: result,", 3000, ""},
	{"an operation is refused by an earlier record", "router/operations.go", "again := r.Confirm && !r.newest", "again := false", 400, ""},

	// Faults that this simulation has found.
	{"an update drops the excluded dates that have passed", "internal/recurrence/operations.go", "\t\tp.passAll(s, nowMs)\n", "", 1200, ""},
	{"an update of a run whose date has been excluded drops its times", "internal/recurrence/exclude.go", "n < maxPasses && !t.follow(); n++", "n < maxPasses && !t.pass(t.undecided(), true); n++", 300, ""},
	{"an update gives nominal times before a resume a second overdue event", "internal/recurrence/expect.go", "if times.first > afterMs {", "if times.n > 0 {", 600, ""},
	{"an update gives nominal times of a pause an overdue event", "internal/recurrence/operations.go", "if !paused && s.NextMs != 0 {\n\t\t\t\tp.expect(", "if s.NextMs != 0 {\n\t\t\t\tp.expect(", 60, ""},
}

// flowMutants are found by TestFlow.
var flowMutants = []mutant{
	{"the message id of a deferred event has no count", "scheduler/fire.go", "RetryMsgIDAfter(e.rec.Attempt+1, n)", "RetryMsgIDAfter(e.rec.Attempt+1, 0)", 60, "TestFlow"},
	{"a deferred event is published on timers.fired again", "scheduler/fire.go", "e.rec.Attempt > 0 || n > 0 {", "e.rec.Attempt > 0 {", 20, "TestFlow"},
	{"an event from before a deferral is called", "functions/policy.go", "r.Attempt == c.Attempt && r.Deferrals() == c.Deferred}", "r.Attempt == c.Attempt}", 1500, "TestFlow"},
	{"a deferral counts as an attempt", "schemas/flow.go", "\td := Deferral{Count:", "\tr.Attempt++\n\td := Deferral{Count:", 10, "TestFlow"},
	{"a deferral is not counted", "schemas/flow.go", "\t\td.Count++\n", "", 10, "TestFlow"},
	{"a cancelled timer is called after a read", "functions/policy.go", "r.State.Final():\n\t\treturn Admission{}\n\tcase r.State == schemas.StateDelivered", "r.State.Final():\n\t\treturn Admission{Run: r.State == schemas.StateCancelled}\n\tcase r.State == schemas.StateDelivered", 150, "TestFlow"},
	{"a second delivery is called without a read", "functions/policy.go", "deliveries > 1 ", "deliveries > 2 ", 300, "TestFlow"},
	{"the call forgets the deferrals", "schemas/flow.go", "\tr.Deferral = &Deferral{Count: r.Deferral.Count}\n}", "\tr.Deferral = nil\n}", 20, "TestFlow"},
}

// quotaMutants are found by TestQuotas.
var quotaMutants = []mutant{
	{"quota: a scan forgets the records that change meanwhile", "scheduler/limited.go", "[...]*quota.Tally{l.tally, l.next}", "[...]*quota.Tally{l.tally}", 60, "TestQuotas"},
	{"quota: a new owner counts only what changes", "scheduler/limited.go", "found = append(found, timer)", "_ = timer", 20, "TestQuotas"},
	{"quota: an owner does not notice other limits", "scheduler/limited.go", "l.again || set.PendingSelection() != l.wanted", "l.again || !l.begun", 20, "TestQuotas"},
	{"quota: a scan for earlier limits is published", "scheduler/limited.go", "case l.next != tally:", "case false:", 60, "TestQuotas"},
	{"quota: a timer that has fired is counted", "scheduler/limited.go", "timer, waits := rec.Use(), rec.Record.State.Waits()", "timer, waits := rec.Use(), !rec.Record.State.Final()", 20, "TestQuotas"},
}

// feedMutants are bugs in the life of a feed. doc.go says which other changes of Waker and
// Rester only delay an event or cost a request, and so are no mutants.
var feedMutants = []mutant{
	{"the floor is above what is concluded", "functions/rester.go", "st.Rev, a.Floor)", "st.Rev, a.Floor+1)", 10, "TestFeeds"},
	{"nobody looks at the stream after a rest", "functions/rester.go", "case left:", "case left && floor > 1<<60:", 300, "TestFeeds"},
	{"a wake that failed is not repeated", "internal/store/feedwaker.go", "\t}\n\treturn err\n}\n\n// sawAwake", "\t}\n\treturn nil\n}\n\n// sawAwake", 300, "TestFeeds"},
	{"a feed that was seen awake once is trusted without end", "internal/store/feedwaker.go", "w.now().Sub(e.awake) < w.trust\n}", "true\n}", 300, "TestFeeds"},
	{"a rest that was missed while the watch was broken is not looked for", "internal/store/feedwaker.go", "needs[f] = e.last\n", "_ = f\n", 300, "TestFeeds"},
	{"a rest is looked for only after a short break of the watch", "internal/store/feedwaker.go", "\t\tif e.last > 0 {\n", "\t\tif e.last > 0 && w.now().Sub(e.awake) < 2*w.trust {\n", 60, "TestFeeds"},
	{"a wake makes a floor of its own", "internal/store/feedwaker.go", "w.keys.PutActive(ctx, f, st.Floor, st.Rev)", "w.keys.PutActive(ctx, f, need, st.Rev)", 300, "TestFeeds"},
}

// TestMutantsAreFound builds the simulation with each mutant and runs it. Without BELFRY_SIM_MUTANTS=all it does so
// only for the first mutant of each list, and without BELFRY_TESTS=all for the first of all.
func TestMutantsAreFound(t *testing.T) {
	t.Parallel()
	run := []mutant{seedMutants[0], newerMutants[0], damageMutants[0], returnedMutants[0], feedMutants[0], scheduleMutants[0], flowMutants[0], quotaMutants[0]}
	if os.Getenv("BELFRY_SIM_MUTANTS") == "all" {
		run = mutants
	} else {
		testsize.NotShort(t, "this test builds the simulation again")
		testsize.NotRace(t, "this test builds the simulation again")
		run = run[:testsize.Choose(t, "mutants", 1, 1, len(run))]
	}
	for _, m := range run {
		t.Run(m.name, func(t *testing.T) {
			out := m.run(t)
			found := regexp.MustCompile(`seed (\d+) \(`).FindSubmatch(out)
			if found == nil {
				t.Fatalf("not found by %d seeds:\n%s", m.seeds, out)
			}
			seed, err := strconv.Atoi(string(found[1]))
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := bytes.Cut(out[bytes.Index(out, found[0]):], []byte("repeat with"))
			t.Logf("found by seed %d: %s", seed, strings.TrimSpace(string(first)))
		})
	}
}

// TestMutantsFollowTheCode: each mutant changes one place of its file.
func TestMutantsFollowTheCode(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		if err := m.plant().Check("../.."); err != nil {
			t.Error(err)
		}
	}
}

func (m *mutant) plant() *mutate.Mutant {
	return &mutate.Mutant{Name: m.name, File: m.file, From: m.from, To: m.to}
}

// run builds the simulation with the changed file, and runs the first seeds one after the
// other until one fails.
func (m *mutant) run(t *testing.T) []byte {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"BELFRY_SIM_SEEDS=" + strconv.Itoa(m.seeds), "BELFRY_SIM_ONE_BY_ONE=1"}
	if !slices.Contains(scheduleMutants, *m) {
		env = append(env, "BELFRY_SIM_SCHEDULES=off")
	}
	out, err := m.plant().Test(t.Context(), root, t.TempDir(), env, "-run", "^"+cmp.Or(m.test, "TestSeeds")+"$", "./internal/sim")
	if err == nil {
		t.Fatalf("%d seeds passed", m.seeds)
	}
	return out
}
