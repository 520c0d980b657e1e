package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// This file checks timerexpect: each nominal time without a success by its deadline has one
// overdue event, and the others have none.

// expect returns the values of timerexpect that the schedule may have had, in milliseconds.
func (s *schedule) expect() (values []int64) {
	for _, o := range slices.Concat(s.adds, s.ops) {
		if r := o.call.Recurrence; r != nil && o.outcome != never && r.ExpectMs > 0 {
			values = append(values, r.ExpectMs)
		}
	}
	return values
}

// deadlines checks the overdue events.
func (s *schedule) deadlines(c *checker) {
	c.rep.Schedules.Overdue += len(s.overdue)
	expect := s.expect()
	seen := map[int64]bool{}
	for _, e := range s.overdue {
		s.overdueEvent(c, &e, expect)
		if seen[e.DueMs] {
			s.fail(c, OverdueTwice, "two overdue events have the last nominal time %s", schemas.FormatTime(e.DueMs))
		}
		seen[e.DueMs] = true
	}
	if s.cancelled() {
		return
	}
	if p := s.last().Schedule; len(p.Expected) > 0 && p.Expected[0].DeadlineMs <= s.passedMs {
		s.fail(c, Behind, "the deadline %s is not decided; the low watermark is past %s", schemas.FormatTime(p.Expected[0].DeadlineMs), schemas.FormatTime(s.passedMs))
	}
	// After an operation, which nominal times have a deadline depends on when it took effect.
	operated := slices.ContainsFunc(s.ops, func(o *operation) bool { return o.call.Kind != Cancel && o.outcome != never })
	if len(expect) > 0 && !operated && s.passedMs > 0 && s.forgotten == 0 {
		s.everyDeadline(c, expect[0])
	}
}

// overdueEvent checks one overdue event by itself.
func (s *schedule) overdueEvent(c *checker, e *Event, expect []int64) {
	nominal := schemas.FormatTime(e.DueMs)
	if want := schemas.OverdueID(schemas.NewTimerID(s.source, s.id), e.DueMs); e.Key != want {
		s.fail(c, ChangedID, "the overdue event of %s has the key %q, want %q", nominal, e.Key, want)
	}
	if !slices.Contains(expect, e.DeadlineMs-e.DueMs) {
		s.fail(c, NotOverdue, "the overdue event of %s has the deadline %s; timerexpect was %v ms", nominal, schemas.FormatTime(e.DeadlineMs), expect)
	}
	if e.TimeNs < e.DeadlineMs*1_000_000 {
		s.fail(c, Early, "the overdue event of %s came %.3f ms before its deadline", nominal, float64(e.DeadlineMs*1_000_000-e.TimeNs)/1e6)
	}
	// A run that waits may be overdue before its date is excluded.
	if f, ok := s.fates[e.DueMs]; ok && f.kind == schemas.DecisionExcluded && s.excludedMs[e.DueMs] < e.ClaimedMs {
		s.fail(c, NotOverdue, "%s is excluded, and has an overdue event", nominal)
	}
	if e.Run == 0 {
		return
	}
	if fired, ok := s.byRun[e.Run]; !ok || fired.DueMs != e.DueMs {
		s.fail(c, NotOverdue, "the overdue event of %s names run %d, which fired for %s, if at all", nominal, e.Run, schemas.FormatTime(fired.DueMs))
	}
	if r, ok := s.results[e.Run]; ok && r.State == schemas.StateSuccess && r.StoredMs <= e.DeadlineMs {
		s.fail(c, NotOverdue, "run %d has an overdue event; its success was stored at %s, the deadline was %s", e.Run, schemas.FormatTime(r.StoredMs), schemas.FormatTime(e.DeadlineMs))
	}
}

// straddle bounds the time between the deadlines of nominal times that were decided together
// at the end of a run, when the cluster works.
const straddle = 5000

// everyDeadline compares the overdue events with the nominal times that were decided, for a
// schedule that nobody has operated on.
func (s *schedule) everyDeadline(c *checker, expectMs int64) {
	byRun := map[uint32]Event{}
	var without []Event // events without a run
	for _, e := range s.overdue {
		if e.Run != 0 {
			byRun[e.Run] = e
		} else {
			without = append(without, e)
		}
	}
	// A nominal time that waits for the previous run shares its deadline with the ones that it has
	// replaced, which the decisions do not say.
	o := s.adds[0].call.Recurrence.Overlap
	waits := o == schemas.OverlapQueue || o == schemas.OverlapReplace
	var missed []int64         // nominal times without a run, or whose run fired after the deadline
	shared := map[uint32]int{} // the nominal times that a run stands for, beside its own
	for _, at := range slices.Sorted(maps.Keys(s.fates)) {
		f := s.fates[at]
		fired := s.byRun[f.run]
		switch f.kind {
		case schemas.DecisionFired, schemas.DecisionCoalesced:
			if at+expectMs <= fired.ClaimedMs {
				missed = append(missed, at)
			} else if f.kind == schemas.DecisionCoalesced {
				shared[f.run]++
			} else if at+expectMs <= s.passedMs {
				n := shared[f.run]
				if waits {
					n = -1
				}
				s.deadlineOfRun(c, &fired, byRun, at+expectMs, n)
			}
		case schemas.DecisionOverlap, schemas.DecisionMisfire, schemas.DecisionGrace:
			missed = append(missed, at)
		}
	}
	if !waits {
		s.deadlinesWithoutRun(c, missed, without, expectMs)
	}
}

// deadlineOfRun checks the overdue event of a run that fired before its deadline. shared is the
// number of other nominal times that the run stands for, -1 if it is not known.
func (s *schedule) deadlineOfRun(c *checker, fired *Event, byRun map[uint32]Event, deadlineMs int64, shared int) {
	r, known := s.results[fired.Run]
	e, overdue := byRun[fired.Run]
	c.rep.Schedules.Deadlines++
	switch {
	case !known:
		s.fail(c, BadHistory, "the record of run %d was not read", fired.Run)
	case overdue && shared >= 0 && int(e.Missed) != shared:
		s.fail(c, WrongCount, "the overdue event of run %d counts %d other nominal times; it fired for %d", fired.Run, e.Missed, shared)
	case !overdue && (r.State != schemas.StateSuccess || r.DoneMs > deadlineMs):
		s.fail(c, NoOverdue, "run %d of %s had no success by %s: %s at %s", fired.Run, schemas.FormatTime(fired.DueMs), schemas.FormatTime(deadlineMs), r.State, schemas.FormatTime(r.DoneMs))
	}
}

// deadlinesWithoutRun checks that each of the nominal times is in one overdue event. Both are
// in the same order, and an event covers adjacent ones of them.
func (s *schedule) deadlinesWithoutRun(c *checker, missed []int64, events []Event, expectMs int64) {
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.DueMs, b.DueMs) })
	for _, e := range events {
		n := int(e.Missed) + 1
		if n > len(missed) || missed[n-1] != e.DueMs {
			if at := slices.Index(missed, e.DueMs); at >= 0 {
				s.fail(c, NoOverdue, "the overdue event of %s is about %d nominal times; %d have no overdue event", schemas.FormatTime(e.DueMs), n, at+1)
				missed = missed[at+1:]
				continue
			}
			s.fail(c, NotOverdue, "an overdue event of %s and %d other nominal times, which fired in time or were not decided", schemas.FormatTime(e.DueMs), e.Missed)
			continue
		}
		c.rep.Schedules.Deadlines += n
		missed = missed[n:]
	}
	if len(missed) > 0 && missed[0]+expectMs+straddle <= s.passedMs {
		s.fail(c, NoOverdue, "%s and %d other nominal times have no overdue event", schemas.FormatTime(missed[0]), len(missed)-1)
	}
}

// OverdueEvent returns the event of a message in TIMERS_OVERDUE.
func OverdueEvent(header map[string][]string, data []byte, sequence uint64, stored time.Time) (Event, error) {
	e := Event{Kind: Overdue, Sequence: sequence, TimeNs: stored.UnixNano(), Key: first(header["Nats-Msg-Id"]), Data: string(data)}
	text := map[string]string{}
	if len(header["ce-id"]) > 0 {
		for name, v := range header {
			text[strings.TrimPrefix(name, "ce-")] = v[0]
		}
	} else {
		var members map[string]any
		d := json.NewDecoder(strings.NewReader(string(data)))
		d.UseNumber()
		if err := d.Decode(&members); err != nil {
			return e, err
		}
		for name, v := range members {
			text[name] = fmt.Sprint(v)
		}
	}
	e.Source, e.ID = text["source"], text["id"]
	for name, ms := range map[string]*int64{schemas.AttrScheduled: &e.DueMs, schemas.AttrFired: &e.ClaimedMs, schemas.AttrOverdue: &e.DeadlineMs} {
		var err error
		if *ms, err = schemas.ParseTime(text[name]); err != nil {
			return e, fmt.Errorf("%s %q: %w", name, text[name], err)
		}
	}
	for name, n := range map[string]*uint32{schemas.AttrRun: &e.Run, schemas.AttrMissed: &e.Missed} {
		if text[name] == "" {
			continue
		}
		v, err := strconv.ParseUint(text[name], 10, 32)
		if err != nil {
			return e, fmt.Errorf("%s: %w", name, err)
		}
		*n = uint32(v)
	}
	e.Note = text[schemas.AttrErrorCode]
	return e, nil
}

// first returns the first value of a header, "" for none.
func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
