package store

import (
	"context"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Shards names the streams and keys of the shards. It does not change after Open, and
// its methods may be called concurrently.
type Shards struct {
	jet      *jet.Client
	geo      schemas.Geometry
	subjects []shardSubjects // by shard
}

// newShards returns the shards of a geometry. With the zero geometry there are none: that
// is a store of which only the clocks and streams are read.
func newShards(c *jet.Client, geo schemas.Geometry) *Shards {
	h := &Shards{jet: c, geo: geo, subjects: make([]shardSubjects, geo.Shards)}
	for n := range h.subjects {
		p := "$KV." + schemas.BucketTimers(n) + "."
		sh := &h.subjects[n]
		sh.stream, sh.timer, sh.slot, sh.meta = "KV_"+schemas.BucketTimers(n), p+"timer.", p+"slot.", p+"meta"
	}
	return h
}

// Geometry is the layout that the store was made with.
func (h *Shards) Geometry() schemas.Geometry { return h.geo }

// Messages returns the number of messages in a shard's stream, and the server's time of
// the count in Unix milliseconds. Errors: schemas.ErrUnavailable.
func (h *Shards) Messages(ctx context.Context, shard int) (n uint64, atMs int64, err error) {
	info, err := h.jet.Stream(ctx, h.subjects[shard].stream)
	return info.State.Msgs, info.TimeStamp.UnixMilli(), err
}

// LastSeq is the last sequence of a shard's stream. Errors: schemas.ErrUnavailable.
func (h *Shards) LastSeq(ctx context.Context, shard int) (uint64, error) {
	info, err := h.jet.Stream(ctx, h.subjects[shard].stream)
	return info.State.LastSeq, err
}

// timerSubject returns the key of a timer's record, as a subject, and its stream.
func (h *Shards) timerSubject(id schemas.TimerID) (subject, stream string) {
	sh := &h.subjects[h.geo.Shard(id)]
	return sh.timer + id.String(), sh.stream
}
