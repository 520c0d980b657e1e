package fake

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// nodeTTL is package store's.
const nodeTTL = time.Minute

func nodeKey(node string) key { return key{subject: "node." + node} }

// BeatAt writes this node's presence and reads back when the leader stamped it.
// now is the process's monotonic clock.
func (c *Client) BeatAt(ctx context.Context, now func() time.Time) (store.Stamp, error) {
	st := store.Stamp{Sent: now()}
	var seq uint64
	value := c.presence()
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

func (c *Client) presence() any { return nil }
