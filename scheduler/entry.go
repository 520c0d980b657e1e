package scheduler

import (
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler/wheel"
	"github.com/belfryio/belfry/schemas"
)

// phase is the state of an entry; package doc draws the transitions.
type phase uint8

const (
	phaseWaiting    phase = iota // in the wheel until due
	phaseReady                   // due, in the fair queue
	phaseClaiming                // claim in flight
	phasePublishing              // claimed; publish in flight, or waiting for its retry
	phaseRereading               // the claim's result is unclear; reread in flight
	phaseDedupCheck              // claimed, perhaps published before; waiting for a dedup check
	phaseIndexing                // published; index entry for the sweeper in flight
	phaseDeadLetter              // permanently rejected; dead letter in flight, or waiting for its retry
	phaseFailing                 // dead letter stored; final record in flight, or waiting for its retry
	phaseBlocked                 // schedule: due, but its last run is not published yet
	phaseLooking                 // schedule: due; read of the last run's record in flight
	phasePreparing               // schedule: due; index entry of the next due time in flight
	phaseCreating                // run of a schedule: claimed; its record in flight, or waiting for its retry
	phaseDone
)

// entry is a record that the core works on: it is due within the horizon, or waits for a
// result. A busy shard has many entries, so the order of the fields keeps the size within the
// allocator's class of 512 bytes.
type entry struct {
	node wheel.Timer[*entry]
	id   schemas.TimerID
	rev  uint64
	rec  schemas.Record
	tick int64
	// pin is the stream sequence before which the entry holds the applied offset until it is
	// done, because its tick is not after the low watermark. It is 0 if the low watermark
	// waits for the entry.
	pin   uint64
	phase phase
	// stale counts the rereads to which the leader answered with an older revision, or none.
	stale uint8
	// counted is true while outstanding[tick] includes the entry.
	counted bool
	// wasPending is true if the claim in flight, or the final record of a rejected claim, will
	// reduce the number of pending timers.
	wasPending bool
	// fails counts the failures of the present step in a row, up to maxFails.
	fails uint8
	// stateBefore is the state that the claim in flight replaces.
	stateBefore schemas.State
	extra       *extra // of a schedule and of few other entries; nil for the others
}

// maxFails is above the number of failures from which the backoff no longer grows.
const maxFails = 100

func (e *entry) countFailure() { e.fails = min(e.fails+1, maxFails) }

// extra is the part of an entry that few entries have.
type extra struct {
	// refusal is the reason why JetStream will never store the entry's event or its claim;
	// empty otherwise.
	refusal string
	// lettered is true if a dead letter of this run and attempt is stored.
	lettered bool
	// newer is a later revision that arrived while a write of this entry was in flight.
	newer *store.Timer
	// firedMsBefore is the time of firing that the claim in flight replaces: that of the claim
	// before a retry. It is 0 for most claims.
	firedMsBefore int64
	// failedMs is the earliest DoneMs of the ActFails of this revision; 0 for none.
	failedMs int64
	// unclearMs is the earliest time in a claim of this revision that got no answer, or that a server refused because of the
	// revision; 0 for none. Such a claim may still be stored: the refusal may be that of a server that led the stream before.
	// The entry may have made another decision since. See isLateClaim.
	unclearMs int64
	// left is true if the number of pending timers no longer includes the timer, because another write was
	// stored: a claim of an earlier owner, an unclear claim, or the final record of a rejected claim.
	left bool
	recurring
}

// keepFields keeps the fields that a claim is about to replace; see Core.unclaim.
func (e *entry) keepFields() {
	e.stateBefore = e.rec.State
	if e.extra != nil || e.rec.FiredMs != 0 {
		e.more().firedMsBefore = e.rec.FiredMs
	}
}

// newer returns the revision of keepNewer; nil for none.
func (e *entry) newer() *store.Timer {
	if e.extra == nil {
		return nil
	}
	return e.extra.newer
}

// keepNewer keeps a later revision until the write in flight has a result.
func (e *entry) keepNewer(t store.Timer) (kept bool) {
	if n := e.newer(); n != nil && n.Rev >= t.Rev {
		return false
	}
	newer := t // with &t, every call would allocate t
	e.more().newer = &newer
	return true
}

// pins are the entries that pin the applied offset, in ascending order of entry.pin.
type pins struct{ entries []*entry }

// add pins the applied offset before a sequence until e is done. Rereads are ahead of the
// tail, so calls do not come in the order of sequences.
func (p *pins) add(e *entry, seq uint64) {
	e.pin = seq
	p.entries = append(p.entries, e)
	for i := len(p.entries) - 1; i > 0 && p.entries[i-1].pin > seq; i-- {
		p.entries[i], p.entries[i-1] = p.entries[i-1], p.entries[i]
	}
}

// first returns the entry with the lowest pin, nil for none. It drops entries that are done.
func (p *pins) first() *entry {
	for len(p.entries) > 0 && (p.entries[0].phase == phaseDone || p.entries[0].pin == 0) {
		p.entries[0] = nil
		p.entries = p.entries[1:]
	}
	if len(p.entries) == 0 {
		return nil
	}
	return p.entries[0]
}
