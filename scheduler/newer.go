package scheduler

import (
	"math"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file keeps the recovery state of a shard before records of newer formats, which
// this node cannot read and so cannot fire.
//
// The core itself passes such a record, so that everything else fires on time, and the
// sweeper works as usual. Only the clock that is written stays before it: a node that
// reads the record resumes from there. A record's due time is not known, so the position
// is conservative:
//
//	found by               what is held
//	the index load         the low watermark before the tick whose index entry names it
//	the tail               the applied offset before its revision
//	a scan of the shard    the low watermark where it is, unless the tail will bring it
//
// A later revision of the record that can be read or is final ends its hold. The clock
// also states the format level that the shard needs, and the coordinators of all nodes
// give the shard to one that reads it (coordinator.go). A level only rises, so a shard never
// goes back and forth between nodes that cannot read it.

// maxNewer bounds the records of newer formats that a core remembers one by one. Holds of
// more are merged into one, which lasts until the term ends.
const maxNewer = 10_000

// noHold is a tick that holds nothing.
const noHold = math.MaxInt64

// newerHold is what one record of a newer format holds.
type newerHold struct {
	rev  uint64
	tick int64  // the low watermark stays before it; noHold for no tick
	seq  uint64 // the applied offset stays before it; 0 for none
}

// newerRecords are the records of newer formats that a core has met.
type newerRecords struct {
	by   map[schemas.TimerID]newerHold
	more int       // those that are only in rest
	rest newerHold // the holds beyond maxNewer, merged
}

func newNewerRecords() newerRecords {
	return newerRecords{by: map[schemas.TimerID]newerHold{}, rest: newerHold{tick: noHold}}
}

func (n *newerRecords) count() int { return len(n.by) + n.more }

// add merges a hold with an earlier one of the same record.
func (n *newerRecords) add(id schemas.TimerID, h newerHold) {
	was, known := n.by[id]
	switch {
	case known:
		was.merge(h)
		n.by[id] = was
	case len(n.by) < maxNewer:
		n.by[id] = h
	default:
		n.more++
		n.rest.merge(h)
	}
}

func (h *newerHold) merge(o newerHold) {
	h.rev, h.tick = max(h.rev, o.rev), min(h.tick, o.tick)
	if h.seq == 0 || o.seq != 0 && o.seq < h.seq {
		h.seq = o.seq
	}
}

// replaced ends the hold of a record up to a revision.
func (n *newerRecords) replaced(id schemas.TimerID, rev uint64) {
	if h, held := n.by[id]; held && h.rev <= rev {
		delete(n.by, id)
	}
}

// tick is the first tick that is held, noHold for none.
func (n *newerRecords) tick() int64 {
	first := n.rest.tick
	for _, h := range n.by {
		first = min(first, h.tick)
	}
	return first
}

// tail limits an applied offset to what is not held.
func (n *newerRecords) tail(seq uint64) uint64 {
	if n.rest.seq != 0 {
		seq = min(seq, n.rest.seq-1)
	}
	for _, h := range n.by {
		if h.seq != 0 {
			seq = min(seq, h.seq-1)
		}
	}
	return seq
}

// Newer is the number of records of newer formats that hold the shard's clock.
func (k *Core) Newer() int { return k.newer.count() }

// LowWatermarkMs is the time, in Unix milliseconds, before which every timer has fired.
// It is MarkMs unless a record of a newer format holds it.
func (k *Core) LowWatermarkMs() int64 {
	ms := k.MarkMs()
	if t := k.newer.tick(); t != noHold {
		ms = min(ms, k.cfg.Geometry.TickStart(t))
	}
	return ms
}

// holdMark keeps the low watermark before a record that the index names.
func (k *Core) holdMark(r store.NewerRecord) {
	k.newer.add(r.ID, newerHold{rev: r.Rev, tick: max(r.Tick, k.mark+1)})
}

// onTailNewer takes a revision of a newer format from the tail.
func (k *Core) onTailNewer(t store.Timer) {
	// It may wait, so that a count that is running must not miss it.
	k.noteChange(t.ID, t.Rev, true, false)
	k.forget(t)
	if t.Unread != store.UnreadOpen {
		k.newer.replaced(t.ID, t.Rev)
		return
	}
	k.newer.replaced(t.ID, t.Rev-1)
	k.newer.add(t.ID, newerHold{rev: t.Rev, tick: noHold, seq: t.Rev})
}

// onScannedNewer takes a record that a scan found, without its tick. If the tail has
// passed it, nothing else covers it.
func (k *Core) onScannedNewer(t store.Timer) {
	if t.Unread == store.UnreadOpen && t.Rev <= k.tailSeen {
		k.newer.add(t.ID, newerHold{rev: t.Rev, tick: k.mark + 1})
	}
}
