package publish

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
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

// AddAll stores all messages and returns nil when they are stored. Where single publishes are
// slow, it stores up to maxBatchMessages with one write, all or none of them. It checks the
// sizes of all messages before it publishes the first. On an error it returns the index of the first
// message that failed; others may have been stored.
func (p *Publisher) AddAll(ctx context.Context, msgs [][]byte) (int, error) {
	for i, data := range msgs {
		if err := p.checkSize(data); err != nil {
			return i, err
		}
	}
	for done := 0; done < len(msgs); {
		if ctx.Err() != nil {
			return done, schemas.Errorf(schemas.CodeUnavailable, "not published (%w)", context.Cause(ctx))
		}
		rest := msgs[done:]
		part := rest[:batchLength(len(rest), func(i int) int { return len(rest[i]) })]
		if n, err := p.addPart(ctx, part); err != nil {
			return done + n, err
		}
		done += len(part)
	}
	return len(msgs), nil
}

// batchLength returns how many of n adds the next batch has, 1 or more; size is the number of bytes
// of add i.
func batchLength(n int, size func(i int) int) int {
	bytes := 0
	for i := range n {
		if bytes += size(i); i == maxBatchMessages || i > 0 && bytes > maxBatchBytes {
			return i
		}
	}
	return n
}

// addPart stores at most one batch of messages. On an error it returns the index of the
// message that failed.
func (p *Publisher) addPart(ctx context.Context, part [][]byte) (int, error) {
	if len(part) < minBatchMessages || p.noBatches.Load() || !p.adaptive.batching.Load() {
		return p.addEach(ctx, part)
	}
	bound, cancel := context.WithTimeout(ctx, AckTimeout)
	defer cancel()
	begin := time.Now()
	err := p.addBatch(bound, part)
	switch {
	case err == nil:
		p.adaptive.batchDone(len(part), time.Since(begin))
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
// outcome is unknown.
func (p *Publisher) addBatch(ctx context.Context, part [][]byte) error {
	commit, id, err := p.stage(part)
	if err != nil {
		return err
	}
	answer, err := p.nc.RequestMsgWithContext(ctx, commit)
	if err != nil {
		return err
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Batch  string              `json:"batch"`
		Count  int                 `json:"count"`
	}
	switch err := json.Unmarshal(answer.Data, &ack); {
	case err != nil || ack.Error == nil && ack.Stream == "":
		return jetstream.ErrInvalidJSAck
	case ack.Error != nil:
		if ack.Error.ErrorCode == jetstreamext.JSErrCodeBatchPublishNotEnabled {
			p.noBatches.Store(true)
		}
		return errBatchRefused
	case ack.Batch != id || ack.Count != len(part):
		// A server without support for batches stored the messages one by one, and did not
		// answer each. Adding them again is safe.
		p.noBatches.Store(true)
		return errBatchRefused
	}
	return nil
}

// stage publishes all messages of a batch except the last. It returns the last message, which
// commits the batch, and the id of the batch. The staged messages have no answer: if the server
// refuses one, it refuses the commit.
func (p *Publisher) stage(part [][]byte) (commit *nats.Msg, id string, err error) {
	id = nuid.Next()
	number := []string{""}
	m := nats.Msg{Subject: schemas.SubjectAdd, Header: nats.Header{jetstreamext.BatchIDHeader: {id}, jetstreamext.BatchSeqHeader: number}}
	for i, data := range part {
		m.Data, number[0] = data, strconv.Itoa(i+1)
		if i == len(part)-1 {
			break
		}
		if err := p.nc.PublishMsg(&m); err != nil { // encodes the header before it returns
			return nil, "", err
		}
	}
	m.Header[jetstreamext.BatchCommitHeader] = []string{"1"}
	return &m, id, nil
}

// addEach publishes all messages one by one, and then waits for the answers to all of them, or until ctx
// ends. So when it returns the error of the first message that failed, no other message is on its way. If a
// measurement is due, it measures their cost, except on a new connection.
func (p *Publisher) addEach(ctx context.Context, part [][]byte) (_ int, err error) {
	if _, last := p.window.pending(); last != nil && len(part) >= minBatchMessages && p.startMeasurement() {
		begin := p.adaptive.now()
		defer func() {
			p.adaptive.endMeasurement((p.adaptive.now()-begin)/time.Duration(len(part)), err)
		}()
	}
	results := make([]Result, len(part))
	for i, data := range part {
		if err := p.publish(data, &results[i]); err != nil {
			return i, err
		}
	}
	failed := 0
	for i := range results {
		answer := results[i].Wait(ctx)
		if err == nil && answer != nil {
			failed, err = i, answer
		}
	}
	return failed, err
}
