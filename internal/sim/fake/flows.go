package fake

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
)

// StreamFlows is the stream of bucket flows. It exists only with Config.Flows.
const StreamFlows = "KV_flows"

// FlowState reads the state of a flow key from the leader.
func (c *Client) FlowState(ctx context.Context, name string) (store.FlowKeyState, error) {
	s := store.FlowKeyState{Key: name}
	st := c.s.streams[StreamFlows]
	err := c.leader(ctx, StreamFlows, func() error {
		if m := st.last[key{subject: name}]; st.alive(m) {
			stored := m.val.(flow.State)
			s.Rev, s.State = m.seq, stored.Clone()
		}
		return nil
	})
	return s, err
}

// PutFlowState replaces the state of a flow key by compare-and-set.
func (c *Client) PutFlowState(ctx context.Context, s store.FlowKeyState, ttl time.Duration) (rev uint64, err error) {
	value := s.State.Clone()
	err = c.leader(ctx, StreamFlows, func() (err error) {
		rev, err = c.s.streams[StreamFlows].put(&message{key: key{subject: s.Key}, val: value}, &s.Rev, store.FlowStateTTL+max(ttl, 0))
		return err
	})
	if err != nil {
		return 0, err
	}
	return rev, nil
}
