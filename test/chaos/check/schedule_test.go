package check

import (
	"fmt"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// The schedules of these stories fire every 2 s, from 2 s after due on; nth is the nth
// nominal time.
func nth(n int64) int64 { return due + n*2000 }

// recurring is a story of one schedule, and its record.
type recurring struct {
	story
	record schemas.Schedule
}

// newRecurring begins a story: the schedule is added and acknowledged.
func newRecurring() *recurring {
	r := &recurring{}
	r.record.Every, r.record.AnchorMs = "PT2S", due
	rule := r.record.Recurrence
	r.put(Event{Kind: Add, Call: 1, ID: "s", Via: "api", Data: "d-s", Callback: true, Recurrence: &rule}).ok(1)
	return r
}

// decide adds a decision to the record.
func (r *recurring) decide(kind schemas.DecisionKind, from, to int64, run uint32) *recurring {
	r.record.Decisions = append(r.record.Decisions, schemas.Decision{Kind: kind, FromMs: nth(from), ToMs: nth(to), Count: uint32(to - from + 1), Run: run})
	return r
}

// run puts the event of a run and its callback.
func (r *recurring) run(run uint32, n int64) *recurring { return r.runAs(run, n, Event{}) }

func (r *recurring) runAs(run uint32, n int64, e Event) *recurring {
	key := schemas.NewTimerID(source, "s").MsgID(run)
	e.Kind, e.ID, e.Run, e.DueMs, e.TimeNs, e.Key = Fired, "s", run, nth(n), nth(n)*1_000_000, key
	if e.Data == "" {
		e.Data = "d-s"
	}
	r.record.Last.Run = max(r.record.Last.Run, run)
	r.put(e).put(Event{Kind: Called, ID: "s", TimeNs: e.TimeNs, Key: key, Data: e.Data})
	return r
}

// fires puts runs of consecutive nominal times and decides them.
func (r *recurring) fires(run uint32, from, to int64) *recurring {
	r.decide(schemas.DecisionFired, from, to, run)
	for n := from; n <= to; n++ {
		r.run(run+uint32(n-from), n)
	}
	return r
}

// call makes an operation that is acknowledged. last is the last run claimed before it.
func (r *recurring) call(n int64, kind Kind, last uint32, e Event) *recurring {
	e.Kind, e.Call, e.ID = kind, n, "s"
	count := e.Count
	e.Count = 0
	r.put(e).put(Event{Kind: Answer, Call: n, OK: true, Run: last, Count: count, Sequence: uint64(len(r.events))})
	return r
}

// read puts the record as it is now.
func (r *recurring) read() *recurring {
	p := *r.record.Clone()
	p.Decisions = append([]schemas.Decision(nil), p.Decisions...)
	if p.NextMs == 0 && len(p.Decisions) > 0 {
		p.NextMs = p.DecidedMs() + 2000
		p.NextDueMs = p.NextMs
	}
	r.put(Event{Kind: Stored, ID: "s", Sequence: uint64(len(r.events) + 1), Schedule: &p, State: schemas.StatePending, AddedMs: due, UpdatedMs: due + 7000})
	return r
}

// updated changes the period to 3 s, from nth(4) = due+8000 on, at due+7000: the next
// nominal time is due+9000.
func (r *recurring) updated() *recurring { return r.updatedTo("PT3S") }

func (r *recurring) updatedTo(every string) *recurring {
	r.record.Every, r.record.ChangedMs = every, due+9000
	return r
}

func TestSoundSchedules(t *testing.T) {
	t.Parallel()
	paused := Event{}
	sound := map[string]*recurring{
		"it just fires":              newRecurring().fires(1, 1, 5).read(),
		"nothing is due yet":         newRecurring().read(),
		"skips with reasons":         newRecurring().fires(1, 1, 2).decide(schemas.DecisionOverlap, 3, 5, 2).fires(3, 6, 6).read(),
		"coalesced into a later run": newRecurring().decide(schemas.DecisionCoalesced, 1, 3, 1).decide(schemas.DecisionFired, 4, 4, 1).runAs(1, 4, Event{Missed: 3}).read(),
		"read twice":                 newRecurring().fires(1, 1, 2).read().decide(schemas.DecisionPaused, 3, 3, 0).read(),
		"paused and resumed":         newRecurring().fires(1, 1, 2).call(2, Pause, 2, paused).call(3, Resume, 2, paused).decide(schemas.DecisionPaused, 3, 4, 0).fires(3, 5, 6).read(),
		"claimed before the pause":   newRecurring().call(2, Pause, 1, paused).fires(1, 1, 1).read(),
		"asked for during a pause":   newRecurring().call(2, Pause, 0, paused).call(3, Trigger, 0, paused).decide(schemas.DecisionTriggered, 1, 1, 1).runAs(1, 1, Event{Trigger: schemas.TriggerManual}).read(),
		"deleted":                    newRecurring().fires(1, 1, 3).call(2, Cancel, 3, paused).read(),
		"backfilled after a skip":    newRecurring().decide(schemas.DecisionPaused, 1, 2, 0).call(2, Backfill, 0, Event{FromMs: nth(1), ToMs: nth(1), Count: 1}).decide(schemas.DecisionBackfilled, 1, 1, 1).runAs(1, 1, Event{Trigger: schemas.TriggerBackfill}).read(),
		"the updated times differ":   newRecurring().fires(1, 1, 3).read().call(2, Update, 3, Event{Data: "d-2"}).updated().read(),
		"two updates before a nominal time": newRecurring().fires(1, 1, 2).decide(schemas.DecisionPaused, 3, 3, 0).read().
			call(2, Update, 2, Event{Data: "d-x"}).updatedTo("PT9S").read().call(3, Update, 2, Event{Data: "d-2"}).updated().read().firesUpdated(9000, 12_000),
		"updated contents": newRecurring().fires(1, 1, 2).call(2, Update, 2, Event{Data: "d-2"}).read().decide(schemas.DecisionFired, 3, 3, 3).runAs(3, 3, Event{Data: "d-2"}).read(),
		"an update that may have been": func() *recurring {
			r := newRecurring().fires(1, 1, 1)
			r.put(Event{Kind: Update, Call: 2, ID: "s", Data: "d-2"}).unknown(2)
			return r.decide(schemas.DecisionFired, 2, 2, 2).runAs(2, 2, Event{Data: "d-2"}).read()
		}(),
		"older decisions are dropped": func() *recurring {
			r := newRecurring().fires(1, 1, 4).read()
			r.record.Decisions = r.record.Decisions[:0]
			r.record.ForgottenMs, r.record.KnownFromMs = nth(1), nth(4)+1
			return r.fires(5, 5, 6).read()
		}(),
	}
	for name, r := range sound {
		report := Check(r.events)
		if len(report.Violations) > 0 {
			t.Errorf("%s: violations %v, want none", name, report.Violations)
		}
		if report.Schedules.Schedules != 1 {
			t.Errorf("%s: %d schedules, want 1", name, report.Schedules.Schedules)
		}
	}
}

func TestPlantedScheduleViolations(t *testing.T) {
	t.Parallel()
	planted := map[string]struct {
		rule Rule
		r    *recurring
	}{
		"a nominal time fires twice":          {NominalTwice, newRecurring().fires(1, 1, 3).run(4, 3).read()},
		"a backfill fires it again":           {NominalTwice, newRecurring().fires(1, 1, 3).decide(schemas.DecisionBackfilled, 2, 2, 4).runAs(4, 2, Event{Trigger: schemas.TriggerBackfill}).read()},
		"a run fires twice":                   {RunTwice, newRecurring().fires(1, 1, 3).run(2, 2).read()},
		"a nominal time is in no decision":    {Undecided, newRecurring().fires(1, 1, 2).fires(3, 4, 5).read()},
		"the first nominal time is missing":   {Undecided, newRecurring().fires(1, 2, 3).read()},
		"a run is in no decision":             {Unexplained, newRecurring().fires(1, 1, 2).run(3, 3).read()},
		"a skipped time fires":                {Unexplained, newRecurring().fires(1, 1, 2).decide(schemas.DecisionPaused, 3, 3, 0).run(3, 3).read()},
		"nobody asked for a run":              {NotAsked, newRecurring().decide(schemas.DecisionTriggered, 1, 1, 1).runAs(1, 1, Event{Trigger: schemas.TriggerManual}).read()},
		"a run that was asked for is missing": {NotAsked, newRecurring().call(2, Trigger, 0, Event{}).fires(1, 1, 1).read()},
		"a backfill is incomplete":            {NotAsked, newRecurring().decide(schemas.DecisionPaused, 1, 3, 0).call(2, Backfill, 0, Event{Count: 2}).decide(schemas.DecisionBackfilled, 1, 1, 1).runAs(1, 1, Event{Trigger: schemas.TriggerBackfill}).read()},
		"a manual run is in no decision":      {Unexplained, newRecurring().call(2, Trigger, 0, Event{}).runAs(1, 1, Event{Trigger: schemas.TriggerManual}).read()},
		"two decisions in one record":         {DecidedTwice, newRecurring().fires(1, 1, 3).decide(schemas.DecisionPaused, 3, 4, 0).read()},
		"the decision changes": {DecidedTwice, func() *recurring {
			r := newRecurring().fires(1, 1, 2).decide(schemas.DecisionPaused, 3, 3, 0).read()
			r.record.Decisions = r.record.Decisions[:1]
			return r.fires(3, 3, 3).read()
		}()},
		"a range with a wrong count": {WrongCount, func() *recurring {
			r := newRecurring().fires(1, 1, 2)
			r.record.Decisions[0].Count = 3
			return r.read()
		}()},
		"a decision without its event": {NoEvent, newRecurring().decide(schemas.DecisionFired, 1, 2, 1).run(1, 1).read()},
		"a run number is missing":      {RunGap, newRecurring().fires(1, 1, 2).fires(4, 3, 3).read()},
		"the last run has no event": {RunGap, func() *recurring {
			r := newRecurring().fires(1, 1, 2)
			r.record.Last.Run = 3
			return r.read()
		}()},
		"fired during a pause":           {AfterPause, newRecurring().fires(1, 1, 2).call(2, Pause, 2, Event{}).fires(3, 3, 3).call(3, Resume, 3, Event{}).read()},
		"fired after a pause":            {AfterPause, newRecurring().fires(1, 1, 2).call(2, Pause, 2, Event{}).fires(3, 3, 3).read()},
		"fired after a delete":           {AfterCancel, newRecurring().fires(1, 1, 2).call(2, Cancel, 2, Event{}).fires(3, 3, 3).read()},
		"fired with the old contents":    {AfterUpdate, newRecurring().fires(1, 1, 2).call(2, Update, 2, Event{Data: "d-2"}).fires(3, 3, 3).read()},
		"an update drops a nominal time": {Undecided, newRecurring().fires(1, 1, 2).read().call(2, Update, 2, Event{Data: "d-2"}).updated().read().firesUpdated(9000)},
		"fired before its nominal time": {Early, func() *recurring {
			r := newRecurring().fires(1, 1, 1).read()
			r.events[2].TimeNs--
			return r
		}()},
		"fired before its jitter": {Early, func() *recurring {
			r := newRecurring()
			r.record.JitterMs = 1900
			return r.fires(1, 1, 3).read()
		}()},
		"never decides": {Behind, func() *recurring {
			r := newRecurring().fires(1, 1, 2)
			r.put(Event{Kind: Passed, TimeNs: nth(5) * 1_000_000})
			return r.read()
		}()},
		"more than timerlimit": {OverLimit, func() *recurring {
			r := newRecurring().fires(1, 1, 3)
			r.record.Limit, r.record.Fired = 2, 3
			return r.read()
		}()},
		"fewer missed than are coalesced": {Unexplained, newRecurring().decide(schemas.DecisionCoalesced, 1, 3, 1).decide(schemas.DecisionFired, 4, 4, 1).runAs(1, 4, Event{Missed: 2}).read()},
		"the record is lost":              {Lost, newRecurring()},
		"a callback that is never called": {NotCalled, func() *recurring {
			r := newRecurring().fires(1, 1, 2).read()
			r.events = append(r.events[:3:3], r.events[4:]...)
			return r
		}()},
		"a callback of a run that never fired": {ChangedID, func() *recurring {
			r := newRecurring().fires(1, 1, 2).read()
			r.put(Event{Kind: Called, ID: "s", Key: schemas.NewTimerID(source, "s").MsgID(3), Data: "d-s"})
			return r
		}()},
		"changed contents": {ChangedData, newRecurring().decide(schemas.DecisionFired, 1, 1, 1).runAs(1, 1, Event{Data: "other"}).read()},
		"a key of another run": {ChangedID, func() *recurring {
			r := newRecurring().fires(1, 1, 1).read()
			r.events[2].Key += "0"
			return r
		}()},
	}
	for name, p := range planted {
		report := Check(p.r.events)
		if report.Count(p.rule) == 0 {
			t.Errorf("%s: %s was not found; found %v", name, p.rule, report.Violations)
		}
	}
}

// firesUpdated lets an updated schedule fire at these times after due, from run 3 on.
func (r *recurring) firesUpdated(times ...int64) *recurring {
	last := due + times[len(times)-1]
	r.record.Decisions = append(r.record.Decisions, schemas.Decision{Kind: schemas.DecisionFired, FromMs: due + times[0], ToMs: last, Count: uint32(len(times)), Run: 3})
	r.record.NextMs, r.record.NextDueMs = last+3000, last+3000
	for i, ms := range times {
		run, at := uint32(3+i), due+ms
		key := schemas.NewTimerID(source, "s").MsgID(run)
		r.record.Last.Run = run
		r.put(Event{Kind: Fired, ID: "s", Run: run, DueMs: at, TimeNs: at * 1_000_000, Key: key, Data: "d-2"})
		r.put(Event{Kind: Called, ID: "s", TimeNs: at * 1_000_000, Key: key, Data: "d-2"})
	}
	return r.read()
}

// TestScheduleReport checks the counts of a report.
func TestScheduleReport(t *testing.T) {
	t.Parallel()
	r := Check(newRecurring().fires(1, 1, 2).decide(schemas.DecisionOverlap, 3, 4, 2).fires(3, 5, 5).call(2, Pause, 3, Event{}).read().events).Schedules
	got := fmt.Sprint(r.Schedules, r.Runs, r.Judged, r.Skipped, r.Kinds[schemas.DecisionOverlap], r.Operations, r.Done[Pause])
	if want := "1 3 5 2 2 1 1"; got != want {
		t.Errorf("counts %s, want %s", got, want)
	}
}

// newExpecting begins a story of a schedule with timerexpect 3 s, which nobody operates on.
func newExpecting() *recurring {
	r := &recurring{}
	r.record.Every, r.record.AnchorMs, r.record.ExpectMs = "PT2S", due, 3000
	rule := r.record.Recurrence
	r.put(Event{Kind: Add, Call: 1, ID: "s", Via: "api", Data: "d-s", Callback: true, Recurrence: &rule}).ok(1)
	return r
}

// result puts the record of a run: its state, and the time of its result in ms after its nominal
// time.
func (r *recurring) result(run uint32, n int64, state schemas.State, after int64) *recurring {
	r.put(Event{Kind: Result, ID: "s", Run: run, State: state, DoneMs: nth(n) + after, StoredMs: nth(n) + after})
	return r
}

// overdue puts an overdue event of the nominal time n and some before it.
func (r *recurring) overdue(run uint32, n int64, missed uint32) *recurring {
	at := nth(n)
	r.put(Event{
		Kind: Overdue, ID: "s", Run: run, DueMs: at, DeadlineMs: at + 3000, ClaimedMs: at + 3000, TimeNs: (at + 3001) * 1_000_000,
		Key: schemas.OverdueID(schemas.NewTimerID(source, "s"), at), Missed: missed,
	})
	return r
}

// passed puts the low watermark of nominal time n, and the record.
func (r *recurring) passed(n int64) *recurring {
	r.record.NextMs, r.record.NextDueMs = nth(n+1), nth(n+1)
	r.put(Event{Kind: Passed, TimeNs: nth(n) * 1_000_000})
	return r.read()
}

// claims sets the time at which a run was claimed, in ms after its nominal time.
func (r *recurring) claims(run uint32, after int64) *recurring {
	for i := range r.events {
		if e := &r.events[i]; e.Kind == Fired && e.Run == run {
			e.ClaimedMs = e.DueMs + after
			e.TimeNs = e.ClaimedMs * 1_000_000
		}
	}
	return r
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	success, fail := schemas.StateSuccess, schemas.StateFail
	overlap := func() *recurring {
		return newExpecting().fires(1, 1, 1).decide(schemas.DecisionOverlap, 2, 3, 1).fires(2, 4, 4).passed(8).result(2, 4, success, 5)
	}
	for name, x := range map[string]struct {
		rule Rule // "" for a sound history
		r    *recurring
	}{
		"success in time":           {"", newExpecting().fires(1, 1, 2).passed(6).result(1, 1, success, 100).result(2, 2, success, 3000)},
		"success too late":          {"", newExpecting().fires(1, 1, 1).passed(6).result(1, 1, success, 3001).overdue(1, 1, 0)},
		"a failed run":              {"", newExpecting().fires(1, 1, 1).passed(6).result(1, 1, fail, 10).overdue(1, 1, 0)},
		"no deadline has passed":    {"", newExpecting().fires(1, 1, 1).passed(2).result(1, 1, fail, 10)},
		"an event for each skip":    {"", overlap().result(1, 1, success, 10).overdue(0, 2, 0).overdue(0, 3, 0)},
		"one event for both skips":  {"", overlap().result(1, 1, success, 10).overdue(0, 3, 1)},
		"a run stands for others":   {"", newExpecting().decide(schemas.DecisionCoalesced, 1, 1, 1).decide(schemas.DecisionFired, 2, 2, 1).runAs(1, 2, Event{Missed: 1}).passed(6).result(1, 2, fail, 9).overdue(1, 2, 1)},
		"fired after its deadline":  {"", newExpecting().fires(1, 1, 1).claims(1, 3500).passed(6).result(1, 1, success, 3600).overdue(0, 1, 0)},
		"cancelled after an outage": {"", newExpecting().fires(1, 1, 1).waitsFor(1).call(2, Cancel, 1, Event{}).passed(6).result(1, 1, fail, 10)},
		"operations are not judged": {"", newExpecting().fires(1, 1, 1).call(2, Pause, 1, Event{}).passed(6).result(1, 1, fail, 10)},

		"a failed run without an event":        {NoOverdue, newExpecting().fires(1, 1, 1).passed(6).result(1, 1, fail, 10)},
		"a late success without an event":      {NoOverdue, newExpecting().fires(1, 1, 1).passed(6).result(1, 1, success, 3001)},
		"a skip without an event":              {NoOverdue, overlap().result(1, 1, success, 10).overdue(0, 3, 0)},
		"the last skips without an event":      {NoOverdue, overlap().result(1, 1, success, 10).overdue(0, 2, 0)},
		"an event of a success":                {NotOverdue, newExpecting().fires(1, 1, 1).passed(6).result(1, 1, success, 10).overdue(1, 1, 0)},
		"an event of another run":              {NotOverdue, newExpecting().fires(1, 1, 2).passed(6).result(1, 1, fail, 10).result(2, 2, fail, 10).overdue(2, 1, 0)},
		"an event of a time that fired":        {NotOverdue, newExpecting().fires(1, 1, 1).passed(6).result(1, 1, success, 10).overdue(0, 1, 0)},
		"an event of an excluded date":         {NotOverdue, newExpecting().decide(schemas.DecisionExcluded, 1, 1, 1).passed(6).overdue(0, 1, 0)},
		"an event with another deadline":       {NotOverdue, newRecurring().fires(1, 1, 1).passed(6).overdue(1, 1, 0)},
		"two events of one nominal time":       {OverdueTwice, newExpecting().fires(1, 1, 1).passed(6).result(1, 1, fail, 10).overdue(1, 1, 0).overdue(1, 1, 0)},
		"an event that counts other times":     {WrongCount, newExpecting().fires(1, 1, 1).passed(6).result(1, 1, fail, 10).overdue(1, 1, 2)},
		"a record that was not read":           {BadHistory, newExpecting().fires(1, 1, 1).passed(6)},
		"cancelled after the deadlines":        {NoOverdue, newExpecting().fires(1, 1, 1).passed(6).call(2, Cancel, 1, Event{}).read().result(1, 1, fail, 10)},
		"a deadline that is not decided":       {Behind, newExpecting().fires(1, 1, 1).waitsFor(1).passed(6).result(1, 1, success, 10)},
		"an event before its deadline":         {Early, newExpecting().fires(1, 1, 1).passed(6).result(1, 1, fail, 10).overdue(1, 1, 0).early()},
		"an event with the key of another one": {ChangedID, newExpecting().fires(1, 1, 1).passed(6).result(1, 1, fail, 10).overdue(1, 1, 0).rekeyed()},
	} {
		report := Check(x.r.events)
		switch {
		case x.rule == "" && len(report.Violations) > 0:
			t.Errorf("%s: violations %v, want none", name, report.Violations)
		case x.rule != "" && report.Count(x.rule) == 0:
			t.Errorf("%s: %s was not found; found %v", name, x.rule, report.Violations)
		}
	}
}

// waitsFor makes the record wait for the success of nominal time n.
func (r *recurring) waitsFor(n int64) *recurring {
	r.record.Expected = []schemas.Expected{{FromMs: nth(n), ToMs: nth(n), DeadlineMs: nth(n) + 3000, Count: 1, Run: uint32(n), Kind: schemas.DecisionFired}}
	return r
}

func (r *recurring) early() *recurring {
	e := &r.events[len(r.events)-1]
	e.TimeNs = e.DeadlineMs*1_000_000 - 1
	return r
}

func (r *recurring) rekeyed() *recurring {
	r.events[len(r.events)-1].Key += "x"
	return r
}

// excluding begins a story of a schedule that excludes calendar holidays. The clock of the
// history starts at due.
func excluding() *recurring {
	r := &recurring{}
	r.record.Every, r.record.AnchorMs, r.record.Exclude = "PT2S", due, []string{"holidays"}
	rule := r.record.Recurrence
	r.put(Event{Kind: Begin, TimeNs: due * 1_000_000})
	r.put(Event{Kind: Add, Call: 1, ID: "s", Via: "api", Data: "d-s", Callback: true, Recurrence: &rule}).ok(1)
	return r
}

// dateOfDue is the date of due in UTC.
const dateOfDue = "2027-01-15"

// puts makes a call for calendar holidays that is made and acknowledged at the times of nominal
// times.
func (r *recurring) puts(call int64, kind Kind, from, to int64, dates ...string) *recurring {
	r.put(Event{Kind: kind, Call: call, ID: "holidays", Dates: dates})
	r.events[len(r.events)-1].AtNs = (nth(from) - due) * 1_000_000
	r.ok(call)
	r.events[len(r.events)-1].AtNs = (nth(to) - due) * 1_000_000
	return r
}

func TestExcluded(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		rule Rule // "" for a sound history
		r    *recurring
	}{
		"an excluded date":                {"", excluding().puts(2, PutCalendar, 0, 1, dateOfDue).decide(schemas.DecisionExcluded, 1, 3, 1).read()},
		"every year":                      {"", excluding().puts(2, PutCalendar, 0, 1, "*-01-15").decide(schemas.DecisionExcluded, 1, 3, 1).read()},
		"fired before the answer":         {"", excluding().puts(2, PutCalendar, 0, 2, dateOfDue).fires(1, 1, 1).claims(1, 1500).read()},
		"another date":                    {"", excluding().puts(2, PutCalendar, 0, 1, "2027-01-16").fires(1, 1, 3).claims(3, 1).read()},
		"fired after the next change":     {"", excluding().puts(2, PutCalendar, 0, 1, dateOfDue).puts(3, PutCalendar, 3, 4, "2020-01-01").decide(schemas.DecisionExcluded, 1, 2, 1).fires(1, 3, 3).claims(1, 1).read()},
		"asked for on an excluded date":   {"", excluding().puts(2, PutCalendar, 0, 1, dateOfDue).call(3, Trigger, 0, Event{}).decide(schemas.DecisionTriggered, 3, 3, 1).runAs(1, 3, Event{Trigger: schemas.TriggerManual}).claims(1, 1).read()},
		"deleted while nothing fires":     {"", excluding().fires(1, 1, 1).claims(1, 1).puts(2, DeleteCalendar, 2, 3).read()},
		"recorded by different calendars": {"", excluding().puts(2, PutCalendar, 0, 1, dateOfDue).decide(schemas.DecisionExcluded, 1, 1, 1).read().renamed().read()},

		"fired on an excluded date":            {FiredExcluded, excluding().puts(2, PutCalendar, 0, 1, dateOfDue).fires(1, 3, 3).claims(1, 1).read()},
		"fired between two changes":            {FiredExcluded, excluding().puts(2, PutCalendar, 0, 1, dateOfDue).puts(3, PutCalendar, 5, 6, "2020-01-01").fires(1, 3, 3).claims(1, 1).read()},
		"backfilled on an excluded date":       {FiredExcluded, excluding().puts(2, PutCalendar, 0, 1, dateOfDue).decide(schemas.DecisionBackfilled, 3, 3, 1).runAs(1, 3, Event{Trigger: schemas.TriggerBackfill}).claims(1, 1).read()},
		"excluded by no calendar":              {NotExcluded, excluding().puts(2, PutCalendar, 0, 1, "2020-01-01").decide(schemas.DecisionExcluded, 1, 3, 1).read()},
		"deleted although a schedule needs it": {CalendarInUse, excluding().puts(2, DeleteCalendar, 1, 2).fires(1, 3, 3).claims(1, 1).read()},
		"no relation to the wall clock": {BadHistory, func() *recurring {
			r := excluding().puts(2, PutCalendar, 0, 1, dateOfDue).read()
			r.events = r.events[1:]
			return r
		}()},
	} {
		report := Check(x.r.events)
		switch {
		case x.rule == "" && len(report.Violations) > 0:
			t.Errorf("%s: violations %v, want none", name, report.Violations)
		case x.rule != "" && report.Count(x.rule) == 0:
			t.Errorf("%s: %s was not found; found %v", name, x.rule, report.Violations)
		}
	}
}

// renamed makes the last decision name another calendar, as an update of timerexclude does.
func (r *recurring) renamed() *recurring {
	r.record.Decisions[len(r.record.Decisions)-1].Run = 2
	return r
}

// TestOverdueEvent reads the messages that package schemas makes, in both modes.
func TestOverdueEvent(t *testing.T) {
	t.Parallel()
	f := schemas.Fired{ScheduledMs: due, FiredMs: due + 3001, Run: 7, Missed: 2, OverdueMs: due + 3000}
	for mode, b := range map[string]schemas.Body{
		"structured": {Mode: schemas.ModeStructured, Data: []byte(`{"specversion":"1.0","id":"s","source":"/chaos","type":"t","data":{}}`)},
		"binary":     {Mode: schemas.ModeBinary, Headers: []schemas.HeaderField{{Name: "ce-specversion", Value: "1.0"}, {Name: "ce-id", Value: "s"}, {Name: "ce-source", Value: "/chaos"}, {Name: "ce-type", Value: "t"}}, Data: []byte("{}")},
	} {
		hdr, data := b.OverdueMessage(f, "fail", "it failed")
		hdr.Set("Nats-Msg-Id", "key")
		e, err := OverdueEvent(hdr, data, 5, time.UnixMilli(due+3002))
		if err != nil || e.Source != "/chaos" || e.ID != "s" || e.DueMs != due || e.ClaimedMs != due+3001 || e.DeadlineMs != due+3000 || e.Run != 7 || e.Missed != 2 || e.Note != "fail" || e.Key != "key" {
			t.Errorf("%s: %+v, %v", mode, e, err)
		}
	}
}
