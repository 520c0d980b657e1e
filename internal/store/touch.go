package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Work-around 20 (docs/internals/nats-server.md). When a roll-up removes an old message, the server writes
// a mark of that to the newest block of the file, and takes the time of the old message for the time of the
// last write to the block. If that is more than ten seconds ago, and a consumer that has read the block
// message by message reads its last one, as the tail of a scheduler does, then the server drops the block
// from memory. The write after that reads the block again: up to 8 MB, which takes up to 5 ms of CPU, while
// the stream takes no other write. With many cancels of timers that were added long before, that was half of
// their CPU.
//
// The server does so only if the consumer has read the messages of the block one after the other. A message that the
// consumer does not read is a gap, and ends that for the rest of the block. Adds make gaps, because the
// tail does not read index entries. Cancels make none. So the cancel of an old timer is followed by a touch: a message
// without content on a key of its own. So is a write that pauses or moves an old timer. Schedules have no touches. Nothing reads touches, nobody
// waits for one, and the bucket's history limits their number. Barriers (barrier.go) store the same messages.
//
// Claims also roll up, and have no touches: for claims of timers that were 20 s old the server read a block once in
// five seconds. Where writes are committed in batches (profile safe, one replica) no block was read, and a touch would
// cost an fsync.

const (
	// touchAge is the age of a timer above which its write is followed by a touch. It must be less than the
	// ten seconds after which the server drops a block (defaultCacheBufferExpiration).
	touchAge = 8 * time.Second
	// touchPace is the least time between two touches of a shard. A block that was begun less than that ago is small.
	touchPace = 50 * time.Millisecond
)

// touch marks a shard. The next touch of its stream follows the writes that were sent before.
func (g *revisionGC) touch(shard int) {
	g.writes[shard].touch.Store(true)
	signal(g.touches)
}

// touchShards writes touches to the marked shards until ctx ends, to a shard at most one in each touchPace.
func (g *revisionGC) touchShards(ctx context.Context) {
	for pause.For(ctx, touchPace) {
		select {
		case <-ctx.Done():
			return
		case <-g.touches:
		}
		for n := range g.writes {
			if g.writes[n].touch.Swap(false) {
				g.jet.WriteAsync(g.shards.subjects[n].stream, "touch a shard", g.shards.subjects[n].touch, nil, nil, func(jet.Ack, error) {})
			}
		}
	}
}

// mayTouch reports whether a write that must roll up is followed by a touch.
func (g *revisionGC) mayTouch(w *Write) bool {
	switch w.Record.State {
	case schemas.StateCancelled, schemas.StatePending, schemas.StatePaused:
	default:
		return false
	}
	if w.Record.Schedule != nil || g.jet.InBatches() {
		return false // the revision that a schedule replaces is as old as its last run only
	}
	return !g.isYoung(w, touchAge)
}
