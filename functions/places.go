package functions

import (
	"context"
	"slices"
	"sync"
)

// places shares out the total number of running callbacks.
//
// Each service owns guaranteed places that nobody else takes; the rest is
// shared, and a shared place that becomes free goes to the waiting service that
// runs the fewest. So services that hang on all that they may get leave every
// other at least its own places, at once and not after a time-out.
type places struct {
	mu         sync.Mutex
	total      int
	guaranteed int // places that each service owns
	sharedUsed int // places in use beyond the owned ones, over all services
	seats      []*seat
}

// seat is one service's part.
type seat struct {
	limit   int
	running int
	waiting []chan struct{} // each is closed when its place is granted
	// starved says that the service found no room and wants to be told.
	starved bool
	// wake are one-slot channels: a place may have become free.
	wake []chan struct{}
}

// maxGuaranteed bounds what a service owns: the rest is better shared.
const maxGuaranteed = 8

func newPlaces(total int) *places { return &places{total: total} }

// add makes room for one more service, which has wakers one-slot wake channels.
func (p *places) add(limit, wakers int) *seat {
	s := &seat{limit: limit}
	for range wakers {
		s.wake = append(s.wake, make(chan struct{}, 1))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seats = append(p.seats, s)
	p.share()
	return s
}

// resize changes how many callbacks of a seat may run. Those that run beyond a
// smaller limit go on.
func (p *places) resize(s *seat, limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.limit = limit
	p.grant()
	s.notify()
}

// remove takes back a seat that nobody uses any more.
func (p *places) remove(s *seat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.seats, s); i >= 0 {
		p.seats = slices.Delete(p.seats, i, i+1)
		p.share()
	}
}

// share divides the places anew: half of them, or one each, are owned.
func (p *places) share() {
	p.guaranteed = min(maxGuaranteed, max(1, p.total/(2*max(1, len(p.seats)))))
	p.sharedUsed = 0
	for _, s := range p.seats {
		p.sharedUsed += max(0, s.running-p.guaranteed)
	}
	p.grant()
}

// shared is the number of places that nobody owns.
func (p *places) shared() int { return max(0, p.total-p.guaranteed*len(p.seats)) }

// room is how many more callbacks of s could start now. If there is none, s is
// woken when there may be.
func (p *places) room(s *seat) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	busy := s.running + len(s.waiting)
	n := min(s.limit-busy, max(0, p.guaranteed-busy)+max(0, p.shared()-p.sharedUsed))
	s.starved = n <= 0
	return max(n, 0)
}

// running is the number of callbacks of s that hold a place.
func (p *places) busy(s *seat) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return s.running + len(s.waiting)
}

// acquire takes a place, waiting for it if need be. After nil, release follows.
func (p *places) acquire(ctx context.Context, s *seat) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.mu.Lock()
	if len(s.waiting) == 0 && p.free(s) {
		p.take(s)
		p.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	s.waiting = append(s.waiting, granted)
	p.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(s.waiting, granted)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	p.mu.Unlock()
	if i < 0 { // granted in between
		p.release(s)
	}
	return context.Cause(ctx)
}

// release gives a place back.
func (p *places) release(s *seat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.running > p.guaranteed {
		p.sharedUsed--
	}
	s.running--
	p.grant()
	s.notify()
	for _, o := range p.seats {
		if o.starved {
			o.starved = false
			o.notify()
		}
	}
}

func (s *seat) notify() {
	for _, w := range s.wake {
		select {
		case w <- struct{}{}:
		default: // it is to wake already
		}
	}
}

func (p *places) free(s *seat) bool {
	return s.running < s.limit && (s.running < p.guaranteed || p.sharedUsed < p.shared())
}

func (p *places) take(s *seat) {
	s.running++
	if s.running > p.guaranteed {
		p.sharedUsed++
	}
}

// grant hands free places to those who wait, fewest running first.
func (p *places) grant() {
	for {
		var best *seat
		for _, s := range p.seats {
			if len(s.waiting) > 0 && p.free(s) && (best == nil || s.running < best.running) {
				best = s
			}
		}
		if best == nil {
			return
		}
		p.take(best)
		close(best.waiting[0])
		best.waiting = slices.Delete(best.waiting, 0, 1)
	}
}
