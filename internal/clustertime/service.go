package clustertime

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Defaults of a Service.
const (
	DefaultInterval = time.Second
	// JumpTolerance is how far the host's wall clock may move relative to its monotonic
	// clock before JumpDetected reports a jump.
	JumpTolerance = 5 * time.Millisecond
	// SmallStep is the largest step of the leader's clock that SteadyFor does not count. Those who
	// use SteadyFor, such as the leases of flow control, tolerate such a difference between two
	// nodes.
	SmallStep     = 250 * time.Millisecond
	retryInterval = 100 * time.Millisecond
)

// Service reads the leader's clock once per interval and computes the time from its last
// readings. It is safe for concurrent use.
type Service struct {
	read     func(context.Context) (Reading, error)
	interval time.Duration
	log      zerolog.Logger
	resample chan struct{}
	ready    chan struct{}
	// same: the leader's clock is this host's; see SameClock.
	same bool

	mu       sync.RWMutex
	est      Estimator
	received time.Time // the leader's last answer
	// steady is the time of the first reading, or of the last step beyond SmallStep.
	steady   time.Time
	wallLead time.Duration
	// steps counts the steps since the last log line; only the goroutine of run uses it.
	steps int
	told  time.Time

	life   sync.Mutex
	cancel context.CancelFunc
	done   chan struct{}
}

// NewService returns a service that calls read for each reading. An interval of 0 means
// DefaultInterval.
func NewService(read func(context.Context) (Reading, error), interval time.Duration, log zerolog.Logger) *Service {
	if interval <= 0 {
		interval = DefaultInterval
	}
	return &Service{read: read, interval: interval, log: log, resample: make(chan struct{}, 1), ready: make(chan struct{})}
}

// SameClock states that the leader always runs on this host, so its clock is this host's wall clock. On
// Linux the service then reads the wall clock itself after each successful read, so the duration of the read does not
// separate the bounds. The bounds widen by SameClockPPM between readings, and always include the wall clock, also
// after a step that no reading has noticed yet. On other systems SameClock does nothing. Call it before Start.
func (s *Service) SameClock() {
	if runtime.GOOS == "linux" {
		s.same, s.est.PPM = true, SameClockPPM
	}
}

// readHost reads this host's wall clock. Sent is read before the wall clock and Received after it, so the reading is
// right in whichever order time.Now reads its two clocks.
func readHost() Reading {
	sent := time.Now()
	wall := time.Now()
	return Reading{Sent: sent, ServerNs: wall.UnixNano(), Received: time.Now()}
}

// DriftPPM returns the assumed bound of the drift between the leader's clock and the monotonic clock, in
// parts per million.
func (s *Service) DriftPPM() int64 { return s.est.ppm() }

// Start starts a goroutine that reads the clock until Stop.
func (s *Service) Start() {
	s.life.Lock()
	defer s.life.Unlock()
	if s.done != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.done = cancel, make(chan struct{})
	go s.run(ctx)
}

// Stop ends the readings and waits for the goroutine. It may be called more than once, and
// without Start.
func (s *Service) Stop() {
	s.life.Lock()
	defer s.life.Unlock()
	if s.done == nil {
		return
	}
	s.cancel()
	<-s.done
}

func (s *Service) run(ctx context.Context) {
	defer close(s.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.resample:
		}
		// Measure the lead before the reading, so that a jump during the reading is detected.
		lead := wallLead()
		r, err := s.read(ctx)
		if ctx.Err() != nil {
			return
		}
		next := s.interval
		switch {
		case err != nil:
			next = min(next, retryInterval)
			if !failing {
				s.log.Warn().Err(err).Msg("cannot read the cluster's time; extrapolating the last reading")
			}
		case failing:
			s.log.Info().Msg("reading the cluster's time works again")
		}
		failing = err != nil
		if err == nil {
			answered := r.Received
			if s.same {
				lead = wallLead() // before the reading, too
				r = readHost()
			}
			s.observe(r, lead, answered)
		}
		timer.Reset(next)
	}
}

// monotonicStart is an arbitrary start to measure wallLead from.
var monotonicStart = time.Now()

// wallLead returns how far the host's wall clock has moved relative to its monotonic clock.
func wallLead() time.Duration {
	now := time.Now()
	return time.Duration(now.UnixNano()-monotonicStart.UnixNano()) - now.Sub(monotonicStart)
}

// observe adds a reading. lead is the wallLead from before it, and answered the time of the leader's answer.
func (s *Service) observe(r Reading, lead time.Duration, answered time.Time) {
	s.mu.Lock()
	before, _ := s.est.Bounds(r.Received)
	stepped := s.est.Observe(r)
	after, _ := s.est.Bounds(r.Received)
	step := time.Duration(after - before).Abs()
	if s.received.IsZero() || stepped && step > SmallStep {
		s.steady = time.Now()
	}
	s.received = answered
	s.wallLead = lead
	s.mu.Unlock()
	// The wall clock is read so exactly that the smallest steps are noticed. They are not worth a warning.
	if stepped && (!s.same || step > JumpTolerance) {
		s.tellSteps(r)
	}
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

// tellSteps logs the first step at once and further steps once a minute. While a host's
// clock is slewed faster than the bound of the drift, every reading is a step.
func (s *Service) tellSteps(r Reading) {
	s.steps++
	if s.told.IsZero() || time.Since(s.told) >= time.Minute {
		s.log.Warn().Time("now", time.Unix(0, r.ServerNs)).Int("steps", s.steps).Msg("the JetStream leader's clock was stepped, or runs fast or slow; Belfry's time follows")
		s.steps, s.told = 0, time.Now()
	}
}

// Ready waits for the first reading.
func (s *Service) Ready(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no reading of the JetStream leader's clock: %w", context.Cause(ctx))
	}
}

// EarliestNs returns the lower bound of the leader's clock in Unix nanoseconds.
func (s *Service) EarliestNs() int64 {
	now := time.Now()
	lo, _ := s.bounds(now, now.UnixNano())
	return lo
}

// LatestNs returns the upper bound of the leader's clock in Unix nanoseconds.
func (s *Service) LatestNs() int64 {
	now := time.Now()
	_, hi := s.bounds(now, now.UnixNano())
	return hi
}

// bounds returns the bounds of the leader's clock at now, when this host's wall clock shows wallNs.
func (s *Service) bounds(now time.Time, wallNs int64) (earliest, latest int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	lo, hi := s.est.Bounds(now)
	if s.same && s.est.Known() {
		lo, hi = min(lo, wallNs), max(hi, wallNs)
	}
	return lo, hi
}

// Age returns the time since the leader's last answer.
func (s *Service) Age() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.received.IsZero() {
		return time.Duration(1<<63 - 1)
	}
	return time.Since(s.received)
}

// SteadyFor returns the time since the first reading, or since the last reading that found the
// leader's clock stepped by more than SmallStep; 0 before the first reading. Another node may
// notice the same step up to an interval later.
func (s *Service) SteadyFor() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.steady.IsZero() {
		return 0
	}
	return time.Since(s.steady)
}

// JumpDetected reports whether the host's wall clock has jumped since the last reading,
// relative to its monotonic clock. The leader may run on this host, so take a new reading
// before firing anything. A jump is never a reason to fire.
func (s *Service) JumpDetected() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.received.IsZero() {
		return false
	}
	d := wallLead() - s.wallLead
	return d > JumpTolerance || d < -JumpTolerance
}

// Resample makes the service take a reading now. It does not wait for it.
func (s *Service) Resample() {
	select {
	case s.resample <- struct{}{}:
	default:
	}
}
