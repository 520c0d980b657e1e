package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Tail is a running Reader.Tail.
type Tail struct {
	cancel context.CancelFunc
	done   <-chan struct{}
}

// NewTail returns a Tail for another implementation of the store, such as the simulated one:
// Stop calls cancel, and then waits until done is closed.
func NewTail(cancel context.CancelFunc, done <-chan struct{}) *Tail {
	return &Tail{cancel: cancel, done: done}
}

// Tail follows the records of a shard: it passes each record after sequence after to fn, in
// stream order, one at a time, first the stored records and then each new revision when it
// is written. It leaves out damaged records, and may leave out revisions that were replaced before it
// read them. A record of a newer format comes without its Record; see Timer.Unread. A record that
// this process has written may come without StoredMs.
//
// Tail continues without a gap after a lost connection or a restart of the server. It runs
// until Stop, or until ctx ends. Errors: schemas.CodeBadRequest for a shard that does not
// exist.
func (rd *Reader) Tail(ctx context.Context, shard int, after uint64, fn func(Timer)) (*Tail, error) {
	return rd.tail(ctx, shard, fn, func(uint64) {}, func(ctx context.Context, sh *shardSubjects, fn func(*jet.Msg), interrupted func(error)) {
		rd.jet.Follow(ctx, sh.stream, sh.timer+"*", after, fn, interrupted)
	})
}

// TailAtPace is Tail for a reader that need not know of a change at once: it reads every pace what
// has changed meanwhile, so that several changes of a record within it are one. It passes the sequences of damaged
// records, and of the markers of removed ones, to skipped, which Shards.HasNext takes for records.
func (rd *Reader) TailAtPace(ctx context.Context, shard int, after uint64, pace time.Duration, fn func(Timer), skipped func(revision uint64)) (*Tail, error) {
	return rd.tail(ctx, shard, fn, skipped, func(ctx context.Context, sh *shardSubjects, fn func(*jet.Msg), interrupted func(error)) {
		rd.jet.FollowAtPace(ctx, sh.stream, sh.timer+"*", after, pace, fn, interrupted)
	})
}

// tail passes the records that follow reads to fn, and the sequences of all other messages to skipped.
func (rd *Reader) tail(ctx context.Context, shard int, fn func(Timer), skipped func(uint64), follow func(context.Context, *shardSubjects, func(*jet.Msg), func(error))) (*Tail, error) {
	if shard < 0 || shard >= rd.shards.geo.Shards {
		return nil, schemas.Errorf(schemas.CodeBadRequest, "there is no shard %d", shard)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		follow(ctx, &rd.shards.subjects[shard], func(m *jet.Msg) {
			if t, ok := rd.dec.decode(m); ok || t.Unread != Readable {
				fn(t)
			} else {
				skipped(m.Sequence)
			}
		}, func(err error) { rd.log.Warn().Int("shard", shard).Err(err).Msg("tail interrupted; resuming") })
	}()
	return NewTail(cancel, done), nil
}

// Stop ends the tail and waits until fn has returned. Do not call it from fn.
func (t *Tail) Stop() {
	t.cancel()
	<-t.done
}
