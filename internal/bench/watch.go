package bench

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// Watch observes timers as they fire, with a subscriber of their events. It measures lateness and
// does not account for timers. A plain subscriber may miss messages, receives a
// message before the stream has stored it, and receives a message twice that was published twice
// and stored once. Account reads the stream instead.
type Watch struct {
	arrivals
	env   *Env
	dueMs []int64
	first uint64 // sequence of the stream at which the events of the watched timers begin
	// removedBefore is the number of messages that the stream had removed before.
	removedBefore uint64
}

// Watch begins to watch the timers 0 to len(dueMs)-1 of the adder.
func (e *Env) Watch(ctx context.Context, a *Adder, dueMs []int64) (*Watch, error) {
	w := &Watch{arrivals: newArrivals(a, len(dueMs)), env: e, dueMs: dueMs}
	stream, subject := a.fired()
	s, err := e.js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	w.first, w.removedBefore = s.CachedInfo().State.LastSeq+1, removedEver(s)
	return w, e.sut().receive(ctx, "belfry bench subscriber", subject, w.first, func(m *nats.Msg) { w.note(m.Data) })
}

// Wait waits until every timer was received. It returns without an error when nothing has come
// for patience after the last due time; Account then finds the other timers.
func (w *Watch) Wait(ctx context.Context, patience time.Duration, show func(seen int)) error {
	return w.wait(ctx, time.UnixMilli(slices.Max(w.dueMs)), patience, show)
}
