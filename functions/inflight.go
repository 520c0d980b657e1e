package functions

import (
	"context"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// inFlight holds the deliveries that this process handles. It keeps them alive, and keeps a
// redelivery of an event from being handled while the first delivery is.
type inFlight struct {
	ackWait time.Duration
	mu      sync.Mutex
	entries map[string]*liveEntry // by idempotency key
}

type liveEntry struct {
	m    *store.Delivery
	last time.Time // of the delivery, or of the last InProgress
}

func newInFlight(ackWait time.Duration) *inFlight {
	return &inFlight{ackWait: ackWait, entries: map[string]*liveEntry{}}
}

// enter adds a delivery. It returns false if there is one with the same key.
func (l *inFlight) enter(key string, m *store.Delivery) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[key] != nil {
		return false
	}
	l.entries[key] = &liveEntry{m: m, last: time.Now()}
	return true
}

func (l *inFlight) leave(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, key)
}

func (l *inFlight) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

// keepAlive restarts AckWait for deliveries older than a third of it, until ctx is done.
// One goroutine serves all deliveries: most callbacks end long before they need it.
func (l *inFlight) keepAlive(ctx context.Context) {
	every := time.NewTicker(l.ackWait / 6)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		for _, m := range l.due(time.Now()) {
			// It fails without a connection. The next round repeats it, or the event is
			// redelivered.
			_ = m.InProgress()
		}
	}
}

// due returns the deliveries to keep alive at now, and marks them as kept alive.
func (l *inFlight) due(now time.Time) []*store.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*store.Delivery
	for _, e := range l.entries {
		if now.Sub(e.last) >= l.ackWait/3 {
			e.last = now
			out = append(out, e.m)
		}
	}
	return out
}
