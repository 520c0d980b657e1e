package store

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/jet"
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

// Count is the result of CountPending.
type Count struct {
	// Waiting has the first 8 bytes (big-endian) of the id of each waiting timer, sorted.
	Waiting []uint64
	// Unread is the number of records that cannot be decoded; they may be waiting ones.
	Unread int64
	// Last is the revision of the shard's newest record when the reading had ended: a
	// record that is missing because it was changed meanwhile has a revision between the
	// requested one and Last.
	Last uint64
}

// CountPending reads every record of a shard and returns those in state pending whose
// revision is through or older. It holds 8 bytes in memory for each pending timer.
func (rd *Reader) CountPending(ctx context.Context, shard int, through uint64) (Count, error) {
	sh := &rd.shards.subjects[shard]
	all := jet.Range{Filters: []string{sh.timer + "*"}}
	n := 0
	var c Count
	err := rd.jet.Scan(ctx, sh.stream, all, func(m jet.Msg) (bool, error) {
		if n++; n%countBatch == 0 {
			select {
			case <-ctx.Done():
				return false, rd.jet.Error("count timers", ctx.Err())
			case <-time.After(countPause):
			}
		}
		if m.Sequence > through {
			return false, nil // what follows is newer
		}
		id, notTimer := schemas.ParseTimerID(lastToken(m.Subject))
		r, damaged := rd.dec.reads.decodeRecord(m.Data)
		switch {
		case notTimer != nil:
		case damaged != nil: // it is reported where it is read
			c.Unread++
		case r.State == schemas.StatePending:
			if len(c.Waiting) == maxCounted {
				return false, schemas.Errorf(schemas.CodeUnavailable, "shard %d has more than %d pending timers: they are not counted", shard, maxCounted)
			}
			c.Waiting = append(c.Waiting, binary.BigEndian.Uint64(id[:8]))
		}
		return true, nil //nolint:nilerr // the count goes on without what is no waiting timer
	})
	if err != nil {
		return Count{}, err
	}
	// Damaged records with a newer revision do not reach the tail's reader.
	c.Unread += rd.dec.damaged[shard].n.Load()
	slices.Sort(c.Waiting)
	c.Last, err = rd.jet.LastOf(ctx, sh.stream, all)
	return c, err
}
