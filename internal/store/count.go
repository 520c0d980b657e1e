package store

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

const (
	// countPause is the pause of a count after each countBatch records, which leaves
	// the server to others.
	countPause = 5 * time.Millisecond
	countBatch = 1000
	// maxCounted bounds the memory of a count: 256 MiB.
	maxCounted = 32 << 20
)

// CountPending reads every record of a shard and returns, sorted, the first 8 bytes of
// the timer id (big-endian) of each whose revision is through or older and that is in
// state pending. last is the revision of the shard's newest record when the reading had
// ended: a record that is missing because it was changed meanwhile has a revision
// between through and last. It holds 8 bytes in memory for each pending timer.
func (s *Store) CountPending(ctx context.Context, shard int, through uint64) (waiting []uint64, last uint64, err error) {
	sh := &s.subjects[shard]
	cfg := jetstream.ConsumerConfig{FilterSubject: sh.timer + "*"}
	n := 0
	err = s.readAll(ctx, sh.stream, cfg, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		if n++; n%countBatch == 0 {
			select {
			case <-ctx.Done():
				return false, mapError("count timers", ctx.Err())
			case <-time.After(countPause):
			}
		}
		if meta.Sequence.Stream > through {
			return false, nil // what follows is newer
		}
		id, notTimer := schemas.ParseTimerID(lastToken(m.Subject()))
		// A damaged record does not count, and is reported elsewhere.
		r, damaged := schemas.DecodeRecord(m.Data())
		if notTimer != nil || damaged != nil || r.State != schemas.StatePending {
			return true, nil //nolint:nilerr // a damaged record is reported where it is read
		}
		if len(waiting) == maxCounted {
			return false, schemas.Errorf(schemas.CodeUnavailable, "shard %d has more than %d pending timers: they are not counted", shard, maxCounted)
		}
		waiting = append(waiting, binary.BigEndian.Uint64(id[:8]))
		return true, nil
	})
	if err != nil {
		return nil, 0, err
	}
	slices.Sort(waiting)
	last, err = s.lastOf(ctx, sh.stream, cfg)
	return waiting, last, err
}
