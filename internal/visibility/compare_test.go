package visibility

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// unseen removes the record of an event, as if its timer had ended and its final record had expired before a tail read it.
func (b *buckets) unseen(event string) {
	b.revision += 2
	delete(b.records, schemas.NewTimerID("/q", event))
}

// openIDs returns the event ids of the open entries.
func openIDs(t *testing.T, s searcher) (ids []string) {
	t.Helper()
	for _, e := range all(t, s, Query{States: openStates}) {
		ids = append(ids, e.Timer.ID)
	}
	slices.Sort(ids)
	return ids
}

// TestEndedUnseen: a follower that could not read the shards for longer than a record is kept removes the open entries whose
// records are gone, before its as-of time moves. The others stay, and count once.
func TestEndedUnseen(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		history time.Duration
		away    time.Duration
		// after are records that are stored after the time away.
		after []schemas.Record
	}{
		{"for longer than retention", 0, 2 * time.Hour, nil},
		{"for longer than history", 10 * time.Minute, 20 * time.Minute, nil},
		{"and changes follow", 0, 2 * time.Hour, []schemas.Record{recordAt("new", schemas.StatePaused, base+1), recordAt("moved", schemas.StatePending, base+5)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, b := startOptions(t, Options{most: 1000, History: c.history})
			b.putRecords(recordAt("gone", schemas.StatePending, base+1), recordAt("stays", schemas.StatePending, base+1), recordAt("moved", schemas.StatePending, base+1))
			waittest.Until(t, "three open entries", func() bool { return len(openIDs(t, v)) == 3 && v.Progress().AsOf.UnixMilli() == base })
			b.change(func() { b.failing = true })
			b.change(func() {
				b.unseen("gone")
				b.nowMs += c.away.Milliseconds()
				b.store(recordAt("moved", schemas.StatePending, base+3))
				b.failing = false
			})
			b.putRecords(c.after...)
			waittest.Until(t, "a new as-of time", func() bool { return v.Progress().AsOf.UnixMilli() > base }, func() string { return fmt.Sprintf("%+v", v.Progress()) })
			want := []string{"moved", "stays"}
			if c.after != nil {
				want = []string{"moved", "new", "stays"}
			}
			if got := openIDs(t, v); !slices.Equal(got, want) {
				t.Errorf("open entries are %v, want %v", got, want)
			}
			waittest.Until(t, "a follower that follows", func() bool { return !v.Progress().CatchingUp })
			counts, err := v.Counts(t.Context(), CountsQuery{From: time.UnixMilli(base), To: time.UnixMilli(base + 1)})
			if added := int64(10 + 1 + len(want)); err != nil || len(counts.Buckets) != 1 || counts.Buckets[0].Added != added {
				t.Errorf("got %+v and error %v, want %d added", counts, err, added)
			}
		})
	}
}

// TestStoppedUnseen: a follower that was stopped compares its open entries with the records if its as-of time is older than
// half of history or retention, however short that is.
func TestStoppedUnseen(t *testing.T) {
	t.Parallel()
	v, b := startOptions(t, Options{most: 1000, History: leastAway})
	b.putRecords(recordAt("gone", schemas.StatePending, base+1), recordAt("stays", schemas.StatePending, base+1))
	waittest.Until(t, "two open entries", func() bool { return len(openIDs(t, v)) == 2 && v.Progress().AsOf.UnixMilli() == base })
	v.Stop()
	b.change(func() {
		b.unseen("gone")
		b.nowMs += leastAway.Milliseconds() - 1
	})
	again, err := New(v.o)
	if err != nil {
		t.Fatal(err)
	}
	again.Start()
	t.Cleanup(again.Stop)
	waittest.Until(t, "a new as-of time", func() bool { return again.Progress().AsOf.UnixMilli() > base })
	if got := openIDs(t, again); !slices.Equal(got, []string{"stays"}) {
		t.Errorf("open entries are %v, want stays", got)
	}
}

// TestRebuildReadsOnce: an index without entries is not compared after its first read.
func TestRebuildReadsOnce(t *testing.T) {
	t.Parallel()
	v, b := startOptions(t, Options{most: 1000})
	waittest.Until(t, "an as-of time", func() bool { return !v.Progress().AsOf.IsZero() })
	if b.mu.Lock(); b.reads != 0 {
		t.Errorf("all records were read %d times more", b.reads)
	}
	b.mu.Unlock()
}

// TestShortRetention: if records are kept for so short a time that timers may end unseen while the follower keeps up, it
// compares the open entries with the records at intervals.
func TestShortRetention(t *testing.T) {
	t.Parallel()
	v, b := startOptions(t, Options{most: 1000, History: leastAway, compare: 20 * time.Millisecond})
	b.putRecords(recordAt("gone", schemas.StatePending, base+1), recordAt("stays", schemas.StatePending, base+1))
	waittest.Until(t, "two open entries", func() bool { return len(openIDs(t, v)) == 2 })
	b.change(func() { b.unseen("gone") })
	waittest.Until(t, "one open entry", func() bool { return slices.Equal(openIDs(t, v), []string{"stays"}) }, func() string { return fmt.Sprint(openIDs(t, v)) })
}

// failingStore is a store that cannot be written while err is set.
type failingStore struct {
	Store
	err error
}

// Write implements Store.
func (s *failingStore) Write(ctx context.Context, b Batch) error {
	if s.err != nil {
		return s.err
	}
	return s.Store.Write(ctx, b)
}

// TestCompare: an entry whose record has changed after the offset stays, because the tail brings the change. A store that
// cannot be written does not cost a read of the shard.
func TestCompare(t *testing.T) {
	t.Parallel()
	b := newBuckets()
	ids := []string{"gone", "same", "moved", "ended"}
	for _, id := range ids {
		b.putRecords(recordAt(id, schemas.StatePending, base+1))
	}
	st := &failingStore{Store: openTest(t, t.TempDir())}
	for _, r := range b.records {
		write(t, st, Change{ID: r.ID, Revision: r.Rev, StoredMs: base, Record: r.Record})
	}
	f := &follower{
		o: &Options{Buckets: b}, store: st, queue: newQueue(1, 10), log: zerolog.Nop(), target: make([]uint64, 1),
		offsets: []Offset{{Stream: "x", Revision: b.revision}},
	}
	b.change(func() { b.unseen("gone") })
	b.putRecords(recordAt("moved", schemas.StatePending, base+2), recordAt("ended", schemas.StateCancelled, base+1))
	st.err = errors.New("the disk is full")
	if compared, err := f.compare(t.Context(), 0); !errors.Is(err, st.err) || compared || b.reads != 0 {
		t.Errorf("a store that cannot be written: got %t and error %v, and %d reads", compared, err, b.reads)
	}
	st.err = nil
	f.queue.setMode(catchingUp, following)
	if compared, err := f.compare(t.Context(), 0); err != nil || !compared {
		t.Errorf("got %t and error %v", compared, err)
	}
	if got, want := openIDs(t, st), []string{"ended", "moved", "same"}; !slices.Equal(got, want) {
		t.Errorf("open entries are %v, want %v", got, want)
	}
	if m, _, _ := f.queue.state(); m != catchingUp {
		t.Errorf("mode %d, want %d: the queue may fill meanwhile, and that must not count", m, catchingUp)
	}
}
