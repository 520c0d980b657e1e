package fake

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file has the far entries of the simulated store. Each names one timer, where the real store's name
// several. The entries of a period, and its mark, have a slot that no tick has.

// far reports whether a new timer gets a far entry.
func (s *Server) far(r *schemas.Record) bool {
	return s.cfg.FarTicks > 0 && r.Origin == nil && r.Schedule == nil && r.DueMs-max(r.AddedMs, r.FiredMs, 0) >= s.cfg.FarLead.Milliseconds()
}

// farSlot returns the slot of the far entries of a period.
func (s *Server) farSlot(period int64) int64 { return s.cfg.Geometry.WheelSize + period }

// farMark returns the key of the mark of a period.
func (s *Server) farMark(period int64) key { return key{slot: s.farSlot(period)} }

// farEntry returns the steps that write the far entry of a new timer and then the mark of its period.
func (c *Client) farEntry(id schemas.TimerID, tick int64) []func(uint64) error {
	g, period := c.s.cfg.Geometry, tick/c.s.cfg.FarTicks
	st := c.s.shards[g.Shard(id)]
	ttl := time.Duration(g.TickStart((period+1)*c.s.cfg.FarTicks)-c.nowMs())*time.Millisecond + c.s.cfg.IndexKeep
	entry := func(uint64) error {
		// A hash looks random and is the same in each run of a seed.
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(id[:], st.seq))
		_, err := st.put(&message{key: key{id: schemas.TimerID(sum[:len(id)]), slot: c.s.farSlot(period)}, ids: []schemas.TimerID{id}, tick: tick}, nil, ttl)
		return err
	}
	mark := func(uint64) error {
		_, err := st.put(&message{key: c.s.farMark(period)}, nil, ttl)
		return err
	}
	return []func(uint64) error{entry, mark}
}

// farMarks returns the marks of the periods of the ticks, as of a sequence.
func (s *Server) farMarks(shard int, ticks []int64, upTo uint64) (marks []store.FarMark) {
	if s.cfg.FarTicks == 0 {
		return nil
	}
	st := s.shards[shard]
	for _, t := range ticks {
		period := t / s.cfg.FarTicks
		if len(marks) > 0 && marks[len(marks)-1].Period == period {
			continue
		}
		if m := st.asOf(st.last[s.farMark(period)], upTo); m != nil {
			marks = append(marks, store.FarMark{Period: period, Rev: m.seq, AtNs: m.at})
		}
	}
	return marks
}

// farNamed returns the timers that far entries name for the ticks.
func (c *Client) farNamed(ctx context.Context, shard int, ticks []int64, marks []store.FarMark, seen uint64) ([]schemas.TimerID, error) {
	st := c.s.shards[shard]
	return c.far.Named(shard, ticks, marks, func(mark store.FarMark) (byTick map[int64][]schemas.TimerID, err error) {
		err = c.direct(ctx, StreamShard(shard), func(upTo uint64) error {
			if upTo < max(mark.Rev, seen) {
				return errBehind
			}
			byTick = map[int64][]schemas.TimerID{}
			for _, m := range inOrder(st.slot(c.s.farSlot(mark.Period), upTo, nil)) {
				if m.ids != nil { // not the mark
					byTick[m.tick] = append(byTick[m.tick], m.ids...)
				}
			}
			return nil
		})
		return byTick, err
	})
}

// farIndexed reports whether a far entry names a timer for a tick.
func (s *Server) farIndexed(id schemas.TimerID, tick int64) bool {
	if s.cfg.FarTicks == 0 {
		return false
	}
	st := s.shards[s.cfg.Geometry.Shard(id)]
	if !st.alive(st.last[s.farMark(tick/s.cfg.FarTicks)]) {
		return false
	}
	for _, m := range st.slots[s.farSlot(tick/s.cfg.FarTicks)] {
		if st.alive(m) && m.tick == tick && slices.Contains(m.ids, id) {
			return true
		}
	}
	return false
}
