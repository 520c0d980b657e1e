//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// hostClock sets the wall clock of a program that wrongClock has built.
type hostClock struct {
	t    *testing.T
	path string

	mu    sync.Mutex
	shift time.Duration
}

func newHostClock(t *testing.T, start time.Time) *hostClock {
	h := &hostClock{t: t, path: filepath.Join(t.TempDir(), "shift")}
	h.set(start)
	return h
}

// env is the environment of the program.
func (h *hostClock) env() []string { return []string{shiftFileEnv + "=" + h.path} }

// set makes the clock jump to a time.
func (h *hostClock) set(to time.Time) {
	h.t.Helper()
	shift := time.Until(to).Round(time.Second)
	next := h.path + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(strconv.Itoa(int(shift/time.Second))), 0o600), os.Rename(next, h.path)); err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shift = shift
}

// change is a change of daylight saving, with the schedules that run through it.
type change struct {
	// at is the instant of the change, on this local date.
	at   string
	date string
	// schedules are tested from lead before to tail after the change.
	schedules []changing
}

// The clock of a test begins lead before the change, and jumps to tail after it. The tests end
// before the next nominal time of each schedule.
const (
	lead = 2*time.Hour + 50*time.Minute
	tail = 3*time.Hour + 20*time.Minute
)

// changing is a schedule and what belfry must say about each of its times on the date of the
// change: "01:00 fired gap-shifted" is a nominal time in UTC with its fate and the codes of its
// notes.
type changing struct {
	name, cron, every, zone, dst string
	want                         []string
}

// everyHalf are the times of a schedule that fires each half hour of real time. notes are the
// codes by nominal time.
func everyHalf(first, last string, notes map[string]string) []string {
	var list []string
	from, _ := time.Parse("15:04", first)
	to, _ := time.Parse("15:04", last)
	if to.Before(from) {
		to = to.Add(24 * time.Hour)
	}
	for at := from; !at.After(to); at = at.Add(30 * time.Minute) {
		hm := at.Format("15:04")
		list = append(list, strings.TrimSpace(hm+" fired "+notes[hm]))
	}
	return list
}

var changes = map[string]change{
	"Berlin and London, spring": {
		at: "2027-03-28T01:00:00Z", date: "2027-03-28",
		schedules: []changing{
			{name: "fixed time in the gap", cron: "30 2 * * *", zone: "Europe/Berlin", want: []string{"01:00 fired gap-shifted"}},
			{name: "fixed time in London's gap", cron: "15 1 * * *", zone: "Europe/London", want: []string{"01:00 fired gap-shifted"}},
			{name: "fixed times around the gap", cron: "0 1-4 * * *", zone: "Europe/Berlin", want: []string{"00:00 fired", "01:00 fired gap-shifted", "02:00 fired"}},
			{name: "skipped gap", cron: "30 2 * * *", zone: "Europe/Berlin", dst: "gap=skip", want: []string{"01:00 none gap-skipped"}},
			{name: "wildcard", cron: "*/30 * * * *", zone: "Europe/Berlin", want: everyHalf("23:00", "04:00", nil)},
			{name: "wildcard in the gap", cron: "*/30 2 * * *", zone: "Europe/Berlin", want: []string{"01:00 none gap-skipped"}},
			{name: "shifted wildcard", cron: "*/30 2 * * *", zone: "Europe/Berlin", dst: "gap=shift", want: []string{"01:00 fired gap-shifted"}},
			{name: "day on the wall clock", every: "P1D", zone: "Europe/Berlin", want: []string{"01:00 fired gap-shifted"}},
			{name: "elapsed", every: "PT30M", zone: "Europe/Berlin", want: everyHalf("23:00", "04:00", nil)},
		},
	},
	"Berlin and London, autumn": {
		at: "2027-10-31T01:00:00Z", date: "2027-10-31",
		schedules: []changing{
			{name: "fixed time in the overlap", cron: "30 2 * * *", zone: "Europe/Berlin", want: []string{"00:30 fired overlap-first"}},
			{name: "fixed time in London's overlap", cron: "15 1 * * *", zone: "Europe/London", want: []string{"00:15 fired overlap-first"}},
			{name: "last pass", cron: "30 2 * * *", zone: "Europe/Berlin", dst: "overlap=last", want: []string{"01:30 fired overlap-last"}},
			{name: "both passes", cron: "30 2 * * *", zone: "Europe/Berlin", dst: "overlap=both", want: []string{"00:30 fired overlap-first", "01:30 fired overlap-last"}},
			{name: "wildcard", cron: "*/30 * * * *", zone: "Europe/Berlin", want: everyHalf("22:30", "04:00",
				map[string]string{"00:00": "overlap-first", "00:30": "overlap-first", "01:00": "overlap-last", "01:30": "overlap-last"})},
			{name: "wildcard in the first pass", cron: "*/30 2 * * *", zone: "Europe/Berlin", dst: "overlap=first", want: []string{"00:00 fired overlap-first", "00:30 fired overlap-first"}},
			{name: "day on the wall clock", every: "P1D", zone: "Europe/Berlin", want: []string{"00:30 fired overlap-first"}},
			{name: "elapsed", every: "PT30M", zone: "Europe/Berlin", want: everyHalf("22:30", "04:00", nil)},
		},
	},
	"Lord Howe, half an hour forward": {
		at: "2027-10-02T15:30:00Z", date: "2027-10-03",
		schedules: []changing{
			{name: "fixed time in the gap", cron: "15 2 * * *", zone: "Australia/Lord_Howe", want: []string{"15:30 fired gap-shifted"}},
			{name: "skipped gap", cron: "15 2 * * *", zone: "Australia/Lord_Howe", dst: "gap=skip", want: []string{"15:30 none gap-skipped"}},
			{name: "wildcard", cron: "*/30 * * * *", zone: "Australia/Lord_Howe", want: everyHalf("13:30", "18:30", nil)},
		},
	},
	"Lord Howe, half an hour back": {
		at: "2027-04-03T15:00:00Z", date: "2027-04-04",
		schedules: []changing{
			{name: "fixed time in the overlap", cron: "45 1 * * *", zone: "Australia/Lord_Howe", want: []string{"14:45 fired overlap-first"}},
			{name: "last pass", cron: "45 1 * * *", zone: "Australia/Lord_Howe", dst: "overlap=last", want: []string{"15:15 fired overlap-last"}},
			{name: "both passes", cron: "45 1 * * *", zone: "Australia/Lord_Howe", dst: "overlap=both", want: []string{"14:45 fired overlap-first", "15:15 fired overlap-last"}},
			{name: "wildcard", cron: "*/30 * * * *", zone: "Australia/Lord_Howe", want: everyHalf("13:00", "18:00", map[string]string{"14:30": "overlap-first", "15:00": "overlap-last"})},
		},
	},
}

// TestHostClockJumpsOverDaylightSaving runs nodes, each with its own server, on a host whose
// clock passes a change of daylight saving: as time goes by, or in one jump. Then the clock
// is set back to before the change, and forward again. The clock of the server, and so the
// cluster's time, is that of the host. Each nominal time is decided once, and belfry gives
// the documented reasons.
func TestHostClockJumpsOverDaylightSaving(t *testing.T) {
	t.Parallel()
	bin := wrongClock(t)
	for name, c := range changes {
		for _, pass := range []string{"as time goes by", "in one jump"} {
			t.Run(name+", "+pass, func(t *testing.T) {
				t.Parallel()
				if (pass == "in one jump") != strings.HasPrefix(name, "Lord Howe") {
					testsize.Long(t, "each change in another pass")
				}
				throughChange(t, bin, c, pass == "in one jump")
			})
		}
	}
}

func throughChange(t *testing.T, bin string, change change, jump bool) {
	at, err := time.Parse(time.RFC3339, change.at)
	if err != nil {
		t.Fatal(err)
	}
	host := newHostClock(t, at.Add(-lead))
	called := newCallee(t, nil)
	n := proc.New(t, proc.Options{Bin: bin, Config: "shards: 2\nprofile: fast\nallow-loopback: true\n", Env: host.env()})
	n.Start()
	n.Ready(t.Context())
	c := connect(t, n.URL())

	all := change.recurring(at, called.url)
	for _, s := range all {
		c.publish(structured(s.attrs, `{}`))
	}
	for _, s := range all {
		c.until(s.id(), schemas.StatePending)
	}
	if !jump {
		host.set(at.Add(-2 * time.Second))
		waittest.Until(t, "the clock passes the change", func() bool { return n.Clock().After(at.Add(2 * time.Second)) })
	}
	end := at.Add(tail)
	host.set(end)
	for _, s := range all {
		c.decided(s, change.date, end)
	}
	before := c.nominalTimes(all)

	// Set back: what was decided stays decided, and other timers fire.
	host.set(at.Add(-time.Hour))
	waittest.Until(t, "the node's clock is set back", func() bool { return n.Clock().Before(at) })
	c.publish(structured(attrs{"id": "after the jump back", "timersvc": "marker", "timerafter": "1s"}, `{}`))
	c.firedEvents("marker", 1)
	host.set(end.Add(2 * time.Minute))
	waittest.Until(t, "the node's clock is set forward again", func() bool { return n.Clock().After(end) })
	c.publish(structured(attrs{"id": "after the jump forward", "timersvc": "marker", "timerafter": "1s"}, `{}`))
	c.firedEvents("marker", 2)
	after := c.nominalTimes(all)

	for _, s := range all {
		s.check(c, change.date, end, after[s.id()])
		if !slices.Equal(before[s.id()], after[s.id()]) {
			t.Errorf("%s: fired for %v, and after the clock was set back and forward for %v", s.id(), before[s.id()], after[s.id()])
		}
	}
	checkCallbacks(t, called, all, after)
	if strings.Contains(n.LogTail(), `"level":"error"`) {
		t.Errorf("the node logged errors:\n%s", n.LogTail())
	}
}

// recurringAttrs is a schedule of the test.
type recurringAttrs struct {
	attrs
	changing
}

func (s *recurringAttrs) id() string { return s.attrs["id"] }

// recurring returns each schedule of a change with each misfire policy, some with a callback.
func (c *change) recurring(at time.Time, callback string) []*recurringAttrs {
	var list []*recurringAttrs
	for i, s := range c.schedules {
		for _, misfire := range []schemas.Misfire{schemas.MisfireAll, schemas.MisfireOne, schemas.MisfireSkip} {
			a := attrs{
				"id": s.name + ", " + misfire.String(), "timersvc": "dst",
				"timertz": s.zone, "timermisfire": misfire.String(),
			}
			if s.dst != "" {
				a["timerdst"] = s.dst
			}
			switch {
			case s.cron != "":
				a["timercron"] = s.cron
			case s.every == "P1D":
				a["timerevery"] = s.every
				a["timerstart"] = c.date[:8] + "20T02:30:00" + map[bool]string{true: "+01:00", false: "+02:00"}[strings.HasPrefix(c.date, "2027-03")]
			default:
				a["timerevery"] = s.every
				a["timerstart"] = at.Add(-24 * time.Hour).Format(time.RFC3339)
			}
			if i%3 == 0 {
				a["timercallback"], a["timeroverlap"] = callback, "allow"
			}
			list = append(list, &recurringAttrs{a, s})
		}
	}
	return list
}

// answers returns what belfry says about the times of a schedule on a date, up to end.
func (c *client) answers(s *recurringAttrs, date string, end time.Time) []schemas.Answer {
	c.t.Helper()
	var reply schemas.WhyReply
	if err := c.call("schedule.why", s.why(date), &reply); err != nil {
		c.t.Fatalf("%s: %v", s.id(), err)
	}
	return upTo(end, reply)
}

func (s *recurringAttrs) why(date string) schemas.WhyRequest {
	return schemas.WhyRequest{TimerRef: schemas.TimerRef{ID: s.id(), Source: "/e2e"}, At: date}
}

// upTo returns the answers about nominal times up to end.
func upTo(end time.Time, reply schemas.WhyReply) []schemas.Answer {
	return slices.DeleteFunc(reply.Answers, func(a schemas.Answer) bool {
		return a.At.After(end) || a.Reason == schemas.ReasonNotNominal || a.Reason == schemas.ReasonBeforeStart
	})
}

// decided waits until each nominal time up to end is decided.
func (c *client) decided(s *recurringAttrs, date string, end time.Time) {
	c.t.Helper()
	var answers []schemas.Answer
	var err error
	waittest.Until(c.t, s.id()+" is decided", func() bool {
		var reply schemas.WhyReply
		err = c.callOnce(request("schedule.why", s.why(date)), &reply)
		answers = upTo(end, reply)
		return err == nil && !slices.ContainsFunc(answers, func(a schemas.Answer) bool { return a.Fate == schemas.FatePlanned || a.Fate == schemas.FateWaiting })
	}, func() string { return fmt.Sprintf("%+v %v", answers, err) })
}

// nominalTimes returns the nominal times for which the schedules fired, in order.
func (c *client) nominalTimes(all []*recurringAttrs) map[string][]int64 {
	c.t.Helper()
	times := map[string][]int64{}
	for _, e := range c.firedEvents("dst", 0) {
		times[e.id] = append(times[e.id], e.scheduledMs)
	}
	for _, s := range all {
		slices.Sort(times[s.id()])
	}
	return times
}

// check compares the answers and the events of a schedule with what must be.
func (s *recurringAttrs) check(c *client, date string, end time.Time, fired []int64) {
	c.t.Helper()
	var got, want []string
	var decided []int64
	for _, a := range c.answers(s, date, end) {
		line := a.At.UTC().Format("15:04") + " " + a.Fate
		if a.Fate == schemas.FateNone {
			line += " " + a.Reason
		}
		for _, note := range a.Notes {
			code, _, _ := strings.Cut(note, ":")
			line += " " + code
		}
		switch a.Fate {
		case schemas.FateFired:
			decided = append(decided, a.At.UnixMilli())
		case schemas.FateSkipped:
			if want := s.attrs["timermisfire"]; want == "one" && a.Reason != "coalesced" || want == "skip" && a.Reason != "misfire" || want == "all" {
				c.t.Errorf("%s: %s was skipped (%s): %s", s.id(), a.At, a.Reason, a.Text)
			}
			// Its misfire policy may skip what fires with policy all.
			line = strings.Replace(line, schemas.FateSkipped, schemas.FateFired, 1)
		}
		got = append(got, line)
	}
	for _, w := range s.want {
		want = append(want, strings.TrimSpace(w))
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("%s on %s:\n got %q\nwant %q", s.id(), date, got, want)
	}
	from, err := time.Parse(time.DateOnly, date)
	if err != nil {
		c.t.Fatal(err)
	}
	// Before the date, local time, elapsed periods and wildcards fire, too.
	first := from.Add(-24 * time.Hour).UnixMilli()
	if len(decided) > 0 {
		first = decided[0]
	}
	fired = slices.DeleteFunc(slices.Clone(fired), func(ms int64) bool { return ms < first })
	if !slices.Equal(fired, decided) {
		c.t.Errorf("%s: events for %v, and decided as fired %v", s.id(), fired, decided)
	}
}

// checkCallbacks checks that each run with a callback was called, and each key for one run.
func checkCallbacks(t *testing.T, called *callee, all []*recurringAttrs, fired map[string][]int64) {
	t.Helper()
	for _, s := range all {
		if s.attrs["timercallback"] == "" {
			continue
		}
		waittest.Until(t, s.id()+" has called", func() bool { return len(called.of(s.id())) >= len(fired[s.id()]) })
		keys := map[string]bool{}
		for _, call := range called.of(s.id()) {
			if keys[call.key] {
				t.Errorf("%s called %s twice", s.id(), call.key)
			}
			keys[call.key] = true
		}
		if len(keys) != len(fired[s.id()]) {
			t.Errorf("%s: %d runs called, %d fired", s.id(), len(keys), len(fired[s.id()]))
		}
	}
}
