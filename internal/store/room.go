package store

import (
	"context"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// admission rejects new timers for shards that are nearly full.
//
// A full bucket refuses all writes, so its timers could not be claimed, moved or ended
// either, and no space would ever be freed. admission therefore keeps a part of each
// bucket for them (reserveOf). It reads the size of a bucket once in maxRoomAge, or more often
// while the bucket is full, and subtracts the timers of this process in between. Timers of
// other nodes in between use the reserve. Safe for concurrent use.
type admission struct {
	jet    *jet.Client
	shards *Shards
	rooms  []room // by shard
}

// room is the space in one shard for new timers.
type room struct {
	mu   sync.Mutex
	left int64     // bytes
	at   time.Time // when the size of the bucket was last read
}

const (
	// maxRoomAge is the time after which the size of a bucket is read again.
	maxRoomAge = time.Second
	// minRoomAge is the minimum time between two reads of the size of a full bucket.
	minRoomAge = 50 * time.Millisecond
	// recordOverhead is the size in bytes of a record and its index entry without the
	// event: two subjects, headers and frames, and the record's fields.
	recordOverhead = 512
)

func newAdmission(c *jet.Client, shards *Shards) *admission {
	return &admission{jet: c, shards: shards, rooms: make([]room, shards.geo.Shards)}
}

// reserveOf returns the part of a bucket that new timers must not fill.
func reserveOf(maxBytes int64) int64 {
	return max(maxBytes/16, min(maxBytes/4, 64<<20))
}

// admit takes space for new timers of a shard. Errors: schemas.ErrStoreFull,
// schemas.ErrUnavailable.
func (a *admission) admit(ctx context.Context, shard int, bytes int64) error {
	r := &a.rooms[shard]
	r.mu.Lock()
	defer r.mu.Unlock()
	age := time.Since(r.at)
	if r.left-bytes < 0 && age > minRoomAge || age > maxRoomAge {
		info, err := a.jet.Stream(ctx, a.shards.subjects[shard].stream)
		if err != nil {
			return err
		}
		limit := info.Config.MaxBytes
		if r.at = time.Now(); limit <= 0 {
			r.left = 1<<63 - 1
		} else {
			r.left = limit - reserveOf(limit) - int64(info.State.Bytes)
		}
	}
	if r.left < bytes {
		return schemas.Errorf(schemas.CodeStoreFull, "shard %d is full: the rest of its bytes is kept for the timers that are in it; raise shard_max_bytes, or shorten the retention", shard)
	}
	r.left -= bytes
	return nil
}
