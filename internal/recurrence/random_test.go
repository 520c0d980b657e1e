package recurrence_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

// TestAgainstOracle drives schedules by random times and operations, and compares each with
// the oracle after each step. BELFRY_RECURRENCE_SEEDS sets their number.
func TestAgainstOracle(t *testing.T) {
	t.Parallel()
	seeds := testsize.Choose(t, "seeds", 60, 300, 300)
	if n, err := strconv.Atoi(os.Getenv("BELFRY_RECURRENCE_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range seeds {
		w := newWorld(t, rand.New(rand.NewPCG(uint64(seed), 1)), fmt.Sprintf("seed %d", seed))
		for range 60 {
			w.step()
		}
	}
}

// FuzzTurn does the same with the fuzzer's bytes as the source of chance.
func FuzzTurn(f *testing.F) {
	for seed := range byte(8) {
		f.Add(bytes.Repeat([]byte{seed * 31, 7, seed}, 40))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 800 {
			return
		}
		s := &byteSource{b: b}
		w := newWorld(t, rand.New(s), "fuzz")
		for len(s.b) > 0 && !w.rec.State.Final() {
			w.step()
		}
	})
}

// byteSource is a random source that takes two bytes for each number. It goes on after the
// last.
type byteSource struct {
	b []byte
	n uint64
}

func (s *byteSource) Uint64() uint64 {
	var v [8]byte
	n := copy(v[:2], s.b)
	s.b = s.b[n:]
	s.n++
	mixed := (binary.LittleEndian.Uint64(v[:]) + s.n<<16) * 0x9e37_79b9_7f4a_7c15
	return mixed ^ mixed>>29
}

// world has a schedule and its oracle.
type world struct {
	t     testing.TB
	rand  *rand.Rand
	name  string
	story []string // what happened, for failures

	now      int64
	periodMs int64
	anchorMs int64
	rec      schemas.Record
	plan     *recurrence.Plan
	log      []event
	open     bool
	opens    map[uint32]bool
	openRate int
	o        *oracle
}

func newWorld(t testing.TB, r *rand.Rand, name string) *world {
	w := &world{t: t, rand: r, name: name, opens: map[uint32]bool{}}
	starts := []string{"2027-03-27T22:00:00Z", "2027-10-30T22:00:00Z", "2027-06-01T00:00:00Z"}
	start, _ := time.Parse(time.RFC3339, pick(w, starts...))
	w.now = start.UnixMilli() + w.rand.Int64N(3*3_600_000)
	w.anchorMs, w.openRate = w.now, w.rand.IntN(4)
	rule := w.rule(nil)
	callback := ""
	if w.oneIn(3) {
		callback = "nats:call"
	}
	w.rec = record(rule, callback, w.now)
	w.anchorMs = w.rec.Schedule.AnchorMs
	w.compile()
	w.note("add %+v callback %q", rule, callback)
	c, err := newCalendar(&rule, w.anchorMs)
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{rule: rule, calendar: c, callback: callback != "", state: "pending", from: max(w.now+1, rule.StartMs), fate: map[int64]fate{}, backfilled: map[int64]uint32{}, run: 1}
	if err := w.plan.Begin(&w.rec); err != nil {
		t.Fatalf("%s: %v", w.name, err)
	}
	w.o = o
	w.compare()
	return w
}

func pick[T any](w *world, of ...T) T { return of[w.rand.IntN(len(of))] }

func (w *world) oneIn(n int) bool { return w.rand.IntN(n) == 0 }

func (w *world) note(format string, args ...any) {
	w.story = append(w.story, show(w.now)+": "+fmt.Sprintf(format, args...))
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	text := ""
	for _, s := range w.story {
		text += "\n\t" + s
	}
	s := &script{rec: w.rec}
	s.state()
	w.t.Fatalf("%s: %s\nstory:%s\nrecord:\n%s", w.name, fmt.Sprintf(format, args...), text, s.out.String())
}

// rule draws a recurrence. After the first one it often keeps the times of the old one.
func (w *world) rule(old *schemas.Recurrence) schemas.Recurrence {
	var r schemas.Recurrence
	if old != nil && !w.oneIn(3) {
		r = *old
	} else {
		type kind struct {
			cron, every, zone string
			period            time.Duration
		}
		k := pick(w,
			kind{cron: "30 2 * * *", zone: "Europe/Berlin", period: 24 * time.Hour},
			kind{cron: "*/30 * * * *", zone: "Europe/Berlin", period: 30 * time.Minute},
			kind{cron: "0,20 0-23 * * *", zone: "Europe/Berlin", period: 30 * time.Minute},
			kind{cron: "15 * * * *", period: time.Hour},
			kind{cron: "0 * * * *", zone: "Australia/Lord_Howe", period: time.Hour},
			kind{cron: "* * * * * *", period: time.Second},
			kind{every: "1s", period: time.Second},
			kind{every: "PT7S", period: 7 * time.Second},
			kind{every: "1h", period: time.Hour},
			kind{every: "P1D", zone: "Europe/Berlin", period: 24 * time.Hour},
		)
		r.Cron, r.Every, r.Zone, w.periodMs = k.cron, k.every, k.zone, k.period.Milliseconds()
		if w.oneIn(3) {
			r.JitterMs = 1 + w.rand.Int64N(2*w.periodMs)
			r.JitterMs = min(r.JitterMs, 24*3_600_000)
		}
		if w.oneIn(4) {
			r.StartMs = w.now - 3*w.periodMs + w.rand.Int64N(6*w.periodMs)
		}
	}
	if w.oneIn(3) {
		r.EndMs = 0
		if w.oneIn(2) {
			r.EndMs = max(w.now, r.StartMs) + (2+w.rand.Int64N(50))*w.periodMs
		}
	}
	r.Misfire, r.Overlap = schemas.Misfire(w.rand.IntN(3)), schemas.Overlap(w.rand.IntN(4))
	r.GraceMs, r.Limit = 0, 0
	if w.oneIn(3) {
		r.GraceMs = 1 + w.rand.Int64N(5*w.periodMs)
	}
	if w.oneIn(4) {
		r.Limit = 1 + w.rand.Uint32N(30)
	}
	return r
}

func (w *world) compile() {
	var err error
	if w.plan, err = recurrence.Compile(scriptID, &w.rec.Schedule.Recurrence, w.rec.Schedule.AnchorMs, nil); err != nil {
		w.t.Fatal(err)
	}
}

// mayOpen reports whether the callback of a run has no result at first.
func (w *world) mayOpen(run uint32) bool {
	open, drawn := w.opens[run]
	if !drawn {
		open = w.rec.Callback != "" && w.rand.IntN(4) < w.openRate
		w.opens[run] = open
	}
	return open
}

// step lets some time pass, or operates on the schedule.
func (w *world) step() {
	if w.rec.State.Final() {
		return
	}
	switch w.rand.IntN(12) {
	case 0, 1, 2, 3: // to the next due time
		if w.rec.Queued {
			w.now = max(w.now, w.rec.DueMs)
		}
		w.note("due")
	case 4, 5:
		w.now += w.rand.Int64N(4 * w.periodMs)
		w.note("later")
	case 6: // an outage
		far := w.periodMs * pick[int64](w, 10, 10, 10, 50, 50, 50, 1100, 3500)
		if w.periodMs > 60_000 {
			far = w.periodMs * 30
		}
		w.now += w.rand.Int64N(far)
		w.note("outage")
	case 7:
		w.conclude()
		return
	default:
		if w.operate(); w.oneIn(3) {
			return // more happens before the owner takes a turn
		}
	}
	w.drive(false)
}

func (w *world) conclude() {
	if !w.open {
		return
	}
	w.note("conclude")
	w.open, w.o.open = false, false
	w.drive(true) // the owner looks at once
}

func (w *world) operate() {
	switch w.rand.IntN(6) {
	case 0:
		w.note("pause")
		w.must(w.plan.Pause(&w.rec, w.now, "", schemas.Caller{}))
		w.o.state = "paused"
	case 1, 2:
		policy := schemas.Misfire(w.rand.IntN(3))
		w.note("resume %s", policy)
		w.must(w.plan.Resume(&w.rec, w.now, policy, schemas.Caller{}))
		w.o.resume(w.now, policy)
	case 3:
		allow := w.oneIn(2)
		_, err := w.plan.Trigger(&w.rec, w.now, 0, allow, schemas.Caller{})
		w.note("trigger allow %v: %v", allow, err)
		if (err == nil) != (len(w.o.manual) < schemas.MaxManual) {
			w.fatalf("trigger: %v", err)
		}
		if err == nil {
			w.o.manual = append(w.o.manual, manual{w.now, allow})
		}
	case 4:
		w.backfill()
	case 5:
		w.update()
	}
}

func (w *world) must(_ bool, err error) {
	w.t.Helper()
	if err != nil {
		w.fatalf("%v", err)
	}
}

func (w *world) backfill() {
	q := recurrence.BackfillRequest{Again: w.oneIn(3), Allow: w.oneIn(2)}
	q.FromMs = w.now - w.rand.Int64N(60*w.periodMs)
	q.ToMs = q.FromMs + w.rand.Int64N(w.now-q.FromMs+1)
	if w.oneIn(2) {
		q.Every = time.Duration(w.rand.Int64N(w.periodMs)) * time.Millisecond
	}
	want := w.o.backfills(q.FromMs, q.ToMs, q.Again, w.rec.Schedule.MayHaveFired)
	for _, at := range slices.Collect(w.plan.Calendar().Between(q.FromMs, q.ToMs)) {
		w.known(at)
	}
	times, err := w.plan.Backfill(&w.rec, w.now, q, schemas.Caller{})
	w.note("backfill %s to %s every %s again %v allow %v: %d, %v", show(q.FromMs), show(q.ToMs), q.Every, q.Again, q.Allow, len(times), err)
	if w.o.backfill != nil {
		if schemas.CodeOf(err) != schemas.CodeConflict {
			w.fatalf("a second backfill: %v", err)
		}
		return
	}
	if err != nil || !slices.Equal(times, want.left) {
		w.fatalf("backfill of %d times, want %d: %v", len(times), len(want.left), err)
	}
	if len(times) > 0 {
		want.every, want.due, want.allow = q.Every.Milliseconds(), w.now, q.Allow
		w.o.backfill = want
	}
}

// known checks that MayHaveFired tells the truth, or that the decision was dropped or
// concerns another recurrence.
func (w *world) known(at int64) {
	w.t.Helper()
	p := &w.rec.Schedule.Progress
	_, filled := w.o.backfilled[at]
	fired := filled || w.o.fate[at].kind == schemas.DecisionFired
	switch may := p.MayHaveFired(at); {
	case fired && !may:
		w.fatalf("%s fired, but MayHaveFired is false", show(at))
	case may && !fired && at >= p.ChangedMs && (at < p.ForgottenMs || p.KnownFromMs <= at):
		w.fatalf("%s did not fire, but MayHaveFired is true", show(at))
	}
}

func (w *world) update() {
	old := w.rec.Schedule.Recurrence
	rule := w.rule(&old)
	next := record(rule, w.rec.Callback, w.now)
	if w.oneIn(6) {
		next.Callback = pick(w, "", "nats:call")
	}
	anchor := w.rec.Schedule.AnchorMs
	if rule.StartMs != 0 {
		anchor = rule.StartMs
	}
	c, bad := newCalendar(&rule, anchor)
	same := sameTimes(old, rule) && anchor == w.rec.Schedule.AnchorMs
	w.note("update %+v callback %q", rule, next.Callback)
	if _, err := w.plan.Update(&w.rec, &next, w.now, schemas.Caller{}, nil); err != nil {
		if bad == nil || schemas.CodeOf(err) != schemas.CodeInvalidAttribute {
			w.fatalf("%v", err)
		}
		return
	}
	w.compile()
	w.o.callback = next.Callback != ""
	w.o.update(rule, c, w.now, same)
}

// turn takes one turn.
func (w *world) turn() {
	before := w.rec
	got := w.plan.Turn(&w.rec, w.now, w.open, recurrence.Claim{Epoch: 3, Before: 4})
	w.rec = got.Record
	if r := got.Run; r != nil {
		w.note("run %d of %s missed %d %s", r.Number, show(r.NominalMs), r.Missed, r.Trigger)
		w.log = append(w.log, event{w.now, r.NominalMs, r.Number, r.Missed, r.Trigger})
		w.open = w.mayOpen(r.Number)
		waited := before.Schedule.Waiting != nil && before.Schedule.Waiting.NominalMs == r.NominalMs
		if !waited && r.Trigger == schemas.TriggerSchedule && w.plan.Calendar().DueMs(r.NominalMs) > w.now {
			w.fatalf("run %d is early", r.Number)
		}
		if claimed, ok := claimed(&w.rec); !ok || claimed != *r {
			w.fatalf("the record has the claim of %+v", claimed)
		}
	}
	for _, d := range got.Skipped {
		w.note("%s", decision(&d))
	}
	w.bounded(&before, &w.rec)
	if w.rec.State == schemas.StateDelivered { // the owner completes it
		w.rec.State = schemas.StateCompleted
	}
	if len(w.log) < 200 || w.oneIn(20) {
		w.code()
	}
}

// bounded checks that a turn looks at no more than 1,000 nominal times.
func (w *world) bounded(before, after *schemas.Record) {
	w.t.Helper()
	at := func(p *schemas.Progress) int64 {
		if p.Counted > 0 {
			return p.CountedMs
		}
		return p.NextMs - 1
	}
	from, to := at(&before.Schedule.Progress), at(&after.Schedule.Progress)
	if from <= 0 || to <= 0 {
		return
	}
	n := 0
	for range w.plan.Calendar().Between(from+1, to) {
		n++
	}
	if n > 1000 {
		w.fatalf("a turn looked at %d nominal times", n)
	}
}

// code checks that encoding and decoding changes nothing.
func (w *world) code() {
	w.t.Helper()
	b := w.rec.Append(nil)
	got, err := schemas.DecodeRecord(b)
	if err != nil {
		w.fatalf("decode: %v", err)
	}
	if again := got.Append(nil); !bytes.Equal(b, again) {
		w.fatalf("a decoded record is encoded differently")
	}
	if n := len(b); n > 6<<10 {
		w.fatalf("the record has %d bytes", n)
	}
	w.rec = got
}

// drive takes turns until nothing is due, and compares with the oracle. now takes the first
// turn in any case.
func (w *world) drive(now bool) {
	w.code()
	active := !w.rec.State.Final()
	if !now && active && (!w.rec.Queued || w.rec.DueMs > w.now) {
		// Nothing is due. The oracle may only skip a waiting run, which the schedule does
		// when it looks next.
		switch did := w.o.step(w.now, w.mayOpen); did {
		case actNone:
		case actGrace:
			now = true
		default:
			w.fatalf("the schedule is due %s, but the oracle %s", show(w.rec.DueMs), did)
		}
	}
	runs := len(w.log)
	due, turns := len(w.o.due(w.now)), 0
	skips := 0
	for !w.rec.State.Final() && (now || w.rec.Queued && w.rec.DueMs <= w.now) {
		fired := len(w.log)
		n := len(w.rec.Schedule.Decisions)
		manual := len(w.rec.Schedule.Manual)
		w.turn()
		if len(w.rec.Schedule.Decisions) != n || len(w.rec.Schedule.Manual) != manual {
			skips++
		}
		now = len(w.log) > fired && w.rec.Callback != "" && !w.open // the callback had a result at once
		if turns++; turns > due/1000+2*due+len(w.log)-runs+skips+10 {
			w.fatalf("%d turns for %d nominal times and %d runs", turns, due, len(w.log)-runs)
		}
	}
	for w.o.step(w.now, w.mayOpen) != actNone {
	}
	w.compare()
}

// compare compares the record with the oracle.
func (w *world) compare() {
	w.t.Helper()
	o, p := w.o, &w.rec.Schedule.Progress
	if !slices.Equal(w.log, o.log) {
		for i := range max(len(w.log), len(o.log)) {
			if i >= len(w.log) || i >= len(o.log) || w.log[i] != o.log[i] {
				w.fatalf("runs from %d on: %+v, want %+v", i+1, w.log[min(i, len(w.log)):], o.log[min(i, len(o.log)):])
			}
		}
	}
	for i, e := range w.log {
		if e.run != uint32(i)+1 {
			w.fatalf("run %d is number %d", i+1, e.run)
		}
	}
	if got := w.rec.State.String(); got != o.state {
		w.fatalf("state %s, want %s", got, o.state)
	}
	if next := o.next(); p.NextMs != next || w.rec.ScheduledMs != next {
		w.fatalf("next %s, want %s", show(p.NextMs), show(next))
	}
	if w.rec.Run != o.run || p.Fired != o.fired {
		w.fatalf("next run %d after %d, want %d after %d", w.rec.Run, p.Fired, o.run, o.fired)
	}
	var got *wait
	if v := p.Waiting; v != nil {
		got = &wait{v.NominalMs, v.DueMs, v.Missed}
	}
	if (got == nil) != (o.waiting == nil) || got != nil && *got != *o.waiting {
		w.fatalf("waits %+v, want %+v", got, o.waiting)
	}
	w.decisions()
	if n := len(w.o.fate); n > 0 {
		w.why(slices.Sorted(maps.Keys(w.o.fate))[w.rand.IntN(n)])
	}
	if p.NextMs != 0 {
		if a := w.plan.Why(&w.rec, w.now, p.NextMs); a.Fate != schemas.FatePlanned {
			w.fatalf("the answer about the next time, %s, is %+v", show(p.NextMs), a)
		}
	}
}

// why checks the answer about a nominal time that is decided.
func (w *world) why(at int64) {
	w.t.Helper()
	if p := &w.rec.Schedule.Progress; at >= p.ChangedMs && !p.Forgotten(at) {
		f := w.o.fate[at]
		a := w.plan.Why(&w.rec, w.now, at)
		run, filled := w.o.backfilled[at]
		switch {
		case filled && f.kind != schemas.DecisionFired:
			f = fate{schemas.DecisionBackfilled, run}
		case filled:
			return // the later of the two
		}
		want := schemas.FateSkipped
		if f.kind.Fires() {
			want = schemas.FateFired
		}
		if a.Fate != want || a.Run != f.run {
			w.fatalf("the answer about %s is %+v, want %s, run %d", show(at), a, f.kind, f.run)
		}
	}
}

// decisions expands the ranges of decisions: they must say what became of each nominal time
// that is not forgotten, once.
func (w *world) decisions() {
	w.t.Helper()
	p := &w.rec.Schedule.Progress
	told := map[int64]bool{}
	times := make([]int64, 0, len(w.o.fate))
	for at := range w.o.fate {
		times = append(times, at)
	}
	slices.Sort(times)
	filled := map[uint32]int64{}
	for at, run := range w.o.backfilled {
		filled[run] = at
	}
	if len(p.Decisions) > schemas.MaxDecisions {
		w.fatalf("%d decisions", len(p.Decisions))
	}
	for i := range p.Decisions {
		d := &p.Decisions[i]
		switch d.Kind {
		case schemas.DecisionTriggered, schemas.DecisionTriggerOverlap:
			continue
		case schemas.DecisionBackfilled:
			if d.FromMs == d.ToMs != (d.Count == 1) {
				w.fatalf("%s", decision(d))
			}
			for n := range d.Count {
				e := w.o.log[d.Run+n-1]
				if e.trigger != schemas.TriggerBackfill || n == 0 && e.nominal != d.FromMs || n == d.Count-1 && e.nominal != d.ToMs {
					w.fatalf("%s, but run %d is of %s", decision(d), e.run, show(e.nominal))
				}
			}
			continue
		}
		first, _ := slices.BinarySearch(times, d.FromMs)
		n := uint32(0)
		for ; first < len(times) && times[first] <= d.ToMs; first++ {
			at := times[first]
			want := fate{d.Kind, d.Run}
			if d.Kind == schemas.DecisionFired {
				want.run += n
			}
			if f := w.o.fate[at]; f != want {
				w.fatalf("%s, but %s is %s, run %d", decision(d), show(at), f.kind, f.run)
			}
			if told[at] {
				w.fatalf("%s is decided twice", show(at))
			}
			told[at] = true
			n++
		}
		if n != d.Count && (d.Kind != schemas.DecisionUpdated || d.Count < recurrence.MaxBackfill) {
			w.fatalf("%s, but they are %d", decision(d), n)
		}
		if v := p.Waiting; v != nil && d.FromMs <= v.NominalMs && v.NominalMs <= d.ToMs {
			w.fatalf("%s has the time of the run that waits", decision(d))
		}
	}
	for _, at := range times {
		if !told[at] && (at < p.ForgottenMs || p.KnownFromMs <= at) {
			w.fatalf("nothing about %s, which is %s", show(at), w.o.fate[at].kind)
		}
	}
}

// claimed returns the run that was claimed last in the record of a schedule. ok is false if
// none was.
func claimed(rec *schemas.Record) (r recurrence.Run, ok bool) {
	l := &rec.Schedule.Last
	return recurrence.Run{Number: l.Run, NominalMs: l.NominalMs, Missed: l.Missed, Trigger: l.Trigger}, l.Run != 0
}
