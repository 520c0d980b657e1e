package router

import (
	"sync"
	"time"
)

const (
	// gatherFor is how long adds wait for others. Together with the write it must stay well below
	// gatherLead.
	gatherFor = 100 * time.Millisecond
	// gatherLead is the least time from now to the due time of an add that waits.
	gatherLead = time.Second
	// gatherLeast is the number of adds in gatherFor from which adds wait: fewer gain too little.
	gatherLeast = 16
)

// gatherer lets adds of the stream wait for others, so that they are written in larger groups. Where
// the server syncs every write, a group of any size costs about as many syncs as a small one, and these
// delay the acknowledgements of further adds.
//
// An add waits at most gatherFor, and only
//
//   - if nobody waits for its outcome: it is an add of the stream;
//   - if it is due in gatherLead or later;
//   - while gatherLeast adds or more arrive in gatherFor.
//
// All methods are safe for concurrent use.
type gatherer struct {
	write   func([]*Add)
	permits chan struct{} // those of the batcher
	tasks   sync.WaitGroup

	mu    sync.Mutex
	adds  []*Add
	armed bool // end will be called
	// seen counts the adds that have arrived since the time since; before counts those of the gatherFor
	// before that.
	since        time.Time
	seen, before int
}

// pass returns the adds of a group to be written now, at most MaxBatch if the group has no more. The
// others are written later. The caller processes the group, see close.
func (g *gatherer) pass(group []*Add, nowMs int64, now time.Time) []*Add {
	if g == nil || len(group) == 0 {
		return group
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.busy(len(group), now) {
		return group
	}
	soon := group[:0]
	for _, a := range group {
		if a.Seq == 0 || a.Record.DueMs < nowMs+gatherLead.Milliseconds() {
			soon = append(soon, a)
		} else {
			g.adds = append(g.adds, a)
		}
	}
	if room := MaxBatch - len(soon); len(g.adds) >= room {
		// A whole group: the caller writes it.
		soon = append(soon, g.adds[:room]...)
		g.adds = append([]*Add(nil), g.adds[room:]...)
	}
	if len(g.adds) > 0 && !g.armed {
		g.armed = true
		g.tasks.Add(1)
		time.AfterFunc(gatherFor, g.end)
	}
	return soon
}

// busy counts n further adds, and reports whether many arrive. g.mu is held.
func (g *gatherer) busy(n int, now time.Time) bool {
	switch past := now.Sub(g.since); {
	case past >= 2*gatherFor:
		g.since, g.seen, g.before = now, 0, 0
	case past >= gatherFor:
		g.since, g.seen, g.before = now, 0, g.seen
	}
	g.seen += n
	return g.seen >= gatherLeast || g.before >= gatherLeast
}

// end writes the adds that wait.
func (g *gatherer) end() {
	defer g.tasks.Done()
	g.permits <- struct{}{} // more adds may come while this waits
	defer func() { <-g.permits }()
	g.mu.Lock()
	adds := g.adds
	g.adds, g.armed = nil, false
	g.mu.Unlock()
	if len(adds) > 0 {
		g.write(adds)
	}
}

// close waits until all adds are settled. No group may be processed any more.
func (g *gatherer) close() {
	if g != nil {
		g.tasks.Wait()
	}
}
