package jet

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Work-arounds 7 and 8 (docs/internals/nats-server.md). While a change is being replicated,
// the leader answers a second request as if the first had succeeded, although the change
// may still come to nothing. A hedged write or delete is therefore checked before its
// refusal counts.

// CreateOnce creates a key unless it exists. The write is hedged. Errors: ErrUnavailable
// if JetStream has not decided yet on a first write.
func (c *Writes) CreateOnce(ctx context.Context, stream, subject string, data []byte) error {
	_, err := hedge(ctx, func(ctx context.Context, _ func()) (uint64, error) {
		return c.Put(ctx, subject, data, 0, 0)
	})
	if !isWrongRevision(err) {
		return err
	}
	// The key exists, or a first write is still being replicated and may come to nothing:
	// a leader refuses the second write in both cases.
	if _, err := c.reads.Last(ctx, stream, subject); !isNotFound(err) {
		return err
	}
	return c.conn.mapErr.errorf(ErrUnavailable, "write %s: JetStream has not decided on it yet", subject)
}

// Bounds of DeleteStream.
const (
	deleteTries = 5
	deletePause = time.Second
)

// DeleteStream deletes a stream. A missing stream is no error, unless the request was
// hedged: the leader answers "not found" as soon as the first request is being
// replicated, which may come to nothing. DeleteStream then repeats the request once that
// must have been decided.
func (c *StreamAdmin) DeleteStream(ctx context.Context, name string) error {
	op := "remove " + name
	for range deleteTries {
		var asked atomic.Int32
		_, err := hedge(ctx, func(ctx context.Context, _ func()) (struct{}, error) {
			asked.Add(1)
			return struct{}{}, c.conn.js.DeleteStream(ctx, name)
		})
		switch {
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return c.conn.mapErr.wrap(op, err)
		case asked.Load() == 1:
			return nil
		}
		select {
		case <-ctx.Done():
			return c.conn.mapErr.wrap(op, ctx.Err())
		case <-time.After(deletePause):
		}
	}
	return c.conn.mapErr.errorf(ErrUnavailable, "remove %s: JetStream does not say in time whether it is gone", name)
}
