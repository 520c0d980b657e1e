package publish

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a publisher and the stream that it writes to. No router reads the stream.
type fixture struct {
	*Publisher
	stream jetstream.Stream
}

func newFixture(t testing.TB, change func(*jetstream.StreamConfig), options ...natstest.Option) *fixture {
	t.Helper()
	nc := natstest.Run(t, options...).Connect()
	js := natstest.JetStream(t, nc)
	cfg := jetstream.StreamConfig{Name: schemas.StreamAdd, Subjects: []string{schemas.SubjectAdd}, Retention: jetstream.WorkQueuePolicy, AllowAtomicPublish: true}
	change(&cfg)
	f := &fixture{Publisher: New(nc, js)}
	var err error
	if f.stream, err = js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	return f
}

// recreate replaces the stream by an empty one, whose sequences start at 1.
func (f *fixture) recreate(t *testing.T) {
	t.Helper()
	cfg := f.stream.CachedInfo().Config
	if err := f.js.DeleteStream(t.Context(), cfg.Name); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.stream, err = f.js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

// check checks that the stream holds n different adds, and returns how many of them were
// stored in atomic batches.
func (f *fixture) check(t *testing.T, n int) (batched int) {
	t.Helper()
	info, err := f.stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != uint64(n) {
		t.Fatalf("%d adds are stored, not %d", info.State.Msgs, n)
	}
	seen := map[string]bool{}
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		m, err := f.stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(m.Data)] {
			t.Fatalf("add %.20s is stored twice", m.Data)
		}
		seen[string(m.Data)] = true
		if m.Header.Get("Nats-Batch-Id") != "" {
			batched++
		}
	}
	return batched
}

// always batches queued adds, whatever single publishes cost.
func (f *fixture) always() {
	f.adaptive.minSingleCost = 0
	f.adaptive.batching.Store(true)
}

// message returns the add number i. This package does not decode adds.
func message(i int) []byte { return []byte(fmt.Sprint(i)) }

// addAll adds n messages from first on, and returns the result of each. Some results are
// waited for twice.
func (f *fixture) addAll(t *testing.T, first, n int) []error {
	t.Helper()
	results := make([]*Result, n)
	for i := range n {
		var err error
		if results[i], err = f.Add(message(first + i)); err != nil {
			t.Fatal(err)
		}
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, r := range results {
		if i%3 == 0 {
			wg.Go(func() {
				if err := r.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		errs[i] = r.Wait(t.Context())
	}
	wg.Wait()
	return errs
}

// mustAddAll is addAll, and fails on an error.
func (f *fixture) mustAddAll(t *testing.T, first, n int) {
	t.Helper()
	for i, err := range f.addAll(t, first, n) {
		if err != nil {
			t.Errorf("add %d: %v", first+i, err)
		}
	}
}

func unchanged(*jetstream.StreamConfig) {}

// TestAddBatches: queued adds of several goroutines are stored in batches, each once, and
// those of one goroutine in order.
func TestAddBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t, unchanged)
	f.always()
	const n = 5000
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() { f.mustAddAll(t, g*n, n) })
	}
	wg.Wait()
	if batched := f.check(t, 4*n); batched < n {
		t.Errorf("%d of %d were stored in batches", batched, 4*n)
	}
	f.recreate(t)
	f.mustAddAll(t, 0, n)
	for i := range n {
		m, err := f.stream.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Data) != fmt.Sprint(i) {
			t.Fatalf("at position %d is %s", i, m.Data)
		}
	}
	// A single add does not wait for others.
	f.recreate(t)
	f.mustAddAll(t, 0, 1)
	if batched := f.check(t, 1); batched != 0 {
		t.Error("a single add was stored as a batch")
	}
}

// TestAddAllBatches: AddAll stores parts of 500 messages in batches, where batches are used, and
// a small rest by itself.
func TestAddAllBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t, unchanged)
	f.always()
	const n = 1510
	msgs := make([][]byte, n)
	for i := range msgs {
		msgs[i] = message(i)
	}
	if _, err := f.AddAll(t.Context(), msgs); err != nil {
		t.Fatal(err)
	}
	if batched := f.check(t, n); batched != 1500 {
		t.Errorf("%d of %d were stored in batches, want 1500", batched, n)
	}
}

// TestAddMeasures: batches start after a measurement, not before.
func TestAddMeasures(t *testing.T) {
	t.Parallel()
	f := newFixture(t, unchanged, natstest.SyncAlways)
	f.adaptive.minSingleCost = 1 // any cost is high
	if f.adaptive.batching.Load() {
		t.Error("batches before the first measurement")
	}
	total := 0
	for deadline := time.Now().Add(time.Minute); !f.adaptive.batching.Load(); total += 1000 {
		if time.Now().After(deadline) {
			t.Fatal("no batches")
		}
		f.mustAddAll(t, total, 1000)
	}
	f.check(t, total)
}

// TestAddOneRefused: an add that the stream refuses fails alone; the others of its batch are
// stored.
func TestAddOneRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 2000 })
	f.always()
	const n = 2000
	results := make([]*Result, n)
	bad := func(i int) bool { return i%500 == 321 }
	for i := range n {
		m := message(i)
		if bad(i) {
			m = make([]byte, 4000)
		}
		var err error
		if results[i], err = f.Add(m); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range results {
		if err := r.Wait(t.Context()); bad(i) != errors.Is(err, schemas.ErrTooLarge) || !bad(i) && err != nil {
			t.Errorf("add %d: %v", i, err)
		}
	}
	f.check(t, n-4)
	// A message over max_payload fails before it is published.
	if _, err := f.Add(make([]byte, 4<<20)); !errors.Is(err, schemas.ErrTooLarge) {
		t.Error(err)
	}
}

// TestAddWithoutBatches: a stream without atomic batches stores all adds, and the client
// stops trying batches.
func TestAddWithoutBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *jetstream.StreamConfig) { cfg.AllowAtomicPublish = false })
	f.always()
	f.mustAddAll(t, 0, 3000)
	if batched := f.check(t, 3000); batched != 0 {
		t.Errorf("%d were stored in batches", batched)
	}
	if !f.noBatches.Load() {
		t.Error("batches are tried again")
	}
}

// TestAddUnknown: when the connection closes, every Wait returns, with ErrUnavailable for
// adds without an answer.
func TestAddUnknown(t *testing.T) {
	t.Parallel()
	f := newFixture(t, unchanged)
	f.always()
	var results []*Result
	for i := range 3000 {
		if i == 2000 {
			f.nc.Close()
		}
		r, err := f.Add(message(i))
		switch {
		case err == nil:
			results = append(results, r)
		case !errors.Is(err, schemas.ErrUnavailable):
			t.Fatal(err)
		}
	}
	for i, r := range results {
		if err := r.Wait(t.Context()); err != nil && !errors.Is(err, schemas.ErrUnavailable) {
			t.Errorf("add %d: %v", i, err)
		}
	}
}

// BenchmarkAdd compares batches with single publishes, with and without a sync of every write.
func BenchmarkAdd(b *testing.B) {
	for _, c := range []struct {
		name    string
		options []natstest.Option
		singles bool
	}{
		{"safe/adaptive", []natstest.Option{natstest.SyncAlways}, false},
		{"safe/singles", []natstest.Option{natstest.SyncAlways}, true},
		{"fast/adaptive", nil, false},
		{"fast/singles", nil, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := newFixture(b, unchanged, c.options...)
			if c.singles {
				f.adaptive.minSingleCost = 1 << 62
			}
			data := []byte(strings.Repeat("x", 400))
			results := make([]*Result, b.N)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				var err error
				if results[i], err = f.Add(data); err != nil {
					b.Fatal(err)
				}
			}
			for _, r := range results {
				if err := r.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
