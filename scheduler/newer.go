package scheduler

import (
	"math"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file handles records of newer formats, which this node cannot decode and therefore
// cannot fire.
//
// The core skips such a record, so all other timers fire on time and the sweeper works as
// usual. But the clock that the owner writes stays before the record, so that a node that
// can decode the record resumes there. The record's due time is unknown, so the position is
// conservative:
//
//	record found by        pinned
//	the index load         the low watermark, before the tick of the index entry
//	the tail               the applied offset, before the record's revision
//	a scan of the shard    the low watermark, where it is; nothing if the tail will deliver the record
//	new plans (replan.go)  nothing: the record is not due yet, or another read of this table finds it
//
// A later revision that is readable or final ends the pin. The clock also states the format
// level that the shard needs, and the coordinators assign the shard to a node that reads
// that level (coordinator.go). The level only rises, so the shard does not move back and
// forth between nodes that cannot read it.

// maxNewer bounds the records of newer formats that a core remembers individually. Pins of
// further records are merged into one, which lasts until the term ends.
const maxNewer = 10_000

// noPin is the tick of a newerPin that does not pin the low watermark.
const noPin = math.MaxInt64

// newerPin is the position before which one record of a newer format holds the clock.
type newerPin struct {
	rev  uint64
	tick int64  // the low watermark stays before this tick; noPin for none
	seq  uint64 // the applied offset stays before this sequence; 0 for none
}

// newerRecords are the records of newer formats that a core has found in its term.
type newerRecords struct {
	by   map[schemas.TimerID]newerPin
	more int      // records that are only in rest
	rest newerPin // the pins beyond maxNewer, merged
}

func newNewerRecords() newerRecords {
	return newerRecords{by: map[schemas.TimerID]newerPin{}, rest: newerPin{tick: noPin}}
}

func (n *newerRecords) count() int { return len(n.by) + n.more }

// add adds a pin, or merges it with an earlier pin of the same record.
func (n *newerRecords) add(id schemas.TimerID, h newerPin) {
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

func (h *newerPin) merge(o newerPin) {
	h.rev, h.tick = max(h.rev, o.rev), min(h.tick, o.tick)
	if h.seq == 0 || o.seq != 0 && o.seq < h.seq {
		h.seq = o.seq
	}
}

// replaced removes the pin of a record if the pin's revision is at most rev.
func (n *newerRecords) replaced(id schemas.TimerID, rev uint64) {
	if h, held := n.by[id]; held && h.rev <= rev {
		delete(n.by, id)
	}
}

// tick returns the first tick before which the low watermark must stay, noPin for none.
func (n *newerRecords) tick() int64 {
	first := n.rest.tick
	for _, h := range n.by {
		first = min(first, h.tick)
	}
	return first
}

// tail returns the applied offset seq, limited by the pins.
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

// Newer returns the number of records of newer formats that this term has found and that still hold
// the shard's clock back.
func (k *Core) Newer() int { return k.newer.count() }

// LowWatermarkMs returns the low watermark in Unix milliseconds: every timer due before it
// has fired. It equals ProgressMs unless a record of a newer format holds it back.
func (k *Core) LowWatermarkMs() int64 {
	ms := k.ProgressMs()
	if t := k.newer.tick(); t != noPin {
		ms = min(ms, k.cfg.Geometry.TickStart(t))
	}
	return ms
}

// holdWatermark keeps the low watermark before a newer record that an index entry names.
func (k *Core) holdWatermark(r store.NewerRecord) {
	k.newer.add(r.ID, newerPin{rev: r.Rev, tick: max(r.Tick, k.watermark+1)})
}

// onTailNewer processes a revision of a newer format that the tail delivered.
func (k *Core) onTailNewer(t store.Timer) {
	// The record may be pending, so a running count must include it.
	k.pending.read(t.ID, t.Rev, true, false)
	k.forget(t)
	if t.Unread != store.UnreadOpen {
		k.newer.replaced(t.ID, t.Rev)
		return
	}
	k.newer.replaced(t.ID, t.Rev-1)
	k.newer.add(t.ID, newerPin{rev: t.Rev, tick: noPin, seq: t.Rev})
}

// onScannedNewer processes a newer record that a scan found; its tick is unknown. If the
// tail has passed the record, only this pin protects it.
func (k *Core) onScannedNewer(t store.Timer) {
	if t.Unread == store.UnreadOpen && t.Rev <= k.tailSeen {
		k.newer.add(t.ID, newerPin{rev: t.Rev, tick: k.watermark + 1})
	}
}
