package store

import (
	"errors"
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// decoder decodes records and index entries. It remembers the records of each shard that it
// could not decode, so that each is logged once and inspections find them. Safe for
// concurrent use.
type decoder struct {
	shards *Shards
	// reads is the FormatLevel that this process reads.
	reads FormatLevel
	log   zerolog.Logger

	damaged []damagedSet // by shard
	// undecodable counts how often a record or an index entry was skipped because it could
	// not be decoded.
	undecodable atomic.Uint64
}

func newDecoder(shards *Shards, reads FormatLevel, log zerolog.Logger) *decoder {
	return &decoder{shards: shards, reads: reads, log: log, damaged: make([]damagedSet, shards.geo.Shards)}
}

// timer decodes the message of a record, whose key ends with the timer id. Errors:
// schemas.ErrNotFound for the marker of a KV client's delete, schemas.ErrNewer,
// schemas.ErrDamaged.
func (d *decoder) timer(m *jet.Msg) (Timer, error) {
	if jet.IsMarker(m) {
		return Timer{}, schemas.ErrNotFound
	}
	id, err := schemas.ParseTimerID(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if err != nil {
		return Timer{}, err
	}
	r, err := d.reads.decodeRecord(m.Data)
	if err != nil {
		return Timer{}, err
	}
	return Timer{ID: id, Rev: m.Sequence, StoredMs: storedMs(m), Record: r}, nil
}

// storedMs returns Timer.StoredMs of a message.
func storedMs(m *jet.Msg) int64 {
	if m.Time.IsZero() {
		return 0
	}
	return m.Time.UnixMilli()
}

// decodeAll decodes records. A record of a newer format comes without its Record; see
// Timer.Unread. A damaged record is logged, counted and left out, so that it does not stop
// the others.
func (d *decoder) decodeAll(msgs []*jet.Msg) []Timer {
	timers := make([]Timer, 0, len(msgs))
	for _, m := range msgs {
		if t, ok := d.decode(m); ok || t.Unread != Readable {
			timers = append(timers, t)
		}
	}
	return timers
}

// decode decodes a record. It returns false for a record that it cannot decode, logs it
// once, and counts it. A record of a newer format comes with its identity; see
// Timer.Unread.
func (d *decoder) decode(m *jet.Msg) (Timer, bool) {
	t, err := d.timer(m)
	if err == nil || errors.Is(err, schemas.ErrNotFound) {
		// A readable record, or the marker of a deleted one, replaces a damaged revision.
		if d.undecodable.Load() > 0 {
			if set := d.damagedOf(m.Subject); set != nil && set.n.Load() > 0 {
				set.good(lastToken(m.Subject), m.Sequence)
			}
		}
		return t, err == nil
	}
	if !errors.Is(err, schemas.ErrNewer) {
		d.noteDamaged(m, err)
		return Timer{}, false
	}
	t = d.unread(m)
	if t.Unread != UnreadFinal {
		d.noteDamaged(m, err)
	}
	return t, false
}

// unread identifies a record of a newer format. A record with a TTL is final in every
// format: Write.Check gives a TTL to no other, and an older build must be able to tell.
func (d *decoder) unread(m *jet.Msg) Timer {
	id, err := schemas.ParseTimerID(lastToken(m.Subject))
	if err != nil {
		return Timer{} // not the key of a timer
	}
	t := Timer{ID: id, Rev: m.Sequence, StoredMs: storedMs(m), Unread: UnreadOpen}
	if jet.TTL(m) > 0 {
		t.Unread = UnreadFinal
	}
	return t
}

// noteDamaged remembers a record that cannot be decoded, and logs it once.
func (d *decoder) noteDamaged(m *jet.Msg, err error) {
	d.undecodable.Add(1)
	set := d.damagedOf(m.Subject)
	if set == nil || !set.note(DamagedRecord{Timer: lastToken(m.Subject), Revision: m.Sequence, Reason: err.Error(), Newer: errors.Is(err, schemas.ErrNewer)}) {
		return
	}
	if errors.Is(err, schemas.ErrNewer) {
		// The scheduler logs once for all of them.
		d.log.Debug().Str("key", m.Subject).Uint64("revision", m.Sequence).Err(err).Msg("record of a newer format")
		return
	}
	d.log.Error().Str("key", m.Subject).Uint64("revision", m.Sequence).Err(err).Msg("record skipped: it cannot be decoded; \"belfry repair\" shows what can be done")
}

// damagedOf returns the set of the shard that a subject belongs to; nil for none.
func (d *decoder) damagedOf(subject string) *damagedSet {
	for n := range d.damaged {
		if strings.HasPrefix(subject, d.shards.subjects[n].timer) {
			return &d.damaged[n]
		}
	}
	return nil
}

// lastToken returns the last token of a subject.
func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// timersOf returns the timers that index entries name, and others, each timer once. An entry that cannot
// be decoded is logged, counted and left out, so that it does not stop the others.
func (d *decoder) timersOf(index []*jet.Msg, others ...schemas.TimerID) []schemas.TimerID {
	n := len(others)
	for _, m := range index {
		n += max(1, len(m.Data)/idBytes)
	}
	ids := make([]schemas.TimerID, 0, n)
	named := make(map[schemas.TimerID]struct{}, n)
	for _, id := range others {
		ids = once(ids, named, id)
	}
	for _, m := range index {
		switch {
		case jet.IsMarker(m):
		case len(m.Data)%idBytes != 0:
			d.undecodable.Add(1)
			d.log.Error().Str("key", m.Subject).Uint64("revision", m.Sequence).Int("bytes", len(m.Data)).Msg("index entry skipped: it is no list of timer ids")
		case len(m.Data) == 0:
			// A key without a timer id names no record.
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
