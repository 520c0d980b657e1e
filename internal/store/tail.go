package store

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Tail follows a shard's records in stream order.
type Tail struct {
	cancel context.CancelFunc
	done   <-chan struct{}
}

// NewTail is for other stores, such as a simulated one: cancel ends the tail, and
// done is closed once it has ended.
func NewTail(cancel context.CancelFunc, done <-chan struct{}) *Tail {
	return &Tail{cancel: cancel, done: done}
}

// tailRetry is the pause before a lost tail is taken up again.
const tailRetry = 100 * time.Millisecond

const (
	// tailHeartbeat finds a consumer that died with its server.
	tailHeartbeat = time.Second
	// tailSilence is two heartbeats, and some.
	tailSilence = 5 * tailHeartbeat / 2
	// tailIdle is after how long the server forgets a consumer that was left, or whose
	// reader is away: an owner that has all the entries it may hold.
	tailIdle = 5 * time.Minute
)

// Tail hands every record of the shard after the sequence to fn, in stream
// order, one at a time, and then what is written, as it is written. Revisions
// that were overwritten before they were read are absent. A record of a newer format
// comes without its Record; see Timer.Unread. Tail survives a
// reconnect and a restart of the server without gap. It ends with Stop, or ctx.
func (s *Store) Tail(ctx context.Context, shard int, after uint64, fn func(Timer)) (*Tail, error) {
	if shard < 0 || shard >= s.geo.Shards {
		return nil, schemas.Errorf(schemas.CodeBadRequest, "there is no shard %d", shard)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		failing := false
		for ctx.Err() == nil {
			was := after
			err := s.follow(ctx, shard, &after, fn)
			if ctx.Err() != nil {
				return
			}
			if !failing || after != was {
				s.log.Warn().Int("shard", shard).Err(err).Msg("tail interrupted; taking it up again")
				failing = true
			}
			timer := time.NewTimer(tailRetry)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
		}
	}()
	return NewTail(cancel, done), nil
}

// Stop ends the tail and waits until fn runs no more. fn must not be blocked.
func (t *Tail) Stop() {
	t.cancel()
	<-t.done
}

// follow reads with one consumer until it breaks: when the connection does, a
// message is missing, or nothing is heard.
//
// It is not the client's ordered consumer. That makes itself anew by a request of
// ten seconds that neither Stop nor a broken connection ends, and a request that
// went out over a connection that was lost is never answered: the owner was blind
// for as long, and one that was deposed could not be done with its shard.
func (s *Store) follow(ctx context.Context, shard int, after *uint64, fn func(Timer)) error {
	sh := &s.subjects[shard]
	op := "follow " + sh.stream
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	forget, ok := s.pub.onBreak(func() { cancel(nats.ErrDisconnected) })
	defer forget()
	if !ok {
		return mapError(op, nats.ErrDisconnected)
	}
	c, err := s.tailConsumer(ctx, op, sh, *after)
	if err != nil {
		return err
	}
	defer s.forget(sh.stream, c.CachedInfo().Name)
	p, err := newPuller(s.nc, sh.stream, c.CachedInfo().Name)
	if err != nil {
		return mapError(op, err)
	}
	defer p.close()
	next := uint64(1) // what the consumer numbers its next message with
	for {
		m, err := p.next(ctx)
		if err != nil {
			return ctxError(ctx, op, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return mapError(op, err)
		}
		if got := meta.Sequence.Consumer; got != next {
			return fmt.Errorf("%s: message %d of the consumer came, want %d", op, got, next)
		}
		next++
		seq := meta.Sequence.Stream
		if seq <= *after {
			continue
		}
		*after = seq
		t, ok := s.decode(&jetstream.RawStreamMsg{Subject: m.Subject, Sequence: seq, Header: m.Header, Data: m.Data, Time: meta.Timestamp})
		if ok || t.Unread != Readable {
			fn(t)
		}
	}
}

// forget deletes a consumer, behind the caller's back: who has lost it makes
// another at once. What is not deleted here ends by its inactivity threshold.
func (s *Store) forget(stream, consumer string) {
	if !s.nc.IsConnected() {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(s.life, s.cfg.Timeout)
		defer cancel()
		_ = s.js.DeleteConsumer(ctx, stream, consumer)
	}()
}

// tailConsumer makes a consumer of one replica, in memory: it is made anew rather
// than kept.
func (s *Store) tailConsumer(ctx context.Context, op string, sh *shardSubjects, after uint64) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	c, err := s.ephemeral(ctx, sh.stream, jetstream.ConsumerConfig{
		FilterSubject: sh.timer + "*", DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: tailIdle,
	})
	return c, ctxError(ctx, op, err)
}
