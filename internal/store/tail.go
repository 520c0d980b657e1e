package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// The client drops what does not fit into an iterator's buffer, which heartbeats
// fill, too, while fn keeps the reader away. An ordered consumer notices when the
// next message comes; if it was the last one that was dropped, none does. So a
// tail that has become quiet asks, once, whether all that was sent has come.
const (
	tailHeartbeat = 2 * time.Second
	// tailQuiet is longer than two heartbeats: within it a lost server is noticed
	// first, which each call of Next watches for anew.
	tailQuiet = 5 * time.Second
)

// Tail hands every record of the shard after the sequence to fn, in stream
// order, one at a time, and then what is written, as it is written. Revisions
// that were overwritten before they were read are absent. It survives a
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

// follow reads with one ordered consumer until it breaks.
func (s *Store) follow(ctx context.Context, shard int, after *uint64, fn func(Timer)) error {
	sh := &s.subjects[shard]
	bound, release, err := s.bind(ctx, "follow "+sh.stream)
	if err != nil {
		return err
	}
	defer release()
	c, err := s.js.OrderedConsumer(bound, sh.stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{sh.timer + "*"}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *after + 1,
		InactiveThreshold: time.Minute,
	})
	if err != nil {
		return ctxError(bound, "follow "+sh.stream, err)
	}
	release()
	it, err := c.Messages(jetstream.PullMaxMessages(2048), jetstream.PullHeartbeat(tailHeartbeat), jetstream.PullExpiry(30*time.Second))
	if err != nil {
		return mapError("follow "+sh.stream, err)
	}
	var stop sync.Once
	defer stop.Do(it.Stop)
	unhook := context.AfterFunc(ctx, func() { stop.Do(it.Stop) })
	defer unhook()
	unsure := false
	for {
		var opts []jetstream.NextOpt
		if unsure {
			opts = append(opts, jetstream.NextMaxWait(tailQuiet))
		}
		m, err := it.Next(opts...)
		if unsure && errors.Is(err, nats.ErrTimeout) {
			if err := s.complete(ctx, sh.stream, c, *after); err != nil {
				return err
			}
			unsure = false
			continue
		}
		if err != nil {
			return mapError("follow "+sh.stream, err)
		}
		unsure = true
		meta, err := m.Metadata()
		if err != nil {
			return mapError("follow "+sh.stream, err)
		}
		seq := meta.Sequence.Stream
		if seq <= *after {
			continue
		}
		*after = seq
		t, ok := s.decode(&jetstream.RawStreamMsg{Subject: m.Subject(), Sequence: seq, Header: m.Headers(), Data: m.Data(), Time: meta.Timestamp})
		if ok {
			fn(t)
		}
	}
}

// complete fails if the server has sent more than what came.
func (s *Store) complete(ctx context.Context, stream string, c jetstream.Consumer, after uint64) error {
	bound, release, err := s.bind(ctx, "follow "+stream)
	if err != nil {
		return err
	}
	defer release()
	info, err := c.Info(bound)
	if err != nil {
		return ctxError(bound, "follow "+stream, err)
	}
	if sent := info.Delivered.Stream; sent > after {
		return fmt.Errorf("follow %s: the client dropped messages: sequence %d came, %d was sent", stream, after, sent)
	}
	return nil
}
