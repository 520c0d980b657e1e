package scheduler

// fairQueue holds ready entries by service and hands them out in turns, so that
// a service with 100,000 timers due at one instant delays another's by one.
type fairQueue struct {
	byService map[string]*serviceQueue
	ring      []*serviceQueue // the services that have something ready
	turn      int
	n         int
}

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

// pop returns the next entry, skipping those that left the queue (phase changed).
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
