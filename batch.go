package belfry

import (
	"context"
	"errors"
	"fmt"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of one atomic batch: half of what the server takes, and as many bytes as
// it can stage in a fraction of a second.
const (
	batchMessages = 500
	batchBytes    = 4 << 20
	batchLeast    = 24 // fewer are quicker by themselves
)

// AddBatch adds many timers and returns once all are stored durably in
// TIMERS_ADD; the options are for all of them. It stores up to 500 with one write,
// all or none of them, which is many times as fast where the server syncs every
// write. It validates all events, as AddAsync does, before it publishes the first. After
// any other error some may have been stored; adding all of them again is safe. Errors
// are those of AddAsync and [Pending.Wait].
func (c *Client) AddBatch(ctx context.Context, events []event.Event, opts ...AddOption) error {
	msgs := make([]*nats.Msg, len(events))
	limit := int(c.nc.MaxPayload())
	for i, e := range events {
		hdr, data, err := validated(e, opts)
		if err == nil && limit > 0 && len(data) > limit {
			err = c.tooLarge(len(data), nats.ErrMaxPayload)
		}
		if err != nil {
			return fmt.Errorf("add %d of %d: %w", i+1, len(events), err)
		}
		if hdr == nil {
			hdr = nats.Header{}
		}
		msgs[i] = &nats.Msg{Subject: schemas.SubjectAdd, Header: hdr, Data: data}
	}
	for done := 0; done < len(msgs); {
		if ctx.Err() != nil {
			return schemas.Errorf(schemas.CodeUnavailable, "%d of %d adds were published (%w)", done, len(msgs), context.Cause(ctx))
		}
		part := msgs[done : done+batchLength(msgs[done:])]
		if n, err := c.addPart(ctx, part); err != nil {
			return fmt.Errorf("add %d of %d: %w", done+n+1, len(msgs), err)
		}
		done += len(part)
	}
	return nil
}

// batchLength is how many messages make the next batch; at least one.
func batchLength(msgs []*nats.Msg) int {
	bytes := 0
	for i, m := range msgs {
		if bytes += len(m.Data); i == batchMessages || i > 0 && bytes > batchBytes {
			return i
		}
	}
	return len(msgs)
}

// addPart stores a part, as a batch if that is worth it and the server knows them.
// It returns the place of the message that err is about.
func (c *Client) addPart(ctx context.Context, part []*nats.Msg) (int, error) {
	if len(part) < batchLeast || c.noBatches.Load() {
		return c.addEach(ctx, part)
	}
	bound, cancel := context.WithTimeout(ctx, asyncTimeout)
	defer cancel()
	err := c.atomic(bound, part)
	switch {
	case err == nil:
		return 0, nil
	case errors.Is(err, errRefused):
		return c.addEach(ctx, part)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return 0, addError(err)
}

// errRefused says that a batch did not come about; each message has to be
// published by itself, and gets an answer of its own.
var errRefused = errors.New("the batch was refused")

// atomic stores all messages or none; they have headers. The error is errRefused,
// or why the outcome is not known.
func (c *Client) atomic(ctx context.Context, msgs []*nats.Msg) error {
	_, err := jetstreamext.PublishMsgBatch(ctx, c.js, msgs)
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		// Refused as a whole: nothing is stored.
		if api.ErrorCode == jetstreamext.JSErrCodeBatchPublishNotEnabled {
			c.noBatches.Store(true)
		}
	case errors.Is(err, jetstreamext.ErrInvalidBatchAck):
		// A server that does not know batches has stored the messages one by one, and
		// not told of each. To add them again is safe.
		c.noBatches.Store(true)
	default:
		return err
	}
	for _, m := range msgs {
		m.Reply = ""
		for _, h := range []string{jetstreamext.BatchIDHeader, jetstreamext.BatchSeqHeader, jetstreamext.BatchCommitHeader} {
			m.Header.Del(h)
		}
	}
	return errRefused
}

// addEach stores messages one by one, all of them under way at a time.
func (c *Client) addEach(ctx context.Context, part []*nats.Msg) (int, error) {
	pending := make([]Pending, len(part))
	for i, m := range part {
		var err error
		if pending[i], err = c.publish(m); err != nil {
			return i, err
		}
	}
	for i, p := range pending {
		if err := p.Wait(ctx); err != nil {
			return i, err
		}
	}
	return 0, nil
}
