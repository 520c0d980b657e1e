package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// clockVersion is that of the clock's value.
const clockVersion = 1

// nodeTTL is after how long the presence key of a node that is gone disappears.
const nodeTTL = time.Minute

func clockSubject(shard int) string { return clockPrefix + "clock." + strconv.Itoa(shard) }

// createClock writes a shard's first clock: released, its mark one tick before
// the leader's time. Whatever was added before has its tail at 0. A clock that
// cannot be decoded is left to the node that takes the shard.
func (s *Store) createClock(ctx context.Context, shard int) error {
	_, _, err := s.ReadClock(ctx, shard)
	switch {
	case errors.Is(err, schemas.ErrDamaged):
		s.log.Error().Int("shard", shard).Err(err).Msg("damaged clock found at the start: the node that takes the shard resumes from the clock's copy")
		return nil
	case errors.Is(err, schemas.ErrNewer):
		s.log.Error().Int("shard", shard).Err(err).Msg("this node leaves a shard to newer nodes: its clock has a newer format")
		return nil
	case !errors.Is(err, schemas.ErrNotFound):
		return err
	}
	stamp, err := s.Beat(ctx)
	if err != nil {
		return err
	}
	c, err := s.resumeClock(ctx, shard, stamp.ServerNs/int64(time.Millisecond))
	if err != nil {
		return err
	}
	b, err := encodeClock(c)
	if err != nil {
		return err
	}
	return s.jet.CreateOnce(ctx, clockStream, clockSubject(shard), b)
}

// ReadClock reads a shard's clock from the leader. A clock that cannot be decoded
// is ErrDamaged or ErrNewer, and comes with its revision.
func (s *Store) ReadClock(ctx context.Context, shard int) (Clock, uint64, error) {
	m, err := s.jet.Last(ctx, clockStream, clockSubject(shard))
	if err != nil {
		return Clock{}, 0, err
	}
	c, err := decodeClock(shard, m.Data)
	if err != nil {
		return Clock{}, m.Sequence, err
	}
	return c, m.Sequence, nil
}

// sumField begins the checksum of a clock, the last field of its JSON: CRC-32C of
// the bytes before it. Clocks of builds before it have none.
const sumField = `,"sum":`

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeClock(c Clock) ([]byte, error) {
	c.Version = clockVersion
	b, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	b = b[:len(b)-1]
	sum := crc32.Checksum(b, castagnoli)
	b = append(b, sumField...)
	return append(strconv.AppendUint(b, uint64(sum), 10), '}'), nil
}

// decodeClock reads a clock. ErrNewer is one of a newer version, ErrDamaged
// anything else that is not a clock.
func decodeClock(shard int, b []byte) (Clock, error) {
	var c struct {
		Clock
		Sum uint32 `json:"sum"`
	}
	bad := func(format string, args ...any) (Clock, error) {
		return Clock{}, schemas.Errorf(schemas.CodeDamaged, "clock of shard %d is damaged: %w", shard, fmt.Errorf(format, args...))
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return bad("%w", err)
	}
	if c.Version > clockVersion {
		return Clock{}, schemas.Errorf(schemas.CodeUnknownFormat, "clock of shard %d has format version %d; this version of belfry reads %d: upgrade this node", shard, c.Version, clockVersion)
	}
	if c.Version != clockVersion {
		return bad("it has format version %d", c.Version)
	}
	if i := bytes.LastIndex(b, []byte(sumField)); i >= 0 && crc32.Checksum(b[:i], castagnoli) != c.Sum {
		return bad("its checksum does not match")
	}
	if c.TimeMs < 0 || c.Seen < c.Tail && c.Seen != 0 {
		return bad("time %d, tail %d and seen %d contradict each other", c.TimeMs, c.Tail, c.Seen)
	}
	return c.Clock, nil
}

// Copies of clocks. A copy is an older state of its clock: resuming from one is
// safe, because every record that it does not cover is in a later tick or comes
// with the tail, and claims made since are of an earlier epoch, which the new
// owner looks up before it publishes. The epoch of a copy may have been used by
// later owners; see resumeClock.

// copyEvery is how often an owner's clock is copied. It bounds what a node that
// starts from the copy reads again.
const copyEvery = 10 * time.Second

func copySubject(shard int) string { return copyPrefix + strconv.Itoa(shard) }

// lastCopy is what this process has copied last of a clock.
type lastCopy struct {
	epoch uint64
	at    time.Time
}

// copyClock copies a clock that was just written, at take-overs and then every
// copyEvery. Nothing waits for it, and a copy that fails is made with a later write.
func (s *Store) copyClock(shard int, c Clock, b []byte) {
	s.mu.Lock()
	last := s.copied[shard]
	due := last.epoch != c.Epoch || time.Since(last.at) >= copyEvery
	if due {
		s.copied[shard] = lastCopy{c.Epoch, time.Now()}
	}
	s.mu.Unlock()
	if !due {
		return
	}
	s.jet.PublishAsync("copy clock", copySubject(shard), nil, b, func(_ jet.Ack, err error) {
		if err == nil {
			return
		}
		s.mu.Lock()
		delete(s.copied, shard)
		s.mu.Unlock()
	})
}

// resumeClock is where to resume a shard whose clock is damaged or gone: its copy,
// or without one a clock from which the tail reads the whole shard. Its epoch is
// the time in milliseconds, which is beyond every epoch in use: epochs grow by one
// with each owner.
func (s *Store) resumeClock(ctx context.Context, shard int, nowMs int64) (Clock, error) {
	fresh := Clock{Version: clockVersion, TimeMs: max(nowMs-s.geo.SlotWidth.Milliseconds(), 0), PendingUnknown: true}
	if s.geo.SlotWidth > 0 {
		fresh.TimeMs = s.geo.TickStart(s.geo.Tick(nowMs) - 1)
	}
	m, err := s.jet.Last(ctx, clockStream, copySubject(shard))
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		if s.geo.Shards == 0 {
			return fresh, nil // a store that is only looked at
		}
		// A shard that nobody has written to is new: its first epoch is 1.
		if last, err := s.LastSeq(ctx, shard); err != nil || last <= 1 {
			fresh.PendingUnknown, fresh.Counted = false, true
			return fresh, err
		}
		fresh.Epoch = uint64(max(nowMs, 0))
		return fresh, nil
	case err != nil:
		return Clock{}, err
	}
	c, err := decodeClock(shard, m.Data)
	if err != nil {
		s.log.Error().Int("shard", shard).Err(err).Msg("the copy of a clock is damaged, too: its shard is read from its beginning")
		c = fresh
	}
	c.Owner, c.Epoch, c.PendingUnknown = "", max(c.Epoch, uint64(max(nowMs, 0))), true
	return c, nil
}

// ReadCluster reads all clocks and presences with one request, which any replica
// may answer. A clock that cannot be decoded is reported with its error and with
// the state to resume it from; it does not hide the others.
func (s *Store) ReadCluster(ctx context.Context) (Cluster, error) {
	var c Cluster
	msgs, err := s.clusterKeys(ctx)
	if err != nil {
		return c, err
	}
	for _, m := range msgs {
		c.add(m)
	}
	if s.geo.Shards == 0 {
		c.limit(s.recordedShards(ctx))
	}
	if err := s.resumeDamaged(ctx, &c); err != nil {
		return c, err
	}
	slices.SortFunc(c.Clocks, func(a, b ClockAt) int { return a.Shard - b.Shard })
	slices.SortFunc(c.Nodes, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	return c, nil
}

// clusterKeys reads the keys of clocks and nodes. If one of them is in a damaged
// block of the stream's file, nats-server 2.15.2 answers "not found" to the whole
// request; then the keys are read one by one from the leader.
func (s *Store) clusterKeys(ctx context.Context) ([]*jet.Msg, error) {
	filters := []string{nodePrefix + "*"}
	if s.geo.Shards == 0 {
		filters = append(filters, clockPrefix+"clock.*") // alien keys are of interest, too
	}
	for n := range s.geo.Shards {
		filters = append(filters, clockSubject(n))
	}
	var out []*jet.Msg
	req := jet.Get{MultiLast: filters, MaxBytes: jet.MaxAnswerBytes}
	for {
		a, err := s.jet.Direct(ctx, clockStream, req)
		if errors.Is(err, jet.ErrTooMany) {
			return nil, schemas.Errorf(schemas.CodeConfig, "there are more than %d shards and nodes: run fewer nodes", jet.MaxMultiLast)
		}
		if err != nil {
			return nil, err
		}
		if !a.Found && req.Seq == 0 {
			return s.keysOneByOne(ctx, filters)
		}
		out = append(out, a.Msgs...)
		if a.More == 0 || len(a.Msgs) == 0 {
			return out, nil
		}
		req.Seq = a.Msgs[len(a.Msgs)-1].Sequence + 1
	}
}

// keysOneByOne reads the last message of each key that matches the filters.
func (s *Store) keysOneByOne(ctx context.Context, filters []string) ([]*jet.Msg, error) {
	last := map[string]*jet.Msg{}
	err := s.jet.Scan(ctx, clockStream, jet.Range{Filters: filters}, func(m jet.Msg) (bool, error) {
		last[m.Subject] = &m
		return true, nil
	})
	return slices.Collect(maps.Values(last)), err
}

// resumeDamaged fills in where to resume the shards whose clock is damaged or gone.
func (s *Store) resumeDamaged(ctx context.Context, c *Cluster) error {
	there := make([]bool, s.geo.Shards)
	for i := range c.Clocks {
		at := &c.Clocks[i]
		if at.Shard < len(there) {
			there[at.Shard] = true
		}
		if at.Err == nil || !errors.Is(at.Err, schemas.ErrDamaged) {
			continue
		}
		var err error
		if at.Clock, err = s.resumeClock(ctx, at.Shard, at.StoredMs); err != nil {
			return err
		}
	}
	for n, ok := range there {
		if ok {
			continue
		}
		// The replica may be behind: the leader decides whether the clock is gone.
		_, rev, err := s.ReadClock(ctx, n)
		if err != nil && !errors.Is(err, schemas.ErrNotFound) && rev == 0 {
			return err
		}
		if err == nil || rev != 0 && !errors.Is(err, schemas.ErrDamaged) {
			continue
		}
		nowMs, err := s.nowMs(ctx)
		if err != nil {
			return err
		}
		at := ClockAt{Shard: n, Rev: rev, StoredMs: nowMs, Err: schemas.Errorf(schemas.CodeDamaged, "shard %d has no clock", n)}
		if at.Clock, err = s.resumeClock(ctx, n, nowMs); err != nil {
			return err
		}
		c.Clocks = append(c.Clocks, at)
	}
	return nil
}

func (c *Cluster) add(m *jet.Msg) {
	if jet.HasOperation(m) {
		return // deleted, or expired
	}
	if node, ok := strings.CutPrefix(m.Subject, nodePrefix); ok {
		n := Member{Node: node, Rev: m.Sequence, StoredMs: m.Time.UnixMilli()}
		// A beat without a value is one of a node that says nothing of itself.
		if len(m.Data) > 0 && (json.Unmarshal(m.Data, &n.Presence) != nil || n.Presence.Version < 1) {
			c.Alien = append(c.Alien, m.Subject)
			return
		}
		c.Nodes = append(c.Nodes, n)
		return
	}
	shard, err := strconv.Atoi(strings.TrimPrefix(m.Subject, clockPrefix+"clock."))
	if err != nil || shard < 0 || m.Subject != clockSubject(shard) {
		c.Alien = append(c.Alien, m.Subject)
		return
	}
	clock, err := decodeClock(shard, m.Data)
	c.Clocks = append(c.Clocks, ClockAt{Shard: shard, Rev: m.Sequence, StoredMs: m.Time.UnixMilli(), Clock: clock, Err: err})
}

// limit moves the clocks of shards that the store does not have to Alien. With 0, the
// number of shards is unknown.
func (c *Cluster) limit(shards int) {
	if shards == 0 {
		return
	}
	c.Clocks = slices.DeleteFunc(c.Clocks, func(at ClockAt) bool {
		if at.Shard < shards {
			return false
		}
		c.Alien = append(c.Alien, clockSubject(at.Shard))
		return true
	})
}

// recordedShards reads the number of shards from the recorded layout, or from its copy;
// 0 if neither can be read.
func (s *Store) recordedShards(ctx context.Context) int {
	for _, subject := range []string{metaSubject, metaCopySubject} {
		msg, err := s.jet.Last(ctx, clockStream, subject)
		if err != nil {
			continue
		}
		if m, err := decodeMeta(msg.Data); err == nil {
			return m.Geometry.Shards
		}
	}
	return 0
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
	s.presence.Version, s.presence.Reads = clockVersion, s.cfg.Level
	b, err := json.Marshal(s.presence)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return b, nil
}

// WriteClock moves a shard's clock by compare-and-set: ErrRevision if another
// moved it first.
func (s *Store) WriteClock(ctx context.Context, shard int, c Clock, rev uint64) (uint64, error) {
	b, err := encodeClock(c)
	if err != nil {
		return 0, err
	}
	next, err := s.jet.Put(ctx, clockSubject(shard), b, rev, 0)
	if err == nil {
		s.copyClock(shard, c, b)
	}
	return next, err
}

// Beat writes this node's presence and reads back when the leader stamped it.
func (s *Store) Beat(ctx context.Context) (Stamp, error) {
	// One at a time: each must read its own beat back.
	select {
	case s.beating <- struct{}{}:
		defer func() { <-s.beating }()
	case <-ctx.Done():
		return Stamp{}, s.jet.Error("write presence", ctx.Err())
	}
	subject := nodePrefix + s.cfg.Node
	value, err := s.presenceValue()
	if err != nil {
		return Stamp{}, err
	}
	st := Stamp{Sent: time.Now()}
	a, err := s.jet.Await(ctx, "write presence", func(done func(jet.Ack, error)) {
		s.jet.PublishAsync("write presence", subject, jet.TTLHeader(nodeTTL), value, done)
	})
	st.Received = time.Now()
	if err != nil {
		return Stamp{}, err
	}
	m, err := s.jet.Last(ctx, clockStream, subject)
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
