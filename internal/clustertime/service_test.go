package clustertime

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// leader is the clock that readings are taken from, in a synctest bubble.
type leader struct {
	mu     sync.Mutex
	offset time.Duration
	delay  time.Duration
	err    error
	reads  int
}

func (l *leader) read(ctx context.Context) (Reading, error) {
	r := Reading{Sent: time.Now()}
	delay := l.count()
	select {
	case <-time.After(delay / 2):
	case <-ctx.Done():
		return r, ctx.Err()
	}
	r.ServerNs = l.now()
	time.Sleep(delay / 2)
	r.Received = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	return r, l.err
}

func (l *leader) count() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	return l.delay
}

func (l *leader) taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads
}

func (l *leader) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *leader) now() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(l.offset).UnixNano()
}

func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leader{offset: 42 * time.Hour, delay: 2 * time.Millisecond}
		s := NewService(l.read, 0, zerolog.Nop())
		if s.Age() < time.Hour || s.JumpDetected() {
			t.Error("before the first reading")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Ready(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ready before it was started: %v", err)
		}
		s.Start()
		s.Start()
		defer s.Stop()
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		check := func(width time.Duration) {
			t.Helper()
			lo, hi := s.EarliestNs(), s.LatestNs()
			if now := l.now(); lo > now || hi < now || hi-lo > int64(width) {
				t.Errorf("bounds %d to %d ns around the leader's clock", lo-now, hi-now)
			}
		}
		check(3 * time.Millisecond)
		time.Sleep(10 * time.Second)
		check(4 * time.Millisecond)
		if age := s.Age(); age > time.Second+10*time.Millisecond {
			t.Errorf("age %s", age)
		}
		// The leader's clock is set forward and back.
		for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
			l.change(func() { l.offset += step })
			time.Sleep(DefaultInterval + 10*time.Millisecond)
			check(3 * time.Millisecond)
		}
		// After a jump of the host's wall clock the service reads at once.
		before := l.taken()
		s.Resample()
		s.Resample()
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		if l.taken() == before {
			t.Error("no reading after Resample")
		}
		// The store does not answer: the last reading is carried, and new readings are
		// tried often.
		l.change(func() { l.err = errors.New("silent") })
		before = l.taken()
		time.Sleep(10 * time.Second)
		if n := l.taken() - before; n < 50 || n > 150 {
			t.Errorf("%d readings tried in 10 s of silence", n)
		}
		if age := s.Age(); age < 9*time.Second {
			t.Errorf("age %s", age)
		}
		check(10 * time.Millisecond)
		l.change(func() { l.err = nil })
		time.Sleep(time.Second)
		if age := s.Age(); age > 2*time.Second {
			t.Errorf("age %s after the silence", age)
		}
	})
}

// TestSameClockReadings: where the leader's clock is this host's, the bounds do not depend on how long a read takes.
func TestSameClockReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		width := 2 * time.Second * SameClockPPM / 1_000_000 * 2
		if runtime.GOOS != "linux" { // SameClock does nothing
			width = time.Second
		}
		l := &leader{delay: 500 * time.Millisecond}
		s := NewService(l.read, 0, zerolog.Nop())
		s.SameClock()
		s.Start()
		defer s.Stop()
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			lo, hi := s.EarliestNs(), s.LatestNs()
			if now := l.now(); lo > now || hi < now || hi-lo > int64(width) {
				t.Errorf("bounds %d to %d ns around the leader's clock, want at most %s between them", lo-now, hi-now, width)
			}
			time.Sleep(time.Second)
		}
		// Before the next reading the wall clock is set back, or forward.
		for _, step := range []time.Duration{-time.Hour, -time.Millisecond, time.Millisecond, time.Hour} {
			now := time.Now()
			wall := now.Add(step).UnixNano()
			lo, hi := s.bounds(now, wall)
			if runtime.GOOS == "linux" && (lo > wall || hi < wall) {
				t.Errorf("bounds %d to %d ns around the leader's clock, which was stepped by %s", lo-wall, hi-wall, step)
			}
		}
		// Without an answer the last reading is carried.
		l.change(func() { l.err = errors.New("silent") })
		before := s.Age()
		time.Sleep(10 * time.Second)
		if age := s.Age(); age < before+9*time.Second {
			t.Errorf("age %s after 10 s without an answer", age)
		}
	})
}

// TestSteadyFor: it counts from the first reading, and from a step of the leader's clock, but not
// from a small one.
func TestSteadyFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leader{delay: 2 * time.Millisecond}
		s := NewService(l.read, 0, zerolog.Nop())
		if s.SteadyFor() != 0 {
			t.Error("steady before the first reading")
		}
		s.Start()
		defer s.Stop()
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		for _, step := range []time.Duration{time.Hour, -2 * time.Hour, SmallStep / 2} {
			before := s.SteadyFor()
			if before < 9*time.Second {
				t.Errorf("before a step of %s: steady for %s, want 10 s", step, before)
			}
			l.change(func() { l.offset += step })
			time.Sleep(2 * DefaultInterval)
			if d := s.SteadyFor(); (d < before) != (step.Abs() > SmallStep) {
				t.Errorf("2 s after a step of %s: steady for %s", step, d)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

// TestStop: Stop works during a reading, twice, and without a start.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leader{delay: time.Hour}
		s := NewService(l.read, 0, zerolog.Nop())
		s.Stop()
		s.Start()
		synctest.Wait()
		s.Stop()
		s.Stop()
		if s.EarliestNs() != 0 {
			t.Error("a reading that was not finished counts")
		}
	})
}

// TestJump moves the wall clock that the service reads; a test cannot change the host's.
func TestJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leader{delay: time.Millisecond}
		s := NewService(l.read, 0, zerolog.Nop())
		s.Start()
		defer s.Stop()
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.JumpDetected() {
			t.Fatal("a jump without one")
		}
		for _, jump := range []time.Duration{time.Hour, -time.Hour, 10 * time.Millisecond, -10 * time.Millisecond} {
			s.mu.Lock()
			s.wallLead -= jump
			s.mu.Unlock()
			if !s.JumpDetected() {
				t.Errorf("a jump of %s was not noticed", jump)
			}
			s.Resample()
			time.Sleep(10 * time.Millisecond)
			if s.JumpDetected() {
				t.Errorf("a jump of %s is still reported after a reading", jump)
			}
		}
	})
}
