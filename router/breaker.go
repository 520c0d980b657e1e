package router

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Pauses of a breaker, and of adds that are delivered again: the first, and the bound up to
// which it doubles.
const (
	retryPause = 100 * time.Millisecond
	retryMax   = 2 * time.Second
)

// breaker is the circuit breaker of one dependency of adds, such as a shard or timers.rejected.
// While the dependency fails, it is tried once per pause. In between, allow returns the last
// error at once, so adds of other shards do not wait behind a time-out.
type breaker struct {
	what string
	now  func() time.Time
	log  zerolog.Logger

	mu    sync.Mutex
	err   error // of the last try, or nil
	until time.Time
	wait  time.Duration
	trial bool // a try is under way
}

// allow returns nil if the dependency works or is due for a try, else the error of the last try.
func (b *breaker) allow() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		return nil
	}
	now := b.now()
	if now.Before(b.until) {
		return b.err
	}
	b.until, b.trial = now.Add(b.wait), true // others wait for the result of this try
	return nil
}

// note takes the result of a try. It logs changes of state.
func (b *breaker) note(err error) {
	if errors.Is(err, context.Canceled) {
		return // the router is stopping
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil && b.err != nil:
		b.log.Info().Str("what", b.what).Msg("adds are stored again")
		b.err, b.wait = nil, 0
	case err != nil && b.err == nil:
		b.log.Warn().Err(err).Str("what", b.what).Msg("adds wait and are retried")
		b.err, b.wait = err, retryPause
		b.until = b.now().Add(b.wait)
	case err != nil:
		if b.err = err; b.trial { // a failure of a concurrent try must not double the pause
			b.wait = min(2*b.wait, retryMax)
			b.until = b.now().Add(b.wait)
		}
	}
	b.trial = false
}

// Breakers are the circuit breakers of all dependencies of adds.
type Breakers struct {
	shards                             []*breaker
	services, lookup, records, rejects *breaker
}

// NewBreakers makes closed breakers for a number of shards. now must be monotonic.
func NewBreakers(shards int, now func() time.Time, log zerolog.Logger) *Breakers {
	b := func(what string) *breaker { return &breaker{what: what, now: now, log: log} }
	s := &Breakers{services: b("services"), lookup: b("fired events"), records: b("records"), rejects: b("timers.rejected")}
	for i := range shards {
		s.shards = append(s.shards, b("shard "+strconv.Itoa(i)))
	}
	return s
}
