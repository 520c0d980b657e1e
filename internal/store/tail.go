package store

import (
	"context"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Tail follows a shard's records in stream order.
type Tail struct {
	cancel context.CancelFunc
	done   <-chan struct{}
}

// NewTail makes a Tail for another store, such as the one with which the conformance suite
// tests the simulation: cancel ends the tail, and done is closed when it has ended.
func NewTail(cancel context.CancelFunc, done <-chan struct{}) *Tail {
	return &Tail{cancel: cancel, done: done}
}

// Tail hands every record of the shard after the sequence to fn, in stream
// order, one at a time, and then what is written, as it is written. Revisions
// that were overwritten before they were read are absent. A record of a newer format
// comes without its Record; see Timer.Unread. Tail survives a
// reconnect and a restart of the server without gap. It ends with Stop, or ctx.
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

// Stop ends the tail and waits until fn runs no more. fn must not be blocked.
func (t *Tail) Stop() {
	t.cancel()
	<-t.done
}
