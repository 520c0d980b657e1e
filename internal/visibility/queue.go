package visibility

import (
	"cmp"
	"slices"
	"sync"

	"github.com/belfryio/belfry/schemas"
)

const (
	// maxQueued bounds the changed timers that wait to be written, about 1 kB each.
	maxQueued = 20_000
	// throttledShare is the divisor of that bound while the follower yields.
	throttledShare = 16
	// maxOverlay bounds the counters while it only counts.
	maxOverlay = 100_000
)

// mode is what the Follower does with a change.
type mode uint8

const (
	// catchingUp queues changes, and waits while the queue is full: after a start, after counting, and after a
	// time in which the follower yielded.
	catchingUp mode = iota
	// following queues changes. When the queue is full, they wait, until the follower has written
	// what is in it, or begins to count (overflow).
	following
	// counting counts outcomes. The offsets stay.
	counting
)

// queue has the changes that wait to be written. The tails put, the writer takes.
type queue struct {
	mu   sync.Mutex
	room sync.Cond
	// wake has a value when the queue is full.
	wake chan struct{}
	// most bounds the queued changes, and limit does at present: see throttle and widen.
	most, limit int

	mode    mode
	closed  bool // put waits for nothing
	changes map[schemas.TimerID]*Change
	// writing is the number of changes that were taken and are not written yet. They count as queued, so that the
	// tails read no faster than the follower writes.
	writing int
	read    []uint64 // by shard: the last revision that is in the queue or written
	arrived int      // changes since the last take
	// replaced is the number of queued changes that later ones have replaced since the last take.
	replaced int
	skipped  uint64
	// waited is true if a tail has waited for room while limit was below most, in mode following.
	waited bool
	// overlay has the outcomes that were only counted, and whose rows are not written yet.
	overlay map[overlayKey]int64
}

// overlayKey is a counter of outcomes while rows are not written.
type overlayKey struct {
	minute int64
	service
	state schemas.State
}

func newQueue(shards, most int) *queue {
	q := &queue{wake: make(chan struct{}, 1), most: most, limit: most, changes: map[schemas.TimerID]*Change{}, read: make([]uint64, shards), overlay: map[overlayKey]int64{}}
	q.room.L = &q.mu
	return q
}

// put queues a change, or counts it. The caller must not alter it afterwards.
func (q *queue) put(c *Change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrived++
	for _, queued := q.changes[c.ID]; !queued && len(q.changes)+q.writing >= q.limit && !q.closed; _, queued = q.changes[c.ID] {
		if len(q.changes) >= q.limit {
			select {
			case q.wake <- struct{}{}:
			default:
			}
		}
		if q.mode == counting {
			break
		}
		q.waited = q.waited || q.mode == following && q.limit < q.most
		q.room.Wait()
	}
	switch {
	case q.closed:
	case q.mode == counting:
		q.count(c)
	default:
		if q.changes[c.ID] != nil {
			q.replaced++
		}
		q.changes[c.ID] = c
		q.read[c.Shard] = c.Revision
	}
}

// passBy advances the revision of a shard past a record that has no row.
func (q *queue) passBy(shard int, revision uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mode != counting && !q.closed {
		q.read[shard] = revision
	}
}

// count counts the outcome of a timer whose row is not written.
func (q *queue) count(c *Change) {
	q.skipped++
	k, ok := overlayKeyOf(&c.Record)
	if _, known := q.overlay[k]; ok && (known || len(q.overlay) < maxOverlay) {
		q.overlay[k]++
	}
}

// uncount takes outcomes off the counted ones, because their rows are written. It leaves out changes after the revisions at
// which counting ended, by shard.
func (q *queue) uncount(written []*Change, ended []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mode != catchingUp || len(q.overlay) == 0 {
		return
	}
	for _, c := range written {
		if k, ok := overlayKeyOf(&c.Record); ok && c.Revision <= ended[c.Shard] && q.overlay[k] > 0 {
			q.overlay[k]--
		}
	}
}

// overlayKeyOf returns the counter of a record's outcome; ok is false for a record without an outcome that counts.
func overlayKeyOf(r *schemas.Record) (k overlayKey, ok bool) {
	if !r.State.Final() || r.Schedule != nil || r.DoneMs == 0 {
		return overlayKey{}, false
	}
	tenant, name := schemas.SplitService(r.Service)
	return overlayKey{r.DoneMs / minuteMs, service{tenant, name}, r.State}, true
}

// take takes at most n changes, of each shard those with the lowest revisions, and returns the revisions up to which
// they go, and the numbers of changes that have arrived and that were replaced since the last take. Call wrote once they
// are written.
func (q *queue) take(n int) (changes []*Change, read []uint64, arrived, replaced int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	read, arrived, replaced = slices.Clone(q.read), q.arrived, q.replaced
	if len(q.changes) <= n {
		changes = make([]*Change, 0, len(q.changes))
		for _, c := range q.changes {
			changes = append(changes, c)
		}
		clear(q.changes)
	} else {
		changes = q.takeLowest(n, read)
	}
	q.arrived, q.replaced, q.writing = 0, 0, len(changes)
	q.room.Broadcast() // in mode counting, and for changes of timers that are no longer queued
	return changes, read, arrived, replaced
}

// takeLowest takes at most n of the queued changes, which are more than n: from each shard a proportional part, with the
// lowest revisions. It lowers read to the revisions before the changes that stay.
func (q *queue) takeLowest(n int, read []uint64) []*Change {
	byShard := make([][]*Change, len(q.read))
	for _, c := range q.changes {
		byShard[c.Shard] = append(byShard[c.Shard], c)
	}
	changes := make([]*Change, 0, n)
	queued := len(q.changes)
	for shard, all := range byShard {
		slices.SortFunc(all, func(a, b *Change) int { return cmp.Compare(a.Revision, b.Revision) })
		taken := len(all) * n / queued
		for _, c := range all[:taken] {
			changes = append(changes, c)
			delete(q.changes, c.ID)
		}
		if taken < len(all) {
			read[shard] = all[taken].Revision - 1
		}
	}
	return changes
}

// wrote subtracts a number of taken changes from the queued ones: they were written, or the transaction failed.
func (q *queue) wrote(rows int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing -= min(rows, q.writing)
	q.room.Broadcast()
}

// giveBack puts changes back that could not be written, and the number of replaced ones.
func (q *queue) giveBack(changes []*Change, replaced int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.replaced += replaced
	for _, c := range changes {
		if newer, ok := q.changes[c.ID]; !ok || newer.Revision < c.Revision {
			q.changes[c.ID] = c
		}
	}
}

// begin empties the queue for tails that begin after the given revisions.
func (q *queue) begin(after []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mode, q.closed, q.waited, q.arrived = catchingUp, false, false, 0
	clear(q.changes)
	copy(q.read, after)
}

// end makes put return at once.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.room.Broadcast()
}

// throttle makes the queue smaller while the follower yields, so that the tails soon read no more than it writes. Reading
// a change costs CPU, and a change that waits in its stream may be replaced there.
func (q *queue) throttle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit = max(q.most/throttledShare, 1)
}

// widen gives a throttled queue room for more changes. The tails read them at once, so rows should be no more than the
// machine can read now.
func (q *queue) widen(rows int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if limit := min(q.limit+rows, q.most); limit != q.limit {
		q.limit = limit
		q.room.Broadcast()
	}
}

// isWhole reports whether the queue has its whole bound.
func (q *queue) isWhole() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.limit == q.most
}

// takeWaited returns waited and clears it.
func (q *queue) takeWaited() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	waited := q.waited
	q.waited = false
	return waited
}

// setMode changes the mode if it is from.
func (q *queue) setMode(from, to mode) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mode == from {
		if q.mode = to; to == following {
			clear(q.overlay)
		}
	}
}

// overflow begins to count if the queue is full.
func (q *queue) overflow() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mode == following && q.full() {
		q.mode = counting
		q.room.Broadcast()
	}
}

// full reports whether the queue has no room, or so little that the changes which the tails read after the last slice of
// a transaction fill it. q.mu is held.
func (q *queue) full() bool { return len(q.changes) >= q.limit-min(sliceRows, q.limit/8) }

// isFull reports whether the queue is full and has its whole bound. A queue that is still being widened has room soon.
func (q *queue) isFull() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.limit == q.most && q.full()
}

func (q *queue) state() (m mode, queued int, skipped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mode, len(q.changes), q.skipped
}
