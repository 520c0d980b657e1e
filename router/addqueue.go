package router

import (
	"slices"
	"sync"
)

// addQueue holds the adds of waiting callers until a group is free. Each tenant has a queue. take
// serves the tenants with adds round robin, one add at a time, so a tenant with many adds delays
// the adds of other tenants by at most one group. The default tenant counts as one tenant.
//
// MaxAdds bounds the adds in the queue. One goroutine calls wait and take; the other methods are
// safe for concurrent use.
type addQueue struct {
	mu     sync.Mutex
	filled sync.Cond // signalled when the queue gets its first add, and by close
	closed bool
	size   int
	// tenants has an entry for each tenant that ever had an add. turns has the tenants with adds;
	// turns[turn] is the next to be served.
	tenants map[string]*tenantAdds
	turns   []*tenantAdds
	turn    int
}

// tenantAdds are the adds of one tenant, oldest first from adds[served].
type tenantAdds struct {
	adds   []*Add
	served int
}

func newAddQueue() *addQueue {
	q := &addQueue{tenants: map[string]*tenantAdds{}}
	q.filled.L = &q.mu
	return q
}

// put adds an add at the end of its tenant's.
func (q *addQueue) put(a *Add) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.tenants[a.Tenant]
	if t == nil {
		t = &tenantAdds{}
		q.tenants[a.Tenant] = t
	}
	if t.waiting() == 0 {
		q.turns = append(q.turns, t)
	}
	t.push(a)
	if q.size++; q.size == 1 {
		q.filled.Signal()
	}
}

// wait waits for an add, and returns false after close when there is none left.
func (q *addQueue) wait() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.size == 0 && !q.closed {
		q.filled.Wait()
	}
	return q.size > 0
}

// take removes up to most adds.
func (q *addQueue) take(most int) []*Add {
	q.mu.Lock()
	defer q.mu.Unlock()
	group := make([]*Add, 0, min(q.size, most))
	for len(group) < cap(group) {
		if q.turn >= len(q.turns) {
			q.turn = 0
		}
		t := q.turns[q.turn]
		group = append(group, t.pop())
		if t.waiting() == 0 {
			q.turns = slices.Delete(q.turns, q.turn, q.turn+1)
		} else {
			q.turn++
		}
	}
	q.size -= len(group)
	return group
}

// close lets wait return false when the queue is empty.
func (q *addQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Signal()
}

func (t *tenantAdds) waiting() int { return len(t.adds) - t.served }

// push reuses the space of served adds before it grows.
func (t *tenantAdds) push(a *Add) {
	if t.served > 0 && len(t.adds) == cap(t.adds) {
		t.adds = slices.Delete(t.adds, 0, t.served)
		t.served = 0
	}
	t.adds = append(t.adds, a)
}

func (t *tenantAdds) pop() *Add {
	a := t.adds[t.served]
	t.adds[t.served] = nil
	if t.served++; t.served == len(t.adds) {
		t.adds, t.served = t.adds[:0], 0
	}
	return a
}
