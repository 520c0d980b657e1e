package fake

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// nodeTTL has the value of the constant in package store.
const nodeTTL = time.Minute

func nodeKey(node string) key { return key{subject: nodePrefix + node} }

const nodePrefix = "node."

// Announce changes the presence that this node writes with its next heartbeats.
func (c *Client) Announce(change func(*store.Presence)) { change(&c.presence) }

// BeatAt writes this node's presence and reads back the leader's timestamp of it; see
// store.Stamp. now reads the process's monotonic clock.
func (c *Client) BeatAt(ctx context.Context, now func() time.Time) (store.Stamp, error) {
	st := store.Stamp{Sent: now()}
	var seq uint64
	value := c.presence
	err := c.leader(ctx, StreamClock, func() (err error) {
		seq, err = c.s.clock.put(&message{key: nodeKey(c.node), val: value}, nil, nodeTTL)
		return err
	})
	st.Received = now()
	if err != nil {
		return store.Stamp{}, err
	}
	err = c.leader(ctx, StreamClock, func() error {
		m := c.s.clock.asOf(c.s.clock.last[nodeKey(c.node)], c.s.clock.seq)
		switch {
		case m == nil:
			return schemas.ErrNotFound
		case m.seq != seq:
			return schemas.Errorf(schemas.CodeConfig, "node name %q is used by another process", c.node)
		}
		st.ServerNs = m.at
		return nil
	})
	if err != nil {
		return store.Stamp{}, err
	}
	return st, nil
}

// ReadCluster reads all clocks and presences by direct get.
func (c *Client) ReadCluster(ctx context.Context) (store.Cluster, error) {
	var out store.Cluster
	st := c.s.clock
	err := c.direct(ctx, StreamClock, func(upTo uint64) error {
		out = store.Cluster{}
		for n := range c.s.shards {
			if m := st.asOf(st.last[key{subject: clockSubject(n)}], upTo); m != nil {
				clock, err := clockOf(m)
				if errors.Is(err, schemas.ErrDamaged) {
					clock = c.s.resumeClock(n, m.at)
				}
				out.Clocks = append(out.Clocks, store.ClockAt{Shard: n, Rev: m.seq, StoredMs: m.at / int64(time.Millisecond), Clock: clock, Err: err})
			}
		}
		for k, m := range st.last {
			node, ok := strings.CutPrefix(k.subject, nodePrefix)
			if !ok {
				continue
			}
			if m = st.asOf(m, upTo); m != nil {
				out.Nodes = append(out.Nodes, store.Member{Node: node, Rev: m.seq, StoredMs: m.at / int64(time.Millisecond), Presence: m.val.(store.Presence)})
			}
		}
		slices.SortFunc(out.Nodes, func(a, b store.Member) int { return cmp.Compare(a.Node, b.Node) })
		return nil
	})
	if err != nil {
		return store.Cluster{}, err
	}
	return out, nil
}
