package store

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// An index entry says which records to look at when a slot is due. One that names
// a single timer has it in its key, and no value. New timers of one tick that are
// written together share an entry: their ids are its value, and its key is drawn
// at random, so that it replaces no other entry and none replaces it. Timers of
// one time-out that are added at one time have one due second, so a busy system
// writes, keeps in memory and reads a fraction of an entry a timer.
//
// Nothing ever takes a timer out of an entry: one that was moved, or is done, is
// noise there as it would be in an entry of its own.
//
// A node of a build that does not know of shared entries would not find the timers
// that one names. So none is written while such a node lives; see FormatLevel.

// indexGroup is how many timers share an entry at most: 1 kB of ids. More would
// save little, and make a part of a slot more than a load wants to read at once.
const indexGroup = 64

const idBytes = len(schemas.TimerID{})

// slotSubject is the key of an index entry, slot.<slot>.<a>.<b>.<c>.<rest>: the
// first characters of the id are tokens, so that a part of a large slot can be
// asked for.
func (s *Store) slotSubject(shard int, id schemas.TimerID, tick int64) string {
	slot := s.subjects[shard].slot
	b := make([]byte, 0, len(slot)+20+schemas.TimerIDLength+slotTokens+1)
	b = append(b, slot...)
	b = append(strconv.AppendInt(b, s.geo.Slot(tick), 10), '.')
	text := id.String()
	for i := range slotTokens {
		b = append(b, text[i], '.')
	}
	return string(append(b, text[slotTokens:]...))
}

// timerOfSlot is the id, as text, of an index entry's key.
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

// indexNow is from when an entry's TTL counts. The record's own times are the
// cluster's; what they miss of now only makes the entry live longer.
func indexNow(r *schemas.Record) int64 { return max(r.AddedMs, r.FiredMs, 0) }

// indexFor is how long an entry lives for a timer.
func (s *Store) indexFor(due, now int64) time.Duration {
	return time.Duration(max(due-now, 0))*time.Millisecond + s.cfg.IndexKeep
}

// sendIndex writes an index entry. It is written without an expectation: the
// same entry twice is the same entry.
func (s *Store) sendIndex(shard int, key schemas.TimerID, tick int64, ids []byte, ttl time.Duration, done func(jet.Ack, error)) {
	s.jet.WriteAsync(s.subjects[shard].stream, "index timer", s.slotSubject(shard, key, tick), jet.TTLHeader(ttl), ids, done)
}

// tickOf is a tick of a shard.
type tickOf struct {
	shard int
	tick  int64
}

// indexEntry is one that is being gathered: the writes that it names.
type indexEntry struct {
	at     tickOf
	ttl    time.Duration
	writes []int
	err    error
}

// indexEntries gathers the entries that new timers need. Results that have an
// error are of timers that are not written.
func (s *Store) indexEntries(timers []Write, results []Result) []*indexEntry {
	most := 1
	if s.level() >= LevelSharedIndex {
		most = indexGroup
	}
	var all []*indexEntry
	open := make(map[tickOf]*indexEntry, 8)
	for i := range timers {
		if results[i].Err != nil {
			continue
		}
		w := &timers[i]
		at := tickOf{s.geo.Shard(w.ID), s.geo.Tick(w.Record.DueMs)}
		e := open[at]
		if e == nil || len(e.writes) == most {
			e = &indexEntry{at: at}
			open[at] = e
			all = append(all, e)
		}
		e.writes = append(e.writes, i)
		e.ttl = max(e.ttl, s.indexFor(w.Record.DueMs, indexNow(w.Record)))
	}
	return all
}

// sendEntry writes what was gathered.
func (s *Store) sendEntry(e *indexEntry, timers []Write, done func(jet.Ack, error)) {
	if len(e.writes) == 1 {
		s.sendIndex(e.at.shard, timers[e.writes[0]].ID, e.at.tick, nil, e.ttl, done)
		return
	}
	ids := make([]byte, 0, len(e.writes)*idBytes)
	for _, i := range e.writes {
		ids = append(ids, timers[i].ID[:]...)
	}
	var key schemas.TimerID
	binary.NativeEndian.PutUint64(key[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(key[8:], rand.Uint64())
	s.sendIndex(e.at.shard, key, e.at.tick, ids, e.ttl, done)
}

// timersOf is what index entries name, each timer once. An entry that cannot be
// read is logged, counted and left out: it must not stop the others.
func (s *Store) timersOf(index []*jet.Msg) []schemas.TimerID {
	n := 0
	for _, m := range index {
		n += max(1, len(m.Data)/idBytes)
	}
	ids := make([]schemas.TimerID, 0, n)
	named := make(map[schemas.TimerID]struct{}, n)
	for _, m := range index {
		switch {
		case jet.IsMarker(m):
		case len(m.Data)%idBytes != 0:
			s.undecodable.Add(1)
			s.log.Error().Str("key", m.Subject).Uint64("revision", m.Sequence).Int("bytes", len(m.Data)).Msg("index entry skipped: it is no list of timer ids")
		case len(m.Data) == 0:
			// A key that is no timer's is nobody's: it names a record that is not there.
			if id, err := schemas.ParseTimerID(timerOfSlot(m.Subject)); err == nil {
				ids = once(ids, named, id)
			}
		default:
			for b := m.Data; len(b) > 0; b = b[idBytes:] {
				ids = once(ids, named, schemas.TimerID(b[:idBytes]))
			}
		}
	}
	return ids
}

// once appends an id that was not named before.
func once(ids []schemas.TimerID, named map[schemas.TimerID]struct{}, id schemas.TimerID) []schemas.TimerID {
	if _, ok := named[id]; ok {
		return ids
	}
	named[id] = struct{}{}
	return append(ids, id)
}
