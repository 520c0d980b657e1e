package functions

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/waittest"
)

func TestSemaphoreGuaranteeEachServiceItsOwn(t *testing.T) {
	t.Parallel()
	p := newSemaphore(32)
	var hung []*quota
	for range 4 {
		hung = append(hung, p.add(32, 1))
	}
	late := p.add(32, 1)
	total := 0
	for _, s := range hung { // four services take all permits that they can get
		for n := p.available(s); n > 0; n = p.available(s) {
			if err := p.acquire(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			total++
		}
	}
	own := p.guaranteed
	if own < 1 || total != 32-own {
		t.Fatalf("the hung services have %d permits, of which each owns %d", total, own)
	}
	if got := p.available(late); got != own {
		t.Fatalf("%d permits are available to the late service, want %d", got, own)
	}
	for range own {
		if err := p.acquire(t.Context(), late); err != nil {
			t.Fatal(err)
		}
	}
	if p.available(late) != 0 {
		t.Fatal("more permits than the total are available")
	}
	p.release(hung[0])
	waittest.Receive(t, "the service that waits is woken", late.wake[0])
	if p.available(late) != 1 {
		t.Fatal("a released permit is not available")
	}
}

func TestSemaphoreGoToTheServiceThatRunsFewest(t *testing.T) {
	t.Parallel()
	p := newSemaphore(8)
	a, b := p.add(8, 1), p.add(8, 1)
	for range 8 - p.guaranteed { // a uses its own and all shared permits
		if err := p.acquire(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for range p.guaranteed {
		if err := p.acquire(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string, 2)
	var wg sync.WaitGroup
	for name, s := range map[string]*quota{"a": a, "b": b} {
		wg.Go(func() {
			if err := p.acquire(t.Context(), s); err == nil {
				got <- name
			}
		})
	}
	waittest.Until(t, "both wait", func() bool { return p.busy(a)+p.busy(b) == 10 })
	p.release(a)
	if first := <-got; first != "b" {
		t.Fatalf("%s got the permit", first)
	}
	p.release(a)
	wg.Wait()
}

func TestSemaphoreMoreServicesThanPlaces(t *testing.T) {
	t.Parallel()
	p := newSemaphore(2)
	for range 10 {
		s := p.add(4, 1)
		if p.available(s) < 1 {
			t.Fatal("a service has no permit")
		}
		if err := p.acquire(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSemaphoreCancelledWait(t *testing.T) {
	t.Parallel()
	p := newSemaphore(1)
	s := p.add(1, 1)
	if err := p.acquire(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.acquire(ctx, s) }()
	waittest.Until(t, "it waits", func() bool { return p.busy(s) == 2 })
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Fatal(err)
	}
	p.release(s)
	if p.available(s) != 1 || p.busy(s) != 0 {
		t.Fatal("the cancelled wait still has a permit or a place in the queue")
	}
}

// TestSemaphoreRandom: random acquires and releases never exceed a limit and never lose a
// permit.
func TestSemaphoreRandom(t *testing.T) {
	t.Parallel()
	p := newSemaphore(20)
	var wg sync.WaitGroup
	quotas := make([]*quota, 6)
	for i := range quotas {
		quotas[i] = p.add(5, 1)
	}
	for w := range 60 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range 200 {
				s := quotas[rng.IntN(len(quotas))]
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(2000))*time.Microsecond)
				if p.acquire(ctx, s) == nil {
					p.mu.Lock()
					total := 0
					for _, x := range quotas {
						total += x.running
						if x.running > x.limit {
							t.Error("more permits in use than the service's limit")
						}
					}
					if total > 20 {
						t.Errorf("%d permits are in use, want at most the total", total)
					}
					p.mu.Unlock()
					p.release(s)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for _, s := range quotas {
		if p.busy(s) != 0 {
			t.Fatal("permits were lost")
		}
	}
	if p.sharedUsed != 0 {
		t.Fatalf("%d shared permits are in use, want 0", p.sharedUsed)
	}
}
