package functions

import (
	"context"
	"slices"
	"sync"
)

// semaphore is a fair semaphore: it divides the permits to run callbacks among services.
//
// Each service owns guaranteed permits, which no other service takes. All services share
// the other permits; a shared permit that is released goes to the waiting service with
// the fewest running callbacks. So services whose callees hang leave every other service
// at least its own permits, at once and not after a time-out.
type semaphore struct {
	mu         sync.Mutex
	total      int
	guaranteed int // permits that each service owns
	sharedUsed int // permits in use beyond the owned ones, over all services
	quotas     []*quota
}

// quota is the part of a semaphore that belongs to one service. Its fields are guarded by
// semaphore.mu.
type quota struct {
	limit   int // of running
	running int
	waiting []chan struct{} // each is closed when its waiter has a permit
	// wanted is true if the service found no free permit and must be woken when one is
	// released.
	wanted bool
	// wake are one-slot channels: a permit may be free.
	wake []chan struct{}
}

// maxGuaranteed bounds the permits that each service owns, so that most permits are shared.
const maxGuaranteed = 8

func newSemaphore(total int) *semaphore { return &semaphore{total: total} }

// add makes a quota for one more service, with wakers wake channels.
func (s *semaphore) add(limit, wakers int) *quota {
	q := &quota{limit: limit}
	for range wakers {
		q.wake = append(q.wake, make(chan struct{}, 1))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quotas = append(s.quotas, q)
	s.divide()
	return q
}

// resize changes how many callbacks of a service may run at once. Callbacks that run
// beyond a smaller limit go on.
func (s *semaphore) resize(q *quota, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.limit = limit
	s.serveWaiting()
	q.notify()
}

// remove removes a quota without callbacks.
func (s *semaphore) remove(q *quota) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.quotas, q); i >= 0 {
		s.quotas = slices.Delete(s.quotas, i, i+1)
		s.divide()
	}
}

// divide sets the number of guaranteed permits after a change of the quotas: half of all
// permits, or one for each service, are owned.
func (s *semaphore) divide() {
	s.guaranteed = min(maxGuaranteed, max(1, s.total/(2*max(1, len(s.quotas)))))
	s.sharedUsed = 0
	for _, q := range s.quotas {
		s.sharedUsed += max(0, q.running-s.guaranteed)
	}
	s.serveWaiting()
}

// shared returns the number of permits that no service owns.
func (s *semaphore) shared() int { return max(0, s.total-s.guaranteed*len(s.quotas)) }

// available returns how many more callbacks of a service could start now. If it returns
// 0, q.wake is signalled when that may have changed.
func (s *semaphore) available(q *quota) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	busy := q.running + len(q.waiting)
	n := min(q.limit-busy, max(0, s.guaranteed-busy)+max(0, s.shared()-s.sharedUsed))
	q.wanted = n <= 0
	return max(n, 0)
}

// busy returns the number of callbacks of a service that hold a permit or wait for one.
func (s *semaphore) busy(q *quota) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return q.running + len(q.waiting)
}

// acquire waits for a permit. If it returns nil, the caller must call release. Error: the
// cause of ctx.
func (s *semaphore) acquire(ctx context.Context, q *quota) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	if len(q.waiting) == 0 && s.free(q) {
		s.take(q)
		s.mu.Unlock()
		return nil
	}
	permit := make(chan struct{})
	q.waiting = append(q.waiting, permit)
	s.mu.Unlock()
	select {
	case <-permit:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(q.waiting, permit)
	if i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 { // the permit came at the same moment
		s.release(q)
	}
	return context.Cause(ctx)
}

// release returns a permit.
func (s *semaphore) release(q *quota) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.running > s.guaranteed {
		s.sharedUsed--
	}
	q.running--
	s.serveWaiting()
	q.notify()
	for _, o := range s.quotas {
		if o.wanted {
			o.wanted = false
			o.notify()
		}
	}
}

func (q *quota) notify() {
	for _, w := range q.wake {
		signal(w)
	}
}

// free reports whether a service may take a permit.
func (s *semaphore) free(q *quota) bool {
	return q.running < q.limit && (q.running < s.guaranteed || s.sharedUsed < s.shared())
}

func (s *semaphore) take(q *quota) {
	q.running++
	if q.running > s.guaranteed {
		s.sharedUsed++
	}
}

// serveWaiting passes free permits to waiters, first to those of the service with the
// fewest running callbacks.
func (s *semaphore) serveWaiting() {
	for {
		var best *quota
		for _, q := range s.quotas {
			if len(q.waiting) > 0 && s.free(q) && (best == nil || q.running < best.running) {
				best = q
			}
		}
		if best == nil {
			return
		}
		s.take(best)
		close(best.waiting[0])
		best.waiting = slices.Delete(best.waiting, 0, 1)
	}
}

// signal fills a one-slot channel.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default: // it is full already
	}
}
