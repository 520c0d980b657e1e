package visibility

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// buckets are buckets of one shard in memory: the last record of each timer, in the order of the
// revisions.
type buckets struct {
	mu       sync.Mutex
	changed  chan struct{}
	revision uint64
	records  map[schemas.TimerID]store.Timer
	// nowMs is the time of the server; it stands still. failing is true while Newest fails. reads is the number of reads of
	// all records.
	nowMs   int64
	failing bool
	reads   int
}

func newBuckets() *buckets {
	return &buckets{changed: make(chan struct{}), records: map[schemas.TimerID]store.Timer{}, nowMs: base}
}

// put stores timers that are done.
func (b *buckets) put(from, to int) {
	b.change(func() {
		for i := from; i < to; i++ {
			r := recordAt(fmt.Sprint(i), schemas.StateSuccess, base)
			r.FiredMs, r.DoneMs, r.Run = base, base, 1
			b.store(r)
		}
	})
}

// recordAt returns a record of an event that was added at base.
func recordAt(event string, state schemas.State, dueMs int64) schemas.Record {
	r := schemas.Record{Definition: schemas.Definition{Service: "s", Source: "/q", EventID: event, Type: "t", AddedMs: base}}
	r.State, r.DueMs = state, dueMs
	return r
}

// store stores a record. b.mu is held.
func (b *buckets) store(r schemas.Record) {
	b.revision++
	id := schemas.NewTimerID(r.Source, r.EventID)
	b.records[id] = store.Timer{ID: id, Rev: b.revision, StoredMs: base, Record: r}
}

// putRecords stores records.
func (b *buckets) putRecords(records ...schemas.Record) {
	b.change(func() {
		for _, r := range records {
			b.store(r)
		}
	})
}

// change changes the buckets, and then wakes the tails.
func (b *buckets) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *buckets) Geometry() schemas.Geometry {
	g := schemas.DefaultGeometry()
	g.Shards = 1
	return g
}

func (b *buckets) Retention() time.Duration { return time.Hour }

func (b *buckets) Newest(context.Context, int) (store.Newest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failing {
		return store.Newest{}, schemas.ErrUnavailable
	}
	return store.Newest{Stream: "x", LastSeq: b.revision, AtMs: b.nowMs}, nil
}

func (b *buckets) HasNext(_ context.Context, _ int, after uint64) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.records {
		if t.Rev > after {
			return true, nil
		}
	}
	return false, nil
}

func (b *buckets) EachRecord(_ context.Context, _ int, fn func(schemas.TimerID, uint64, bool)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	inOrder := func(t, u store.Timer) int { return cmp.Compare(t.Rev, u.Rev) }
	for _, t := range slices.SortedFunc(maps.Values(b.records), inOrder) {
		fn(t.ID, t.Rev, !t.Record.State.Final())
	}
	return nil
}

func (b *buckets) TailAtPace(ctx context.Context, _ int, after uint64, _ time.Duration, fn func(store.Timer), _ func(uint64)) (*store.Tail, error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			b.mu.Lock()
			changed := b.changed
			byRevision := map[uint64]store.Timer{}
			last := b.revision
			for _, t := range b.records {
				byRevision[t.Rev] = t
			}
			b.mu.Unlock()
			for ; after < last && ctx.Err() == nil; after++ {
				if t, ok := byRevision[after+1]; ok {
					fn(t)
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	return store.NewTail(cancel, done), nil
}

// startFollower starts a follower whose queue holds a number of changes at most, and waits until it has caught up with
// the ten timers in its buckets. spare returns the spare cores of the machine; nil: unknown.
func startFollower(t *testing.T, most int, spare func() (float64, bool)) (*Visibility, *buckets) {
	t.Helper()
	return startOptions(t, Options{Spare: spare, most: most})
}

// startOptions is startFollower with other options.
func startOptions(t *testing.T, o Options) (*Visibility, *buckets) {
	t.Helper()
	b := newBuckets()
	b.put(0, 10)
	o.Buckets, o.Folder, o.NowMs, o.Log = b, t.TempDir(), func() int64 { return base }, zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel)
	o.check, o.count = 20*time.Millisecond, 50*time.Millisecond
	v, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	v.Start()
	t.Cleanup(v.Stop)
	waittest.Until(t, "a follower that has caught up", func() bool { return !v.Progress().CatchingUp && v.Progress().Rows == 10 })
	return v, b
}

// TestCountsThenCatchesUp: when more timers change than the queue holds, the follower counts their
// outcomes, blocks nobody and says so; then it reads the rest, and has everything once.
func TestCountsThenCatchesUp(t *testing.T) {
	t.Parallel()
	v, b := startFollower(t, 100, nil)
	b.put(10, 5000)
	waittest.Until(t, "changes that are only counted", func() bool { return v.Progress().Skipped > 0 })
	waittest.Until(t, "all entries", func() bool {
		c, err := v.Counts(t.Context(), CountsQuery{From: time.UnixMilli(base), To: time.UnixMilli(base + 1)})
		if err != nil || len(c.Buckets) != 1 || c.Buckets[0].Done[schemas.StateSuccess] > 5000+100 { // a transaction may end meanwhile
			t.Fatalf("got %+v and error %v, want at most 5000 outcomes", c, err)
		}
		p := v.Progress()
		return p.Rows == 5000 && !p.CountsOnly && !p.CatchingUp && p.Behind == 0
	}, func() string { return fmt.Sprintf("%+v", v.Progress()) })
	c, err := v.Counts(t.Context(), CountsQuery{From: time.UnixMilli(base), To: time.UnixMilli(base + 1)})
	if err != nil || len(c.Buckets) != 1 || c.Buckets[0].Done[schemas.StateSuccess] != 5000 || c.Buckets[0].Added != 5000 {
		t.Errorf("got %+v and error %v, want one bucket of 5000", c, err)
	}
}

// TestCountedOnce: while the follower reads the changes that it only counted, each outcome counts once: as counted, or by its row.
func TestCountedOnce(t *testing.T) {
	t.Parallel()
	q := newQueue(1, 1)
	q.setMode(catchingUp, following)
	change := func(revision uint64) *Change {
		r := recordAt(fmt.Sprint(revision), schemas.StateSuccess, base)
		r.DoneMs = base
		return &Change{ID: schemas.NewTimerID("/c", fmt.Sprint(revision)), Revision: revision, Record: r}
	}
	counted := func() (n int64) {
		c := Counts{}
		q.addTo(&c, &CountsQuery{From: time.UnixMilli(base), To: time.UnixMilli(base + 1)})
		for _, b := range c.Buckets {
			n += b.Done[schemas.StateSuccess]
		}
		return n
	}
	q.put(change(1))
	q.overflow()
	ended := []uint64{4}
	for revision := range uint64(3) {
		q.put(change(revision + 2))
	}
	for _, step := range []struct {
		name string
		do   func()
		want int64
	}{
		{"counted", func() {}, 3},
		{"the change before them is written", func() { q.uncount([]*Change{change(1)}, ended) }, 3},
		{"they are read again", func() { q.begin([]uint64{1}) }, 3},
		{"two are written", func() { q.uncount([]*Change{change(2), change(3)}, ended) }, 1},
		{"a later change is written", func() { q.uncount([]*Change{change(5)}, ended) }, 1},
		{"the last is written", func() { q.uncount([]*Change{change(4)}, ended) }, 0},
		{"another change, which is not counted", func() { q.uncount([]*Change{change(4)}, ended) }, 0},
	} {
		step.do()
		if n := counted(); n != step.want {
			t.Errorf("%s: %d outcomes are counted only, want %d", step.name, n, step.want)
		}
	}
}

// TestCoalesce: the queue has the last change of a timer only.
func TestCoalesce(t *testing.T) {
	t.Parallel()
	q := newQueue(1, 10)
	for revision := range uint64(1000) {
		q.put(&Change{ID: schemas.NewTimerID("/a", fmt.Sprint(revision%5)), Revision: revision + 1})
	}
	first, _, _, replaced := q.take(2)
	if len(first) != 2 || replaced != 995 {
		t.Errorf("got %d changes, and %d replaced ones, want 2 and 995", len(first), replaced)
	}
	changes, read, arrived, replaced := q.take(math.MaxInt)
	if changes = append(changes, first...); len(changes) != 5 || read[0] != 1000 || arrived != 0 || replaced != 0 {
		t.Errorf("got %d changes up to %v, %d more and %d replaced ones, want 5 up to 1000, and no others", len(changes), read, arrived, replaced)
	}
	for _, c := range changes {
		if c.Revision <= 995 {
			t.Errorf("%s: got revision %d, want the last", c.ID, c.Revision)
		}
	}
}

// putAll puts n changes one after the other, and returns a channel that has an element for each that was put.
func putAll(q *queue, n int) (put chan int) {
	put = make(chan int, n)
	go func() {
		for i := range n {
			q.put(&Change{ID: schemas.NewTimerID("/w", fmt.Sprint(i)), Revision: uint64(i) + 1})
			put <- i
		}
	}()
	return put
}

// TestQueueWhileWriting: while the follower writes, the queue has room only for as many changes as are written.
func TestQueueWhileWriting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 10
		q := newQueue(1, most)
		put := putAll(q, 3*most)
		want := func(n int) {
			t.Helper()
			synctest.Wait()
			if len(put) != n {
				t.Fatalf("%d changes were put, want %d", len(put), n)
			}
		}
		want(most)
		q.take(math.MaxInt)
		want(most)
		q.wrote(3)
		want(most + 3)
		q.wrote(most) // the rest, although it was given more
		want(2 * most)
		q.end()
		want(3 * most)
	})
}

// TestQueueThrottled: while it is throttled, a queue has room for a part of its changes only. The changes in it stay.
func TestQueueThrottled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most, limit = 10 * throttledShare, 10
		q := newQueue(1, most)
		put := putAll(q, 3*most)
		step := func(what string, do func(), want int) {
			t.Helper()
			do()
			synctest.Wait()
			if len(put) != want {
				t.Fatalf("%s: %d changes were put, want %d", what, len(put), want)
			}
		}
		step("at first", func() {}, most)
		step("throttled", q.throttle, most)
		step("a part is written", func() { q.take(most - limit + 2); q.wrote(most) }, most+2)
		step("wider", func() { q.widen(limit) }, most+limit+2)
		if q.isFull() {
			t.Error("a queue that is still being widened counts as full")
		}
		step("no longer throttled", func() { q.widen(2 * most) }, 2*most-limit+2)
		if !q.isFull() {
			t.Error("a queue with its whole bound of changes does not count as full")
		}
		step("the end", q.end, 3*most)
	})
}

// sliceTook is the time that slicedStore needs for a slice.
const sliceTook = 500 * time.Microsecond

// slicedStore is a store whose slices take sliceTook each.
type slicedStore struct{ Store }

func (slicedStore) Write(_ context.Context, b Batch) error {
	for i := range len(b.Changes) / sliceRows {
		time.Sleep(sliceTook)
		if (i+1)*sliceRows < len(b.Changes) && b.Between != nil {
			b.Between(sliceRows)
		}
	}
	return nil
}

// TestWritePauses: a batch is written with the pauses that the duty demands, and without them when the node stops.
func TestWritePauses(t *testing.T) {
	t.Parallel()
	const slices = 100
	for _, c := range []struct {
		name            string
		paced, stopping bool
		want            time.Duration
	}{
		{"paced", true, false, sliceTook + (slices-1)*20*sliceTook}, // minDuty is a twentieth
		{"the node is about to stop", true, true, slices * sliceTook},
		{"the last write of a node", false, false, slices * sliceTook},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, err := newMetrics(nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			f := &follower{
				o: &Options{metrics: m}, store: slicedStore{}, queue: newQueue(1, slices*sliceRows),
				offsets: make([]Offset, 1), asOf: make([]asOf, 1), rowCost: time.Microsecond, // so that one transaction may have all
				pace: pacer{duty: minDuty, looked: time.Now().Add(time.Hour)},
			}
			for i := range slices * sliceRows {
				f.queue.put(&Change{ID: schemas.NewTimerID("/w", fmt.Sprint(i)), Revision: uint64(i) + 1})
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.stopping {
				cancel()
			}
			begun := time.Now()
			if err := f.writeQueued(ctx, c.paced); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begun); took != c.want {
				t.Errorf("%s: %d slices took %s, want %s", c.name, slices, took, c.want)
			}
			if next := time.Until(f.pace.next); next != 19*sliceTook && c.paced && !c.stopping {
				t.Errorf("%s: the next transaction begins in %s, want %s after the last slice", c.name, next, 19*sliceTook)
			}
			if f.queue.writing != 0 {
				t.Errorf("%s: %d changes count as not written", c.name, f.queue.writing)
			}
		})
	}
}

// TestTakeLowest: a part of the queue has the changes with the lowest revisions of each shard, and exactly those up to
// the revisions that take returns.
func TestTakeLowest(t *testing.T) {
	t.Parallel()
	const shards, most = 3, 1000
	rng := rand.New(rand.NewPCG(7, 8))
	for range 50 {
		q := newQueue(shards, most)
		newest := make([]uint64, shards)
		for i := range rng.IntN(most) {
			shard := rng.IntN(shards)
			newest[shard] += 1 + rng.Uint64N(3)
			q.put(&Change{Shard: shard, ID: schemas.NewTimerID("/t", fmt.Sprint(shard, i%700)), Revision: newest[shard]})
		}
		queued, before := len(q.changes), make([]uint64, shards)
		for queued > 0 {
			n := 1 + rng.IntN(300)
			changes, read, _, _ := q.take(n)
			if len(changes) > n || queued > n && len(changes) < n-shards {
				t.Fatalf("%d of %d changes taken, want %d", len(changes), queued, min(n, queued))
			}
			for _, c := range changes {
				if c.Revision <= before[c.Shard] || c.Revision > read[c.Shard] {
					t.Fatalf("shard %d: revision %d taken, want one after %d and up to %d", c.Shard, c.Revision, before[c.Shard], read[c.Shard])
				}
			}
			for _, c := range q.changes {
				if c.Revision <= read[c.Shard] {
					t.Fatalf("shard %d: revision %d is left, and was to be taken with those up to %d", c.Shard, c.Revision, read[c.Shard])
				}
			}
			before, queued = read, len(q.changes)
			q.wrote(len(changes))
		}
		for shard := range newest {
			if before[shard] != newest[shard] {
				t.Errorf("shard %d: all is taken up to revision %d, want %d", shard, before[shard], newest[shard])
			}
		}
	}
}
