package fake

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file keeps the lists of ended timers, as package store does (endedlist.go, void.go), and brings replaced revisions back,
// as a killed server may. The list of a shard is one message of its stream. Package store has chunks, which are that small only
// for the limit of a message.

const (
	// endedKeep and endedTries have the values of the constants in package store.
	endedKeep  = 24 * time.Hour
	endedTries = 10
)

func endedKey() key { return key{subject: "ended"} }

// endedOf returns the list of ended timers of a shard as of a sequence, with its revision; 0 if there is none.
func (s *Server) endedOf(shard int, upTo uint64) ([]store.EndedTimer, uint64) {
	st := s.shards[shard]
	m := st.asOf(st.last[endedKey()], upTo)
	if m == nil {
		return nil, 0
	}
	return m.val.([]store.EndedTimer), m.seq
}

// Listed reports whether the list of ended timers has a timer with the revision of its final record.
func (s *Server) Listed(id schemas.TimerID, rev uint64) bool {
	shard := s.cfg.Geometry.Shard(id)
	listed, _ := s.endedOf(shard, s.shards[shard].seq)
	return slices.ContainsFunc(listed, func(e store.EndedTimer) bool { return e.ID == id && e.Rev == rev })
}

// AddEnded adds timers to the list of a shard; see store.EndedLists.
func (c *Client) AddEnded(ctx context.Context, shard int, nowMs, passedMs int64, timers []store.EndedTimer) error {
	for tries := 0; ; tries++ {
		err := c.addEnded(ctx, shard, nowMs, passedMs, timers)
		if !errors.Is(err, store.ErrRevision) || tries == endedTries {
			return err
		}
	}
}

// addEnded makes one attempt of AddEnded. It fails with store.ErrRevision if the list has changed since it was read.
func (c *Client) addEnded(ctx context.Context, shard int, nowMs, passedMs int64, timers []store.EndedTimer) error {
	var listed []store.EndedTimer
	var rev uint64
	// A server that led the stream before may answer.
	err := c.t.Do(ctx, Request{Stream: StreamShard(shard), Deposed: true, Steps: []func(uint64) error{func(upTo uint64) error {
		listed, rev = c.s.endedOf(shard, upTo)
		return nil
	}}})
	if err != nil {
		return err
	}
	next := slices.DeleteFunc(slices.Clone(listed), func(e store.EndedTimer) bool { return e.UntilMs <= passedMs })
	untilMs := nowMs
	for _, e := range timers {
		if !slices.ContainsFunc(next, func(o store.EndedTimer) bool { return o.ID == e.ID && o.Rev == e.Rev }) {
			next = append(next, e)
		}
		untilMs = max(untilMs, e.UntilMs)
	}
	ttl := max(time.Duration(untilMs-nowMs)*time.Millisecond, c.s.cfg.Retention) + endedKeep
	return c.leader(ctx, StreamShard(shard), func() error {
		_, err := c.s.shards[shard].put(&message{key: endedKey(), val: next}, &rev, ttl)
		return err
	})
}

// EachFinal passes the final records of a shard after a sequence and up to another to fn; see store.Reader.
func (c *Client) EachFinal(ctx context.Context, shard int, after, through uint64, fn func(*store.Timer)) error {
	return c.scan(ctx, shard, after, func(t store.Timer) (bool, error) {
		if t.Rev > through {
			return false, nil
		}
		if t.Unread == store.Readable && t.Record.State.Final() {
			fn(&t)
		}
		return true, nil
	})
}

// RemoveVoid deletes the revisions that the list of a shard shows to be void; see store.Reader. A record whose delete has failed
// is returned as well: package store repeats the delete by itself, here the caller repeats RemoveVoid.
func (c *Client) RemoveVoid(ctx context.Context, shard int) (removed []store.VoidRecord, err error) {
	listed, found, err := c.listedRecords(ctx, shard)
	if err != nil {
		return nil, err
	}
	for i := range found {
		for _, e := range listed {
			if e.ID != found[i].ID || !e.Voids(&found[i]) {
				continue
			}
			void, err := c.removeVoid(ctx, &e)
			if void.Rev != 0 {
				removed = append(removed, void)
			}
			if err != nil {
				return removed, err
			}
			break
		}
	}
	return removed, nil
}

// listedRecords reads the list of ended timers of a shard, and the records of the timers in it. Any replica may answer that has
// the list.
func (c *Client) listedRecords(ctx context.Context, shard int) (listed []store.EndedTimer, found []store.Timer, err error) {
	newest, err := c.newest(ctx, StreamShard(shard), func(m *message) bool { return m.key == endedKey() })
	if err != nil || newest == 0 {
		return nil, nil, err
	}
	var rev uint64
	err = c.direct(ctx, StreamShard(shard), func(upTo uint64) error {
		if upTo < newest {
			return errBehind
		}
		listed, rev = c.s.endedOf(shard, upTo)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	keys := make([]key, len(listed))
	for i, e := range listed {
		keys[i] = recordKey(e.ID)
	}
	found, err = c.lastFor(ctx, shard, keys, rev)
	return listed, found, err
}

// removeVoid deletes the record of a timer if the leader also has a void record.
func (c *Client) removeVoid(ctx context.Context, e *store.EndedTimer) (void store.VoidRecord, err error) {
	t, err := c.Get(ctx, e.ID)
	if errors.Is(err, schemas.ErrNotFound) || err == nil && !e.Voids(&t) {
		return store.VoidRecord{}, nil
	}
	if err != nil {
		return store.VoidRecord{}, err
	}
	shard := c.s.cfg.Geometry.Shard(e.ID)
	err = c.leader(ctx, StreamShard(shard), func() error { return c.s.Remove(StreamShard(shard), t.Rev) })
	return store.VoidRecord{ID: e.ID, Rev: t.Rev}, err
}

// Interruptions returns how often all connections were lost; see Server.Interrupt.
func (c *Client) Interruptions() uint64 { return c.s.interruptions }

// Interrupt makes all clients lose their connections for a moment.
func (s *Server) Interrupt() { s.interruptions++ }

// ReturnRevision brings a replaced revision of an expired record back, on all replicas, as a killed server may: the newest one
// for which which returns true. The revision is the record of the timer again. ended is the final record that had expired, the
// zero Timer if this call has brought a revision back before. Error: schemas.ErrNotFound if the timer has a record, or no such
// revision.
func (s *Server) ReturnRevision(id schemas.TimerID, which func(returned, ended store.Timer) bool) (store.Timer, error) {
	st := s.shards[s.cfg.Geometry.Shard(id)]
	last := st.last[recordKey(id)]
	if st.alive(last) {
		return store.Timer{}, schemas.ErrNotFound
	}
	var ended store.Timer
	if last != nil && last.intact() && last.rec.State.Final() {
		ended, _ = timerOf(last) // an intact record has no error
	}
	for m := last; m != nil; m = m.older {
		if !m.intact() || m.rec.State.Final() {
			continue
		}
		if t, _ := timerOf(m); which(t, ended) {
			m.removed = false
			st.last[m.key] = m
			return t, nil
		}
	}
	return store.Timer{}, schemas.ErrNotFound
}
