package fake

import (
	"context"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Request is one request to a stream, or a few that are sent together and arrive
// in order.
type Request struct {
	// Stream whose leader answers; with Direct, any of its replicas.
	Stream string
	Direct bool
	// Steps are carried out in order. upTo is where the replica stands that
	// answers. A transport may lose the last of several.
	Steps []func(upTo uint64) error
}

// CarryOut runs the steps, as of a sequence of the replica that answers; with
// lossy, all but the last are lost on the way. It returns the last one's error.
func (r Request) CarryOut(upTo uint64, lossy bool) (err error) {
	steps := r.Steps
	if lossy {
		steps = steps[len(steps)-1:]
	}
	for _, step := range steps {
		err = step(upTo)
	}
	return err
}

// Transport carries requests from one process to the servers.
type Transport interface {
	// Do waits for the answer. It is the error of the last step, or
	// schemas.ErrUnavailable: then the steps may have been carried out, or not.
	Do(ctx context.Context, r Request) error
	// Start does not wait; done is called with the answer.
	Start(r Request, done func(error))
}

// Client is package store's calls of one process.
type Client struct {
	s    *Server
	t    Transport
	node string
	// nowMs is the process's idea of the leader's time, for TTLs.
	nowMs func() int64
	// parts is the width of the last page of each shard, as in package store.
	parts    []uint32
	services map[string]struct{}
	presence store.Presence
	// damaged has the damaged records that the process has read, by shard; unreported says
	// that some of them are not on record.
	damaged    []map[schemas.TimerID]store.DamagedRecord
	unreported []bool
}

// NewClient makes the calls of a node.
func NewClient(s *Server, t Transport, node string, nowMs func() int64) *Client {
	return &Client{s: s, t: t, node: node, nowMs: nowMs, parts: make([]uint32, s.cfg.Geometry.Shards), services: map[string]struct{}{}, presence: store.Presence{Reads: store.NewestLevel}, damaged: make([]map[schemas.TimerID]store.DamagedRecord, s.cfg.Geometry.Shards), unreported: make([]bool, s.cfg.Geometry.Shards)}
}

// Reads is the format level that the client's process reads.
func (c *Client) Reads() store.FormatLevel { return c.presence.Reads }

// SetReads makes the client that of an older or a newer build.
func (c *Client) SetReads(level store.FormatLevel) { c.presence.Reads = level }

// Geometry is the store's.
func (c *Client) Geometry() schemas.Geometry { return c.s.cfg.Geometry }

// leader asks a stream's leader.
func (c *Client) leader(ctx context.Context, stream string, f func() error) error {
	return c.t.Do(ctx, Request{Stream: stream, Steps: []func(uint64) error{func(uint64) error { return f() }}})
}

// direct asks any replica.
func (c *Client) direct(ctx context.Context, stream string, f func(upTo uint64) error) error {
	return c.t.Do(ctx, Request{Stream: stream, Direct: true, Steps: []func(uint64) error{f}})
}

// copyOf keeps what the caller may change.
func copyOf(r *schemas.Record) *schemas.Record {
	rec := *r
	return &rec
}

func eventOf(m store.Msg) *message {
	hdr := jet.Header{}
	for name, v := range m.Header {
		hdr[name] = v
	}
	return &message{key: key{subject: m.Subject}, hdr: hdr, data: m.Data, msgID: m.MsgID}
}
