package router

import (
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// lingerFor bounds the wait of an add for others. It must stay, together with the write, well below
	// lingerLead.
	lingerFor = 100 * time.Millisecond
	// lingerLead is the least time from now to the due time of an add that waits.
	lingerLead = time.Second
	// lingerLeast is the least number of adds in lingerFor at which adds wait. With fewer adds, the larger
	// groups are not worth the delay.
	lingerLeast = 16
)

// lingerer delays adds of the stream, so that they are written in larger groups, as Kafka's linger.ms does for
// a producer. Where the server syncs every write, a batch costs about the same number of syncs whatever its
// size. With fewer batches, the disk has more syncs for the publishes of further adds.
//
// An add waits up to lingerFor, and then for a permit of the batcher. It waits only if it is an add of the stream, so
// that no caller waits for its outcome, and
//
//   - it is due in lingerLead or later, and lingerLeast adds or more have arrived in this or in the previous
//     period of lingerFor; or
//   - an earlier add of the same timer waits or is being written: of two different adds of one timer, the first
//     wins also if only it waits.
//
// A nil lingerer delays nothing. Its methods are safe for concurrent use.
type lingerer struct {
	write   func([]*Add)
	permits chan struct{} // the batcher's
	tasks   sync.WaitGroup

	mu   sync.Mutex
	adds []*Add
	// kept counts the adds that wait, or have waited and are being written, by their timers.
	kept  map[schemas.TimerID]int
	armed bool // a timer is running that calls end
	// since is the start of the present period of lingerFor. arrived counts the adds of that period,
	// arrivedBefore those of the previous one.
	since                  time.Time
	arrived, arrivedBefore int
}

// pass returns the adds that the caller writes now, at most MaxBatch, and keeps the others for a later
// call or for end. After the write the caller calls written. A group has at most MaxBatch adds; pass reuses its
// array. nowMs is the cluster's time. The caller is a group that is being processed; see close.
func (l *lingerer) pass(group []*Add, nowMs int64, now time.Time) []*Add {
	if l == nil || len(group) == 0 {
		return group
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := l.busy(len(group), now)
	if !busy && len(l.kept) == 0 {
		return group
	}
	ready := group[:0]
	for _, a := range group {
		if l.waits(a, busy, nowMs) {
			l.keep(a)
		} else {
			ready = append(ready, a)
		}
	}
	if free := MaxBatch - len(ready); len(l.adds) >= free {
		// The waiting adds fill the group: the caller writes it.
		ready = append(ready, l.adds[:free]...)
		l.adds = append([]*Add(nil), l.adds[free:]...)
	}
	if len(l.adds) > 0 && !l.armed {
		l.armed = true
		l.tasks.Add(1)
		time.AfterFunc(lingerFor, l.end)
	}
	return ready
}

// waits reports whether an add waits for others. The caller holds l.mu.
func (l *lingerer) waits(a *Add, busy bool, nowMs int64) bool {
	switch {
	case a.Seq == 0:
		return false
	case l.kept[a.Spec.Timer] > 0:
		return true
	}
	return busy && a.Record.DueMs >= nowMs+lingerLead.Milliseconds()
}

// keep makes an add wait. The caller holds l.mu.
func (l *lingerer) keep(a *Add) {
	if l.kept == nil {
		l.kept = map[schemas.TimerID]int{}
	}
	l.adds = append(l.adds, a)
	l.kept[a.Spec.Timer]++
	a.waited = true
}

// written forgets adds that have waited and are written.
func (l *lingerer) written(adds []*Add) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range adds {
		if !a.waited {
			continue
		}
		if l.kept[a.Spec.Timer]--; l.kept[a.Spec.Timer] == 0 {
			delete(l.kept, a.Spec.Timer)
		}
	}
}

// busy counts n further adds, and reports whether enough arrive for adds to wait. The caller holds l.mu.
func (l *lingerer) busy(n int, now time.Time) bool {
	switch past := now.Sub(l.since); {
	case past >= 2*lingerFor:
		l.since, l.arrived, l.arrivedBefore = now, 0, 0
	case past >= lingerFor:
		l.since, l.arrived, l.arrivedBefore = now, 0, l.arrived
	}
	l.arrived += n
	return l.arrived >= lingerLeast || l.arrivedBefore >= lingerLeast
}

// end writes the adds that wait, as soon as a permit is free.
func (l *lingerer) end() {
	defer l.tasks.Done()
	l.permits <- struct{}{} // further adds may join the group meanwhile
	defer func() { <-l.permits }()
	l.mu.Lock()
	adds := l.adds
	l.adds, l.armed = nil, false
	l.mu.Unlock()
	if len(adds) > 0 {
		l.write(adds)
		l.written(adds)
	}
}

// close waits until all adds that wait are settled. The caller makes sure that pass is not called any more.
func (l *lingerer) close() {
	if l != nil {
		l.tasks.Wait()
	}
}
