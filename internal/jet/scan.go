package jet

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// scanBatch is how many messages a Scan requests at a time.
const scanBatch = 1000

// Range selects the messages of a Scan.
type Range struct {
	// Filters are the subjects; none means all.
	Filters []string
	// AfterSeq is the sequence after which the scan starts.
	AfterSeq uint64
	// Since is when the first message was stored at the earliest; zero for no bound. It
	// excludes AfterSeq.
	Since time.Time
	// HeadersOnly leaves the data out.
	HeadersOnly bool
}

func (r *Range) config() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		HeadersOnly: r.HeadersOnly, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: 10 * time.Second,
	}
	if len(r.Filters) == 1 {
		cfg.FilterSubject = r.Filters[0]
	} else {
		cfg.FilterSubjects = r.Filters
	}
	switch {
	case !r.Since.IsZero():
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &r.Since
	case r.AfterSeq > 0:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, r.AfterSeq+1
	}
	return cfg
}

// Scan reads the messages that a stream holds now, in stream order, through a consumer of
// its own. That takes a third of the CPU that direct gets take for each message. It ends
// when fn returns false. A work queue that has consumers refuses it. The consumer may live
// on a replica that is behind: if the scan ends before the newest message that the leader
// had at the beginning, it returns ErrBehind with ErrUnavailable.
func (c *Reads) Scan(ctx context.Context, stream string, r Range, fn func(Msg) (more bool, err error)) error {
	op := "read " + stream
	last, err := c.LastOf(ctx, stream, r)
	if err != nil {
		return err
	}
	bound, release, err := c.conn.bind(ctx, op)
	if err != nil {
		return err
	}
	cons, err := c.conn.ephemeral(bound, stream, r.config())
	err = c.conn.ctxError(bound, op, err)
	release()
	if err != nil {
		return err
	}
	defer func() {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.conn.timeout)
		defer cancel()
		// A consumer that is not deleted here ends by its inactivity threshold.
		_ = c.conn.js.DeleteConsumer(dctx, stream, cons.CachedInfo().Name)
	}()
	reached, done, err := c.scan(ctx, op, cons, fn)
	if err != nil || done || reached >= last {
		return err
	}
	// The last message may have left the stream meanwhile.
	switch there, err := c.Has(ctx, stream, last); {
	case err != nil:
		return err
	case there:
		return c.conn.mapErr.errorf(ErrUnavailable, "%s: %w (at %d of %d)", op, ErrBehind, reached, last)
	}
	return nil
}

// scan reads a consumer to its end. done says that fn ended it.
func (c *Reads) scan(ctx context.Context, op string, cons jetstream.Consumer, fn func(Msg) (bool, error)) (reached uint64, done bool, err error) {
	for left := cons.CachedInfo().NumPending; left > 0; {
		if err := ctx.Err(); err != nil {
			return reached, false, c.conn.mapErr.wrap(op, err)
		}
		batch, err := cons.Fetch(int(min(left, scanBatch)), jetstream.FetchMaxWait(c.conn.timeout))
		if err != nil {
			return reached, false, c.conn.mapErr.wrap(op, err)
		}
		n := 0
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return reached, false, c.conn.mapErr.wrap(op, err)
			}
			n, left, reached = n+1, meta.NumPending, meta.Sequence.Stream
			more, err := fn(Msg{Subject: m.Subject(), Sequence: meta.Sequence.Stream, Header: m.Headers(), Data: m.Data(), Time: meta.Timestamp})
			if err != nil || !more {
				return reached, true, err
			}
		}
		if err := batch.Error(); err != nil {
			return reached, false, c.conn.mapErr.wrap(op, err)
		}
		if n > 0 {
			continue
		}
		// The messages that were left may have been replaced meanwhile.
		info, err := cons.Info(ctx)
		if err != nil {
			return reached, false, c.conn.mapErr.wrap(op, err)
		}
		if info.NumPending > 0 {
			return reached, false, c.conn.mapErr.errorf(ErrUnavailable, "%s: JetStream delivered nothing within %s", op, c.conn.timeout)
		}
		break
	}
	return reached, false, nil
}

// LastOf returns the sequence of the newest message of a range, according to the stream's
// leader; 0 if there is none.
func (c *Reads) LastOf(ctx context.Context, stream string, r Range) (uint64, error) {
	filters := r.Filters
	if len(filters) == 0 {
		filters = []string{">"}
	}
	var last uint64
	for _, f := range filters {
		m, err := c.Last(ctx, stream, f)
		switch {
		case isNotFound(err):
		case err != nil:
			return 0, err
		case m.Sequence > r.AfterSeq && !m.Time.Before(r.Since):
			last = max(last, m.Sequence)
		}
	}
	return last, nil
}
