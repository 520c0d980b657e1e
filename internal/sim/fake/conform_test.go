package fake_test

import (
	"context"
	"math"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
)

// The tests mostly wait, and run no server.
func TestMain(m *testing.M) {
	waittest.Parallel(16)
	os.Exit(m.Run())
}

// TestConformance runs the suite that the real store passes, too.
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Exercise(t, func(t *testing.T, change ...func(*store.Config)) storetest.Store { return open(t, change...) })
}

// local is a store for the suite. It carries out each request at once, and its servers use
// the host's clock.
type local struct {
	*fake.Client
	*store.Calendars
	mu     sync.Mutex
	server *fake.Server
	// changed is closed and replaced with every request.
	changed chan struct{}
	beating sync.Mutex
}

func open(t testing.TB, change ...func(*store.Config)) *local {
	cfg := store.Config{
		Geometry: storetest.Geometry, IndexKeep: store.DefaultIndexKeep, DedupWindow: store.DefaultDedupWindow,
		FiredMaxAge: store.DefaultFiredMaxAge, Retention: store.DefaultRetention,
	}
	for _, f := range change {
		f(&cfg)
	}
	l := &local{changed: make(chan struct{})}
	l.server = fake.NewServer(fake.Config{
		Geometry: cfg.Geometry, IndexKeep: cfg.IndexKeep, DedupWindow: cfg.DedupWindow, FiredMaxAge: cfg.FiredMaxAge, Retention: cfg.Retention,
		ShareIndex: true, MaxMessage: cfg.MaxPayload, Calendars: true, Flows: true, FarTicks: int64(time.Hour / cfg.Geometry.SlotWidth), FarLead: 2 * time.Hour,
	}, func(string) (int64, int64) {
		now := time.Now().UnixNano()
		return now, now
	})
	l.Client = fake.NewClient(l.server, l, "n1", func() int64 { return time.Now().UnixMilli() })
	l.Calendars = store.NewCalendars(l.Client, store.CopyClock{Now: time.Now, Pause: pause.For}, zerolog.Nop())
	return l
}

// Do implements fake.Transport.
func (l *local) Do(ctx context.Context, r fake.Request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	for _, step := range r.Steps {
		upTo := uint64(fake.NoLimit)
		if r.Direct {
			upTo = l.server.LastSeq(r.Stream)
		}
		err = step(upTo)
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return err
}

// Start implements fake.Transport.
func (l *local) Start(r fake.Request, done func(error)) { done(l.Do(context.Background(), r)) }

// Overwrite stores bytes as a client that is not Belfry may.
func (l *local) Overwrite(stream, subject string, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.server.Overwrite(stream, subject, data)
}

func (l *local) Beat(ctx context.Context) (store.Stamp, error) {
	l.beating.Lock()
	defer l.beating.Unlock()
	return l.BeatAt(ctx, time.Now)
}

// Tail follows a shard in a goroutine.
func (l *local) Tail(ctx context.Context, shard int, after uint64, fn func(store.Timer)) (*store.Tail, error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			l.mu.Lock()
			var got []store.Timer
			got, after = l.ReadTail(shard, after, l.server.LastSeq(fake.StreamShard(shard)), 100, math.MaxUint64)
			changed := l.changed
			l.mu.Unlock()
			for _, t := range got {
				if ctx.Err() != nil {
					return
				}
				fn(t)
			}
			if len(got) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return store.NewTail(cancel, done), nil
}

// WatchServices reports each feed that is woken.
func (l *local) WatchServices(ctx context.Context) (<-chan store.ServiceChange, error) {
	ch := make(chan store.ServiceChange)
	go func() {
		defer close(ch)
		for sent := 0; ; {
			l.mu.Lock()
			all, changed := l.server.Awake(), l.changed
			l.mu.Unlock()
			for ; sent < len(all); sent++ {
				select {
				case ch <- store.ServiceChange{Feed: all[sent], Awake: true}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ch, nil
}
