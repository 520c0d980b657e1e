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
	// countPause is the pause of a count after each countBatch records. It leaves time of the
	// server for other requests.
	countPause = 5 * time.Millisecond
	countBatch = 1000
	// maxCounted bounds the pending timers that a count holds, 8 bytes each: 256 MiB.
	maxCounted = 32 << 20
)

// Count is the result of CountPending.
type Count struct {
	// Waiting lists the pending timers in rising order, each by the first 8 bytes of its id
	// (big-endian).
	Waiting []uint64
	// Unread is the number of records that cannot be decoded. Any of them may be pending.
	Unread int64
	// Last is the revision of the shard's newest record at the end of the count. A record
	// that changed during the count is not in Waiting; its new revision is after the
	// requested one, and at most Last.
	Last uint64
}

// CountPending reads the records of a shard with revisions up to through, and returns those
// in state pending or paused. It holds 8 bytes for each pending timer. Errors: schemas.ErrUnavailable,
// also for more than maxCounted timers.
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
			return false, nil // all later records are newer
		}
		id, notTimer := schemas.ParseTimerID(lastToken(m.Subject))
		r, damaged := rd.dec.reads.decodeRecord(m.Data)
		switch {
		case notTimer != nil:
		case damaged != nil: // the tail or a load reports it
			c.Unread++
		case r.State == schemas.StatePending, r.State == schemas.StatePaused:
			if len(c.Waiting) == maxCounted {
				return false, schemas.Errorf(schemas.CodeUnavailable, "shard %d has more than %d pending timers: they are not counted", shard, maxCounted)
			}
			c.Waiting = append(c.Waiting, binary.BigEndian.Uint64(id[:8]))
		}
		return true, nil //nolint:nilerr // the count continues after a record that is not a pending timer
	})
	if err != nil {
		return Count{}, err
	}
	// Also count the known damaged records: the count above ends at through, and the tail
	// passes on no damaged record.
	c.Unread += rd.dec.damaged[shard].n.Load()
	slices.Sort(c.Waiting)
	c.Last, err = rd.jet.LastOf(ctx, sh.stream, all)
	return c, err
}
