package flow

import (
	"math"
	"slices"
	"testing"
	"time"
)

// start is the time of most tests, in Unix nanoseconds.
const start = int64(1_800_000_000) * int64(time.Second)

// ask asks for n events without a reserved time.
func ask(l Limit, generation uint64, s *State, now int64, n int) []Verdict {
	return Decide(l, generation, "a", s, now, 0, make([]Arrival, n))
}

func count(verdicts []Verdict, k Kind) (n int) {
	for _, v := range verdicts {
		if v.Kind == k {
			n++
		}
	}
	return n
}

// TestPlannedOnce: ten thousand events at 10/s that ask together are planned once, in order,
// over 1,000 s.
func TestPlannedOnce(t *testing.T) {
	t.Parallel()
	l := Limit{Rate: Rate{10, time.Second}, Burst: 2}
	var s State
	verdicts := ask(l, 1, &s, start, 10_000)
	last := start
	for i, v := range verdicts {
		if v.AtNs < last {
			t.Fatalf("event %d: got %+v, which is before the one before", i, v)
		}
		if last = v.AtNs; v.Kind == Wait {
			t.Fatalf("event %d: got %+v, want Go or Defer", i, v)
		}
	}
	if n := count(verdicts, Go); n < 11 || n > 12 {
		t.Errorf("got %d admitted at once and in the next second, want the burst and a second", n)
	}
	if end := time.Duration(last - start); end < 999*time.Second || end > 1001*time.Second {
		t.Errorf("the last event waits for %s, want 1,000 s", end)
	}
	sum := s.Summary(l, 1, start)
	if sum.Waiting < 9900 || sum.Waiting > 10_000 || sum.DrainedNs < last-int64(time.Second) {
		t.Errorf("got %+v, want nearly 10,000 that wait, drained after the last", sum)
	}
	// Each comes back in time and is called; a new one goes behind them.
	for i, v := range verdicts {
		if v.Kind != Defer {
			continue
		}
		got := Decide(l, 1, "a", &s, v.AtNs, 0, []Arrival{{SlotNs: v.AtNs, Generation: 1, Deferrals: 1}})[0]
		if got.Kind != Go || got.AtNs > v.AtNs+int64(200*time.Millisecond) {
			t.Fatalf("event %d came back at its time: got %+v", i, got)
		}
		if i == 5000 {
			if v := ask(l, 1, &s, v.AtNs, 1)[0]; v.Kind != Defer || v.AtNs < last {
				t.Fatalf("a new event: got %+v, want it behind the others", v)
			}
		}
	}
}

// TestGenerations: a change gives no second burst, makes reserved times void, and an outdated
// limit decides nothing.
func TestGenerations(t *testing.T) {
	t.Parallel()
	l := Limit{Rate: Rate{10, time.Second}, Burst: 5}
	var s State
	if n := count(ask(l, 7, &s, start, 5), Go); n != 5 {
		t.Fatalf("got %d of the burst admitted, want 5", n)
	}
	if v := ask(l, 8, &s, start, 1)[0]; v.AtNs <= start {
		t.Errorf("after a change: got %+v at once, want no second burst", v)
	}
	before := s
	if v := ask(l, 7, &s, start, 1)[0]; v.Kind != Wait || s.GateNs != before.GateNs {
		t.Errorf("an outdated limit: got %+v and a changed state, want Wait", v)
	}
	ask(l, 8, &s, start, 100)
	slow := Limit{Rate: Rate{1, time.Hour}, Burst: 1}
	v := Decide(slow, 9, "a", &s, start+int64(time.Second), 0, []Arrival{{SlotNs: start + int64(time.Second), Generation: 8}})[0]
	if v.Kind == Go && v.AtNs < start {
		t.Errorf("a time of another generation: got %+v", v)
	}
	if v := ask(slow, 9, &s, start+int64(time.Second), 1)[0]; v.Kind != Defer || v.AtNs < start+int64(30*time.Minute) {
		t.Errorf("under the lower limit: got %+v, want an hour", v)
	}
}

func TestPaused(t *testing.T) {
	t.Parallel()
	l := Limit{Paused: true}
	var s State
	for deferrals, want := range map[uint32]time.Duration{0: time.Minute, 1: 2 * time.Minute, 6: time.Hour, math.MaxUint32: time.Hour} {
		v := Decide(l, 1, "a", &s, start, 0, []Arrival{{Deferrals: deferrals}})[0]
		if v.Kind != Defer || time.Duration(v.AtNs-start) != want {
			t.Errorf("after %d deferrals: got %+v, want Defer for %s", deferrals, v, want)
		}
	}
	if v := ask(Limit{}, 2, &s, start, 1)[0]; v.Kind != Go || v.AtNs != start {
		t.Errorf("after the pause: got %+v, want Go now", v)
	}
}

// TestParallel: slots are taken, renewed, returned, and come back when a node is gone.
func TestParallel(t *testing.T) {
	t.Parallel()
	l := Limit{Parallel: 3}
	var s State
	if n := count(ask(l, 1, &s, start, 5), Go); n != 3 {
		t.Fatalf("got %d calls, want 3", n)
	}
	if n := count(Decide(l, 1, "b", &s, start, 0, make([]Arrival, 2)), Go); n != 0 {
		t.Fatalf("another node got %d calls, want 0", n)
	}
	lost := s
	lost.Leases = slices.Clone(s.Leases)
	if n := count(Decide(l, 1, "a", &lost, start, 1, make([]Arrival, 5)), Go); n != 2 {
		t.Fatalf("with one call under way and three in the state, got %d more, want 2", n)
	}
	s.Hold("a", 2, start)
	if n := count(Decide(l, 1, "b", &s, start, 0, make([]Arrival, 2)), Go); n != 1 {
		t.Fatalf("after one call ended another node got %d calls, want 1", n)
	}
	later := start + int64(LeaseFor)
	if n := count(Decide(l, 1, "b", &s, later, 1, make([]Arrival, 3)), Go); n != 0 {
		t.Fatalf("at the end of the leases another node got %d calls, want 0", n)
	}
	later += int64(LeaseMargin)
	if n := count(Decide(l, 1, "b", &s, later, 1, make([]Arrival, 3)), Go); n != 2 {
		t.Fatalf("after the lease of a dead node: got %d calls, want 2", n)
	}
	far := State{Generation: 1, Leases: []Lease{{"c", 3, math.MaxInt64}, {"d", -9, later + 1}}}
	if n := count(Decide(l, 1, "b", &far, start, 0, make([]Arrival, 9)), Go); n != 0 {
		t.Fatalf("beside a lease of three: got %d calls, want 0", n)
	}
	if n := count(Decide(l, 1, "b", &far, start+int64(LeaseFor+2*LeaseMargin), 0, make([]Arrival, 9)), Go); n != 3 {
		t.Fatalf("after a lease that nobody can have: got %d calls, want 3", n)
	}
	verdicts := ask(l, 1, &s, later, 40)
	if w, d := count(verdicts, Wait), count(verdicts, Defer); w != leastWaiting || d != 40-leastWaiting {
		t.Errorf("of 40 events %d wait here and %d were deferred, want %d and the rest", w, d, leastWaiting)
	}
}

// TestFarState: a state of long ago gives one burst, and one from far ahead does not stop the
// key.
func TestFarState(t *testing.T) {
	t.Parallel()
	l := Limit{Rate: Rate{10, time.Second}, Burst: 5}
	s := State{Generation: 1, GateNs: start - int64(1000*time.Hour)}
	if n := count(ask(l, 1, &s, start, 100), Go); n < 5 || n > 15 {
		t.Errorf("a state of long ago: %d admitted, want the burst and a second", n)
	}
	s = State{Generation: 1, GateNs: math.MaxInt64, PlanNs: math.MaxInt64, LateNs: math.MaxInt64}
	v := Decide(l, 1, "a", &s, start, 0, []Arrival{{SlotNs: start, Generation: 1}, {}})
	if v[0].AtNs > start+int64(10*time.Second) || v[1].AtNs > start+int64(MaxDefer) {
		t.Errorf("a state from far ahead: got %+v", v)
	}
}

// TestLead: an event whose admission was no longer valid is admitted ahead.
func TestLead(t *testing.T) {
	t.Parallel()
	l := Limit{Rate: Rate{500, time.Second}, Burst: 50}
	var s State
	lead := int64(120 * time.Millisecond)
	v := Decide(l, 1, "a", &s, start, 0, []Arrival{{LeadNs: lead}, {LeadNs: int64(time.Hour)}})
	if v[0].Kind != Go || v[0].AtNs != start+lead || v[1].Kind != Go || v[1].AtNs != start+int64(Ahead/2) {
		t.Errorf("got %+v, want Go after the lead, which is at most half of Ahead", v)
	}
}

// TestSlotsWithPlan: while other events have reserved times, an event without one takes a free slot or
// waits for one, after an event that comes at its reserved time. With a rate it reserves a time.
func TestSlotsWithPlan(t *testing.T) {
	t.Parallel()
	l := Limit{Parallel: 1}
	var s State
	v := ask(l, 1, &s, start, 1+leastWaiting+1)
	last := v[len(v)-1]
	if count(v, Go) != 1 || count(v, Wait) != leastWaiting || last.Kind != Defer || last.AtNs < start+int64(Ahead) {
		t.Fatalf("got %+v, want a call, %d events that wait and a reserved time after %s", v, leastWaiting, Ahead)
	}
	s.TookNs = int64(20 * time.Millisecond)
	now := start + s.TookNs // the call has ended
	if v := Decide(l, 1, "a", &s, now, 0, make([]Arrival, leastWaiting)); v[0].Kind != Go || count(v, Wait) != leastWaiting-1 {
		t.Errorf("the events that waited: got %+v, want a call, and that the others wait", v)
	}
	now = last.AtNs
	s.PlanNs = now + int64(time.Minute)
	if v := Decide(l, 1, "a", &s, now, 0, []Arrival{{}, {SlotNs: now, Generation: 1}}); v[0].Kind != Wait || v[1].Kind != Go {
		t.Errorf("a new event and one at its reserved time: got %+v, want a call of the second", v)
	}
	rate := Limit{Rate: Rate{100, time.Second}, Burst: 10, Parallel: 1}
	s = State{Generation: 1, PlanNs: start + int64(time.Second)}
	if v := ask(rate, 1, &s, start, 1)[0]; v.Kind != Defer {
		t.Errorf("with a rate: got %+v, want a reserved time", v)
	}
}

// TestUnknownDuration: events reserve times that are close to each other until a call has ended, or has
// run for a second.
func TestUnknownDuration(t *testing.T) {
	t.Parallel()
	l := Limit{Parallel: 2}
	for _, c := range []struct {
		name  string
		state State
		runs  time.Duration
		want  time.Duration
	}{
		{"no call", State{}, 0, unknownStep},
		{"a short call", State{}, unknownTook - 1, unknownStep},
		{"a long call", State{}, unknownTook, unknownTook / 2},
		{"a call has ended", State{TookNs: int64(time.Minute)}, 0, 30 * time.Second},
		{"a short call has ended", State{TookNs: int64(time.Millisecond)}, time.Hour, time.Millisecond / 2},
	} {
		s := c.state
		s.NoteRunning(c.runs)
		v := ask(l, 1, &s, start, 2+leastWaiting+2)
		if got := time.Duration(v[len(v)-1].AtNs - v[len(v)-2].AtNs); got != c.want {
			t.Errorf("%s: two reserved times are %s apart, want %s", c.name, got, c.want)
		}
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(10, int64(time.Second), 5, 0, uint64(1), int64(0), int64(0), int64(0), 3)
	f.Add(1, int64(MaxRatePer), 20_000, 2, uint64(0), int64(math.MaxInt64), int64(math.MinInt64), int64(5), 100)
	f.Fuzz(func(t *testing.T, n int, per int64, burst, parallel int, generation uint64, gate, plan, took int64, events int) {
		l := Limit{Rate: Rate{n, time.Duration(per)}, Burst: burst, Parallel: parallel}
		if l.Check() != nil || events < 0 || events > 1000 {
			return
		}
		s := State{Generation: generation, GateNs: gate, PlanNs: plan, LateNs: plan, TookNs: took}
		for i, v := range ask(l, generation, &s, start, events) {
			if v.AtNs < start || v.AtNs > start+int64(MaxDefer) || v.Kind == Go && v.UntilNs < v.AtNs {
				t.Fatalf("event %d: got %+v at %d", i, v, start)
			}
		}
		if sum := s.Summary(l, generation, start); sum.Waiting < 0 || sum.NextNs != 0 && sum.NextNs < start {
			t.Fatalf("got %+v", sum)
		}
	})
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"5/s", "100/1m", "1/w", "/", "5/-1s", "9223372036854775807/1ns"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRate(s)
		if err != nil {
			return
		}
		if again, err := ParseRate(r.String()); err != nil || again != r {
			t.Fatalf("%q: got %v, then %v, %v", s, r, again, err)
		}
		if r.Interval() < MinInterval {
			return
		}
		if err := (Limit{Rate: r, Burst: r.DefaultBurst()}).Check(); err != nil {
			t.Fatalf("%q: its default burst: %v", s, err)
		}
	})
}

// BenchmarkDecideParallel is a decision of one of three nodes that wait for a slot.
func BenchmarkDecideParallel(b *testing.B) {
	l := Limit{Parallel: 8}
	arrivals := make([]Arrival, 16)
	var s State
	for _, node := range []string{"b", "c"} {
		Decide(l, 1, node, &s, start, 4, arrivals)
	}
	b.ReportAllocs()
	now := start
	for b.Loop() {
		now += int64(time.Millisecond)
		s.Hold("b", 4, now)
		Decide(l, 1, "a", &s, now, 4, arrivals)
	}
}

func BenchmarkDecide(b *testing.B) {
	l := Limit{Rate: Rate{5000, time.Second}, Burst: 500}
	arrivals := make([]Arrival, 100)
	var s State
	b.ReportAllocs()
	now := start
	for b.Loop() {
		now += int64(20 * time.Millisecond)
		Decide(l, 1, "a", &s, now, 0, arrivals)
	}
}
