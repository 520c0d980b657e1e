package fake

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file damages records, and reports damaged records as package store does: a client
// remembers each damaged record that it reads. WriteClock and Inspect write these records to
// the key damage.<shard> of bucket clock.

// DamageRecord changes the stored bytes of a timer's record in place, on all replicas, as
// a failing disk does: the revision stays. Error: schemas.ErrNotFound.
func (s *Server) DamageRecord(id schemas.TimerID, change func(encoded []byte) []byte) error {
	st := s.shards[s.cfg.Geometry.Shard(id)]
	m := st.asOf(st.last[recordKey(id)], st.seq)
	if m == nil || !m.intact() {
		return schemas.ErrNotFound
	}
	m.data = append([]byte{}, change(m.rec.Append(nil))...)
	return nil
}

// RepairRecord writes the previous revision of a damaged record again, with its index
// entry, as "belfry repair --apply" does. Errors: schemas.ErrNotFound if there is no
// previous revision. A record that was damaged in place has none, because package store
// removes superseded revisions.
func (s *Server) RepairRecord(id schemas.TimerID) error {
	st := s.shards[s.cfg.Geometry.Shard(id)]
	damaged := st.asOf(st.last[recordKey(id)], st.seq)
	if damaged == nil || damaged.rec != nil {
		return schemas.ErrNotFound
	}
	was := damaged
	for was != nil && was.rec == nil {
		was = was.older
	}
	if was == nil || !was.intact() || !st.alive(was) {
		return schemas.ErrNotFound
	}
	leader, _ := st.now()
	dueMs, open := was.rec.DueMs, was.rec.State == schemas.StateDelivered || was.rec.State == schemas.StateRetrying
	if !was.rec.Queued {
		dueMs = leader / int64(time.Millisecond) // for the sweeper
	}
	if was.rec.Queued || open {
		g := s.cfg.Geometry
		slot := g.Slot(g.Tick(dueMs))
		ttl := max(time.Duration(dueMs)*time.Millisecond-time.Duration(leader), 0) + s.cfg.IndexKeep
		if _, err := st.put(&message{key: key{id: id, slot: slot}}, nil, ttl); err != nil {
			return err
		}
	}
	ttl := time.Duration(0)
	if was.expires != 0 {
		ttl = time.Duration(was.expires - leader)
	}
	rec := *was.rec
	if !rec.State.Final() {
		rec.Moves = max(rec.Moves, 1) // neither a new timer nor a new claim
	}
	_, err := st.put(&message{key: was.key, rec: &rec, level: was.level}, &damaged.seq, ttl)
	return err
}

// intact reports whether a message holds a record that can be decoded.
func (m *message) intact() bool { return m.rec != nil && m.data == nil }

// Damaged reports whether the newest revision of a timer's record cannot be decoded.
func (s *Server) Damaged(id schemas.TimerID) bool {
	_, err := s.Record(id)
	return errors.Is(err, schemas.ErrDamaged)
}

// Reported lists the damaged records in a shard's report.
func (s *Server) Reported(shard int) []store.DamagedRecord { return s.report(shard).records }

// damageReport has the records of a shard's report, and its revision; 0 if there is none.
type damageReport struct {
	records []store.DamagedRecord
	rev     uint64
}

func (s *Server) report(shard int) damageReport {
	m := s.clock.asOf(s.clock.last[damageKey(shard)], s.clock.seq)
	if m == nil {
		return damageReport{}
	}
	return damageReport{m.val.(store.ShardDamage).Records, m.seq}
}

func damageKey(shard int) key { return key{subject: "damage." + strconv.Itoa(shard)} }

// note processes a record that the client has read with the error err. It remembers a
// damaged record, and forgets it when it is readable again.
func (c *Client) note(m *message, err error) {
	shard := c.s.cfg.Geometry.Shard(m.id)
	was, known := c.damaged[shard][m.id]
	switch {
	case errors.Is(err, schemas.ErrDamaged):
		if known && was.Revision >= m.seq {
			return
		}
		if c.damaged[shard] == nil {
			c.damaged[shard] = map[schemas.TimerID]store.DamagedRecord{}
		}
		c.unreported[shard] = true
		c.damaged[shard][m.id] = store.DamagedRecord{Timer: m.id.String(), Revision: m.seq, Reason: err.Error()}
	case err == nil && known && was.Revision <= m.seq:
		delete(c.damaged[shard], m.id)
	}
}

// decode decodes a record with the format level of the client's process; see viewOf. It
// returns false for a damaged record, which the client remembers.
func (c *Client) decode(m *message) (store.Timer, bool) {
	t, err := viewOf(m, c.Reads())
	c.note(m, err)
	return t, err == nil
}

// Inspect reads the known damaged records again and reports the records that are still
// damaged; see store.Store. The fake loses no messages, so it never finds signs of a loss.
func (c *Client) Inspect(ctx context.Context, shard int, _, _ uint64, _ *store.Expectation) (in store.Inspection, err error) {
	err = onConflict(func() (err error) {
		in, err = c.inspect(ctx, shard)
		return err
	})
	return in, err
}

// inspect makes one attempt of Inspect. It fails with store.ErrRevision if the report has changed.
func (c *Client) inspect(ctx context.Context, shard int) (store.Inspection, error) {
	in := store.Inspection{Damage: store.ShardDamage{Shard: shard}}
	was, err := c.recall(ctx, shard)
	if err != nil {
		return in, err
	}
	st := c.s.shards[shard]
	err = c.leader(ctx, StreamShard(shard), func() error {
		for id := range c.damaged[shard] {
			if m := st.asOf(st.last[recordKey(id)], st.seq); m == nil {
				delete(c.damaged[shard], id)
			} else {
				c.decode(m)
			}
		}
		in.LastSeq = st.seq
		return nil
	})
	if err != nil {
		return in, err
	}
	in.Damage.Records = c.damagedOf(shard)
	return in, c.writeDamage(ctx, was, in.Damage)
}

// recall adds the reported damaged records of a shard to the client's memory, and returns the report.
func (c *Client) recall(ctx context.Context, shard int) (was damageReport, err error) {
	err = c.leader(ctx, StreamClock, func() error {
		was = c.s.report(shard)
		return nil
	})
	for _, r := range was.records {
		if id, err := schemas.ParseTimerID(r.Timer); err == nil {
			c.note(&message{key: recordKey(id), seq: r.Revision}, schemas.Errorf(schemas.CodeDamaged, "%s", r.Reason))
		}
	}
	return was, err
}

// reportTries has the value of the constant in package store.
const reportTries = 5

// onConflict repeats a change of a report while it meets another change, reportTries times.
func onConflict(change func() error) error {
	for try := 1; ; try++ {
		if err := change(); !errors.Is(err, store.ErrRevision) || try == reportTries {
			return err
		}
	}
}

// report writes the report of a shard if the client has read damaged records that are not in
// it. Errors: schemas.ErrUnavailable, also if the report changes again and again.
func (c *Client) report(ctx context.Context, shard int) error {
	if !c.unreported[shard] {
		return nil
	}
	err := onConflict(func() error {
		was, err := c.recall(ctx, shard)
		if err != nil {
			return err
		}
		return c.writeDamage(ctx, was, store.ShardDamage{Shard: shard, Records: c.damagedOf(shard)})
	})
	if errors.Is(err, store.ErrRevision) {
		return schemas.Errorf(schemas.CodeUnavailable, "the damage report of shard %d changed after each of %d reads", shard, reportTries)
	}
	return err
}

// writeDamage writes the report of a shard in place of was, by compare-and-set, unless it is unchanged.
func (c *Client) writeDamage(ctx context.Context, was damageReport, d store.ShardDamage) error {
	err := c.leader(ctx, StreamClock, func() error {
		if slices.Equal(was.records, d.Records) {
			return nil
		}
		_, err := c.s.clock.put(&message{key: damageKey(d.Shard), val: d}, &was.rev, 0)
		return err
	})
	if err == nil && slices.Equal(d.Records, c.damagedOf(d.Shard)) {
		c.unreported[d.Shard] = false
	}
	return err
}

// damagedOf lists the damaged records of a shard that the client remembers.
func (c *Client) damagedOf(shard int) (out []store.DamagedRecord) {
	for _, r := range c.damaged[shard] {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b store.DamagedRecord) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Timer, b.Timer))
	})
	return out
}

// ReadDamage reads the reports of all shards.
func (c *Client) ReadDamage(ctx context.Context) (out []store.ShardDamage, err error) {
	err = c.leader(ctx, StreamClock, func() error {
		out = nil
		for n := range c.s.shards {
			if r := c.s.Reported(n); len(r) > 0 {
				out = append(out, store.ShardDamage{Shard: n, Records: r})
			}
		}
		return nil
	})
	return out, err
}
