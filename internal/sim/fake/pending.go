package fake

import (
	"context"
	"maps"
	"strconv"

	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/store"
)

// EachPending passes the waiting timers of a shard with a revision up to through to fn; see
// store.Reader. Like a consumer it may read from a replica.
func (c *Client) EachPending(ctx context.Context, shard int, through uint64, fn func(quota.Timer)) (last uint64, err error) {
	err = c.scan(ctx, shard, 0, func(t store.Timer) (bool, error) {
		if t.Rev > through {
			return false, nil
		}
		if t.Unread == store.Readable && t.Record.State.Waits() {
			fn(t.Use())
		}
		return true, nil
	})
	if err != nil {
		return 0, err
	}
	st := c.s.shards[shard]
	return c.newest(ctx, StreamShard(shard), func(m *message) bool { return m.isRecord() && !st.superseded(m, st.seq) })
}

func pendingKey(shard int) key { return key{subject: "pending." + strconv.Itoa(shard)} }

// PendingCount returns the numbers that an owner of a shard has stored last, for checkers; the zero
// value for none.
func (s *Server) PendingCount(shard int) store.PendingCount {
	m := s.streams[StreamFlows].last[pendingKey(shard)]
	if m == nil {
		return store.PendingCount{Shard: shard}
	}
	p := m.val.(store.PendingCount)
	p.Rev, p.Services = m.seq, maps.Clone(p.Services)
	return p
}

// PendingCount reads the numbers of a shard from the leader.
func (c *Client) PendingCount(ctx context.Context, shard int) (p store.PendingCount, err error) {
	err = c.leader(ctx, StreamFlows, func() error {
		p = c.s.PendingCount(shard)
		return nil
	})
	return p, err
}

// PutPendingCount replaces the numbers of a shard by compare-and-set.
func (c *Client) PutPendingCount(ctx context.Context, p store.PendingCount) (rev uint64, err error) {
	p.Services = maps.Clone(p.Services)
	err = c.leader(ctx, StreamFlows, func() (err error) {
		rev, err = c.s.streams[StreamFlows].put(&message{key: pendingKey(p.Shard), val: p}, &p.Rev, 0)
		return err
	})
	if err != nil {
		return 0, err
	}
	return rev, nil
}
