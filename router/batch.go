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

// batcher processes adds in groups, at most maxParallel at a time. Adds of the stream come
// in groups (run).Adds whose callers
// wait come one by one (put); adds that are queued while other groups are processed become one
// group.
type batcher struct {
	in      chan *Add
	permits chan struct{}
	groups  sync.WaitGroup
	process func([]*Add)
}

func newBatcher(process func([]*Add)) *batcher {
	return &batcher{in: make(chan *Add, MaxBatch), permits: make(chan struct{}, maxParallel), process: process}
}

// put queues one add. It blocks while the queue is full; MaxAdds bounds for how many.
func (b *batcher) put(a *Add) { b.in <- a }

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
func (b *batcher) close() { close(b.in) }

// loop processes what is put, until close and until all groups are processed.
func (b *batcher) loop() {
	defer b.groups.Wait()
	for a := range b.in {
		b.permits <- struct{}{} // more adds are queued while this waits
		b.start(b.gather(a))
	}
}

// gather takes what is queued, without waiting for more.
func (b *batcher) gather(first *Add) []*Add {
	group := append(make([]*Add, 0, 16), first)
	for len(group) < MaxBatch {
		select {
		case a, ok := <-b.in:
			if !ok {
				return group
			}
			group = append(group, a)
		default:
			return group
		}
	}
	return group
}
