package router

import (
	"context"
	"sync"

	"github.com/belfryio/belfry/schemas"
)

const (
	// MaxBatch bounds the adds that are validated and written together.
	MaxBatch = 512
	// maxParallel bounds the groups that are processed at a time.
	maxParallel = 4
)

// batcher processes adds in groups, at most maxParallel at a time. Adds of the stream come in
// groups (run). Adds whose callers wait come one by one (put); adds that are queued while other
// groups are processed become one group.
type batcher struct {
	waiting *addQueue
	permits chan struct{}
	groups  sync.WaitGroup
	process func([]*Add)
}

func newBatcher(process func([]*Add)) *batcher {
	return &batcher{waiting: newAddQueue(), permits: make(chan struct{}, maxParallel), process: process}
}

// put queues one add; MaxAdds bounds how many are queued.
func (b *batcher) put(a *Add) { b.waiting.put(a) }

// run starts to process a group. It blocks while maxParallel groups are being processed; an
// error says that ctx ended first.
func (b *batcher) run(ctx context.Context, group []*Add) error {
	select {
	case b.permits <- struct{}{}:
		b.start(group)
		return nil
	case <-ctx.Done():
		return schemas.Errorf(schemas.CodeUnavailable, "the add was not processed: %w", context.Cause(ctx))
	}
}

// start processes a group; the caller has taken a permit.
func (b *batcher) start(group []*Add) {
	b.groups.Go(func() {
		defer func() { <-b.permits }()
		b.process(group)
	})
}

// close ends loop. The caller makes sure that put and run are not called any more.
func (b *batcher) close() { b.waiting.close() }

// loop processes the queued adds until close. It returns when all groups are processed.
func (b *batcher) loop() {
	defer b.groups.Wait()
	for b.waiting.wait() {
		b.permits <- struct{}{} // more adds are queued while this waits
		b.start(b.waiting.take(MaxBatch))
	}
}
