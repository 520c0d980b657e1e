package store

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// An index entry names the records to look at when a slot is due. The entry of a single
// timer has the timer id in its key, and no value. New timers of one tick that are written
// together share an entry: its value lists their ids, and its key is random, so that entries
// do not replace each other. Timers with the same time-out that are added together are due
// in the same second, so a busy system writes, stores and reads far fewer entries than
// timers.
//
// The runs of a schedule have ids with the same first half, and loads divide a slot by the
// first characters of the keys. The key of a run's entry is therefore its id with the halves
// exchanged, and the value names the id, like that of a shared entry. Otherwise a schedule with
// more runs in a slot than an answer holds would stop the shard.
//
// New timers of several ticks that are due in hours share far entries; see far.go.
//
// A timer stays in its entry when it is moved or done. Readers then ignore it.
//
// Older builds do not find the timers in a shared entry. No node writes shared entries while
// a node of such a build is alive; see FormatLevel.

// indexGroup bounds the timers that share an entry: 1 kB of ids. A larger group would save
// little, and make a part of a slot larger than one page of a load.
const indexGroup = 64

// Index writes index entries: pointers from the slot of a tick to records. Safe for
// concurrent use.
//
// An entry that was acknowledged can be found until keep after the end of its tick. An
// entry without a record that is due in its tick is harmless.
type Index struct {
	jet    *jet.Client
	shards *Shards
	nodes  *Nodes
	levels *Levels
	// keep is how long an entry outlives its tick.
	keep time.Duration
}

// IndexKeep is how long an index entry outlives its tick.
func (ix *Index) IndexKeep() time.Duration { return ix.keep }

const idBytes = len(schemas.TimerID{})

// timerOfSlot returns the timer id, as text, in the key of an index entry; "" for none.
func timerOfSlot(subject string) string {
	const n = schemas.TimerIDLength + slotTokens
	if len(subject) < n {
		return ""
	}
	key := subject[len(subject)-n:]
	b := make([]byte, 0, schemas.TimerIDLength)
	for i := range slotTokens {
		b = append(b, key[2*i])
	}
	return string(append(b, key[2*slotTokens:]...))
}

// indexNow returns the time from which an entry's TTL counts, in Unix milliseconds: the
// latest time in the record, but not after readMs, this node's reading of the store's clock.
// The server counts the TTL from the time at which it stores the entry. The record may be
// ahead of that, because another server led TIMERS_ADD, or because the clock was set back
// since. A TTL that counts from there would end before the timer is due. A TTL that counts from
// an earlier time is only longer.
func indexNow(r *schemas.Record, readMs int64) int64 {
	return min(max(r.AddedMs, r.FiredMs, 0), readMs)
}

// readMs returns this node's reading of the store's clock, in Unix milliseconds. A node that
// has none yet counts from the times in the records.
func (ix *Index) readMs() int64 {
	if ms, ok := ix.nodes.carriedMs(); ok {
		return ms
	}
	return math.MaxInt64
}

// indexFor returns the TTL of an entry for a timer that is due at due; both times are Unix
// milliseconds.
func (ix *Index) indexFor(due, now int64) time.Duration {
	return time.Duration(max(due-now, 0))*time.Millisecond + ix.keep
}

// sendIndex writes an index entry, without a compare-and-set: writing it twice changes
// nothing.
func (ix *Index) sendIndex(shard int, key schemas.TimerID, tick int64, ids []byte, ttl time.Duration, done func(jet.Ack, error)) {
	ix.jet.WriteAsync(ix.shards.subjects[shard].stream, "index timer", ix.shards.slotSubject(shard, key, tick), jet.TTLHeader(ttl), ids, done)
}

// sendSpread is sendIndex for a single timer that may be a run of a schedule: its key and
// value are those of a run's entry.
func (ix *Index) sendSpread(id schemas.TimerID, tick int64, ttl time.Duration, done func(jet.Ack, error)) {
	shard := ix.shards.geo.Shard(id)
	if ix.levels.Writes() < LevelSharedIndex {
		ix.sendIndex(shard, id, tick, nil, ttl, done)
		return
	}
	var key schemas.TimerID
	copy(key[copy(key[:], id[idBytes/2:]):], id[:idBytes/2])
	ix.sendIndex(shard, key, tick, append([]byte(nil), id[:]...), ttl, done)
}

// tickOf is a tick of a shard, or with far a period of far entries.
type tickOf struct {
	shard int
	tick  int64
	far   bool
}

// indexEntry is an entry to be written. writes are the positions of the timers that it
// names; err is the result of its write.
type indexEntry struct {
	at     tickOf
	ttl    time.Duration
	writes []int
	err    error
}

// indexEntries returns the entries that new timers need. It leaves out timers whose result
// has an error: they are not written.
func (ix *Index) indexEntries(timers []Write, results []Result) []*indexEntry {
	most := 1
	if ix.levels.Writes() >= LevelSharedIndex {
		most = indexGroup
	}
	readMs := ix.readMs()
	far := ix.farPeriods(timers, results, readMs)
	var all []*indexEntry
	open := make(map[tickOf]*indexEntry, 8)
	for i := range timers {
		if results[i].Err != nil {
			continue
		}
		w, most, due := &timers[i], most, timers[i].Record.DueMs
		at := tickOf{shard: ix.shards.geo.Shard(w.ID), tick: ix.shards.geo.Tick(due)}
		if far != nil && isFar(w.Record, readMs) {
			if p := ix.farOf(w); far[p] >= farLeast {
				at, most, due = p, farGroup, ix.shards.geo.TickStart((p.tick+1)*ix.shards.farTicks())
			}
		}
		e := open[at]
		if e == nil || len(e.writes) == most {
			e = &indexEntry{at: at}
			open[at] = e
			all = append(all, e)
		}
		e.writes = append(e.writes, i)
		e.ttl = max(e.ttl, ix.indexFor(due, indexNow(w.Record, readMs)))
	}
	return all
}

// farPeriods counts the new timers that may be in far entries, by period; nil while none may be written.
func (ix *Index) farPeriods(timers []Write, results []Result, readMs int64) map[tickOf]int {
	if len(timers) < farLeast || ix.levels.Writes() < LevelFarIndex {
		return nil
	}
	var n map[tickOf]int
	for i := range timers {
		if results[i].Err == nil && isFar(timers[i].Record, readMs) {
			if n == nil {
				n = make(map[tickOf]int, 8)
			}
			n[ix.farOf(&timers[i])]++
		}
	}
	return n
}

// farOf returns the period of far entries in which a timer is due.
func (ix *Index) farOf(w *Write) tickOf {
	return tickOf{shard: ix.shards.geo.Shard(w.ID), tick: ix.shards.farPeriod(ix.shards.geo.Tick(w.Record.DueMs)), far: true}
}

// sendEntry writes an entry of indexEntries.
func (ix *Index) sendEntry(e *indexEntry, timers []Write, done func(error)) {
	acked := func(_ jet.Ack, err error) { done(err) }
	switch {
	case e.at.far:
		ix.sendFar(e, timers, done)
	case len(e.writes) == 1:
		w := &timers[e.writes[0]]
		if w.Record.Origin != nil {
			ix.sendSpread(w.ID, e.at.tick, e.ttl, acked)
			return
		}
		ix.sendIndex(e.at.shard, w.ID, e.at.tick, nil, e.ttl, acked)
	default:
		ids := make([]byte, 0, len(e.writes)*idBytes)
		for _, i := range e.writes {
			ids = append(ids, timers[i].ID[:]...)
		}
		ix.sendIndex(e.at.shard, sharedKey(), e.at.tick, ids, e.ttl, acked)
	}
}

// sharedKey returns a random key for an entry of several timers.
func sharedKey() (key schemas.TimerID) {
	binary.NativeEndian.PutUint64(key[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(key[8:], rand.Uint64())
	return key
}

// PutIndex writes the index entry of one timer for a tick, and waits for the
// acknowledgement. Errors: schemas.ErrUnavailable, schemas.ErrStoreFull.
func (ix *Index) PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error {
	now, err := ix.nodes.nowMs(ctx)
	if err != nil {
		return err
	}
	_, err = ix.jet.Await(ctx, "index timer", func(done func(jet.Ack, error)) {
		ix.sendSpread(id, tick, ix.indexFor(ix.shards.geo.TickStart(tick+1), now), done)
	})
	return err
}

// PutIndexes writes the index entries of timers of one shard for a tick, and waits. Timers
// share entries, as those of Create do. After an error some entries may be written.
func (ix *Index) PutIndexes(ctx context.Context, tick int64, ids []schemas.TimerID) error {
	if ix.levels.Writes() < LevelSharedIndex || len(ids) == 1 {
		for _, id := range ids {
			if err := ix.PutIndex(ctx, id, tick); err != nil {
				return err
			}
		}
		return nil
	}
	now, err := ix.nodes.nowMs(ctx)
	if err != nil {
		return err
	}
	ttl := ix.indexFor(ix.shards.geo.TickStart(tick+1), now)
	for group := range slices.Chunk(ids, indexGroup) {
		text := make([]byte, 0, len(group)*idBytes)
		for i := range group {
			text = append(text, group[i][:]...)
		}
		if _, err := ix.jet.Await(ctx, "index timers", func(done func(jet.Ack, error)) {
			ix.sendIndex(ix.shards.geo.Shard(group[0]), sharedKey(), tick, text, ttl, done)
		}); err != nil {
			return err
		}
	}
	return nil
}
