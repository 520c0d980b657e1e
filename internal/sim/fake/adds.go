package fake

import (
	"context"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// AddForgotten reports whether no add that was stored by addedMs is left; see store.Store.
// The real store concludes this from its last request. The fake looks at the stream.
func (c *Client) AddForgotten(addedMs int64) bool {
	st := c.s.streams[schemas.StreamAdd]
	for _, m := range st.log {
		if st.alive(m) {
			return addedMs < m.at/int64(time.Millisecond)
		}
	}
	return true
}

// FindAdds returns the sequences of the adds of a timer; see store.Store.
func (c *Client) FindAdds(ctx context.Context, addedMs int64, same func(account string, header map[string][]string, data []byte) bool) (seqs []uint64, err error) {
	if c.AddForgotten(addedMs) {
		return nil, nil
	}
	err = c.leader(ctx, schemas.StreamAdd, func() error {
		st := c.s.streams[schemas.StreamAdd]
		for _, m := range st.log {
			// AddedMs is the message's timestamp, rounded up.
			if st.alive(m) && m.at > (addedMs-1)*int64(time.Millisecond) && m.at <= addedMs*int64(time.Millisecond) && same("", m.hdr, m.data) {
				seqs = append(seqs, m.seq)
			}
		}
		return nil
	})
	return seqs, err
}

// RemoveAdd removes one add; see store.Store.
func (c *Client) RemoveAdd(ctx context.Context, seq uint64) error {
	return c.leader(ctx, schemas.StreamAdd, func() error { return c.s.Remove(schemas.StreamAdd, seq) })
}
