package visibility

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const (
	// boundEnv is the number of timers that end in TestBound, 6,000 by default.
	boundEnv = "BELFRY_VISIBILITY_ENDED"
	// boundBytesEnv is history-bytes in TestBound with boundEnv, 16 MiB by default.
	boundBytesEnv = "BELFRY_VISIBILITY_BYTES"
	// boundBytes is history-bytes in TestBound: so much that a default run exceeds it. boundBytesLong is the default with boundEnv.
	boundBytes, boundBytesLong = 3 << 19, 16 << 20
	// boundBatch is the number of timers that end at a time.
	boundBatch = 1000
)

// endless are buckets of one shard, in which timers end that nobody keeps: a tail gets each of them once. The
// follower is catching up to the last of them, so it reads no faster than it can write.
type endless struct {
	buckets
	timers *benchTimers
	ended  chan []store.Timer
}

func (e *endless) TailAtPace(ctx context.Context, _ int, after uint64, _ time.Duration, fn func(store.Timer), _ func(uint64)) (*store.Tail, error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case batch := <-e.ended:
				for _, t := range batch {
					fn(t)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return store.NewTail(cancel, done), nil
}

// end ends the timers from..to-1.
func (e *endless) end(ctx context.Context, from, to int) {
	batch := make([]store.Timer, 0, to-from)
	for i := from; i < to; i++ {
		c := e.timers.change(i)
		batch = append(batch, store.Timer{ID: c.ID, Rev: c.Revision, StoredMs: c.StoredMs, Record: c.Record})
	}
	select {
	case e.ended <- batch:
	case <-ctx.Done():
	}
}

// TestBound: while timers end without a pause, the file does not exceed history-bytes by more than what is
// written between two looks at its size, memory stays, and searches are answered while entries are removed. It logs
// sizes and times.
func TestBound(t *testing.T) {
	testsize.NotShort(t, "thousands of writes")
	testsize.NotRace(t, "thousands of writes")
	t.Parallel()
	count, bound, lines, cadence := 6000, int64(boundBytes), 4, 100*time.Millisecond
	if text := os.Getenv(boundEnv); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		bound, lines, cadence = boundBytesLong, 20, 0
		if text := os.Getenv(boundBytesEnv); text != "" {
			if bound, err = strconv.ParseInt(text, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	e := &endless{buckets: buckets{revision: uint64(count)}, timers: &benchTimers{rand.New(rand.NewPCG(4, 4)), count}, ended: make(chan []store.Timer)}
	folder := t.TempDir()
	v, err := New(Options{
		Buckets: e, Folder: folder, HistoryBytes: bound, History: 1000 * time.Hour, NowMs: func() int64 { return base + benchSpan }, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
		check: 100 * time.Millisecond, prune: cadence,
	})
	if err != nil {
		t.Fatal(err)
	}
	v.Start()
	t.Cleanup(v.Stop)
	begun := time.Now()
	var times []time.Duration
	var largest, pruned int64
	for i := 0; i < count; i += boundBatch {
		e.end(t.Context(), i, min(i+boundBatch, count))
		asked := time.Now()
		if _, err := v.Search(t.Context(), Query{Sort: SortDone, Descending: true, Limit: MaxLimit}); err == nil {
			times = append(times, time.Since(asked))
		} else if schemas.CodeOf(err) != schemas.CodeUnavailable || i > 10*boundBatch {
			t.Fatal(err)
		}
		p := v.Progress()
		largest = max(largest, p.Bytes)
		if (i/boundBatch+1)%(max(count/boundBatch/lines, 1)) == 0 {
			t.Logf("%8d ended after %4.0f s: %8d entries, file %4d MB, log %4d MB, memory %s", i+boundBatch, time.Since(begun).Seconds(), p.Rows, sizeMB(folder, fileName), sizeMB(folder, fileName+"-wal"), residentMB())
		}
	}
	waittest.UntilWithin(t, 4*waittest.Bound, "entries within history-bytes", func() bool {
		p := v.Progress()
		largest = max(largest, p.Bytes)
		pruned = int64(count) - p.Rows
		v.use.RLock()
		defer v.use.RUnlock()
		used, err := v.store.(*sqlStore).used(t.Context())
		return err == nil && used <= bound && pruned > 0 && p.Behind == 0
	}, func() string { return fmt.Sprintf("%+v", v.Progress()) })
	slices.Sort(times)
	t.Logf("%d of %d entries removed, largest size of file and log %d MB; a search took %s (median) and %s (longest) meanwhile; changes that were counted only: %d",
		pruned, count, largest>>20, times[len(times)/2].Round(time.Microsecond), times[len(times)-1].Round(time.Microsecond), v.Progress().Skipped)
	if most := 2*bound + maxLog; largest > most {
		t.Errorf("the file and its log took %d bytes, want at most %d", largest, most)
	}
}

// slowStore is a store that is always too large, and takes two seconds to remove pruneAtOnce entries.
type slowStore struct {
	Store
	removed int
}

func (s *slowStore) Prune(context.Context, int64, int64) (removed int, more bool, err error) {
	<-time.After(2 * writePace)
	s.removed += pruneAtOnce
	return pruneAtOnce, true, nil
}

// TestPrunesMoreThanItWrites: of a store that is too large, more entries are removed than were written since, however slow
// it is; and no longer than writePace if none were.
func TestPrunesMoreThanItWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, err := newMetrics(nil, func() Progress { return Progress{} })
		if err != nil {
			t.Fatal(err)
		}
		st := &slowStore{}
		f := &follower{queue: newQueue(1, maxQueued), o: &Options{NowMs: func() int64 { return base }, metrics: m}, store: st, grown: 5 * pruneAtOnce}
		if err := f.prune(t.Context()); err != nil || st.removed != 6*pruneAtOnce {
			t.Errorf("got %d entries removed and error %v, want %d", st.removed, err, 6*pruneAtOnce)
		}
		if err := f.prune(t.Context()); err != nil || st.removed != 7*pruneAtOnce {
			t.Errorf("got %d entries removed and error %v, want %d", st.removed, err, 7*pruneAtOnce)
		}
	})
}

// sizeMB returns the size of a file in MB; 0 if it is missing.
func sizeMB(folder, name string) int64 {
	info, err := os.Stat(filepath.Join(folder, name))
	if err != nil {
		return 0
	}
	return info.Size() >> 20
}

// residentMB returns the resident memory of this process; "unknown" where the system does not say.
func residentMB() string {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return "unknown"
	}
	fields := strings.Fields(string(b))
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%d MB", pages*os.Getpagesize()>>20)
}
