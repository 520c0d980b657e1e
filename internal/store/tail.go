package store

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Tail follows a shard's records in stream order.
type Tail struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// tailRetry is the pause before a lost tail is taken up again.
const tailRetry = 100 * time.Millisecond

// Tail hands every record of the shard after the sequence to fn, in stream
// order, one at a time, and then what is written, as it is written. Revisions
// that were overwritten before they were read are absent. It survives a
// reconnect and a restart of the server without gap. It ends with Stop, or ctx.
func (s *Store) Tail(ctx context.Context, shard int, after uint64, fn func(Timer)) (*Tail, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &Tail{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		failing := false
		for ctx.Err() == nil {
			err := s.follow(ctx, shard, &after, fn)
			if ctx.Err() != nil {
				return
			}
			if !failing {
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
	return t, nil
}

// Stop ends the tail and waits until fn runs no more. fn must not be blocked.
func (t *Tail) Stop() {
	t.cancel()
	<-t.done
}

// follow reads with one ordered consumer until it breaks.
func (s *Store) follow(ctx context.Context, shard int, after *uint64, fn func(Timer)) error {
	sh := &s.subjects[shard]
	cctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	c, err := s.js.OrderedConsumer(cctx, sh.stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{sh.timer + "*"}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *after + 1,
		InactiveThreshold: time.Minute,
	})
	if err != nil {
		return mapError("follow "+sh.stream, err)
	}
	it, err := c.Messages(jetstream.PullMaxMessages(2048), jetstream.PullHeartbeat(2*time.Second), jetstream.PullExpiry(30*time.Second))
	if err != nil {
		return mapError("follow "+sh.stream, err)
	}
	var stop sync.Once
	defer stop.Do(it.Stop)
	unhook := context.AfterFunc(ctx, func() { stop.Do(it.Stop) })
	defer unhook()
	for {
		m, err := it.Next()
		if err != nil {
			return mapError("follow "+sh.stream, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return mapError("follow "+sh.stream, err)
		}
		seq := meta.Sequence.Stream
		if seq <= *after {
			continue
		}
		*after = seq
		t, err := s.timer(&jetstream.RawStreamMsg{Subject: m.Subject(), Sequence: seq, Data: m.Data(), Time: meta.Timestamp})
		if err != nil {
			if len(m.Data()) > 0 {
				s.log.Error().Str("key", m.Subject()).Uint64("revision", seq).Err(err).Msg("record skipped: it cannot be decoded")
			}
			continue
		}
		fn(t)
	}
}
