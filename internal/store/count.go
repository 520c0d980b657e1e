package store

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// maxCounted bounds the pending timers that a count holds, 8 bytes each: 256 MiB.
const maxCounted = 32 << 20

// Bounds of CountPending: maxLate bounds the records that change during a count, and
// maxCountReads the readings until it has reached the end of the shard's stream.
const (
	maxLate       = 1_000_000
	maxCountReads = 5
)

// Count is the result of CountPending.
type Count struct {
	// Waiting has the CountKey of each waiting timer whose revision is not after the
	// requested one, sorted.
	Waiting []uint64
	// Late has the records with later revisions, by CountKey.
	Late map[uint64]LateRecord
	// Unread is an upper bound of the records that cannot be decoded: a record may count
	// twice. Some of them may wait.
	Unread int64
	// Last is the revision of the shard's newest record when the reading had ended.
	Last uint64
	// Behind is true if the shard changed faster than it was read. The count may then lack a
	// record that has changed more than once.
	Behind bool
}

// LateRecord is a record with a revision after the requested one. Waiting is true in state
// pending or paused.
type LateRecord struct {
	Rev     uint64
	Waiting bool
}

// CountKey identifies a timer in a count by half of its id. The other half is the same for a
// schedule and its runs.
func CountKey(id schemas.TimerID) uint64 { return binary.BigEndian.Uint64(id[8:]) }

// CountPending reads all records of a shard. It counts the waiting timers (state pending or
// paused) with a revision up to through, and lists the records with later revisions. It holds
// 8 bytes in memory for each waiting timer, about 50 for each later record, and 16 for each of up to maxEnded others.
// Errors: schemas.ErrUnavailable, also for more than maxCounted timers or maxLate later records; that of ctx.
//
// A record has several revisions if a node or a server was killed before it removed them, or if the server has brought
// some back; see returned.go. Then only the newest one counts, and CountPending has the others deleted, unless
// the newest one is damaged or another client wrote it. Call RemoveVoid first: a void record would count.
//
// It reads in stream order. A record that changes before it is read moves to the end of the
// stream, so CountPending goes on until it has reached the end. Otherwise the record could
// change again before the owner's tail reads it, and neither would know that it exists.
func (rd *Reader) CountPending(ctx context.Context, shard int, through uint64) (Count, error) {
	var all jet.Range
	c := Count{Late: map[uint64]LateRecord{}, Behind: true}
	var done ended
	read := func(m jet.Msg) (bool, error) {
		all.AfterSeq = m.Sequence
		id, notTimer := schemas.ParseTimerID(lastToken(m.Subject))
		r, damaged := rd.dec.reads.decodeRecord(m.Data)
		waiting := r.State.Waits()
		switch {
		case notTimer != nil:
		case damaged != nil: // the tail or a load reports it
			if m.Sequence <= through {
				c.Unread++
			}
		case m.Sequence > through:
			if len(c.Late) == maxLate {
				return false, schemas.Errorf(schemas.CodeUnavailable, "more than %d records of shard %d changed while it was counted", maxLate, shard)
			}
			c.Late[CountKey(id)] = LateRecord{m.Sequence, waiting}
		case waiting:
			if len(c.Waiting) == maxCounted {
				return false, schemas.Errorf(schemas.CodeUnavailable, "shard %d has more than %d pending timers: they are not counted", shard, maxCounted)
			}
			c.Waiting = append(c.Waiting, CountKey(id))
		default:
			done.add(id, m.Sequence)
		}
		return true, nil //nolint:nilerr // the count leaves out records that cannot be decoded
	}
	for reads := 0; reads < maxCountReads && c.Behind; reads++ {
		if err := rd.scanPaced(ctx, "count timers", shard, all, read); err != nil {
			return Count{}, err
		}
		var err error
		if c.Last, err = rd.lastRecord(ctx, shard); err != nil {
			return Count{}, err
		}
		c.Behind = all.AfterSeq < c.Last
	}
	// The tail leaves out damaged records with later revisions, so count them here.
	c.Unread += rd.dec.damaged[shard].n.Load()
	slices.Sort(c.Waiting)
	var err error
	c.Waiting, err = rd.onlyNewest(ctx, shard, c.Waiting, done, through)
	return c, err
}
