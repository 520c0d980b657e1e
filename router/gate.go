package router

import "sync"

// tenantShare is the part of the permits of one kind that a tenant can hold: a quarter.
const tenantShare = 4

// permits bound the operations of one kind, and the operations of each tenant to its share, so that no
// tenant can take all permits.
type permits struct {
	all chan struct{}

	mu sync.Mutex
	// held counts the permits of tenants; the default tenant has no share.
	held map[string]int
}

func newPermits(n int) *permits {
	return &permits{all: make(chan struct{}, n), held: map[string]int{}}
}

// take takes a permit for a tenant; "" is the default tenant.
func (p *permits) take(tenant string) bool {
	if !p.count(tenant) {
		return false
	}
	select {
	case p.all <- struct{}{}:
		return true
	default:
		p.discount(tenant)
		return false
	}
}

func (p *permits) release(tenant string) {
	<-p.all
	p.discount(tenant)
}

func (p *permits) count(tenant string) bool {
	if tenant == "" {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[tenant] >= p.most(tenant) {
		return false
	}
	p.held[tenant]++
	return true
}

func (p *permits) discount(tenant string) {
	if tenant == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[tenant]--; p.held[tenant] == 0 {
		delete(p.held, tenant)
	}
}

// most is the number of permits that a tenant can hold.
func (p *permits) most(tenant string) int {
	if tenant == "" {
		return cap(p.all)
	}
	return max(cap(p.all)/tenantShare, 1)
}

// used is the number of permits that are held.
func (p *permits) used() int { return len(p.all) }

// gate counts the operations under way, and admits none after close. A WaitGroup alone is not
// enough, because its Add must not run concurrently with Wait.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

func (g *gate) leave() { g.inside.Done() }

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// wait waits for the operations under way, after close.
func (g *gate) wait() { g.inside.Wait() }
