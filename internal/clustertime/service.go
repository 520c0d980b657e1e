package clustertime

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Defaults of a Service.
const (
	DefaultInterval = time.Second
	// JumpTolerance is how far the host's wall clock may move against its
	// monotonic one before a new reading is asked for.
	JumpTolerance = 5 * time.Millisecond
	retryInterval = 100 * time.Millisecond
)

// Service reads the leader's clock once an interval and answers from its last
// readings. Safe for concurrent use.
type Service struct {
	read     func(context.Context) (Reading, error)
	interval time.Duration
	log      zerolog.Logger
	resample chan struct{}
	ready    chan struct{}

	mu       sync.RWMutex
	est      Estimator
	received time.Time // of the last reading
	wallLead time.Duration
	// steps were seen since they were told of last; only run's goroutine uses them.
	steps int
	told  time.Time

	life   sync.Mutex
	cancel context.CancelFunc
	done   chan struct{}
}

// NewService makes a service that takes its readings from read. An interval of 0
// means DefaultInterval.
func NewService(read func(context.Context) (Reading, error), interval time.Duration, log zerolog.Logger) *Service {
	if interval <= 0 {
		interval = DefaultInterval
	}
	return &Service{read: read, interval: interval, log: log, resample: make(chan struct{}, 1), ready: make(chan struct{})}
}

// Start begins reading; it lives until Stop.
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

// Stop ends it and waits. It may be called twice, and without Start.
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
		// Taken before the reading: a jump amid it counts as one after it.
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
				s.log.Warn().Err(err).Msg("the cluster's time cannot be read; carrying the last reading")
			}
		case failing:
			s.log.Info().Msg("the cluster's time is read again")
		}
		failing = err != nil
		if err == nil {
			s.observe(r, lead)
		}
		timer.Reset(next)
	}
}

// monotonicStart is an arbitrary start to measure wallLead from.
var monotonicStart = time.Now()

// wallLead is how far the host's wall clock has moved against its monotonic clock.
func wallLead() time.Duration {
	now := time.Now()
	return time.Duration(now.UnixNano()-monotonicStart.UnixNano()) - now.Sub(monotonicStart)
}

func (s *Service) observe(r Reading, lead time.Duration) {
	s.mu.Lock()
	stepped := s.est.Observe(r)
	s.received = r.Received
	s.wallLead = lead
	s.mu.Unlock()
	if stepped {
		s.tellSteps(r)
	}
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

// tellSteps logs a step at once, and those that follow once a minute: a host whose
// clock is slewed faster than DriftPPM steps with every reading.
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

// EarliestNs is the leader's clock in Unix nanoseconds, never ahead of it.
func (s *Service) EarliestNs() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	lo, _ := s.est.Bounds(time.Now())
	return lo
}

// LatestNs is the leader's clock in Unix nanoseconds, never behind it.
func (s *Service) LatestNs() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, hi := s.est.Bounds(time.Now())
	return hi
}

// Age is the time since the last reading.
func (s *Service) Age() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.received.IsZero() {
		return time.Duration(1<<63 - 1)
	}
	return time.Since(s.received)
}

// JumpDetected reports that the host's wall clock has moved against its
// monotonic clock since the last reading. The leader may run on this host, so
// that is a reason to take a new reading before anything is fired; it is never a
// reason to fire.
func (s *Service) JumpDetected() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.received.IsZero() {
		return false
	}
	d := wallLead() - s.wallLead
	return d > JumpTolerance || d < -JumpTolerance
}

// Resample asks for a reading now.
func (s *Service) Resample() {
	select {
	case s.resample <- struct{}{}:
	default:
	}
}
