package scheduler

// fairQueue queues due entries by service and serves the services round robin. If one
// service has 100,000 timers due at one instant, another service's timer waits for one of
// them.
type fairQueue struct {
	byService map[string]*serviceQueue
	ring      []*serviceQueue // the services with entries
	turn      int
	n         int
}

// serviceQueue is the first-in, first-out queue of one service.
type serviceQueue struct {
	items []*entry
	head  int
	name  string
}

func newFairQueue() fairQueue { return fairQueue{byService: map[string]*serviceQueue{}} }

func (q *fairQueue) push(e *entry) {
	s := q.byService[e.rec.Service]
	if s == nil {
		s = &serviceQueue{name: e.rec.Service}
		q.byService[s.name] = s
		q.ring = append(q.ring, s)
	}
	s.items = append(s.items, e)
	q.n++
}

// pop returns the next entry, or nil. It skips entries whose phase has changed since push.
func (q *fairQueue) pop() *entry {
	for len(q.ring) > 0 {
		if q.turn >= len(q.ring) {
			q.turn = 0
		}
		s := q.ring[q.turn]
		if s.head == len(s.items) {
			q.ring[q.turn] = q.ring[len(q.ring)-1]
			q.ring = q.ring[:len(q.ring)-1]
			delete(q.byService, s.name)
			continue
		}
		e := s.items[s.head]
		s.items[s.head] = nil
		s.head++
		q.n--
		q.turn++
		if e.phase == phaseReady {
			return e
		}
	}
	return nil
}
