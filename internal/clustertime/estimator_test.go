package clustertime

import (
	"math/rand/v2"
	"testing"
	"time"
)

// world is a leader with a known clock that drifts against the monotonic clock.
type world struct {
	start  time.Time
	ppm    int64
	stepNs int64
}

func newWorld() *world { return &world{start: time.Now()} }

func (w *world) at(d time.Duration) time.Time { return w.start.Add(d) }

const base = int64(1_800_000_000_000_000_000)

// leader returns the leader's clock.
func (w *world) leader(d time.Duration) int64 {
	return base + int64(d) + int64(d)*w.ppm/1_000_000 + w.stepNs
}

// read returns a reading that was sent at d, stamped after up, and answered after down
// more.
func (w *world) read(d, up, down time.Duration) Reading {
	return Reading{Sent: w.at(d), Received: w.at(d + up + down), ServerNs: w.leader(d + up)}
}

func (w *world) check(t *testing.T, e *Estimator, d time.Duration) (width time.Duration) {
	t.Helper()
	lo, hi := e.Bounds(w.at(d))
	if now := w.leader(d); lo > now || hi < now {
		t.Fatalf("at %s: bounds %d to %d ns around the leader's clock", d, lo-now, hi-now)
	}
	return time.Duration(hi - lo)
}

func TestNoReading(t *testing.T) {
	var e Estimator
	if lo, hi := e.Bounds(time.Now()); e.Known() || lo != 0 || hi != 0 {
		t.Fatal("bounds without a reading")
	}
}

func TestDelays(t *testing.T) {
	for _, c := range []struct {
		name     string
		up, down time.Duration
	}{
		{"symmetric", time.Millisecond, time.Millisecond},
		{"slow there", 90 * time.Millisecond, time.Microsecond},
		{"slow back", time.Microsecond, 90 * time.Millisecond},
		{"none", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			var e Estimator
			for i := range 20 {
				d := time.Duration(i) * time.Second
				if e.Observe(w.read(d, c.up, c.down)) {
					t.Fatal("taken for a step")
				}
				for _, later := range []time.Duration{0, time.Millisecond, time.Second, time.Minute} {
					width := w.check(t, &e, d+c.up+c.down+later)
					if limit := c.up + c.down + 2*later*DriftPPM/1_000_000 + 2*(c.up+c.down)*DriftPPM/1_000_000; width > limit+2 {
						t.Fatalf("%s after the reading the bounds are %s apart; %s would do", later, width, limit)
					}
				}
			}
		})
	}
}

// TestBestOfSeveral: one quick reading among slow ones keeps the bounds tight.
func TestBestOfSeveral(t *testing.T) {
	w := newWorld()
	var e Estimator
	e.Observe(w.read(0, 50*time.Millisecond, 50*time.Millisecond))
	e.Observe(w.read(time.Second, 50*time.Microsecond, 50*time.Microsecond))
	for i := 2; i < 8; i++ {
		d := time.Duration(i) * time.Second
		e.Observe(w.read(d, 50*time.Millisecond, 50*time.Millisecond))
		if width := w.check(t, &e, d+200*time.Millisecond); width > 5*time.Millisecond {
			t.Fatalf("%s: bounds %s apart", d, width)
		}
	}
	// It expires: finally only the slow readings are left.
	for i := 8; i < 20; i++ {
		e.Observe(w.read(time.Duration(i)*time.Second, 50*time.Millisecond, 50*time.Millisecond))
	}
	if width := w.check(t, &e, 20*time.Second); width < 50*time.Millisecond {
		t.Fatalf("bounds %s apart: the old reading still counts", width)
	}
}

func TestDrift(t *testing.T) {
	for _, ppm := range []int64{-DriftPPM, -50, 0, 50, DriftPPM} {
		w := newWorld()
		w.ppm = ppm
		var e Estimator
		for i := range 600 {
			d := time.Duration(i) * time.Second
			if e.Observe(w.read(d, 200*time.Microsecond, 100*time.Microsecond)) {
				t.Fatalf("%d ppm: taken for a step after %s", ppm, d)
			}
			w.check(t, &e, d+999*time.Millisecond)
		}
		// An hour passes without a reading.
		w.check(t, &e, 600*time.Second+time.Hour)
	}
}

// TestSameClock: with SameClockPPM the bounds widen by at most 41 µs in the second after a reading, and
// contain the leader's clock.
func TestSameClock(t *testing.T) {
	for _, ppm := range []int64{-SameClockPPM, 0, SameClockPPM} {
		w := newWorld()
		w.ppm = ppm
		e := Estimator{PPM: SameClockPPM}
		for i := range 600 {
			d := time.Duration(i) * time.Second
			if e.Observe(w.read(d, 200*time.Microsecond, 100*time.Microsecond)) {
				t.Fatalf("%d ppm: taken for a step after %s", ppm, d)
			}
			if width := w.check(t, &e, d+999*time.Millisecond); width > 341*time.Microsecond {
				t.Fatalf("%d ppm: the bounds are %s apart", ppm, width)
			}
		}
		w.stepNs += int64(time.Millisecond)
		if !e.Observe(w.read(600*time.Second, 200*time.Microsecond, 100*time.Microsecond)) {
			t.Fatalf("%d ppm: a step of a millisecond was not noticed", ppm)
		}
		w.check(t, &e, 601*time.Second)
	}
}

func TestSteps(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, 24 * 365 * time.Hour, time.Second, -time.Second, 50 * time.Millisecond, -50 * time.Millisecond} {
		w := newWorld()
		var e Estimator
		for i := range 10 {
			e.Observe(w.read(time.Duration(i)*time.Second, time.Millisecond, time.Millisecond))
		}
		w.stepNs += int64(step)
		if !e.Observe(w.read(10*time.Second, time.Millisecond, time.Millisecond)) {
			t.Fatalf("a step of %s was not noticed", step)
		}
		w.check(t, &e, 10*time.Second+2*time.Millisecond)
		if e.Observe(w.read(11*time.Second, time.Millisecond, time.Millisecond)) {
			t.Fatalf("a step of %s was noticed twice", step)
		}
		w.check(t, &e, 11*time.Second+2*time.Millisecond)
	}
}

// TestSmallSteps: a step within the uncertainty of the readings is not detected as a
// step. The bounds still follow, at the latest when the older readings have expired.
func TestSmallSteps(t *testing.T) {
	w := newWorld()
	var e Estimator
	for i := range 10 {
		e.Observe(w.read(time.Duration(i)*time.Second, 10*time.Millisecond, 10*time.Millisecond))
	}
	w.stepNs -= int64(8 * time.Millisecond)
	for i := 10; i < 10+readings; i++ {
		e.Observe(w.read(time.Duration(i)*time.Second, 10*time.Millisecond, 10*time.Millisecond))
	}
	w.check(t, &e, (10+readings)*time.Second)
}

// TestMonotonic: without steps Earliest never decreases.
func TestMonotonic(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	w := newWorld()
	w.ppm = 120
	var e Estimator
	var last int64
	for d := time.Duration(0); d < 5*time.Minute; {
		up, down := time.Duration(rnd.IntN(3_000_000)), time.Duration(rnd.IntN(3_000_000))
		e.Observe(w.read(d, up, down))
		d += up + down
		for end := d + time.Second; d < end; d += 50 * time.Millisecond {
			w.check(t, &e, d)
			lo, _ := e.Bounds(w.at(d))
			if back := last - lo; back > int64(2*time.Millisecond) {
				t.Fatalf("at %s earliest went back by %d ns", d, back)
			}
			last = lo
		}
	}
}

func BenchmarkBounds(b *testing.B) {
	w := newWorld()
	var e Estimator
	for i := range readings {
		e.Observe(w.read(time.Duration(i)*time.Second, time.Millisecond, time.Millisecond))
	}
	now := w.at(10 * time.Second)
	for b.Loop() {
		e.Bounds(now)
	}
}
