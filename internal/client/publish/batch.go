package publish

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of one atomic batch.
const (
	// maxBatchMessages is half of the server's limit of 1,000.
	maxBatchMessages = 500
	// maxBatchBytes is what the server can stage in a fraction of a second.
	maxBatchBytes = 4 << 20
	// minBatchMessages is the smallest batch that is faster than single publishes.
	minBatchMessages = 24
)

// AddAll stores all messages and returns nil when they are stored. It stores up to
// maxBatchMessages with one write, all or none of them. It checks the sizes of all
// messages before it publishes the first. On an error it returns the index of the message
// that failed; some messages may have been stored. The messages must have a Header.
func (p *Publisher) AddAll(ctx context.Context, msgs []*nats.Msg) (int, error) {
	for i, m := range msgs {
		if err := p.checkSize(m); err != nil {
			return i, err
		}
	}
	for done := 0; done < len(msgs); {
		if ctx.Err() != nil {
			return done, schemas.Errorf(schemas.CodeUnavailable, "not published (%w)", context.Cause(ctx))
		}
		part := msgs[done : done+batchLength(msgs[done:])]
		if n, err := p.addPart(ctx, part); err != nil {
			return done + n, err
		}
		done += len(part)
	}
	return len(msgs), nil
}

// batchLength returns the number of messages of the next batch, 1 or more.
func batchLength(msgs []*nats.Msg) int {
	bytes := 0
	for i, m := range msgs {
		if bytes += len(m.Data); i == maxBatchMessages || i > 0 && bytes > maxBatchBytes {
			return i
		}
	}
	return len(msgs)
}

// addPart stores at most one batch of messages. On an error it returns the index of the
// message that failed.
func (p *Publisher) addPart(ctx context.Context, part []*nats.Msg) (int, error) {
	if len(part) < minBatchMessages || p.noBatches.Load() {
		return p.addEach(ctx, part)
	}
	bound, cancel := context.WithTimeout(ctx, AckTimeout)
	defer cancel()
	err := p.addBatch(bound, part)
	switch {
	case err == nil:
		return 0, nil
	case errors.Is(err, errBatchRefused):
		return p.addEach(ctx, part)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return 0, publishError(err)
}

// errBatchRefused means that nothing of a batch is known to be stored. Publish its messages
// one by one: each then has an answer of its own.
var errBatchRefused = errors.New("the server refused the batch")

// addBatch stores all messages or none. The error is errBatchRefused, or the reason why the
// outcome is unknown. The messages must have a Header.
func (p *Publisher) addBatch(ctx context.Context, msgs []*nats.Msg) error {
	_, err := jetstreamext.PublishMsgBatch(ctx, p.js, msgs)
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		if api.ErrorCode == jetstreamext.JSErrCodeBatchPublishNotEnabled {
			p.noBatches.Store(true)
		}
	case errors.Is(err, jetstreamext.ErrInvalidBatchAck):
		// A server without support for batches stored the messages one by one, and did not
		// answer each. Adding them again is safe.
		p.noBatches.Store(true)
	default:
		return err
	}
	for _, m := range msgs {
		m.Reply = ""
		for _, h := range []string{jetstreamext.BatchIDHeader, jetstreamext.BatchSeqHeader, jetstreamext.BatchCommitHeader} {
			m.Header.Del(h)
		}
	}
	return errBatchRefused
}

// addEach publishes all messages one by one, and then waits for their answers.
func (p *Publisher) addEach(ctx context.Context, part []*nats.Msg) (int, error) {
	results := make([]*Result, len(part))
	for i, m := range part {
		var err error
		if results[i], err = p.publish(m); err != nil {
			return i, err
		}
	}
	for i, r := range results {
		if err := r.Wait(ctx); err != nil {
			return i, err
		}
	}
	return 0, nil
}
