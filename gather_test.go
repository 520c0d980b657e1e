package belfry_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// addAll adds events by AddAsync and returns what came of each.
func addAll(t *testing.T, c *belfry.Client, first, n int) []error {
	t.Helper()
	pending := make([]belfry.Pending, n)
	for i := range n {
		var err error
		if pending[i], err = c.AddAsync(newEvent(fmt.Sprint(first+i)), belfry.After(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, p := range pending {
		if i%3 == 0 { // some are waited for by two
			wg.Go(func() {
				if err := p.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		errs[i] = p.Wait(t.Context())
	}
	wg.Wait()
	return errs
}

func TestAddAsyncGathers(t *testing.T) {
	t.Parallel()
	c, s := addStream(t, func(*jetstream.StreamConfig) {})
	c.GatherAlways()
	const n = 5000
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i, err := range addAll(t, c, worker*n, n) {
				if err != nil {
					t.Errorf("add %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if batched := stored(t, s, 4*n); batched < n {
		t.Errorf("%d of %d came in batches", batched, 4*n)
	}
	// They are stored in the order in which they were added.
	s = fresh(t, c, s)
	for i, err := range addAll(t, c, 0, n) {
		if err != nil {
			t.Errorf("add %d: %v", i, err)
		}
	}
	for i := range n {
		m, err := s.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if _, spec, err := schemas.ParseAdd(m.Header, m.Data, m.Time.UnixMilli(), schemas.Limits{}); err != nil || spec.EventID != fmt.Sprint(i) {
			t.Fatalf("in place %d is %s; %v", i, spec.EventID, err)
		}
	}
	// One alone is not held up by waiting for others.
	s = fresh(t, c, s)
	if errs := addAll(t, c, 0, 1); errs[0] != nil {
		t.Error(errs[0])
	}
	if batched := stored(t, s, 1); batched != 0 {
		t.Error("one add made a batch")
	}
}

// TestAddAsyncLearns: whether adds gather is found out by what they take.
func TestAddAsyncLearns(t *testing.T) {
	t.Parallel()
	c, s := addStream(t, func(*jetstream.StreamConfig) {}, natstest.SyncAlways)
	if c.Gathers() {
		t.Error("gathers before anything is known")
	}
	c.GatherFrom()
	total := 0
	deadline := time.Now().Add(time.Minute)
	for !c.Gathers() {
		if time.Now().After(deadline) {
			t.Fatal("does not gather")
		}
		for _, err := range addAll(t, c, total, 1000) {
			if err != nil {
				t.Fatal(err)
			}
		}
		total += 1000
	}
	stored(t, s, total)
}

// TestAddAsyncOneRefused: one that the stream refuses is told so, and stops none
// of those that it was gathered with.
func TestAddAsyncOneRefused(t *testing.T) {
	t.Parallel()
	c, s := addStream(t, func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 2000 })
	c.GatherAlways()
	const n = 2000
	pending := make([]belfry.Pending, n)
	bad := func(i int) bool { return i%500 == 321 }
	for i := range n {
		e := newEvent(fmt.Sprint(i))
		if bad(i) {
			if err := e.SetData("text/plain", make([]byte, 4000)); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if pending[i], err = c.AddAsync(e, belfry.After(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range pending {
		if err := p.Wait(t.Context()); bad(i) != errors.Is(err, belfry.ErrTooLarge) || !bad(i) && err != nil {
			t.Errorf("add %d: %v", i, err)
		}
	}
	stored(t, s, n-4)
	// Too large for the connection: known at once.
	e := newEvent("huge")
	if err := e.SetData("text/plain", make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AddAsync(e, belfry.After(time.Hour)); !errors.Is(err, belfry.ErrTooLarge) {
		t.Error(err)
	}
}

// TestAddAsyncWithoutBatches: a stream that knows no atomic batches takes all the
// same, and is not asked again.
func TestAddAsyncWithoutBatches(t *testing.T) {
	t.Parallel()
	c, s := addStream(t, func(cfg *jetstream.StreamConfig) { cfg.AllowAtomicPublish = false })
	c.GatherAlways()
	for i, err := range addAll(t, c, 0, 3000) {
		if err != nil {
			t.Errorf("add %d: %v", i, err)
		}
	}
	if batched := stored(t, s, 3000); batched != 0 {
		t.Errorf("%d came in batches", batched)
	}
}

// TestAddAsyncUnknown: with the connection gone, what was not acknowledged is told
// to be unknown, and nothing waits for ever.
func TestAddAsyncUnknown(t *testing.T) {
	t.Parallel()
	c, _ := addStream(t, func(*jetstream.StreamConfig) {})
	c.GatherAlways()
	var pending []belfry.Pending
	for i := range 3000 {
		if i == 2000 {
			c.Conn().Close()
		}
		p, err := c.AddAsync(newEvent(fmt.Sprint(i)), belfry.After(time.Hour))
		switch {
		case err == nil:
			pending = append(pending, p)
		case !errors.Is(err, belfry.ErrUnavailable):
			t.Fatal(err)
		}
	}
	for i, p := range pending {
		if err := p.Wait(t.Context()); err != nil && !errors.Is(err, belfry.ErrUnavailable) {
			t.Errorf("add %d: %v", i, err)
		}
	}
}
