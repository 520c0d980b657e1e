package fake

import (
	"context"
	"math"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Request is one request to a stream, or several requests that are sent together and arrive
// in order.
type Request struct {
	// Stream is the stream whose leader answers, or any of its replicas if Direct is true.
	Stream string
	Direct bool
	// Deposed says that a server may answer that led the stream before, and has not learned of the next leader
	// yet. It answers reads as of its last sequence, and refuses writes. The leader may store a write that it has refused.
	Deposed bool
	// Steps are carried out in order. upTo is the last sequence of the server that answers, a replica or a former
	// leader, and NoLimit for the leader. A transport may lose the steps before the last.
	Steps []func(upTo uint64) error
}

// NoLimit is the sequence up to which a leader answers: up to the last one.
const NoLimit = math.MaxUint64

// CarryOut runs the steps on a replica whose last sequence is upTo. With lossy, all steps but
// the last are lost on the way. It returns the error of the last step.
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
	// Do waits for the answer and returns the error of the last step. After
	// schemas.ErrUnavailable it is unknown whether the steps were carried out.
	Do(ctx context.Context, r Request) error
	// Start returns at once. It calls done with the answer, like the result of Do.
	Start(r Request, done func(error))
}

// Client implements the calls of package store for one process.
type Client struct {
	s    *Server
	t    Transport
	node string
	// nowMs returns the leader's time as the process estimates it, in Unix milliseconds, for
	// TTLs.
	nowMs func() int64
	// parts has the width of the last page of each shard, in parts of a slot; see loadPage.
	parts []uint32
	// far has the far entries that the process has read.
	far      *store.FarIndex
	services map[string]struct{}
	presence store.Presence
	// damaged has the damaged records that the process has read, by shard. unreported is true
	// for a shard if some of them are not in its report.
	damaged    []map[schemas.TimerID]store.DamagedRecord
	unreported []bool
}

// NewClient returns a client for a node.
func NewClient(s *Server, t Transport, node string, nowMs func() int64) *Client {
	return &Client{s: s, t: t, node: node, nowMs: nowMs, parts: make([]uint32, s.cfg.Geometry.Shards), far: store.NewFarIndex(s.cfg.Geometry.Shards), services: map[string]struct{}{}, presence: store.Presence{Reads: store.NewestLevel}, damaged: make([]map[schemas.TimerID]store.DamagedRecord, s.cfg.Geometry.Shards), unreported: make([]bool, s.cfg.Geometry.Shards)}
}

// Reads returns the format level that the client's process reads.
func (c *Client) Reads() store.FormatLevel { return c.presence.Reads }

// SetReads changes the format level that the client's process reads, as if it ran an older or
// a newer build.
func (c *Client) SetReads(level store.FormatLevel) { c.presence.Reads = level }

// Geometry returns the geometry of the store.
func (c *Client) Geometry() schemas.Geometry { return c.s.cfg.Geometry }

// leader runs f as a request to a stream's leader.
func (c *Client) leader(ctx context.Context, stream string, f func() error) error {
	return c.t.Do(ctx, Request{Stream: stream, Steps: []func(uint64) error{func(uint64) error { return f() }}})
}

// direct runs f as a request to any replica of a stream; upTo is the replica's last sequence.
func (c *Client) direct(ctx context.Context, stream string, f func(upTo uint64) error) error {
	return c.t.Do(ctx, Request{Stream: stream, Direct: true, Steps: []func(uint64) error{f}})
}

// copyOf copies a record, because the caller may change it later.
func copyOf(r *schemas.Record) *schemas.Record {
	rec := *r
	return &rec
}

// eventOf returns a message to publish as a stored message.
func eventOf(m store.Msg) *message {
	hdr := jet.Header{}
	for name, v := range m.Header {
		hdr[name] = v
	}
	return &message{key: key{subject: m.Subject}, hdr: hdr, data: m.Data, msgID: m.MsgID}
}
