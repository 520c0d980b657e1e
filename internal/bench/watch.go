package bench

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// Watch sees timers fire, live, by a subscription to timers.fired.<service>. It
// is how lateness is measured, not how timers are accounted for: a plain
// subscriber may miss messages, gets one before the stream has stored it, and
// gets one twice that was published twice and stored once. Account asks the
// stream.
type Watch struct {
	env   *Env
	adder *Adder
	dueMs []int64
	first uint64 // sequence of TIMERS_FIRED from which on it is ours

	mu       sync.Mutex
	received []int64 // Unix nanoseconds, 0 for not yet
	seen     int
	repeated int
	all      chan struct{} // closed when every timer was received
}

// Watch begins to watch the timers 0 to len(dueMs)-1 of the adder.
func (e *Env) Watch(ctx context.Context, a *Adder, dueMs []int64) (*Watch, error) {
	w := &Watch{env: e, adder: a, dueMs: dueMs, received: make([]int64, len(dueMs)), all: make(chan struct{})}
	s, err := e.js.Stream(ctx, schemas.StreamFired)
	if err != nil {
		return nil, err
	}
	w.first = s.CachedInfo().State.LastSeq + 1
	nc, err := e.Connect("belfry bench subscriber")
	if err != nil {
		return nil, err
	}
	sub, err := nc.Subscribe(a.fired(), func(m *nats.Msg) { w.receive(m.Data) })
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	return w, nc.FlushWithContext(ctx)
}

func (w *Watch) receive(data []byte) {
	now := time.Now().UnixNano()
	n, ours := w.adder.number(data)
	if !ours || n >= len(w.received) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.received[n] != 0 {
		w.repeated++
		return
	}
	w.received[n] = now
	if w.seen++; w.seen == len(w.received) {
		close(w.all)
	}
}

// Seen is how many timers were received until now.
func (w *Watch) Seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// Wait waits until every timer was received. It gives up, without an error, when
// nothing has come for patience after the last due time: Account tells what
// became of the others.
func (w *Watch) Wait(ctx context.Context, patience time.Duration, tick func(seen int)) error {
	last, moved := -1, time.Now()
	lastDue := time.UnixMilli(0)
	for _, ms := range w.dueMs {
		if d := time.UnixMilli(ms); d.After(lastDue) {
			lastDue = d
		}
	}
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-w.all:
			tick(len(w.dueMs))
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
		now, seen := time.Now(), w.Seen()
		if seen != last || now.Before(lastDue) {
			last, moved = seen, now
		}
		if now.Sub(moved) > patience {
			return nil
		}
		tick(seen)
	}
}
