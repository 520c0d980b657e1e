package fake

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// index returns the step that writes an index entry without compare-and-set. share is true for
// a new timer. With ShareIndex every other entry of new timers in a shard also names the timer
// that was created before, and its key is derived from neither. In the real store both timers
// are due in one tick and come in one batch. Here the other timer may be due in another tick,
// rescheduled or final. The key of an entry that may be of a run of a schedule is the id with
// its halves exchanged (spread), as in the real store.
func (c *Client) index(id schemas.TimerID, tick, dueMs, nowMs int64, share, spread bool) func(uint64) error {
	g := c.s.cfg.Geometry
	ttl := time.Duration(max(dueMs-nowMs, 0))*time.Millisecond + c.s.cfg.IndexKeep
	return func(uint64) error {
		st := c.s.shards[g.Shard(id)]
		m := &message{key: key{id: id, slot: g.Slot(tick)}}
		if spread {
			m.ids = []schemas.TimerID{id}
			copy(m.id[copy(m.id[:], id[len(id)/2:]):], id[:len(id)/2])
		}
		if share && c.s.cfg.ShareIndex && st.seq%2 == 0 {
			// A hash looks random and is the same in each run of a seed.
			sum := sha256.Sum256(binary.BigEndian.AppendUint64(id[:], st.seq))
			m.ids = []schemas.TimerID{id}
			if st.created != (schemas.TimerID{}) {
				m.ids = append(m.ids, st.created)
			}
			m.id = schemas.TimerID(sum[:len(id)])
		}
		if share {
			st.created = id
		}
		_, err := st.put(m, nil, ttl)
		return err
	}
}

// named returns the timers that an index entry names.
func (m *message) named() []schemas.TimerID {
	if m.ids == nil {
		return []schemas.TimerID{m.id}
	}
	return m.ids
}

// record returns the step that writes a record by compare-and-set. The step sets rev to the
// new revision.
func (c *Client) record(w store.Write, rev *uint64) func(uint64) error {
	rec := copyOf(w.Record)
	return func(upTo uint64) (err error) {
		if err := w.Check(); err != nil {
			return err
		}
		if upTo != NoLimit {
			return c.s.shards[c.s.cfg.Geometry.Shard(w.ID)].refuse(recordKey(w.ID), w.Rev, upTo)
		}
		if err := c.s.refusesRecord(rec); err != nil {
			return err
		}
		*rev, err = c.s.shards[c.s.cfg.Geometry.Shard(w.ID)].put(&message{key: recordKey(w.ID), rec: rec}, &w.Rev, w.TTL)
		return err
	}
}

func (c *Client) shardOf(id schemas.TimerID) string { return StreamShard(c.s.cfg.Geometry.Shard(id)) }

// entries returns the steps that write the index entries of a new timer.
func (c *Client) entries(w store.Write, tick int64) []func(uint64) error {
	r := w.Record
	if c.s.far(r) {
		return c.farEntry(w.ID, tick)
	}
	return []func(uint64) error{c.index(w.ID, tick, r.DueMs, min(max(r.AddedMs, r.FiredMs, 0), c.nowMs()), true, r.Origin != nil)}
}

// Create writes new timers; see store.Store.
func (c *Client) Create(ctx context.Context, timers []store.Write) []store.Result {
	results := make([]store.Result, len(timers))
	for i, w := range timers {
		r, res := w.Record, &results[i]
		tick := c.s.cfg.Geometry.Tick(r.DueMs)
		var steps []func(uint64) error
		indexed := 0
		for _, put := range c.entries(w, tick) {
			steps = append(steps, func(upTo uint64) error {
				if put(upTo) == nil {
					indexed++
				}
				return nil
			})
		}
		entries := len(steps)
		res.Err = c.t.Do(ctx, Request{Stream: c.shardOf(w.ID), Steps: append(steps, c.record(w, &res.Rev))})
		if res.Err == nil && indexed < entries {
			res.Err = schemas.ErrUnavailable
		}
	}
	return results
}

// UpdateAsync replaces a record by compare-and-set, without touching the index.
func (c *Client) UpdateAsync(w store.Write, done func(store.Result)) {
	res := &store.Result{}
	c.t.Start(Request{Stream: c.shardOf(w.ID), Deposed: true, Steps: []func(uint64) error{c.record(w, &res.Rev)}}, func(err error) {
		if res.Err = err; err != nil {
			res.Rev = 0
		}
		done(*res)
	})
}

// Update replaces a record by compare-and-set. If the record is queued, it first writes the
// index entry.
func (c *Client) Update(ctx context.Context, w store.Write) (uint64, error) {
	if w.Record.Queued {
		if err := c.PutIndex(ctx, w.ID, c.s.cfg.Geometry.Tick(w.Record.DueMs)); err != nil {
			return 0, err
		}
	}
	var rev uint64
	err := c.t.Do(ctx, Request{Stream: c.shardOf(w.ID), Deposed: true, Steps: []func(uint64) error{c.record(w, &rev)}})
	if err != nil {
		return 0, err
	}
	return rev, nil
}

// PutIndex writes the index entry of one timer for a tick.
func (c *Client) PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error {
	g := c.s.cfg.Geometry
	put := c.index(id, tick, g.TickStart(tick+1), c.nowMs(), false, true)
	return c.t.Do(ctx, Request{Stream: c.shardOf(id), Steps: []func(uint64) error{put}})
}

// PutIndexes writes the index entries of timers of one shard for a tick. Each timer has an
// entry of its own.
func (c *Client) PutIndexes(ctx context.Context, tick int64, ids []schemas.TimerID) error {
	for _, id := range ids {
		if err := c.PutIndex(ctx, id, tick); err != nil {
			return err
		}
	}
	return nil
}

// Get reads a record from its leader, or from a server that led the stream before.
func (c *Client) Get(ctx context.Context, id schemas.TimerID) (t store.Timer, err error) {
	err = c.t.Do(ctx, Request{Stream: c.shardOf(id), Deposed: true, Steps: []func(uint64) error{func(upTo uint64) (err error) {
		t, err = c.view(id, upTo)
		return err
	}}})
	if err != nil {
		return store.Timer{}, err
	}
	return t, nil
}

// view returns a record as of a sequence.
func (c *Client) view(id schemas.TimerID, upTo uint64) (store.Timer, error) {
	st := c.s.shards[c.s.cfg.Geometry.Shard(id)]
	m := st.asOf(st.last[recordKey(id)], upTo)
	t, err := viewOf(m, c.Reads())
	if m != nil {
		c.note(m, err)
	}
	if err == nil && t.Unread != store.Readable {
		err = schemas.ErrNewer
	}
	return t, err
}

// GetAsOf reads a record as of a sequence or later; see store.Reader.
func (c *Client) GetAsOf(ctx context.Context, id schemas.TimerID, rev uint64) (t store.Timer, err error) {
	t, err = c.Get(ctx, id)
	if rev == 0 || err == nil && t.Rev >= rev || err != nil && !errors.Is(err, schemas.ErrNotFound) {
		return t, err
	}
	err = c.direct(ctx, c.shardOf(id), func(upTo uint64) (err error) {
		if upTo < rev {
			return errBehind
		}
		t, err = c.view(id, upTo)
		return err
	})
	if err != nil {
		return store.Timer{}, err
	}
	return t, nil
}

// GetNewest reads a record that is as new as the call; see store.Reader. A server that led the stream before does not
// answer the first request, because it cannot store anything.
func (c *Client) GetNewest(ctx context.Context, id schemas.TimerID) (t store.Timer, err error) {
	var seq uint64
	err = c.t.Do(ctx, Request{Stream: c.shardOf(id), Steps: []func(uint64) error{func(uint64) (err error) {
		seq, err = c.s.shards[c.s.cfg.Geometry.Shard(id)].put(&message{key: key{subject: "touch"}}, nil, 0)
		return err
	}}})
	if err != nil {
		return store.Timer{}, err
	}
	for range maxBehind {
		err = c.direct(ctx, c.shardOf(id), func(upTo uint64) (err error) {
			if upTo < seq {
				return errBehind
			}
			t, err = c.view(id, upTo)
			return err
		})
		if !errors.Is(err, store.ErrBehind) {
			break
		}
	}
	if err != nil {
		return store.Timer{}, err
	}
	return t, nil
}

// maxBehind bounds the tries of GetNewest while the replicas that answer are behind.
const maxBehind = 20

// GetMany reads records by direct get, so they may be stale. The simulation uses it for the
// fast path of a cancel.
func (c *Client) GetMany(ctx context.Context, ids []schemas.TimerID) ([]store.Timer, error) {
	out := make([]store.Timer, 0, len(ids))
	for n := range c.s.shards {
		var keys []key
		for _, id := range ids {
			if c.s.cfg.Geometry.Shard(id) == n {
				keys = append(keys, recordKey(id))
			}
		}
		got, err := c.lastFor(ctx, n, keys, 0)
		if err != nil {
			return nil, err
		}
		for _, t := range got {
			if t.Unread == store.Readable {
				out = append(out, t)
			}
		}
	}
	return out, nil
}

// Bounds of a load, as in package store (load.go).
const (
	defaultMaxExact = 1000
	slotParts       = 1 << 15
	firstParts      = slotParts / 8
)

var (
	errTooMany = errors.New("more results than one answer holds")
	errBehind  = schemas.Errorf(schemas.CodeUnavailable, "%w", store.ErrBehind)
)

// lastFor reads the newest message of each key from a replica that has reached a
// sequence.
func (c *Client) lastFor(ctx context.Context, shard int, keys []key, seen uint64) (out []store.Timer, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	st := c.s.shards[shard]
	err = c.direct(ctx, StreamShard(shard), func(upTo uint64) error {
		if upTo < seen {
			return errBehind
		}
		msgs := make([]*message, 0, len(keys))
		for _, k := range keys {
			if m := st.asOf(st.last[k], upTo); m != nil {
				msgs = append(msgs, m)
			}
		}
		out = out[:0]
		for _, m := range inOrder(msgs) {
			if t, ok := c.decode(m); ok {
				out = append(out, t)
			}
		}
		return nil
	})
	return out, err
}

// partOf returns the part of a slot in which an index entry is; see loadPage.
func partOf(id schemas.TimerID) uint64 { return uint64(binary.BigEndian.Uint16(id[:2]) >> 1) }

// indexOf returns the keys of the records that the index entries of the ticks name. It reads
// the parts from first up to, but not including, end.
func (c *Client) indexOf(ctx context.Context, shard int, ticks []int64, first, end, seen uint64) (keys []key, err error) {
	st, g := c.s.shards[shard], c.s.cfg.Geometry
	var marks []store.FarMark
	err = c.direct(ctx, StreamShard(shard), func(upTo uint64) error {
		if upTo < seen {
			return errBehind
		}
		var msgs []*message
		for _, tick := range ticks {
			msgs = st.slot(g.Slot(tick), upTo, msgs)
		}
		keys, marks = keys[:0], c.s.farMarks(shard, ticks, upTo)
		for _, m := range inOrder(msgs) {
			if p := partOf(m.id); p < first || p >= end {
				continue
			}
			for _, id := range m.named() {
				if k := recordKey(id); !slices.Contains(keys, k) {
					keys = append(keys, k)
				}
			}
		}
		if len(keys) > c.s.cfg.MaxExact {
			return errTooMany
		}
		return nil
	})
	if err != nil || len(marks) == 0 {
		return keys, err
	}
	far, err := c.farNamed(ctx, shard, ticks, marks, seen)
	for _, id := range far {
		if p, k := partOf(id), recordKey(id); p >= first && p < end && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if err == nil && len(keys) > c.s.cfg.MaxExact {
		err = errTooMany
	}
	return keys, err
}

// LoadTicks reads the records that the index entries of the ticks name; see store.Store.
func (c *Client) LoadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64, near *store.Near) (store.Load, error) {
	limit = max(1, min(limit, c.s.cfg.MaxExact))
	if len(ticks) == 0 {
		return store.Load{Complete: true}, nil
	}
	if after == 0 {
		keys, err := c.indexOf(ctx, shard, ticks, 0, slotParts, seen)
		if err == nil && len(keys) > limit {
			err = errTooMany
		}
		if err == nil {
			timers, err := c.indexed(ctx, shard, keys, seen, near)
			if err != nil {
				return store.Load{}, err
			}
			return c.loaded(shard, ticks, len(keys), timers, 0), nil
		}
		if !errors.Is(err, errTooMany) {
			return store.Load{}, err
		}
		if len(ticks) > 1 {
			return store.Load{}, nil
		}
	}
	return c.loadPage(ctx, shard, ticks[0], limit, after, seen, near)
}

// loadPage reads one page of a large tick, from part first on. The width of a page, in parts,
// adapts to the number of records. The store chooses the width differently (store.Loader.loadPage).
func (c *Client) loadPage(ctx context.Context, shard int, tick int64, limit int, first, seen uint64, near *store.Near) (store.Load, error) {
	width := c.parts[shard]
	if width == 0 {
		width = firstParts
	}
	for first < slotParts {
		end := min(first+uint64(width), slotParts)
		keys, err := c.indexOf(ctx, shard, []int64{tick}, first, end, seen)
		if errors.Is(err, errTooMany) && width == 1 {
			return store.Load{}, schemas.Errorf(schemas.CodeUnavailable, "more timers in one part of tick %d than an answer holds", tick)
		}
		if err != nil && !errors.Is(err, errTooMany) {
			return store.Load{}, err
		}
		if err != nil || len(keys) > 2*limit && width > 1 {
			width = max(1, width/4)
			continue
		}
		if len(keys) < limit/3 {
			width = min(2*width, slotParts)
		}
		c.parts[shard] = width
		timers, err := c.indexed(ctx, shard, keys, seen, near)
		if err != nil {
			return store.Load{}, err
		}
		return c.loaded(shard, []int64{tick}, len(keys), timers, end%slotParts), nil
	}
	return store.Load{Complete: true}, nil
}

// indexed returns the records of keys: from near, or from a replica that has reached a sequence.
func (c *Client) indexed(ctx context.Context, shard int, keys []key, seen uint64, near *store.Near) ([]store.Timer, error) {
	var timers []store.Timer
	others := make([]key, 0, len(keys))
	for _, k := range keys {
		if t, kept := near.Take(k.id); kept {
			timers = append(timers, t)
		} else {
			others = append(others, k)
		}
	}
	read, err := c.lastFor(ctx, shard, others, seen)
	return append(timers, read...), err
}

// scanBatch bounds the messages that one request of a scan looks at.
const scanBatch = 200

// ScanQueued calls fn for every record of a shard that may still have to fire by throughMs; see
// store.Store. Like a consumer it may read from a replica.
func (c *Client) ScanQueued(ctx context.Context, shard int, throughMs int64, fn func(store.Timer) error) error {
	clock, _, err := c.ReadClock(ctx, shard)
	if err != nil {
		return err
	}
	g := c.s.cfg.Geometry
	mark := g.Tick(clock.TimeMs)
	return c.scan(ctx, shard, 0, func(t store.Timer) (bool, error) {
		if t.Unread == store.UnreadOpen {
			return true, fn(t)
		}
		r := &t.Record
		done := g.Tick(r.DueMs) < mark && t.Rev <= clock.Tail
		claimed := r.Schedule != nil && clock.MissesAny(g, r.Schedule, t.Rev)
		if t.Unread != store.Readable || !claimed && (done || r.DueMs > throughMs || !r.Pending() && r.State != schemas.StateDelivered) {
			return true, nil
		}
		return true, fn(t)
	})
}

// EachSchedule passes the schedules of a shard in state pending or paused to fn; see
// store.Store. Like a consumer it may read from a replica.
func (c *Client) EachSchedule(ctx context.Context, shard int, after uint64, fn func(store.Timer) (more bool, err error)) error {
	return c.scan(ctx, shard, after, func(t store.Timer) (bool, error) {
		if t.Unread == store.UnreadOpen {
			return fn(t)
		}
		if r := &t.Record; t.Unread != store.Readable || r.Schedule == nil || r.State != schemas.StatePending && r.State != schemas.StatePaused {
			return true, nil
		}
		return fn(t)
	})
}

// scan passes the records of a shard after a sequence to fn, until it returns false.
func (c *Client) scan(ctx context.Context, shard int, after uint64, fn func(store.Timer) (more bool, err error)) error {
	st := c.s.shards[shard]
	newest, err := c.newest(ctx, StreamShard(shard), func(m *message) bool { return m.isRecord() && !st.superseded(m, st.seq) })
	if err != nil {
		return err
	}
	for last := false; !last; {
		// The transport may carry out a request again after its answer, so the step must not
		// change variables of this loop.
		from, got, end := after, []store.Timer(nil), false
		var to uint64
		err := c.direct(ctx, StreamShard(shard), func(upTo uint64) error {
			if upTo < newest {
				return errBehind
			}
			got, to, end = c.next(shard, from, upTo, scanBatch, math.MaxUint64)
			return nil
		})
		if err != nil {
			return err
		}
		after, last = to, end
		for _, t := range got {
			if more, err := fn(t); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// newest asks the leader for the sequence of the newest message for which asked returns true,
// 0 if there is none. A consumer's replica must have reached it, otherwise it is behind.
func (c *Client) newest(ctx context.Context, stream string, asked func(*message) bool) (seq uint64, err error) {
	st := c.s.streams[stream]
	err = c.leader(ctx, stream, func() error {
		for i := len(st.log) - 1; i >= 0; i-- {
			if m := st.log[i]; st.alive(m) && asked(m) {
				seq = m.seq
				break
			}
		}
		return nil
	})
	return seq, err
}

// isRecord reports whether a message has the key of a record. Its bytes may be damaged.
func (m *message) isRecord() bool { return m.subject == "" && m.slot == recordSlot }

// next returns the records of a shard after the sequence after, as of the sequence upTo. It
// looks at no more than look messages. last is the last sequence that it looked at; end is true
// if that is upTo. It leaves out revisions that were replaced, but for
// those after the sequence replacedFrom.
func (c *Client) next(shard int, after, upTo uint64, look int, replacedFrom uint64) (got []store.Timer, last uint64, end bool) {
	st := c.s.shards[shard]
	upTo = min(upTo, st.seq)
	for ; after < upTo && look > 0; look-- {
		m := st.log[after]
		after++
		if !m.isRecord() || after <= replacedFrom && (!st.alive(m) || st.superseded(m, upTo)) {
			continue
		}
		if t, ok := c.decode(m); ok {
			got = append(got, t)
		}
	}
	return got, after, after >= upTo
}

// ReadTail returns the records of a shard after a sequence, as a consumer reads them from a
// replica whose last sequence is upTo: replaced revisions are absent, but for those after the sequence replacedFrom, which
// come as from the memory of the process that has written them. It looks at no more than look messages and returns the last sequence that it looked at.
func (c *Client) ReadTail(shard int, after, upTo uint64, look int, replacedFrom uint64) ([]store.Timer, uint64) {
	got, last, _ := c.next(shard, after, upTo, look, replacedFrom)
	return got, last
}

// LastSeq returns the last sequence of a shard's stream.
func (c *Client) LastSeq(ctx context.Context, shard int) (seq uint64, err error) {
	err = c.leader(ctx, StreamShard(shard), func() error {
		seq = c.s.shards[shard].seq
		return nil
	})
	return seq, err
}

// List pages through the records; see store.Store.
func (c *Client) List(ctx context.Context, q store.ListQuery) (store.ListPage, error) {
	return c.list(ctx, q)
}
