package fake

import (
	"slices"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Unfenced writes a record without compare-and-set. Only planted bugs use it.
func (c *Client) Unfenced(w store.Write, done func(store.Result)) {
	rec, st := copyOf(w.Record), c.s.shards[c.s.cfg.Geometry.Shard(w.ID)]
	var rev uint64
	step := func(uint64) (err error) {
		rev, err = st.put(&message{key: recordKey(w.ID), rec: rec}, nil, w.TTL)
		return err
	}
	c.t.Start(Request{Stream: c.shardOf(w.ID), Steps: []func(uint64) error{step}}, func(err error) { done(store.Result{Rev: rev, Err: err}) })
}

// Indexed reports whether an index entry of the tick's slot, or a far entry for the tick, names a timer.
func (s *Server) Indexed(id schemas.TimerID, tick int64) bool {
	st := s.shards[s.cfg.Geometry.Shard(id)]
	for _, m := range st.slots[s.cfg.Geometry.Slot(tick)] {
		if st.alive(m) && slices.Contains(m.named(), id) {
			return true
		}
	}
	return s.farIndexed(id, tick)
}

// RevisionAsOf returns the newest revision of a timer's record up to a sequence, 0 for none.
func (s *Server) RevisionAsOf(id schemas.TimerID, seq uint64) uint64 {
	m := s.shards[s.cfg.Geometry.Shard(id)].last[recordKey(id)]
	for m != nil && m.seq > seq {
		m = m.older
	}
	if m == nil {
		return 0
	}
	return m.seq
}
