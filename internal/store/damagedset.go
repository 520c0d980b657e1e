package store

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxDamaged bounds the damaged records of a shard that a node remembers.
	maxDamaged = 10_000
	// stuckAfter is how long the leader of a replicated shard must refuse reads before the
	// refusal is final. A newly elected leader may need some seconds to apply the log.
	stuckAfter = 10 * time.Second
)

// damagedSet holds the damaged records of a shard that this process has read.
type damagedSet struct {
	n  atomic.Int64 // len(by), to be read without the lock
	mu sync.Mutex
	by map[string]DamagedRecord // by timer
	// found counts the additions to by, without records of newer formats; reported is the value
	// of found at the last report.
	found, reported atomic.Uint64
	// unreadable counts messages that the server could not read.
	unreadable atomic.Int64
	// stuck is the time of the first refusal (see settled) in Unix nanoseconds; 0 if the
	// leader does not refuse reads.
	stuck atomic.Int64
}

// note adds a damaged record. It returns false if this or a newer revision is known, or if
// the set is full.
func (d *damagedSet) note(r DamagedRecord) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, known := d.by[r.Timer]
	if known && was.Revision >= r.Revision || len(d.by) >= maxDamaged && !known {
		return false
	}
	if d.by == nil {
		d.by = map[string]DamagedRecord{}
	}
	d.by[r.Timer] = r
	d.n.Store(int64(len(d.by)))
	if !r.Newer {
		d.found.Add(1)
	}
	return true
}

// good removes a record whose revision rev is readable or a delete marker, unless a later
// revision is damaged.
func (d *damagedSet) good(timer string, rev uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was, known := d.by[timer]; known && was.Revision <= rev {
		delete(d.by, timer)
		d.n.Store(int64(len(d.by)))
	}
}

// list returns the records by revision.
func (d *damagedSet) list() []DamagedRecord {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]DamagedRecord, 0, len(d.by))
	for _, r := range d.by {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b DamagedRecord) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Timer, b.Timer))
	})
	return out
}

// settled reports whether a refusal of the leader is final: the messages are lost. A refusal
// is a read that the leader refuses, or a stream that ends before messages that were read
// earlier. Without replicas every refusal is final. With replicas the leader may still have to
// catch up, so refusals are final after stuckAfter. settled(false) records a good answer.
func (d *damagedSet) settled(refused, replicated bool) bool {
	if !refused {
		d.stuck.Store(0)
		return false
	}
	return !replicated || d.longStuck()
}

// longStuck records a refusal, and reports whether the leader has refused reads of the shard
// for stuckAfter.
func (d *damagedSet) longStuck() bool {
	now := time.Now().UnixNano()
	if d.stuck.CompareAndSwap(0, now) {
		return false
	}
	return now-d.stuck.Load() >= int64(stuckAfter)
}
