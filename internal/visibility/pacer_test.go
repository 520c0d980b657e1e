package visibility

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// fixedSpare is a machine with a number of spare cores.
func fixedSpare(cores *float64) func() (float64, bool) {
	return func() (float64, bool) { return *cores, *cores >= 0 }
}

// TestPacerDuty: writing takes a share of what is spare, its own part included.
func TestPacerDuty(t *testing.T) {
	t.Parallel()
	begun := time.Unix(1000, 0)
	for _, c := range []struct {
		name   string
		spare  float64 // negative: unknown
		worked time.Duration
		duty   float64
		load   load
	}{
		{"unknown", -1, 0, maxDuty, free},
		{"two idle cores", 2, 0, maxDuty, free},
		{"many idle cores", 64, 0, maxDuty, free},
		{"one idle core", 1, 0, 0.25, free},
		{"half a core", 0.5, 0, 0.125, free},
		{"its own work is spare", 0.3, 500 * time.Millisecond, 0.2, free},
		{"nothing to spare", 0, 0, minDuty, busy},
		{"nothing to spare but its own work", 0, 100 * time.Millisecond, minDuty, busy},
	} {
		p := pacer{spare: fixedSpare(&c.spare), looked: begun, worked: c.worked}
		l := p.look(begun.Add(time.Second))
		if d := p.duty - c.duty; d < -1e-9 || d > 1e-9 || l != c.load {
			t.Errorf("%s: got duty %v, load %d; want %v, %d", c.name, p.duty, l, c.duty, c.load)
		}
	}
}

// TestPacerPause: a write is followed by a pause that keeps to the duty, and the time in which a few
// rows waited for a CPU does not make it long.
func TestPacerPause(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name string
		duty float64
		rows int
		took time.Duration
		want time.Duration
	}{
		{"before the first look", 0, 1000, 20 * time.Millisecond, 20 * time.Millisecond},
		{"half of a core", maxDuty, 1000, 20 * time.Millisecond, 20 * time.Millisecond},
		{"busy", minDuty, 1000, 20 * time.Millisecond, 380 * time.Millisecond},
		{"waited for a CPU", minDuty, 10, time.Second, 19 * (writeCost + 10*mostRowCost)},
	} {
		p := pacer{duty: c.duty}
		p.wrote(c.rows, c.took, now)
		if got := p.next.Sub(now); got < c.want-time.Microsecond || got > c.want+time.Microsecond {
			t.Errorf("%s: got a pause of %s, want %s", c.name, got, c.want)
		}
	}
}

// TestPacerSlice: the pauses between slices leave writing its duty, also if each lasts longer than it should; none is shorter
// than leastPause, and the time in which a slice waited for a CPU makes none longer.
func TestPacerSlice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		duty              float64
		took, costs, late time.Duration
	}{
		{maxDuty, 800 * time.Microsecond, 800 * time.Microsecond, 0},
		{maxDuty, 800 * time.Microsecond, 800 * time.Microsecond, 700 * time.Microsecond},
		{0.2, 300 * time.Microsecond, 300 * time.Microsecond, time.Millisecond},
		{minDuty, 300 * time.Microsecond, 300 * time.Microsecond, 0},
		{minDuty, time.Second, sliceRows * mostRowCost, 0},
	} {
		p := pacer{duty: c.duty}
		var paused time.Duration
		for range 1000 {
			d := p.slice(sliceRows, c.took)
			if d != 0 && d < leastPause {
				t.Fatalf("duty %g: a pause of %s", c.duty, d)
			}
			if d != 0 {
				p.rested(d + c.late)
				paused += d + c.late
			}
		}
		want := time.Duration(float64(1000*c.costs) * (1/c.duty - 1))
		if paused < want-2*leastPause || paused > want+c.late {
			t.Errorf("duty %g, each pause %s too long: paused for %s, want %s", c.duty, c.late, paused, want)
		}
		if p.worked != 1000*c.costs {
			t.Errorf("duty %g: worked for %s, want %s", c.duty, p.worked, 1000*c.costs)
		}
	}
}

// TestPacerPauseFollowsDuty: the pause after a write on a busy machine becomes shorter when the machine
// is no longer busy, and a short write does not end the pause of a long one.
func TestPacerPauseFollowsDuty(t *testing.T) {
	t.Parallel()
	now, cores := time.Unix(1000, 0), 0.0
	p := pacer{spare: fixedSpare(&cores)}
	p.look(now)
	p.wrote(20_000, time.Second, now)
	p.wrote(1, time.Millisecond, now.Add(time.Millisecond))
	if got := p.next.Sub(now); got != 19*time.Second {
		t.Errorf("on a busy machine: got a pause of %s, want 19 s", got)
	}
	p.lookInPause(now.Add(time.Second))
	if got := p.next.Sub(now); got != 19*time.Second {
		t.Errorf("its own work made the pause shorter: got %s, want 19 s", got)
	}
	cores = 2
	p.lookInPause(now.Add(2 * time.Second))
	if got := p.next.Sub(now); got != time.Second {
		t.Errorf("on an idle machine: got a pause of %s, want 1 s", got)
	}
	cores = 0
	p.lookInPause(now.Add(3 * time.Second))
	if got := p.next.Sub(now); got != time.Second {
		t.Errorf("on a machine that is busy again: got a pause of %s, want 1 s", got)
	}
}

// TestPacerYieldsBounded: on a machine that stays busy it yields for yieldMost, and then not for
// pressFor. A machine that becomes idle ends it.
func TestPacerYieldsBounded(t *testing.T) {
	t.Parallel()
	cores := 0.0
	p := pacer{spare: fixedSpare(&cores)}
	now := time.Unix(1000, 0)
	var yielded, not time.Duration
	for range int((yieldMost + pressFor) / time.Second) {
		if p.look(now) == busy {
			yielded += time.Second
		} else {
			not += time.Second
		}
		now = now.Add(time.Second)
	}
	if yielded != yieldMost || not != pressFor {
		t.Errorf("it yields for %s and does not for %s, want %s and %s", yielded, not, yieldMost, pressFor)
	}
	if p.look(now) != busy {
		t.Error("it does not yield again")
	}
	now = now.Add(time.Second)
	if cores = 1; p.look(now) != free {
		t.Error("it yields on a machine with an idle core")
	}
	now = now.Add(time.Second)
	if cores = 0; p.look(now) != busy {
		t.Error("it does not yield on a machine that is busy again")
	}
}

// TestPacerLoad: one look at a busy machine lowers the duty, and looks for peakPeriod make the follower yield. It goes on
// once the mean of loadPeriod shows spare CPU time, whatever kind of look measured it.
func TestPacerLoad(t *testing.T) {
	t.Parallel()
	cores := 2.0
	p := pacer{spare: fixedSpare(&cores)}
	now := time.Unix(1000, 0)
	p.look(now)
	step := func(what string, spare float64, look func(time.Time) load, duty float64, want load) {
		t.Helper()
		cores, now = spare, now.Add(loadPeriod/4)
		if l := look(now); l != want || p.duty != duty {
			t.Errorf("%s: got load %d and duty %v, want %d and %v", what, l, p.duty, want, duty)
		}
	}
	step("idle", 2, p.look, maxDuty, free)
	step("a short peak", 0, p.lookInPause, minDuty, free)
	step("after it", 2, p.look, maxDuty, free)
	step("another", 0, p.lookInPause, minDuty, free)
	step("a peak", 0, p.lookInPause, minDuty, busy)
	step("after it", 2, p.look, maxDuty, busy)
	step("after it", 2, p.lookInPause, maxDuty, busy)
	step("after it", 2, p.look, maxDuty, busy)
	step("for loadPeriod", 2, p.lookInPause, maxDuty, free)

	step("busy", 0.2, p.look, minDuty, free)
	step("busy", 0.2, p.look, minDuty, busy)
	step("peaks, and less than yieldBelow in the mean", 0, p.look, minDuty, busy)
	step("peaks, and less than yieldBelow in the mean", 0.6, p.look, 0.15, busy)
	step("peaks, and less than yieldBelow in the mean", 0, p.look, minDuty, busy)
	step("peaks, and less than yieldBelow in the mean", 0.6, p.look, 0.15, busy)
	step("peaks, and more", 0, p.look, minDuty, busy)
	step("peaks, and more", 1, p.look, 0.25, busy)
	step("peaks, and more", 0, p.look, minDuty, busy)
	step("peaks, and more", 1, p.look, 0.25, free)

	p.worked = loadPeriod / 8
	step("busy, its own work included", 0, p.look, 0.125, free)
	step("busy", 0, p.look, minDuty, free)
	step("busy", 0, p.look, minDuty, busy)
	for i := range 4 {
		p.worked = loadPeriod / 4
		step("its own work is spare", 0.2, p.look, 0.175, []load{busy, busy, busy, free}[i])
	}
	step("busy", 0, p.look, minDuty, free)
	step("busy", 0, p.look, minDuty, busy)
	step("not known", -1, p.look, maxDuty, free)
	if !p.since.IsZero() {
		t.Errorf("when the spare cores are not known, it yields since %s", p.since)
	}
	step("busy", 0, p.look, minDuty, free)
	step("not known", -1, p.look, maxDuty, free)
	step("busy", 0, p.look, minDuty, free)
}

// limitOf returns how many changes a queue holds at present.
func limitOf(q *queue) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.limit
}

// TestThrottledSoon: a follower that waits for its next write finds a busy machine with two looks, and waits on.
func TestThrottledSoon(t *testing.T) {
	t.Parallel()
	const most = 10 * throttledShare
	for _, c := range []struct {
		name  string
		pause time.Duration // after the last write
		full  bool          // the queue becomes full
		want  time.Duration
	}{
		{"until writePace has passed", 0, false, writePace},
		{"until the pause has ended", 3 * writePace, false, 3 * writePace},
		{"until the queue is full", 0, true, writePace/2 - 1},
		{"until the pause has ended, although the queue is full", 2 * writePace, true, 2 * writePace},
	} {
		synctest.Test(t, func(t *testing.T) {
			var loaded atomic.Bool
			begun := time.Now()
			f := &follower{queue: newQueue(1, most), wrote: begun, pace: pacer{spare: func() (float64, bool) {
				if loaded.Load() {
					return 0, true
				}
				return 2, true
			}, cost: c.pause, ended: begun, next: begun.Add(c.pause)}}
			ended := make(chan time.Duration, 1)
			go func() {
				if err := f.wait(t.Context()); err != nil {
					t.Error(err)
				}
				ended <- time.Since(begun)
			}()
			time.Sleep(writePace/2 - 1)
			synctest.Wait()
			if limit := limitOf(f.queue); limit != most || len(ended) > 0 {
				t.Errorf("%s: on an idle machine the queue holds %d changes, want %d; %d waits ended", c.name, limit, most, len(ended))
			}
			if loaded.Store(true); c.full {
				f.queue.wake <- struct{}{}
			}
			time.Sleep(writePace / 2)
			synctest.Wait()
			if limit := limitOf(f.queue); limit != most/throttledShare && c.want >= writePace {
				t.Errorf("%s: on a busy machine the queue holds %d changes, want %d", c.name, limit, most/throttledShare)
			}
			if took := <-ended; took != c.want {
				t.Errorf("%s: it waited for %s, want %s", c.name, took, c.want)
			}
		})
	}
}

// TestYieldsThenCatchesUp: on a busy machine a follower whose queue is full waits and counts nothing,
// and so blocks nobody but itself; it has all entries in the end.
func TestYieldsThenCatchesUp(t *testing.T) {
	t.Parallel()
	var cores float64
	v, b := startFollower(t, 500, fixedSpare(&cores))
	b.put(10, 3000)
	waittest.Until(t, "all entries", func() bool {
		p := v.Progress()
		return p.Rows == 3000 && p.Behind == 0
	}, func() string { return fmt.Sprintf("%+v", v.Progress()) })
	if p := v.Progress(); p.Skipped > 0 || p.CountsOnly {
		t.Errorf("changes were counted in place of being read later: %+v", p)
	}
}

// TestCatchesUpAfterYield: when a machine is no longer busy, a follower whose queue is full reads the
// changes that it missed. It counts nothing, and so reads nothing twice.
func TestCatchesUpAfterYield(t *testing.T) {
	t.Parallel()
	var idle atomic.Bool
	v, b := startFollower(t, 500, func() (float64, bool) {
		if idle.Load() {
			return 2, true
		}
		return 0, true
	})
	b.put(10, 20_000)
	waittest.Until(t, "a full queue, which is small on a busy machine", func() bool {
		_, queued, _ := v.queue.state()
		return queued == 500/throttledShare && v.Progress().Behind > 0
	})
	idle.Store(true)
	waittest.Until(t, "all entries", func() bool {
		p := v.Progress()
		return p.Rows == 20_000 && p.Behind == 0 && !p.CatchingUp
	}, func() string { return fmt.Sprintf("%+v", v.Progress()) })
	if p := v.Progress(); p.Skipped > 0 || p.CountsOnly {
		t.Errorf("changes were counted in place of being read later: %+v", p)
	}
}

// TestFollow: what a follower with a full queue does depends on the load of the machine, and on whether it
// has yielded or caught up before.
func TestFollow(t *testing.T) {
	t.Parallel()
	b := newBuckets()
	b.put(0, 5)
	var f *follower
	begin := func(changes int, m mode) {
		q := newQueue(1, throttledShare)
		t.Cleanup(q.end)
		f = &follower{o: &Options{Buckets: b}, queue: q, target: make([]uint64, 1)}
		q.begin([]uint64{0})
		for i := range changes {
			q.put(&Change{ID: schemas.NewTimerID("/q", fmt.Sprint(i)), Revision: uint64(i) + 1})
		}
		q.setMode(catchingUp, m)
	}
	step := func(what string, l load, want mode) {
		t.Helper()
		f.pace.widened = time.Time{} // TestWidens is about the pace
		f.follow(t.Context(), l)
		if m, _, _ := f.queue.state(); m != want {
			t.Fatalf("%s: got mode %d, want %d", what, m, want)
		}
		if limit, want := limitOf(f.queue), map[bool]int{true: 1, false: throttledShare}[l == busy]; limit != want {
			t.Fatalf("%s: the queue holds %d changes, want %d", what, limit, want)
		}
	}
	// tail puts a change into the full queue and waits.
	tail := func() {
		q := f.queue
		go q.put(&Change{ID: schemas.NewTimerID("/q", "tail"), Revision: 100})
		waittest.Until(t, "a tail that waits", func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return q.waited
		})
	}

	begin(throttledShare, following)
	step("busy", busy, following)
	tail()
	b.failing = true
	step("free, but the newest revision is not known", free, following)
	b.failing = false
	step("free", free, catchingUp)
	if f.target[0] != 5 {
		t.Errorf("it catches up to revision %d, want 5", f.target[0])
	}
	b.put(5, 6)
	step("busy while it catches up", busy, catchingUp)
	step("free again", free, catchingUp)
	if f.target[0] != 5 {
		t.Errorf("the target moved to revision %d", f.target[0])
	}
	step("busy for too long while it catches up", pressed, counting)

	begin(throttledShare, following)
	step("free without a busy time before", free, counting)

	begin(throttledShare, following)
	step("busy, but no tail waits", busy, following)
	step("free without a tail that waited", free, counting)

	begin(throttledShare, following)
	f.caughtUp = time.Now()
	step("busy soon after it caught up", busy, following)
	tail()
	step("free soon after it caught up", free, counting)

	begin(throttledShare, catchingUp)
	step("busy for too long after a start", pressed, catchingUp)

	begin(0, following)
	f.queue.mu.Lock()
	f.queue.writing = throttledShare // a transaction, whose steps see neither load
	f.queue.mu.Unlock()
	f.apply(busy)
	tail()
	f.apply(free)
	f.queue.wrote(throttledShare)
	for i := range throttledShare - 1 {
		f.queue.put(&Change{ID: schemas.NewTimerID("/q", fmt.Sprint(i)), Revision: uint64(i) + 101})
	}
	step("free after a transaction with a busy time", free, catchingUp)

	begin(throttledShare/2, following)
	step("busy with a queue that is not full when the machine is free", busy, following)
	f.apply(pressed)
	step("busy for too long with such a queue", pressed, counting)
}

// TestWidens: when a machine has CPU time to spare again, the queue of a follower that yielded grows at the rate at
// which its share of a CPU reads changes.
func TestWidens(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		cores float64
		duty  float64
	}{
		{"half a core is spare", 0.5, 0.5 * spareShare},
		{"two cores are spare", 2, maxDuty},
	} {
		synctest.Test(t, func(t *testing.T) {
			const small = maxQueued / throttledShare
			cores := 0.0
			f := &follower{queue: newQueue(1, maxQueued), pace: pacer{spare: fixedSpare(&cores)}}
			for range 3 {
				f.apply(f.pace.look(time.Now()))
				time.Sleep(lookPace)
			}
			if limit := limitOf(f.queue); limit != small {
				t.Fatalf("%s: on a busy machine the queue holds %d changes, want %d", c.name, limit, small)
			}
			cores = c.cores
			for f.pace.look(time.Now()) != free {
				time.Sleep(lookPace)
			}
			step := int(c.duty * float64(lookPace) / float64(readCost))
			f.pace.widened = time.Now()
			for want := small + step; want < 2*maxQueued; want += step {
				time.Sleep(lookPace)
				f.apply(f.pace.look(time.Now()))
				if limit := limitOf(f.queue); limit != min(want, maxQueued) {
					t.Fatalf("%s: the queue holds %d changes, want %d", c.name, limit, min(want, maxQueued))
				}
			}
			f.queue.throttle()
			f.pace.widened = time.Now()
			for range lookPace / time.Microsecond {
				time.Sleep(time.Microsecond)
				f.apply(free)
			}
			if limit := limitOf(f.queue); limit < small+step*9/10 || limit > small+step {
				t.Errorf("%s: with a look in each microsecond the queue holds %d changes, want %d", c.name, limit, small+step)
			}
			f.queue.throttle()
			time.Sleep(time.Hour)
			f.apply(free)
			if limit := limitOf(f.queue); limit != small+step {
				t.Errorf("%s: after an hour without a look the queue holds %d changes, want %d", c.name, limit, small+step)
			}
		})
	}
}

// TestWidensAtLast: a follower that yields again and again catches up or counts after widenMost of the other times if its
// tails fill the queue. If they do not, and it is current, its
// queue is small after the next busy time.
func TestWidensAtLast(t *testing.T) {
	t.Parallel()
	const small = maxQueued / throttledShare
	for _, c := range []struct {
		name     string
		changes  int
		caughtUp bool // a moment ago
		want     mode
	}{
		{"changes that were missed", 2 * maxQueued, false, catchingUp},
		{"more than can be written", 2 * maxQueued, true, counting},
		{"few changes", 10, false, following},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &follower{o: &Options{Buckets: newBuckets()}, queue: newQueue(1, maxQueued), target: make([]uint64, 1)}
			f.queue.begin([]uint64{0})
			f.queue.setMode(catchingUp, following)
			defer f.queue.end()
			if c.caughtUp {
				f.caughtUp = time.Now()
			}
			unloaded := free
			free := func() {
				time.Sleep(lookPace)
				f.pace.duty = 0.5 * spareShare
				f.apply(unloaded)
				synctest.Wait()
			}
			f.apply(busy)
			putAll(f.queue, c.changes)
			// Four looks a busy time: the queue is whole for the first time at the last of four, and the next busy time
			// follows. The follower decides in the first look of the four.
			for spent := time.Duration(0); spent < 2*widenMost; spent += 4 * lookPace {
				f.apply(busy)
				free()
				f.follow(t.Context(), unloaded)
				if m, _, _ := f.queue.state(); m != following {
					if spent < widenMost {
						t.Fatalf("%s: mode %d after %s", c.name, m, spent)
					}
					break
				}
				for range 3 {
					free()
				}
			}
			if m, _, _ := f.queue.state(); m != c.want {
				t.Fatalf("%s: mode %d, want %d", c.name, m, c.want)
			}
			if c.want == following {
				f.waited = true
				f.noteBehind(1)
				f.apply(busy)
				if free(); limitOf(f.queue) != maxQueued {
					t.Errorf("%s: after a tail has waited the queue holds %d changes, want %d", c.name, limitOf(f.queue), maxQueued)
				}
				f.noteBehind(1)
			}
			f.queue.setMode(c.want, following)
			f.apply(busy)
			if free(); limitOf(f.queue) >= maxQueued {
				t.Errorf("%s: after the next busy time the queue holds %d changes at once, want about %d", c.name, limitOf(f.queue), small)
			}
		})
	}
}

// TestPauseBetween: a long pause between two slices has its length, and the follower looks at the machine every lookPace.
func TestPauseBetween(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		f := &follower{queue: newQueue(1, throttledShare), pace: pacer{looked: time.Now(), spare: func() (float64, bool) {
			looks++
			return 0, true
		}}}
		begun := time.Now()
		f.pauseBetween(t.Context(), 2*lookPace+lookPace/2)
		if took := time.Since(begun); took != 2*lookPace+lookPace/2 || looks != 2 || f.queue.limit != 1 {
			t.Errorf("it paused for %s with %d looks, and the queue holds %d changes, want %s, 2 and 1", took, looks, f.queue.limit, 2*lookPace+lookPace/2)
		}
	})
}

// TestPacerCredit: a pause that lasted far too long, as on a machine that stood still, takes no more than mostCredit off the
// later ones.
func TestPacerCredit(t *testing.T) {
	t.Parallel()
	const cost = 500 * time.Microsecond
	p := pacer{duty: 0.2}
	p.slice(sliceRows, cost)
	p.rested(time.Minute)
	worked := time.Duration(0)
	for p.slice(sliceRows, cost) == 0 {
		worked += cost
	}
	if most := time.Duration(float64(mostCredit+leastPause) / 4); worked > most+cost {
		t.Errorf("worked for %s without a pause, want %s at most", worked, most+cost)
	}
}
