package fake

import (
	"errors"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// viewOf returns a record as a process sees it that reads formats up to level. A record of a
// higher level has no content there, and Unread is set.
func viewOf(m *message, level store.FormatLevel) (store.Timer, error) {
	t, err := timerOf(m)
	if !errors.Is(err, schemas.ErrNewer) && (err != nil || m.level <= level) {
		return t, err
	}
	t = store.Timer{ID: m.id, Rev: m.seq, StoredMs: m.at / int64(time.Millisecond), Unread: store.UnreadOpen}
	if m.expires != 0 {
		t.Unread = store.UnreadFinal
	}
	return t, nil
}

// loaded makes a store.Load in which the records that the client cannot read are separate.
func (c *Client) loaded(shard int, ticks []int64, named int, timers []store.Timer, next uint64) store.Load {
	load := store.Load{Complete: true, Next: next, Named: named}
	for _, t := range timers {
		switch t.Unread {
		case store.Readable:
			load.Timers = append(load.Timers, t)
		case store.UnreadOpen:
			load.Newer = append(load.Newer, store.NewerRecord{ID: t.ID, Rev: t.Rev, Tick: c.tickNaming(shard, ticks, t.ID)})
		case store.UnreadFinal:
		}
	}
	return load
}

// tickNaming returns the first of the ticks with an index entry that names the timer, and the first tick for a
// timer that only far entries name.
func (c *Client) tickNaming(shard int, ticks []int64, id schemas.TimerID) int64 {
	st := c.s.shards[shard]
	for _, tick := range ticks {
		for _, m := range st.slot(c.s.cfg.Geometry.Slot(tick), st.seq, nil) {
			if slices.Contains(m.named(), id) {
				return tick
			}
		}
	}
	return ticks[0]
}

// WriteNewer writes a timer's record again in the format of a level. The change equals a
// reschedule to the same due time.
func (s *Server) WriteNewer(id schemas.TimerID, level store.FormatLevel) error {
	st := s.shards[s.cfg.Geometry.Shard(id)]
	m := st.asOf(st.last[recordKey(id)], st.seq)
	if m == nil || !m.intact() {
		return schemas.ErrNotFound
	}
	rec := *m.rec
	rec.Moves = max(rec.Moves, 1)
	_, err := st.put(&message{key: m.key, rec: &rec, level: level}, nil, 0)
	return err
}

// Level returns the format level that a process must read to decode a timer's record.
func (s *Server) Level(id schemas.TimerID) store.FormatLevel {
	st := s.shards[s.cfg.Geometry.Shard(id)]
	if m := st.asOf(st.last[recordKey(id)], st.seq); m != nil {
		return m.level
	}
	return store.LevelFirst
}
