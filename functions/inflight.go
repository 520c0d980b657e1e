package functions

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// inFlight holds the deliveries that this process works on, so that they are
// kept alive and so that a second copy of one is not worked on beside it.
type inFlight struct {
	ackWait time.Duration
	mu      sync.Mutex
	entries map[string]*liveEntry // by idempotency key
}

type liveEntry struct {
	msg  jetstream.Msg
	last time.Time // when the server last heard of it
}

func newInFlight(ackWait time.Duration) *inFlight {
	return &inFlight{ackWait: ackWait, entries: map[string]*liveEntry{}}
}

// enter reports false if a delivery with that key is being worked on.
func (l *inFlight) enter(key string, m jetstream.Msg) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[key] != nil {
		return false
	}
	l.entries[key] = &liveEntry{msg: m, last: time.Now()}
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

// keepAlive tells the server, until ctx is done, that deliveries older than a
// third of AckWait are still worked on. One goroutine serves all: most
// callbacks are done long before they need it.
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
			// An error means no connection, or a message concluded just now; the
			// next round, or the redelivery, is the answer to both.
			_ = m.InProgress()
		}
	}
}

// due lists what must be kept alive now, and marks it as done.
func (l *inFlight) due(now time.Time) []jetstream.Msg {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []jetstream.Msg
	for _, e := range l.entries {
		if now.Sub(e.last) >= l.ackWait/3 {
			e.last = now
			out = append(out, e.msg)
		}
	}
	return out
}
