package jet

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// FollowBatch is how many messages Follow requests at a time.
	FollowBatch = 1024
	// FollowRetry is the pause before Follow makes another consumer.
	FollowRetry = 100 * time.Millisecond
	// paceBatch is how many messages FollowAtPace requests at a time. The server sends them at once, so a large batch
	// takes CPU from other work until it is sent.
	paceBatch = 256
	// slowBatch is how many messages FollowSlowly requests at a time.
	slowBatch = 64

	followExpiry = 30 * time.Second
	// followHeartbeat finds a consumer that died with its server.
	followHeartbeat = time.Second
	// followIdle is when the server removes a consumer whose reader is away: an owner
	// whose wheel is full stops reading for a while.
	followIdle = 5 * time.Minute
)

// Follow passes every message of a stream that matches a filter and was stored after a
// sequence to fn, in stream order, one at a time, and then messages that are stored later, as
// they are stored. Revisions of a key that were replaced before they were read may be
// absent. With KeepWrites messages may come from memory, without Time and Header. It survives
// broken connections and restarts of the server without a gap and without repeating a message. It ends with ctx. interrupted is called with the first
// error after a message has been read.
func (c *Readers) Follow(ctx context.Context, stream, filter string, after uint64, fn func(*Msg), interrupted func(error)) {
	o := ReaderOptions{Stream: stream, Most: FollowBatch}
	own := c.conn.own[stream]
	if own == nil || own.filter() != filter {
		c.followAgain(ctx, o, filter, after, fn, interrupted)
		return
	}
	f := &ownFollower{c: c, own: own, stream: stream, after: &after, fn: fn}
	c.readAgain(ctx, &after, interrupted, func() error { return f.read(ctx, o) })
}

// FollowSlowly is Follow for an fn that may take long: at most slowBatch messages, and maxBytes
// bytes, are in memory. maxBytes must hold the largest message.
func (c *Readers) FollowSlowly(ctx context.Context, stream, filter string, after uint64, maxBytes int64, fn func(*Msg), interrupted func(error)) {
	c.followAgain(ctx, ReaderOptions{Stream: stream, Most: slowBatch, MaxBytes: maxBytes}, filter, after, fn, interrupted)
}

// FollowAtPace is Follow in rounds of which each begins pace after the one before, unless that was
// full. A message that is replaced between two rounds is never sent, and an fn that waits delays
// nobody else.
func (c *Readers) FollowAtPace(ctx context.Context, stream, filter string, after uint64, pace time.Duration, fn func(*Msg), interrupted func(error)) {
	c.followAgain(ctx, ReaderOptions{Stream: stream, Most: paceBatch, RoundPace: pace}, filter, after, fn, interrupted)
}

// followAgain reads with one consumer after the other.
func (c *Readers) followAgain(ctx context.Context, o ReaderOptions, filter string, after uint64, fn func(*Msg), interrupted func(error)) {
	c.readAgain(ctx, &after, interrupted, func() error {
		return c.follow(ctx, o, filter, &after, func(m *Msg) bool {
			fn(m)
			return true
		})
	})
}

// readAgain calls read, which moves after, until ctx ends, with a pause after an error.
func (c *Readers) readAgain(ctx context.Context, after *uint64, interrupted func(error), read func() error) {
	failing := false
	for ctx.Err() == nil {
		was := *after
		err := read()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			continue
		}
		if !failing || *after != was {
			interrupted(err)
			failing = true
		}
		timer := time.NewTimer(FollowRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// follow reads with one consumer until that is lost, or fn wants no more.
func (c *Readers) follow(ctx context.Context, o ReaderOptions, filter string, after *uint64, fn func(*Msg) (more bool)) error {
	cfg := jetstream.ConsumerConfig{FilterSubject: filter, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *after + 1}
	return c.readRounds(ctx, "follow "+o.Stream, o, cfg, func() {}, func(m *Msg) bool {
		if m.Sequence <= *after {
			return true
		}
		*after = m.Sequence
		return fn(m)
	})
}

// Watch passes the last message of each subject that matches a filter to fn, unless
// updatesOnly, and then every message that is stored later, until ctx ends or the consumer
// is lost. It calls begun once it has a consumer.
func (c *Readers) Watch(ctx context.Context, stream, filter string, updatesOnly bool, begun func(), fn func(*Msg)) error {
	cfg := jetstream.ConsumerConfig{FilterSubject: filter, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy}
	if updatesOnly {
		cfg.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	return c.readRounds(ctx, "watch "+stream, ReaderOptions{Stream: stream, Most: FollowBatch}, cfg, begun, func(m *Msg) bool {
		fn(m)
		return true
	})
}

// readRounds reads with a consumer of its own until that is lost, or fn wants no more. o has the stream and the limits.
func (c *Readers) readRounds(ctx context.Context, op string, o ReaderOptions, cfg jetstream.ConsumerConfig, begun func(), fn func(*Msg) (more bool)) error {
	bound, release, err := c.conn.bind(ctx, op)
	if err != nil {
		return err
	}
	// It has one replica, in memory: it is cheaper to make than to keep.
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas, cfg.InactiveThreshold = jetstream.AckNonePolicy, true, 1, followIdle
	cons, err := c.conn.ephemeral(bound, o.Stream, cfg)
	err = c.conn.ctxError(bound, op, err)
	release()
	if err != nil {
		return err
	}
	o.Consumer, o.Pace, o.Expiry, o.Heartbeat, o.Exclusive = cons.CachedInfo().Name, Rounds, followExpiry, followHeartbeat, true
	defer c.forgetConsumer(o.Stream, o.Consumer)
	r, err := c.Read(o)
	if err != nil {
		return err
	}
	defer r.Close()
	begun()
	for {
		d, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if !fn(&d.Msg) {
			return nil
		}
	}
}

// forgetConsumer deletes a consumer without waiting: its reader makes another one at
// once. A consumer that is not deleted here ends by its inactivity threshold.
func (c *Readers) forgetConsumer(stream, consumer string) {
	if !c.conn.nc.IsConnected() {
		return
	}
	c.conn.background.Run(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, c.conn.timeout)
		defer cancel()
		_ = c.conn.js.DeleteConsumer(ctx, stream, consumer)
	})
}
