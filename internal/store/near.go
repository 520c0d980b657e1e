package store

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/belfryio/belfry/schemas"
)

const (
	// NearFor is how long before its due time a Near keeps a timer, in milliseconds.
	NearFor = 5 * 60 * 1000
	// nearBlockBytes is the size of a block of a Near. Larger records are not kept.
	nearBlockBytes = 64 << 10
	// nearHead is the length of an entry's revision, StoredMs, and size of the record, which follows them.
	nearHead = 8 + 8 + 4
)

// NearMemory bounds the memory of the Nears of a node. Safe for concurrent use.
type NearMemory struct{ free atomic.Int64 }

// NewNearMemory returns a NearMemory of so many bytes, rounded down to blocks of 64 KiB. The index of the entries
// comes on top: some 60 bytes a timer. The smallest timers take 85 bytes, so the index may take up to 70 % as much again.
func NewNearMemory(bytes int64) *NearMemory {
	m := new(NearMemory)
	m.free.Store(bytes / nearBlockBytes)
	return m
}

// Near keeps the pending one-shot timers of a shard that are due soon, as the shard's tail has brought them to its owner, so
// that LoadTicks does not read them from the stream again. The server's reads and answers are a tenth of the CPU of a timer.
//
// The owner of the shard notes each record of its tail (Note). So for each timer the Near has the newest revision that the
// tail has brought, or nothing, and an answer from it is as of the tail's last revision. It is a hint all the same, as an
// answer of the stream is: only a compare-and-set decides.
//
// A Near takes blocks from its NearMemory while it has timers. Without a free block it keeps no further timers, and LoadTicks
// reads them from the stream; it does not make room, because timers that are due later would replace timers that are
// due sooner. Safe for concurrent use. The owner calls Clear at the end of its term. The first load after a lost connection
// empties the Near.
type Near struct {
	memory *NearMemory

	mu     sync.Mutex
	at     map[schemas.TimerID]nearPlace
	blocks map[uint32]*nearBlock
	last   uint32 // number of the block that is being filled; no other has a higher one
	// seen is the highest revision that was noted. A tail that begins again brings older ones.
	seen uint64
	// reconnects is the number of reconnects at the last load, if loaded is true.
	reconnects uint64
	loaded     bool
}

// nearPlace is the number of a block, and an offset in it.
type nearPlace struct{ block, offset uint32 }

// nearBlock has entries one after the other. Their bytes never change, so a record that was returned may refer to them.
type nearBlock struct {
	data []byte
	live int // entries that are in the index
}

// NewNear returns an empty Near that takes its blocks from m. It returns nil for nil; a nil Near keeps nothing.
func NewNear(m *NearMemory) *Near {
	if m == nil {
		return nil
	}
	return &Near{memory: m, at: map[schemas.TimerID]nearPlace{}, blocks: map[uint32]*nearBlock{}}
}

// Note takes note of a record that the tail has brought. It keeps a pending one-shot timer if keep is true, and forgets other
// revisions of the timer.
func (n *Near) Note(t *Timer, keep bool) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(t.ID)
	newer := t.Rev > n.seen
	n.seen = max(n.seen, t.Rev)
	if r := &t.Record; newer && keep && t.Unread == Readable && r.Pending() && r.Schedule == nil {
		n.add(t)
	}
}

// Take returns a timer, with its record as it was noted, and forgets it. The body of the record may refer to memory that it
// shares with other timers; the caller does not change it.
func (n *Near) Take(id schemas.TimerID) (Timer, bool) {
	if n == nil {
		return Timer{}, false
	}
	n.mu.Lock()
	entry := n.remove(id)
	n.mu.Unlock()
	if entry == nil {
		return Timer{}, false
	}
	rec, err := schemas.DecodeRecord(entry[nearHead:])
	if err != nil {
		return Timer{}, false // the stream has it
	}
	return Timer{ID: id, Rev: binary.LittleEndian.Uint64(entry), StoredMs: int64(binary.LittleEndian.Uint64(entry[8:])), Record: rec}, true
}

// Forget forgets a timer.
func (n *Near) Forget(id schemas.TimerID) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(id)
}

// Clear forgets all timers and revisions, and gives the memory back.
func (n *Near) Clear() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.empty()
	n.seen = 0
}

// connected takes note of the number of reconnects at a load. It forgets all timers if that has changed since the last load: a
// server that has lost its power may have lost their revisions, and gives the sequences to others.
func (n *Near) connected(reconnects uint64) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.loaded && n.reconnects != reconnects {
		n.empty()
	}
	n.reconnects, n.loaded = reconnects, true
}

// empty forgets all timers. n.mu is held.
func (n *Near) empty() {
	n.memory.free.Add(int64(len(n.blocks)))
	clear(n.at)
	clear(n.blocks)
}

// Len returns the number of timers.
func (n *Near) Len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.at)
}

// add appends an entry, unless the memory is full. n.mu is held.
func (n *Near) add(t *Timer) {
	// The length of the record is not known before it is encoded. Most of it are the data.
	b := n.blocks[n.last]
	if least := nearHead + len(t.Record.Body.Data); least > nearBlockBytes {
		return
	} else if b == nil || len(b.data)+least > cap(b.data) {
		b = n.grow()
	}
	for b != nil {
		start := len(b.data)
		data := binary.LittleEndian.AppendUint64(b.data, t.Rev)
		data = binary.LittleEndian.AppendUint64(data, uint64(t.StoredMs))
		data = append(data, 0, 0, 0, 0)
		data = t.Record.Append(data)
		if cap(data) == cap(b.data) {
			binary.LittleEndian.PutUint32(data[start+nearHead-4:], uint32(len(data)-start-nearHead))
			b.data = data
			b.live++
			n.at[t.ID] = nearPlace{n.last, uint32(start)}
			return
		}
		// data did not fit, and is another array.
		if start == 0 {
			return
		}
		b = n.grow()
	}
}

// grow begins a new block. It returns nil if the memory is full. n.mu is held.
func (n *Near) grow() *nearBlock {
	if n.memory.free.Add(-1) < 0 {
		n.memory.free.Add(1)
		return nil
	}
	n.last++
	b := &nearBlock{data: make([]byte, 0, nearBlockBytes)}
	n.blocks[n.last] = b
	return b
}

// drop gives a block back. n.mu is held.
func (n *Near) drop(block uint32) {
	delete(n.blocks, block)
	n.memory.free.Add(1)
}

// remove forgets a timer and returns its entry; nil for none. n.mu is held.
func (n *Near) remove(id schemas.TimerID) []byte {
	at, ok := n.at[id]
	if !ok {
		return nil
	}
	delete(n.at, id)
	b := n.blocks[at.block]
	entry := b.data[at.offset:]
	entry = entry[:nearHead+int(binary.LittleEndian.Uint32(entry[nearHead-4:]))]
	if b.live--; b.live == 0 {
		if at.block == n.last {
			// A record that was returned may refer to the block, so its bytes are not used again.
			n.last++
		}
		n.drop(at.block)
	}
	return entry
}
