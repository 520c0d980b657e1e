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
	// stuckAfter is how long the leader of a replicated shard may refuse reads before its
	// answer is final. A newly elected leader may need some seconds to apply the log.
	stuckAfter = 10 * time.Second
)

// damagedSet holds the damaged records of a shard that this process has read.
type damagedSet struct {
	n  atomic.Int64 // len(by), to be read without the lock
	mu sync.Mutex
	by map[string]DamagedRecord // by timer
	// found counts the damaged records that were added to by; reported is the value of
	// found at the last report.
	found, reported atomic.Uint64
	// unreadable counts messages that the server could not read.
	unreadable atomic.Int64
	// stuck is the time of the first refused read, in Unix nanoseconds; 0 for none.
	stuck atomic.Int64
}

// note remembers a damaged record; false if it was known.
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

// good forgets a record that was damaged before a revision.
func (d *damagedSet) good(timer string, rev uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was, known := d.by[timer]; known && was.Revision <= rev {
		delete(d.by, timer)
		d.n.Store(int64(len(d.by)))
	}
}

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

// settled reports whether the leader's answer is final. refused is true for an answer that
// refuses a read, or that lacks messages that were read before. Without replicas every
// answer is final, otherwise a refusal is after stuckAfter.
func (d *damagedSet) settled(refused, replicated bool) bool {
	if !refused {
		d.stuck.Store(0)
		return false
	}
	return !replicated || d.longStuck()
}

// longStuck reports whether the leader has refused reads of the shard for stuckAfter.
func (d *damagedSet) longStuck() bool {
	now := time.Now().UnixNano()
	if d.stuck.CompareAndSwap(0, now) {
		return false
	}
	return now-d.stuck.Load() >= int64(stuckAfter)
}
