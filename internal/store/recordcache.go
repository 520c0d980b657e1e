package store

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// recordCache keeps the records of the one-shot timers that this process created last, so
// that a cancel need not read the record first: a direct get of a bucket that syncs its writes
// waits for the sync in progress, and with it wait all messages of the connection.
//
// It is a hint. It has the record as it was created, without the event's body, which the record
// of a cancelled timer does not have either. Other processes may have changed the record since.
// So an entry is like the answer of a replica that is behind: use it only for a compare-and-set.
//
// It does not return an entry whose timer is due, or whose record this process has written again:
// such an entry would only cost a refused write. It returns an entry once, because a cancel
// replaces the revision. It forgets everything when the connection breaks: a server that has
// lost its last writes gives their sequences to others.
//
// Its memory is bounded: at most cacheBlocks blocks, of which the oldest makes room, and their
// index. Safe for concurrent use.
type recordCache struct {
	onBreak func(func()) (forget func(), ok bool) // jet.Client.OnBreak

	mu     sync.Mutex
	blocks [][]byte // entries, oldest first; the last block is being filled
	first  uint32   // number of blocks[0]
	at     map[schemas.TimerID]cachePlace
	// armed is true while clear is called when the connection breaks.
	armed  bool
	forget func()
	closed bool
}

const (
	// cacheBlockBytes is the size of a block, and cacheBlocks their greatest number: 24 MiB hold
	// some 150,000 records. The index has 60 bytes an entry.
	cacheBlockBytes = 128 << 10
	cacheBlocks     = 192
	// cacheMaxRecord is the size of the largest record that is kept, without its body.
	cacheMaxRecord = 4 << 10
	// cacheHead is the length of the timer id, the revision and the size of the encoded record,
	// which follows them. The bytes of an entry never change, so a reader needs no lock for them.
	cacheHead = len(schemas.TimerID{}) + 8 + 4
)

// cachePlace is the number of a block, and an offset in it.
type cachePlace struct{ block, offset uint32 }

func newRecordCache(c *jet.Client) *recordCache {
	return &recordCache{onBreak: c.OnBreak, at: map[schemas.TimerID]cachePlace{}}
}

// put keeps the records of new timers that are stored, as results says.
func (c *recordCache) put(timers []Write, results []Result, format schemas.RecordFormat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.arm() {
		return
	}
	for i := range timers {
		if rec := timers[i].Record; results[i].Err == nil && rec.State == schemas.StatePending && rec.Schedule == nil && rec.Origin == nil {
			c.add(timers[i].ID, results[i].Rev, rec, format)
		}
	}
}

// arm makes the cache forget everything when the connection breaks. It returns false if the
// connection is down, or the store is closed. c.mu is held.
func (c *recordCache) arm() bool {
	if c.armed || c.closed {
		return c.armed
	}
	c.forget, c.armed = c.onBreak(c.clear)
	return c.armed
}

// add appends an entry. c.mu is held.
func (c *recordCache) add(id schemas.TimerID, rev uint64, rec *schemas.Record, format schemas.RecordFormat) {
	bare := *rec
	bare.Body = schemas.Body{}
	last := len(c.blocks) - 1
	if last < 0 || cap(c.blocks[last])-len(c.blocks[last]) < cacheHead+cacheMaxRecord {
		c.grow()
		last = len(c.blocks) - 1
	}
	data := c.blocks[last]
	start := len(data)
	data = append(data, id[:]...)
	data = binary.LittleEndian.AppendUint64(data, rev)
	data = append(data, 0, 0, 0, 0)
	data = bare.AppendFormat(data, format)
	size := len(data) - start - cacheHead
	if size > cacheMaxRecord { // data may be another array
		return
	}
	binary.LittleEndian.PutUint32(data[start+cacheHead-4:], uint32(size))
	c.blocks[last] = data
	c.at[id] = cachePlace{c.first + uint32(last), uint32(start)}
}

// grow begins a new block, and drops the oldest if there are too many. c.mu is held.
func (c *recordCache) grow() {
	if len(c.blocks) == cacheBlocks {
		for data, offset := c.blocks[0], 0; offset < len(data); {
			id := schemas.TimerID(data[offset:])
			if at, ok := c.at[id]; ok && at.block == c.first {
				delete(c.at, id)
			}
			offset += cacheHead + int(binary.LittleEndian.Uint32(data[offset+cacheHead-4:]))
		}
		copy(c.blocks, c.blocks[1:])
		c.blocks = c.blocks[:cacheBlocks-1]
		c.first++
	}
	c.blocks = append(c.blocks, make([]byte, 0, cacheBlockBytes))
}

// take returns the record of a timer that is due after nowMs, without its body and StoredMs,
// and forgets it.
func (c *recordCache) take(id schemas.TimerID, nowMs int64) (Timer, bool) {
	entry, ok := c.remove(id)
	if !ok {
		return Timer{}, false
	}
	rev := binary.LittleEndian.Uint64(entry[len(id):])
	rec, err := schemas.DecodeRecordUpTo(entry[cacheHead:], schemas.NewestRecordFormat)
	if err != nil || rec.DueMs <= nowMs {
		return Timer{}, false
	}
	return Timer{ID: id, Rev: rev, Record: rec}, true
}

// remove forgets a timer and returns its entry.
func (c *recordCache) remove(id schemas.TimerID) (entry []byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.at[id]
	if !ok {
		return nil, false
	}
	delete(c.at, id)
	data := c.blocks[at.block-c.first][at.offset:]
	return data[:cacheHead+int(binary.LittleEndian.Uint32(data[cacheHead-4:]))], true
}

// clear forgets everything.
func (c *recordCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocks, c.armed, c.forget = nil, false, nil
	clear(c.at)
}

// close clears the cache for good. It may be called twice.
func (c *recordCache) close() {
	c.mu.Lock()
	forget := c.forget
	c.closed = true
	c.mu.Unlock()
	if forget != nil {
		forget()
	}
	c.clear()
}

// Cached returns the record of a one-shot timer as this process has created it, without its
// body and StoredMs, if the process still has it. The record may have changed since. Use it
// only for a compare-and-set that makes the record final; it is returned once.
func (r *Records) Cached(id schemas.TimerID) (Timer, bool) {
	return r.cache.take(id, time.Now().UnixMilli())
}
