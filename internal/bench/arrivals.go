package bench

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// arrivals records the first arrival of each timer of an adder: at a subscriber (Watch) or at its callback (receiver).
type arrivals struct {
	adder *Adder

	mu       sync.Mutex
	at       []int64 // Unix nanoseconds of the first arrival, 0 for none yet
	seen     int
	repeated int
	all      chan struct{} // closed when every timer has arrived
}

func newArrivals(a *Adder, count int) arrivals {
	return arrivals{adder: a, at: make([]int64, count), all: make(chan struct{})}
}

// note records the arrival of the timer whose id is in text.
func (s *arrivals) note(text []byte) {
	now := time.Now().UnixNano()
	n, ours := s.adder.number(text)
	if !ours || n >= len(s.at) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at[n] != 0 {
		s.repeated++
		return
	}
	s.at[n] = now
	before := s.seen
	s.seen += 1 + s.adder.recur.missed(text)
	if s.seen >= len(s.at) && before < len(s.at) {
		close(s.all)
	}
}

// Seen returns the number of timers that have arrived.
func (s *arrivals) Seen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// first returns the time of a timer's first arrival, in Unix nanoseconds, or 0.
func (s *arrivals) first(n int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[n]
}

// result returns a copy of all first arrivals, and the number of repeated arrivals.
func (s *arrivals) result() (at []int64, repeated int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.at), s.repeated
}

// wait waits until every timer has arrived. It gives up, without an error, when nothing
// has arrived for patience after the time due. show receives the number of arrivals.
func (s *arrivals) wait(ctx context.Context, due time.Time, patience time.Duration, show func(seen int)) error {
	last, moved := -1, time.Now()
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-s.all:
			show(len(s.at))
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
		now, seen := time.Now(), s.Seen()
		if seen != last || now.Before(due) {
			last, moved = seen, now
		}
		if now.Sub(moved) > patience {
			return nil
		}
		show(seen)
	}
}

// subscribe subscribes on a separate connection, which it returns, without a limit of pending
// messages. It returns once the server has the subscription.
func (e *Env) subscribe(ctx context.Context, name, subject string, handle nats.MsgHandler) (*nats.Conn, error) {
	nc, err := e.Connect(name)
	if err != nil {
		return nil, err
	}
	sub, err := nc.Subscribe(subject, handle)
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	return nc, nc.FlushWithContext(ctx)
}
