package publish

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

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
//	single publishes ◀─ minBatches of them did not pay, or measureEvery is over ── batches
//
// While adds are batched, they wait in a queue. One goroutine takes the next batch from the
// queue as soon as the server has answered the last one.
//
// A measurement also uses the queue. It waits until all publishes have an answer, then
// publishes up to measureAdds queued adds one by one, and divides the time until the last
// answer by their number. A server that syncs every write answers many publishes at once, so
// the time between two answers says nothing; and the first answers on a new connection are slow.
const (
	// measureDepth is the number of publishes without an answer from which batches may pay.
	// A measurement needs that many adds, and uses measureAdds if they are queued.
	measureDepth = 128
	measureAdds  = 512
	// checkEvery is the number of adds between two checks whether a measurement is due.
	checkEvery = 64
	// minSingleCost is the cost of a single publish from which batches are tried.
	minSingleCost = 40 * time.Microsecond
	// maxSingles is how many single publishes are in flight, at most, while adds are
	// batched. A few adds are faster by themselves.
	maxSingles = 16
	// maxQueued bounds the queue.
	maxQueued = 3000
	// minBatches is the number of batches after which their cost is compared with that of
	// single publishes. They pay if an add costs at most 3/4 of a single publish.
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
	due        bool // that goroutine measures next
	adds       int  // single publishes of Add
	singleCost time.Duration
	batchCost  time.Duration // of one add in a batch, a moving average
	batches    int           // batches in batchCost
	pause      time.Duration // until the next measurement
}

// queuedAdd is an add that waits for a batch.
type queuedAdd struct {
	data   []byte
	result *Result
}

func newAdaptive() adaptive {
	return adaptive{start: time.Now(), minSingleCost: minSingleCost, room: make(chan struct{}, maxQueued), pause: measureEvery}
}

func (a *adaptive) now() time.Duration { return time.Since(a.start) }

// Add publishes one add, by itself or in a batch. Adds reach the server in the order of the
// calls. Add blocks for at most stallWait. Errors: ErrTooLarge, ErrUnavailable.
func (p *Publisher) Add(data []byte) (*Result, error) {
	a := &p.adaptive
	r := &Result{}
	if !p.queued() {
		if err := p.publish(data, r); err != nil {
			return nil, err
		}
		return r, nil
	}
	if err := p.checkSize(data); err != nil {
		return nil, err
	}
	if err := a.reserve(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = append(a.queue, queuedAdd{data: data, result: r})
	if !a.sending {
		a.sending = true
		go p.send()
	}
	return r, nil
}

// queued reports whether the next add goes into the queue.
func (p *Publisher) queued() bool {
	a := &p.adaptive
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sending || a.batching.Load() {
		return true
	}
	if a.adds++; a.adds%checkEvery != 0 || !p.measurementDue() {
		return false
	}
	inFlight, _ := p.window.pending()
	a.due = inFlight >= measureDepth
	return a.due
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

func (p *Publisher) measurementDue() bool {
	a := &p.adaptive
	return !p.noBatches.Load() && a.now() >= time.Duration(a.nextMeasure.Load())
}

// startMeasurement reports whether a measurement is due and no other one runs. The caller must
// call endMeasurement then.
func (p *Publisher) startMeasurement() bool {
	return p.measurementDue() && p.adaptive.measuring.CompareAndSwap(false, true)
}

// endMeasurement ends a measurement. Unless it failed, it switches to batches if the cost of a
// single publish is high.
func (a *adaptive) endMeasurement(cost time.Duration, err error) {
	defer a.measuring.Store(false)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.singleCost = cost
	a.batchCost, a.batches = 0, 0
	a.batching.Store(cost >= a.minSingleCost)
	a.nextMeasure.Store(int64(a.now() + a.pause))
}

// measure measures the cost of single publishes with queued adds.
func (p *Publisher) measure() {
	a := &p.adaptive
	if !p.startMeasurement() {
		return
	}
	wait := context.Background() // AckTimeout bounds the waits; the caller of Add gets the error
	if _, last := p.window.pending(); last != nil {
		_ = last.Wait(wait)
	}
	part := a.take(func(queue []queuedAdd) int { return min(len(queue), measureAdds) })
	begin := a.now()
	for _, q := range part {
		p.sendSingle(q)
	}
	var err error
	for _, q := range part {
		err = errors.Join(err, q.result.Wait(wait))
	}
	if len(part) < measureDepth {
		err = errors.New("too few adds")
	}
	a.endMeasurement((a.now()-begin)/time.Duration(max(len(part), 1)), err)
}

// take removes adds from the queue. length returns how many.
func (a *adaptive) take(length func([]queuedAdd) int) []queuedAdd {
	a.mu.Lock()
	n := length(a.queue)
	part := a.queue[:n:n]
	if a.queue = a.queue[n:]; len(a.queue) == 0 {
		a.queue = nil
	}
	a.mu.Unlock()
	for range part {
		<-a.room
	}
	return part
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
	case a.batches >= minBatches && a.batchCost > a.singleCost/4*3:
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
		due := a.due || !batching && n >= measureDepth && p.measurementDue()
		a.due = false
		a.mu.Unlock()
		switch {
		case due:
			p.measure()
		case batching && n >= minBatchMessages:
			p.sendBatch(a.take(queuedLength))
		case batching && len(singles) >= maxSingles:
			// Answers come in order, so the oldest is first. More adds are queued meanwhile.
			// AckTimeout bounds the wait; the caller of Add gets the error.
			_ = singles[0].Wait(context.Background())
			singles = singles[1:]
		default:
			q := a.take(func([]queuedAdd) int { return 1 })[0]
			p.sendSingle(q)
			if batching {
				singles = append(singles, q.result)
			}
		}
	}
}

// queuedLength returns the number of queued adds of the next batch, 1 or more.
func queuedLength(queue []queuedAdd) int {
	return batchLength(len(queue), func(i int) int { return len(queue[i].data) })
}

func (p *Publisher) sendSingle(q queuedAdd) {
	_ = p.publish(q.data, q.result) // the result has the error
}

// sendBatch publishes many adds at once. If the server refuses the batch because of one add,
// the others are still stored: all go by themselves then.
func (p *Publisher) sendBatch(part []queuedAdd) {
	msgs := make([][]byte, len(part))
	for i, q := range part {
		msgs[i] = q.data
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
