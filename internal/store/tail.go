package store

import (
	"context"

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
// is written. It leaves out revisions that were replaced before it read them, and damaged
// records. A record of a newer format comes without its Record; see Timer.Unread.
//
// Tail continues without a gap after a lost connection or a restart of the server. It runs
// until Stop, or until ctx ends. Errors: schemas.CodeBadRequest for a shard that does not
// exist.
func (rd *Reader) Tail(ctx context.Context, shard int, after uint64, fn func(Timer)) (*Tail, error) {
	if shard < 0 || shard >= rd.shards.geo.Shards {
		return nil, schemas.Errorf(schemas.CodeBadRequest, "there is no shard %d", shard)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		sh := &rd.shards.subjects[shard]
		rd.jet.Follow(ctx, sh.stream, sh.timer+"*", after, func(m *jet.Msg) {
			if t, ok := rd.dec.decode(m); ok || t.Unread != Readable {
				fn(t)
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
