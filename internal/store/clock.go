package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// clockVersion is that of the clock's value.
const clockVersion = 1

// nodeTTL is after how long the presence key of a node that is gone disappears.
const nodeTTL = time.Minute

func clockSubject(shard int) string { return clockPrefix + "clock." + strconv.Itoa(shard) }

// createClock writes a shard's first clock: released, its mark one tick before
// the leader's time. Whatever was added before has its tail at 0.
func (s *Store) createClock(ctx context.Context, shard int) error {
	if _, _, err := s.ReadClock(ctx, shard); !errors.Is(err, schemas.ErrNotFound) {
		return err
	}
	stamp, err := s.Beat(ctx)
	if err != nil {
		return err
	}
	tick := s.geo.Tick(stamp.ServerNs/int64(time.Millisecond)) - 1
	b, err := json.Marshal(Clock{Version: clockVersion, TimeMs: s.geo.TickStart(tick)})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return s.createOnce(ctx, clockStream, clockSubject(shard), b)
}

// ReadClock reads a shard's clock from the leader.
func (s *Store) ReadClock(ctx context.Context, shard int) (Clock, uint64, error) {
	var c Clock
	m, err := s.getLast(ctx, clockStream, clockSubject(shard))
	if err != nil {
		return c, 0, err
	}
	if c, err = decodeClock(shard, m.Data); err != nil {
		return c, 0, err
	}
	return c, m.Sequence, nil
}

func decodeClock(shard int, b []byte) (c Clock, err error) {
	if err := json.Unmarshal(b, &c); err != nil {
		return c, schemas.Errorf(schemas.CodeUnknownFormat, "clock of shard %d cannot be read: %w", shard, err)
	}
	if c.Version != clockVersion {
		return c, schemas.Errorf(schemas.CodeUnknownFormat, "clock of shard %d has format version %d; this version of belfry reads %d: upgrade this node", shard, c.Version, clockVersion)
	}
	return c, nil
}

// ReadCluster reads all clocks and presences with one request, which any replica
// may answer.
func (s *Store) ReadCluster(ctx context.Context) (Cluster, error) {
	var c Cluster
	req := directGet{MultiLast: []string{clockPrefix + "clock.*", nodePrefix + "*"}, MaxBytes: maxAnswer}
	for {
		a, err := s.direct(ctx, clockStream, req)
		if errors.Is(err, errTooMany) {
			return c, schemas.Errorf(schemas.CodeConfig, "there are more than %d shards and nodes: run fewer nodes", maxMultiLast)
		}
		if err != nil {
			return c, err
		}
		for _, m := range a.msgs {
			if err := c.add(m); err != nil {
				return c, err
			}
		}
		if a.more == 0 || len(a.msgs) == 0 {
			break
		}
		req.Seq = a.msgs[len(a.msgs)-1].Sequence + 1
	}
	slices.SortFunc(c.Clocks, func(a, b ClockAt) int { return a.Shard - b.Shard })
	slices.SortFunc(c.Nodes, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	return c, nil
}

func (c *Cluster) add(m *jetstream.RawStreamMsg) error {
	if op := m.Header.Get("KV-Operation"); op != "" || m.Header.Get(jetstream.MarkerReasonHeader) != "" {
		return nil // deleted, or expired
	}
	if node, ok := strings.CutPrefix(m.Subject, nodePrefix); ok {
		n := Member{Node: node, Rev: m.Sequence, StoredMs: m.Time.UnixMilli()}
		// A beat without a value is one of a node that says nothing of itself.
		if len(m.Data) > 0 && json.Unmarshal(m.Data, &n.Presence) != nil {
			n.Presence = Presence{}
		}
		c.Nodes = append(c.Nodes, n)
		return nil
	}
	shard, err := strconv.Atoi(strings.TrimPrefix(m.Subject, clockPrefix+"clock."))
	if err != nil {
		return schemas.Errorf(schemas.CodeUnknownFormat, "key %s is none of Belfry's: remove it", m.Subject)
	}
	clock, err := decodeClock(shard, m.Data)
	if err != nil {
		return err
	}
	c.Clocks = append(c.Clocks, ClockAt{Shard: shard, Rev: m.Sequence, StoredMs: m.Time.UnixMilli(), Clock: clock})
	return nil
}

// Announce changes what this node says of itself with the next beats.
func (s *Store) Announce(change func(*Presence)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.presence)
}

func (s *Store) presenceValue() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.presence.Version, s.presence.Reads, s.presence.SharedIndex = clockVersion, newestLevel, true
	b, err := json.Marshal(s.presence)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return b, nil
}

// WriteClock moves a shard's clock by compare-and-set: ErrRevision if another
// moved it first.
func (s *Store) WriteClock(ctx context.Context, shard int, c Clock, rev uint64) (uint64, error) {
	c.Version = clockVersion
	b, err := json.Marshal(c)
	if err != nil {
		return 0, fmt.Errorf("store: %w", err)
	}
	return s.putCAS(ctx, clockSubject(shard), b, rev, 0)
}

// Beat writes this node's presence and reads back when the leader stamped it.
func (s *Store) Beat(ctx context.Context) (Stamp, error) {
	// One at a time: each must read its own beat back.
	select {
	case s.beating <- struct{}{}:
		defer func() { <-s.beating }()
	case <-ctx.Done():
		return Stamp{}, mapError("write presence", ctx.Err())
	}
	subject := nodePrefix + s.cfg.Node
	value, err := s.presenceValue()
	if err != nil {
		return Stamp{}, err
	}
	st := Stamp{Sent: time.Now()}
	a, err := s.await(ctx, "write presence", func(done func(ack, error)) {
		h := casHeader(0, nodeTTL)
		delete(h, jetstream.ExpectedLastSubjSeqHeader)
		s.pub.send("write presence", subject, h, value, done)
	})
	st.Received = time.Now()
	if err != nil {
		return Stamp{}, err
	}
	m, err := s.getLast(ctx, clockStream, subject)
	if err != nil {
		return Stamp{}, err
	}
	if m.Sequence != a.Seq {
		// Two processes of one name: the stamp is of the other's beat.
		return Stamp{}, schemas.Errorf(schemas.CodeConfig, "node name %q is used by another process: give each its own", s.cfg.Node)
	}
	st.ServerNs = m.Time.UnixNano()
	s.stamp.Store(&st)
	s.firstBeat.CompareAndSwap(0, a.Seq)
	return st, nil
}

// carriedMs is the leader's time by the last reading; false before the first.
func (s *Store) carriedMs() (int64, bool) {
	st := s.stamp.Load()
	if st == nil {
		return 0, false
	}
	return (st.ServerNs + int64(time.Since(st.Received))) / int64(time.Millisecond), true
}

// nowMs is the leader's time, roughly: good enough for TTLs of hours.
func (s *Store) nowMs(ctx context.Context) (int64, error) {
	if ms, ok := s.carriedMs(); ok {
		return ms, nil
	}
	st, err := s.Beat(ctx)
	return st.ServerNs / int64(time.Millisecond), err
}
