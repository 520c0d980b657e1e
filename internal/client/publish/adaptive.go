package publish

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// Adaptive batching.
//
// Where the server syncs every write, a single publish costs it one fsync and an atomic
// batch of any size costs two. There, batches are many times as fast. Where the server does
// not sync, a batch only costs more. The client cannot see which server it has, so it
// measures:
//
//	single publishes ── one takes minSingleCost or more ─▶ batches
//	single publishes ◀─ minBatches of them were slower, or measureEvery is over ── batches
//
// While adds are batched, they wait in a queue. One goroutine takes the next batch from the
// queue as soon as the server has answered the last one.
const (
	// measureDepth is the number of publishes without an answer from which the cost of one
	// can be computed: the time of the answer divided by that number.
	measureDepth = 128
	// minSingleCost is the cost of a single publish from which batches are tried.
	minSingleCost = 40 * time.Microsecond
	// maxSingles is how many single publishes are in flight, at most, while adds are
	// batched. A few adds are faster by themselves.
	maxSingles = 16
	// maxQueued bounds the queue.
	maxQueued = 3000
	// minBatches is the number of batches after which their cost is compared with that of
	// single publishes.
	minBatches = 8
	// measureEvery is the time between two measurements. It doubles each time that batches
	// were slower, up to maxMeasureEvery.
	measureEvery    = 10 * time.Second
	maxMeasureEvery = 5 * time.Minute
)

// adaptive is the state of adaptive batching. Times are durations since start.
type adaptive struct {
	start time.Time
	// minSingleCost is the constant, except in tests.
	minSingleCost time.Duration
	// room has one entry for each queued add.
	room chan struct{}
	// nextMeasure is when a publish is measured next, in nanoseconds.
	nextMeasure atomic.Int64
	// batching is set while batches are used. measuring is set while a publish is measured.
	batching, measuring atomic.Bool

	mu         sync.Mutex
	queue      []queuedAdd
	sending    bool // the goroutine that empties the queue runs
	singleCost time.Duration
	batchCost  time.Duration // of one add in a batch, a moving average
	batches    int           // batches in batchCost
	pause      time.Duration // until the next measurement
}

// queuedAdd is an add that waits for a batch.
type queuedAdd struct {
	msg    *nats.Msg
	result *Result
}

func newAdaptive() adaptive {
	return adaptive{start: time.Now(), minSingleCost: minSingleCost, room: make(chan struct{}, maxQueued), pause: measureEvery}
}

func (a *adaptive) now() time.Duration { return time.Since(a.start) }

// Add publishes one add, by itself or in a batch. Adds reach the server in the order of the
// calls. Add blocks for at most stallWait. Errors: ErrTooLarge, ErrUnavailable.
func (p *Publisher) Add(m *nats.Msg) (*Result, error) {
	a := &p.adaptive
	a.mu.Lock()
	queued := a.sending || a.batching.Load()
	a.mu.Unlock()
	if !queued {
		r, err := p.publish(m)
		if err == nil {
			p.measure(r)
		}
		return r, err
	}
	if err := p.checkSize(m); err != nil {
		return nil, err
	}
	if err := a.reserve(); err != nil {
		return nil, err
	}
	r := &Result{done: make(chan struct{}), published: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = append(a.queue, queuedAdd{msg: m, result: r})
	if !a.sending {
		a.sending = true
		go p.send()
	}
	return r, nil
}

// reserve waits for room in the queue.
func (a *adaptive) reserve() error {
	select {
	case a.room <- struct{}{}:
		return nil
	default:
	}
	t := time.NewTimer(stallWait)
	defer t.Stop()
	select {
	case a.room <- struct{}{}:
		return nil
	case <-t.C:
		return schemas.Errorf(schemas.CodeUnavailable, "add not published: %d adds are queued, and the server took none for %s", maxQueued, stallWait)
	}
}

// measure computes the cost of a single publish, from a publish that waited behind many
// others, and switches to batches if the cost is high. It does not block.
func (p *Publisher) measure(r *Result) {
	a := &p.adaptive
	begin := a.now()
	if begin < time.Duration(a.nextMeasure.Load()) || p.noBatches.Load() {
		return
	}
	depth := p.js.PublishAsyncPending()
	if depth < measureDepth || !a.measuring.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer a.measuring.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), AckTimeout)
		defer cancel()
		if r.Wait(ctx) != nil {
			return // the caller of Add gets this error
		}
		now := a.now()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.singleCost = (now - begin) / time.Duration(depth)
		a.batchCost, a.batches = 0, 0
		a.batching.Store(a.singleCost >= a.minSingleCost)
		a.nextMeasure.Store(int64(now + a.pause))
	}()
}

// batchDone records the duration of a batch of n adds, and switches to single publishes if
// batches are slower or the next measurement is due.
func (a *adaptive) batchDone(n int, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if n >= maxBatchMessages/2 {
		a.batches++
		a.batchCost += (took/time.Duration(n) - a.batchCost) / time.Duration(min(a.batches, minBatches))
	}
	switch {
	case a.minSingleCost == 0: // a test keeps batches on
	case a.batches >= minBatches && a.batchCost > a.singleCost:
		a.batching.Store(false)
		a.pause = min(2*a.pause, maxMeasureEvery)
		a.nextMeasure.Store(int64(now + a.pause))
	case now > time.Duration(a.nextMeasure.Load()):
		a.batching.Store(false)
		a.pause = measureEvery
	}
}

// send publishes the queued adds until the queue is empty.
func (p *Publisher) send() {
	a := &p.adaptive
	var singles []*Result // single publishes that may be in flight
	for {
		a.mu.Lock()
		n := len(a.queue)
		if n == 0 {
			a.sending = false
			a.mu.Unlock()
			return
		}
		batching := a.batching.Load() && !p.noBatches.Load()
		if batching && n < minBatchMessages && len(singles) >= maxSingles {
			a.mu.Unlock()
			// Answers come in order, so the oldest is first. More adds are queued meanwhile.
			// AckTimeout bounds the wait; the caller of Add gets the error.
			_ = singles[0].Wait(context.Background())
			singles = singles[1:]
			continue
		}
		if !batching || n < minBatchMessages {
			n = 1
		} else {
			n = queuedLength(a.queue)
		}
		part := a.queue[:n:n]
		if a.queue = a.queue[n:]; len(a.queue) == 0 {
			a.queue = nil
		}
		a.mu.Unlock()
		for range part {
			<-a.room
		}
		if n > 1 {
			p.sendBatch(part)
			continue
		}
		p.sendSingle(part[0])
		if batching {
			singles = append(singles, part[0].result)
		} else {
			p.measure(part[0].result)
		}
	}
}

// queuedLength returns the number of queued adds of the next batch, 1 or more.
func queuedLength(queue []queuedAdd) int {
	bytes := 0
	for i, q := range queue {
		if bytes += len(q.msg.Data); i == maxBatchMessages || i > 0 && bytes > maxBatchBytes {
			return i
		}
	}
	return len(queue)
}

func (p *Publisher) sendSingle(q queuedAdd) {
	r, err := p.publish(q.msg)
	if err != nil {
		q.result.resolve(err)
		return
	}
	q.result.ok, q.result.errs = r.ok, r.errs
	close(q.result.published)
}

// sendBatch publishes many adds at once. If the server refuses the batch because of one add,
// the others are still stored: all go by themselves then.
func (p *Publisher) sendBatch(part []queuedAdd) {
	msgs := make([]*nats.Msg, len(part))
	for i, q := range part {
		if msgs[i] = q.msg; q.msg.Header == nil {
			q.msg.Header = nats.Header{}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), AckTimeout)
	defer cancel()
	begin := time.Now()
	err := p.addBatch(ctx, msgs)
	switch {
	case errors.Is(err, errBatchRefused):
		for _, q := range part {
			p.sendSingle(q)
		}
		return
	case err == nil:
		p.adaptive.batchDone(len(part), time.Since(begin))
	default:
		err = publishError(err)
	}
	for _, q := range part {
		q.result.resolve(err)
	}
}
