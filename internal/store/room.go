package store

import (
	"context"
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// room keeps new timers out of a shard that is nearly full, so that those that
// are in it can still be claimed, concluded and moved: a full bucket would refuse
// these writes, too, and then nothing in it could ever end. It counts what this
// process adds and asks the stream every now and then.
type room struct {
	mu   sync.Mutex
	left int64
	at   time.Time
}

const (
	// roomAge is after how long the stream is asked again; what other nodes add
	// in between comes out of the reserve.
	roomAge = time.Second
	// roomPause is how often a full shard is asked at most.
	roomPause = 50 * time.Millisecond
	// recordOverhead is what a record and its index entry take in the stream
	// besides the event: two subjects, headers and frames, and the record's fields.
	recordOverhead = 512
)

// reserveOf is the part of a bucket that new timers may not fill.
func reserveOf(maxBytes int64) int64 {
	return max(maxBytes/16, min(maxBytes/4, 64<<20))
}

// admit takes room for new timers of a shard, or returns schemas.ErrStoreFull.
func (s *Store) admit(ctx context.Context, shard int, bytes int64) error {
	r := &s.rooms[shard]
	r.mu.Lock()
	defer r.mu.Unlock()
	age := time.Since(r.at)
	if r.left-bytes < 0 && age > roomPause || age > roomAge {
		info, err := s.jet.Stream(ctx, s.subjects[shard].stream)
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
