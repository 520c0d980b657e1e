package store

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// ScanQueued reads every record of a shard once, in stream order, and hands over
// those that are due by throughMs and not concluded: waiting, or claimed. Its
// cost is that of the whole shard; it is for a mark that is older than the index.
// What lies behind the shard's clock, in time and in the stream, is left out: it
// was seen to by an owner, and a record there that looks open was superseded.
func (s *Store) ScanQueued(ctx context.Context, shard int, throughMs int64, fn func(Timer) error) error {
	clock, _, err := s.ReadClock(ctx, shard)
	if err != nil {
		return err
	}
	mark := s.geo.Tick(clock.TimeMs)
	sh := &s.subjects[shard]
	return s.readAll(ctx, sh.stream, jetstream.ConsumerConfig{FilterSubject: sh.timer + "*"}, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		t, ok := s.decode(&jetstream.RawStreamMsg{Subject: m.Subject(), Sequence: meta.Sequence.Stream, Header: m.Headers(), Data: m.Data(), Time: meta.Timestamp})
		if !ok {
			return true, nil
		}
		r := &t.Record
		done := s.geo.Tick(r.DueMs) < mark && t.Rev <= clock.Tail
		if done || r.DueMs > throughMs || !r.Pending() && r.State != schemas.StateDelivered {
			return true, nil
		}
		return true, fn(t)
	})
}

// readAll reads what a stream holds now, from where cfg says, by a consumer of its
// own: a third of the CPU a message that direct gets take. fn returns false to
// end. A work queue that others consume refuses it.
func (s *Store) readAll(ctx context.Context, stream string, cfg jetstream.ConsumerConfig, fn func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error)) error {
	op := "read " + stream
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas, cfg.InactiveThreshold = jetstream.AckNonePolicy, true, 1, 10*time.Second
	bound, release, err := s.bind(ctx, op)
	if err != nil {
		return err
	}
	c, err := s.js.CreateConsumer(bound, stream, cfg)
	err = ctxError(bound, op, err)
	release()
	if err != nil {
		return err
	}
	defer func() {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
		defer cancel()
		// What is not deleted here ends by its inactivity threshold.
		_ = s.js.DeleteConsumer(dctx, stream, c.CachedInfo().Name)
	}()
	for left := c.CachedInfo().NumPending; left > 0; {
		if err := ctx.Err(); err != nil {
			return mapError(op, err)
		}
		batch, err := c.Fetch(int(min(left, scanBatch)), jetstream.FetchMaxWait(s.cfg.Timeout))
		if err != nil {
			return mapError(op, err)
		}
		n := 0
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return mapError(op, err)
			}
			n, left = n+1, meta.NumPending
			if more, err := fn(m, meta); err != nil || !more {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return mapError(op, err)
		}
		if n > 0 {
			continue
		}
		// What was left may have been overwritten meanwhile.
		info, err := c.Info(ctx)
		if err != nil {
			return mapError(op, err)
		}
		if info.NumPending > 0 {
			return schemas.Errorf(schemas.CodeUnavailable, "%s: JetStream delivered nothing within %s", op, s.cfg.Timeout)
		}
		return nil
	}
	return nil
}
