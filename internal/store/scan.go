package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// ScanQueued reads every record of a shard once, in stream order, and hands over
// those that are due by throughMs and not concluded: waiting, or claimed. Its
// cost is that of the whole shard; it is for a mark that is older than the index.
// What lies behind the shard's clock, in time and in the stream, is left out: it
// was seen to by an owner, and a record there that looks open was superseded. Records
// of newer formats that may have to fire come wherever they lie; see Timer.Unread.
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
			if t.Unread == UnreadOpen {
				return true, fn(t)
			}
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
// end. A work queue that others consume refuses it. Such a consumer may live on a
// replica that is behind; if it ends before what the leader had when this began,
// that is an error.
func (s *Store) readAll(ctx context.Context, stream string, cfg jetstream.ConsumerConfig, fn func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error)) error {
	op := "read " + stream
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas, cfg.InactiveThreshold = jetstream.AckNonePolicy, true, 1, 10*time.Second
	last, err := s.lastOf(ctx, stream, cfg)
	if err != nil {
		return err
	}
	bound, release, err := s.bind(ctx, op)
	if err != nil {
		return err
	}
	c, err := s.ephemeral(bound, stream, cfg)
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
	var reached uint64
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
			n, left, reached = n+1, meta.NumPending, meta.Sequence.Stream
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
		break
	}
	if reached >= last {
		return nil
	}
	// Unless it has left the stream meanwhile.
	switch there, err := s.has(ctx, stream, last); {
	case err != nil:
		return err
	case there:
		return schemas.Errorf(schemas.CodeUnavailable, "%s: %w (at %d of %d)", op, errBehind, reached, last)
	}
	return nil
}

// has asks a stream's leader whether a message is in it.
func (s *Store) has(ctx context.Context, stream string, seq uint64) (bool, error) {
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	op := fmt.Sprintf("read %s, sequence %d", stream, seq)
	if err := s.request(ctx, op, "$JS.API.STREAM.MSG.GET."+stream, fmt.Appendf(nil, `{"seq":%d}`, seq), &r); err != nil {
		return false, err
	}
	if r.Error == nil {
		return true, nil
	}
	if err := apiError(op, r.Error); !errors.Is(err, schemas.ErrNotFound) {
		return false, err
	}
	return false, nil
}

// lastOf is the sequence of the newest message that a consumer would deliver, by
// the stream's leader; 0 if there is none.
func (s *Store) lastOf(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (uint64, error) {
	filters := cfg.FilterSubjects
	if len(filters) == 0 {
		filters = []string{cfg.FilterSubject}
	}
	var last uint64
	for _, f := range filters {
		m, err := s.getLast(ctx, stream, f)
		switch {
		case errors.Is(err, schemas.ErrNotFound):
		case err != nil:
			return 0, err
		case cfg.OptStartTime == nil || !m.Time.Before(*cfg.OptStartTime):
			last = max(last, m.Sequence)
		}
	}
	return last, nil
}
