package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// nodeTTL is the TTL of a presence key: the presence of a dead node disappears this long after
// its last heartbeat.
const nodeTTL = time.Minute

// leaveWait bounds the wait for the answer to the last heartbeat when a node leaves.
const leaveWait = 500 * time.Millisecond

// Nodes writes this node's heartbeats, which carry its presence, and reads the presences
// of all nodes. Each heartbeat also reads the clock of the JetStream leader. Safe for
// concurrent use.
//
// A failed heartbeat changes nothing: the presence stays until nodeTTL after the last
// successful one, and the leader's time is carried on from the last reading.
type Nodes struct {
	jet  *jet.Client
	node string
	// reads is the FormatLevel that this process reads.
	reads FormatLevel
	// instance identifies this process in its presence.
	instance string
	// rivalAt is when this process last saw the presence of another process with its node name; nil for never.
	rivalAt atomic.Pointer[time.Time]

	// beating has an element while a heartbeat is in progress.
	beating chan struct{}
	// stamp is the last reading of the leader's clock; nil before the first.
	stamp atomic.Pointer[Stamp]
	// firstBeat is the revision of the first presence that this process wrote; 0 before it. If the
	// revisions of the bucket go back (it was made again, or its server has lost writes), it becomes that of a
	// presence written layoutSettle later: by then the other live nodes have written theirs again.
	firstBeat atomic.Uint64
	// wentBack is the time of the first heartbeat with a revision below firstBeat; zero for none. Only the
	// goroutine whose element is in beating uses it.
	wentBack time.Time
	// lastBeat is the revision of the last heartbeat whose acknowledgement has arrived.
	lastBeat atomic.Uint64
	// answered is closed when the last heartbeat was acknowledged or has failed; nil before the
	// first one. left is true after Leave. Only the goroutine whose element is in beating reads
	// and writes them.
	answered chan struct{}
	left     bool
	// first is true if this node is the first of the live nodes, by name. Work that one
	// node does for all is done by that node.
	first atomic.Bool

	mu       sync.Mutex
	presence Presence
}

func newNodes(c *jet.Client, node string, reads FormatLevel) *Nodes {
	return &Nodes{jet: c, node: node, reads: reads, instance: rand.Text(), beating: make(chan struct{}, 1)}
}

// Reads returns the FormatLevel that this process reads.
func (n *Nodes) Reads() FormatLevel { return n.reads }

// Announce changes the presence that the following heartbeats write.
func (n *Nodes) Announce(change func(*Presence)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.presence)
}

func (n *Nodes) presenceValue() ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.presence.Version, n.presence.Reads, n.presence.Instance, n.presence.Shared = clockVersion, n.reads, n.instance, n.Shared()
	b, err := json.Marshal(n.presence)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return b, nil
}

// Beat writes this node's presence and reads back the time at which the leader stored it. It finds out whether
// another process uses the name of this node; see Shared.
// Errors: schemas.ErrUnavailable; schemas.CodeConfig if another process with that name has
// written its presence at the same moment.
func (n *Nodes) Beat(ctx context.Context) (Stamp, error) {
	// One at a time: each must read its own heartbeat back.
	select {
	case n.beating <- struct{}{}:
		defer func() { <-n.beating }()
	case <-ctx.Done():
		return Stamp{}, n.jet.Error("write presence", ctx.Err())
	}
	if n.left {
		return Stamp{}, schemas.Errorf(schemas.CodeUnavailable, "node %s is stopping", n.node)
	}
	subject := nodePrefix + n.node
	st := Stamp{Sent: time.Now()}
	a, err := n.write(ctx, n.lastBeat.Load())
	if errors.Is(err, ErrRevision) {
		if err := n.lookForRival(ctx); err != nil {
			return Stamp{}, err
		}
		st.Sent = time.Now()
		a, err = n.write(ctx, 0)
	}
	st.Received = time.Now()
	if err != nil {
		return Stamp{}, err
	}
	m, err := n.jet.Last(ctx, clockStream, subject)
	if err != nil {
		return Stamp{}, err
	}
	switch {
	case m.Sequence < a.Seq:
		return Stamp{}, schemas.Errorf(schemas.CodeUnavailable, "read presence: a server that has led the stream before answered with the heartbeat before")
	case m.Sequence > a.Seq:
		// The stored heartbeat is that of another process with the same node name.
		n.sawRival()
		return Stamp{}, schemas.Errorf(schemas.CodeConfig, "node name %q is used by another process: give each process its own name", n.node)
	}
	st.ServerNs = m.Time.UnixNano()
	n.stamp.Store(&st)
	n.setFirst(a.Seq, st.Received)
	return st, nil
}

// write writes the presence. If rev is not 0, it must be the revision of the presence that is stored. Errors:
// ErrRevision, schemas.ErrUnavailable.
func (n *Nodes) write(ctx context.Context, rev uint64) (jet.Ack, error) {
	value, err := n.presenceValue()
	if err != nil {
		return jet.Ack{}, err
	}
	h := jet.WriteHeader{Header: jet.TTLHeader(nodeTTL)}
	if rev != 0 {
		h.CAS(rev, nodeTTL)
	}
	return n.jet.Await(ctx, "write presence", func(done func(jet.Ack, error)) {
		answered := make(chan struct{})
		n.answered = answered
		// The answer may arrive after ctx has ended. Leave needs its revision nevertheless.
		n.jet.PublishAsync("write presence", nodePrefix+n.node, h.Header, value, func(a jet.Ack, err error) {
			if err == nil {
				n.lastBeat.Store(a.Seq) // a stream acknowledges in order
			}
			close(answered)
			done(a, err)
		})
	})
}

// lookForRival finds out whether another process has replaced this process's presence. It may also have expired, or
// the answer to the last heartbeat of this process was lost. Errors: schemas.ErrUnavailable.
func (n *Nodes) lookForRival(ctx context.Context) error {
	m, err := n.jet.Last(ctx, clockStream, nodePrefix+n.node)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	// A server that has led the stream before may answer with the presence of an earlier process.
	if m.Sequence < n.firstBeat.Load() {
		return nil
	}
	// An older version announces no instance. The marker of a removed presence has no value.
	var p Presence
	if json.Unmarshal(m.Data, &p) == nil && p.Instance != n.instance {
		n.sawRival()
	}
	return nil
}

func (n *Nodes) sawRival() {
	now := time.Now()
	n.rivalAt.Store(&now)
}

// Shared reports whether another process has used the name of this node within nodeTTL.
func (n *Nodes) Shared() bool {
	at := n.rivalAt.Load()
	return at != nil && time.Since(*at) < nodeTTL
}

// setFirst sets firstBeat after a heartbeat at a revision.
func (n *Nodes) setFirst(rev uint64, now time.Time) {
	switch first := n.firstBeat.Load(); {
	case first == 0:
		n.firstBeat.Store(rev)
	case rev > first:
		n.wentBack = time.Time{}
	case n.wentBack.IsZero():
		n.wentBack = now
	case now.Sub(n.wentBack) >= layoutSettle:
		n.firstBeat.Store(rev)
	}
}

// Leave removes this node's presence, and ends its heartbeats. Call it when the node has
// stopped all work, so that other nodes need not wait nodeTTL until its presence expires. It
// waits up to leaveWait for the answer to a heartbeat whose caller has given up. If Leave fails, or if that
// heartbeat is stored and its answer does not arrive in time, the presence expires. It does not remove the presence of another
// process with the same name. Errors: schemas.ErrUnavailable.
func (n *Nodes) Leave(ctx context.Context) error {
	select {
	case n.beating <- struct{}{}:
		defer func() { <-n.beating }()
	case <-ctx.Done():
		return n.jet.Error("remove presence", ctx.Err())
	}
	n.left = true
	if n.answered == nil {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, leaveWait)
	defer cancel()
	select {
	case <-n.answered:
	case <-wait.Done():
	}
	last := n.lastBeat.Load()
	if last == 0 {
		return nil
	}
	return n.jet.RemoveBelow(ctx, "remove presence", clockStream, nodePrefix+n.node, last+1)
}

// carriedMs returns the leader's time in Unix milliseconds, extrapolated from the last reading
// with this process's clock; false before the first reading.
func (n *Nodes) carriedMs() (int64, bool) {
	st := n.stamp.Load()
	if st == nil {
		return 0, false
	}
	return (st.ServerNs + int64(time.Since(st.Received))) / int64(time.Millisecond), true
}

// nowMs is carriedMs, but makes a heartbeat if there was no reading yet. It is exact enough
// for TTLs of hours. Errors: those of Beat.
func (n *Nodes) nowMs(ctx context.Context) (int64, error) {
	if ms, ok := n.carriedMs(); ok {
		return ms, nil
	}
	st, err := n.Beat(ctx)
	return st.ServerNs / int64(time.Millisecond), err
}

// live reads the presences of all live nodes, by name. It returns none if the replica that
// answered is too far behind to show every node that lived when this process started.
func (n *Nodes) live(ctx context.Context) ([]Member, error) {
	if n.firstBeat.Load() == 0 {
		if _, err := n.Beat(ctx); err != nil {
			return nil, err
		}
	}
	msgs, err := clockKeys(ctx, n.jet, []string{nodePrefix + "*"})
	if err != nil {
		return nil, err
	}
	var c Cluster
	for _, m := range msgs {
		c.add(m)
	}
	c.sort()
	// A replica that shows this process's own presence also shows the presences of all
	// nodes that lived before this process started.
	own := slices.IndexFunc(c.Nodes, func(m Member) bool { return m.Node == n.node })
	if own < 0 || c.Nodes[own].Rev < n.firstBeat.Load() {
		return nil, nil
	}
	n.first.Store(own == 0)
	return c.Nodes, nil
}

// clockKeys reads the last message of each key of bucket clock that matches the filters.
// Any replica may answer. If one of the keys is in a damaged block of the stream's file,
// nats-server 2.15.2 answers "not found" to the whole request; then the keys are read one
// by one from the leader (work-around 2).
func clockKeys(ctx context.Context, c *jet.Client, filters []string) ([]*jet.Msg, error) {
	var out []*jet.Msg
	req := jet.Get{MultiLast: filters, MaxBytes: jet.MaxAnswerBytes}
	for {
		a, err := c.Direct(ctx, clockStream, req)
		if errors.Is(err, jet.ErrTooMany) {
			return nil, schemas.Errorf(schemas.CodeConfig, "there are more than %d shards and nodes: run fewer nodes", jet.MaxMultiLast)
		}
		if err != nil {
			return nil, err
		}
		if !a.Found && req.Seq == 0 {
			return clockKeysOneByOne(ctx, c, filters)
		}
		out = append(out, a.Msgs...)
		if a.More == 0 || len(a.Msgs) == 0 {
			return out, nil
		}
		req.Seq = a.Msgs[len(a.Msgs)-1].Sequence + 1
	}
}

// clockKeysOneByOne is clockKeys by a scan of the leader's stream.
func clockKeysOneByOne(ctx context.Context, c *jet.Client, filters []string) ([]*jet.Msg, error) {
	last := map[string]*jet.Msg{}
	err := c.Scan(ctx, clockStream, jet.Range{Filters: filters}, func(m jet.Msg) (bool, error) {
		last[m.Subject] = &m
		return true, nil
	})
	return slices.Collect(maps.Values(last)), err
}

// addNode adds a presence to Nodes, or the key of a presence that cannot be decoded to Alien.
func (c *Cluster) addNode(node string, m *jet.Msg) {
	n := Member{Node: node, Rev: m.Sequence, StoredMs: m.Time.UnixMilli()}
	// A heartbeat without a value is that of a node that announces nothing.
	if len(m.Data) > 0 && (json.Unmarshal(m.Data, &n.Presence) != nil || n.Presence.Version < 1) {
		c.Alien = append(c.Alien, m.Subject)
		return
	}
	c.Nodes = append(c.Nodes, n)
}

// sort puts clocks in the order of their shards and nodes in that of their names.
func (c *Cluster) sort() {
	slices.SortFunc(c.Clocks, func(a, b ClockAt) int { return a.Shard - b.Shard })
	slices.SortFunc(c.Nodes, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
}
