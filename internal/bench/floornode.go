package bench

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/gctune"
	"github.com/belfryio/belfry/internal/hrtimer"
	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
)

// floorSpec has the settings of the process of the floor.
type floorSpec struct {
	Server serverSpec `json:"server"`
	// Batches commits the writes in atomic batches, as a node does in the safe profile.
	Batches bool `json:"batches"`
}

// Bounds of the process of the floor. The bounds that a node has, too, are the same.
const (
	// floorWindow bounds the writes in flight. It exceeds the sum of floorAdding, floorFiring, floorConcluding and the
	// callers of a cancel run, so writes do not block on it.
	floorWindow     = 16384
	floorAdding     = 4096 // adds being stored
	floorFiring     = 8192 // timers being claimed or published
	floorConcluding = 512  // final writes, while no claim waits
	// floorFirst is the number of timers that fire at the same time after a pause. It grows by one with each event, up to
	// floorFiring, so that the first events do not wait behind thousands of claims.
	floorFirst = 64
	// floorReads bounds the adds that are requested and not read, floorReadBytes the bytes of a request. floorPace is the
	// minimum time between two groups of adds, unless many wait.
	floorReads     = 1024
	floorReadBytes = 32 << 20
	floorPace      = 2 * time.Millisecond
	// floorPurge is the number of stored adds that are purged at once. Fewer are purged after floorPurgeDelay, or when no
	// add was stored for floorIdle.
	floorPurge      = 2048
	floorPurgeDelay = 100 * time.Millisecond
	floorIdle       = 10 * time.Millisecond
	// floorJournalBytes bounds the journal of a batch.
	floorJournalBytes = 1 << 20
	// floorHistory is the history of a key. Roll-ups remove what is replaced, so it is not reached.
	floorHistory = 8
	// floorLate is the time after which a Go timer ends a wait if the kernel's timer has not.
	floorLate = 2 * time.Millisecond
)

// floorNode is the process of the floor; see floor.go.
type floorNode struct {
	nc     *nats.Conn
	client *jet.Client
	fail   context.CancelCauseFunc
	adding chan struct{}
	// steps has the answered writes, for process. Each timer has at most one step, so the channel never fills. Callbacks
	// only send to it: they must not publish.
	steps chan floorStep
	wake  chan struct{} // fireAll has something to do

	mu     sync.Mutex
	timers map[string]*floorTimer // pending, by id
	heap   floorHeap              // pending timers by due time, with cancelled ones that are not yet removed
	// firing and concluding count timers. window bounds firing; final are the published timers that wait for their final
	// write.
	firing, window, concluding int
	final                      []*floorTimer
	// stored is the sequence up to which all adds are stored as keys, beyond has later ones. The stream of adds is new
	// when the process starts, so stored starts at 0.
	stored uint64
	beyond map[uint64]struct{}
}

// floorTimer is one timer.
type floorTimer struct {
	id, key string
	stream  string
	service string
	dueMs   int64
	add     uint64 // sequence of the add
	rev     uint64 // revision of the key
	data    []byte
	gone    bool // cancelled
}

// floorStep is an answered write of a timer, after which next is called.
type floorStep struct {
	t    *floorTimer
	next func(*floorTimer)
}

// runFloor runs the process of the floor until ctx ends, or a write fails.
func runFloor(ctx context.Context, spec floorSpec) error {
	defer gctune.Start(ctx)() // as a node
	return withServer(spec.Server, func(srv *server.Server) error {
		nc, err := nats.Connect("", nats.InProcessServer(srv))
		if err != nil {
			return err
		}
		defer nc.Close()
		client, err := jet.New(nc, jet.Options{Timeout: addTimeout, Window: floorWindow})
		if err != nil {
			return err
		}
		defer client.Close()
		if spec.Batches {
			client.CommitInBatches(jet.Journals{Subject: floorJournal, MaxBytes: floorJournalBytes})
		}
		ctx, fail := context.WithCancelCause(ctx)
		defer fail(nil)
		n := &floorNode{
			nc: nc, client: client, fail: fail, adding: make(chan struct{}, floorAdding), steps: make(chan floorStep, 2*floorWindow),
			wake: make(chan struct{}, 1), window: floorFirst, timers: map[string]*floorTimer{}, beyond: map[uint64]struct{}{},
		}
		return n.run(ctx)
	})
}

func (n *floorNode) run(ctx context.Context) error {
	if err := n.makeStreams(ctx); err != nil {
		return err
	}
	if _, err := n.nc.Subscribe(floorCancel, n.cancel); err != nil {
		return err
	}
	reader, err := n.client.Read(jet.ReaderOptions{
		Stream: floorAddStream, Consumer: "floor", Pace: jet.Refill, Most: floorReads, MaxBytes: max(floorReadBytes, 2*n.client.MaxPayload()),
		Expiry: addTimeout, Heartbeat: addTimeout / 3,
	})
	if err != nil {
		return err
	}
	defer reader.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { n.process(ctx) })
	wg.Go(func() { n.fireAll(ctx) })
	wg.Go(func() { n.purge(ctx) })
	n.fail(n.read(ctx, reader))
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// makeStreams creates the streams, the stream of adds last: hasStream waits for it. Adds that come before they are read
// wait in the stream.
func (n *floorNode) makeStreams(ctx context.Context) error {
	js, err := jetstream.New(n.nc)
	if err != nil {
		return err
	}
	streams := []jetstream.StreamConfig{{Name: floorFiredStream, Subjects: []string{floorFired + ">"}}}
	for shard := range floorShards {
		streams = append(streams, jetstream.StreamConfig{Name: floorStream(shard), Subjects: []string{floorKeys(shard) + ">"}, MaxMsgsPerSubject: floorHistory, AllowRollup: true})
	}
	for _, cfg := range append(streams, jetstream.StreamConfig{Name: floorAddStream, Subjects: []string{floorAddSubject}}) {
		cfg.Storage, cfg.AllowAtomicPublish, cfg.AllowDirect = jetstream.FileStorage, true, true
		s, err := js.CreateStream(ctx, cfg)
		if err != nil {
			return fmt.Errorf("make stream %s: %w", cfg.Name, err)
		}
		if cfg.Name != floorAddStream {
			continue
		}
		// The consumer needs no acknowledgements, because purges remove stored adds.
		if _, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "floor", AckPolicy: jetstream.AckNonePolicy}); err != nil {
			return fmt.Errorf("make the consumer of %s: %w", cfg.Name, err)
		}
	}
	return nil
}

// read stores the adds of the stream, until ctx or the reader ends.
func (n *floorNode) read(ctx context.Context, r *jet.Reader) error {
	var last time.Time
	for {
		d, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if rest := floorPace - time.Since(last); rest > 0 && r.Waiting() < floorReads/4 {
			pause.For(ctx, rest)
		}
		last = time.Now()
		for d != nil {
			t, err := floorParse(d)
			if err != nil {
				return err
			}
			select {
			case n.adding <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			n.write(t, 0, t.data, n.added)
			if d, err = r.TryNext(); err != nil {
				return err
			}
		}
	}
}

// floorParse extracts id, service and due time from an event of an Adder. It does not validate the event.
func floorParse(d *jet.Delivery) (*floorTimer, error) {
	value := func(name string) string {
		_, rest, _ := bytes.Cut(d.Data, []byte(`"`+name+`":"`))
		v, _, _ := bytes.Cut(rest, []byte{'"'})
		return string(v)
	}
	at, err := time.Parse(time.RFC3339Nano, value("timerat"))
	if err != nil {
		return nil, fmt.Errorf("an add has no due time: %w", err)
	}
	id := value("id")
	shard := floorShard(id)
	return &floorTimer{
		id: id, key: floorKey(shard, id), stream: floorStream(shard), service: value("timersvc"), dueMs: at.UnixMilli(), add: d.Sequence, data: d.Data,
	}, nil
}

// write replaces the message of a timer's key by compare-and-set, and rolls up the replaced message. process then calls next.
func (n *floorNode) write(t *floorTimer, rev uint64, data []byte, next func(*floorTimer)) {
	header := nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(rev, 10)}}
	if rev > 0 {
		header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	}
	n.client.WriteAsync(t.stream, "write", t.key, header, data, func(a jet.Ack, err error) {
		if err != nil {
			n.fail(fmt.Errorf("write timer %s: %w", t.id, err))
			return
		}
		t.rev = a.Seq
		n.steps <- floorStep{t, next}
	})
}

// process continues timers after the answers to their writes.
func (n *floorNode) process(ctx context.Context) {
	for {
		select {
		case s := <-n.steps:
			s.next(s.t)
		case <-ctx.Done():
			return
		}
	}
}

// added notes a stored timer.
func (n *floorNode) added(t *floorTimer) {
	<-n.adding
	n.mu.Lock()
	n.timers[t.id] = t
	heap.Push(&n.heap, t)
	first := n.heap[0] == t
	n.beyond[t.add] = struct{}{}
	for len(n.beyond) > 0 {
		if _, ok := n.beyond[n.stored+1]; !ok {
			break
		}
		n.stored++
		delete(n.beyond, n.stored)
	}
	n.mu.Unlock()
	if first {
		n.signal()
	}
}

func (n *floorNode) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// purge removes the adds that are stored.
func (n *floorNode) purge(ctx context.Context) {
	t := time.NewTicker(floorIdle)
	defer t.Stop()
	purged, before, at := uint64(0), uint64(0), time.Now()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		n.mu.Lock()
		stored, idle := n.stored, n.stored == before && len(n.beyond) == 0 && len(n.adding) == 0
		n.mu.Unlock()
		before = stored
		if stored == purged || !idle && stored-purged < floorPurge && time.Since(at) < floorPurgeDelay {
			continue
		}
		if err := n.client.RemoveBelow(ctx, "purge", floorAddStream, floorAddSubject, stored+1); err != nil {
			n.fail(fmt.Errorf("purge the adds: %w", err))
			return
		}
		purged, at = stored, time.Now()
	}
}

// fireAll claims due timers and concludes published ones, until ctx ends.
func (n *floorNode) fireAll(ctx context.Context) {
	exact, coarse := hrtimer.New(), time.NewTimer(time.Hour)
	defer exact.Stop()
	defer coarse.Stop()
	for {
		claim, conclude, pause := n.next()
		for _, t := range claim {
			n.write(t, t.rev, []byte(floorClaimed), n.claimed)
		}
		for _, t := range conclude {
			n.write(t, t.rev, []byte(floorConcluded), n.done)
		}
		if len(claim)+len(conclude) > 0 {
			continue
		}
		exact.Set(pause)
		coarse.Reset(pause + floorLate)
		select {
		case <-exact.C:
		case <-coarse.C:
		case <-n.wake:
		case <-ctx.Done():
			return
		}
	}
}

// next removes and returns due timers to claim, and if none waits for its claim, published timers to conclude. If there
// are neither, it returns the time until the next timer is due.
func (n *floorNode) next() (claim, conclude []*floorTimer, pause time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	nowMs := time.Now().UnixMilli()
	pause = time.Hour
	for len(n.heap) > 0 {
		t := n.heap[0]
		switch {
		case t.gone:
			heap.Pop(&n.heap)
			continue
		case t.dueMs > nowMs:
			pause = time.Until(time.UnixMilli(t.dueMs))
		case n.firing < n.window:
			heap.Pop(&n.heap)
			delete(n.timers, t.id)
			n.firing++
			claim = append(claim, t)
			continue
		default:
			return claim, nil, pause // published wakes fireAll
		}
		break
	}
	if len(claim) > 0 {
		return claim, nil, 0
	}
	if n.firing == 0 {
		n.window = floorFirst
	}
	k := min(len(n.final), floorConcluding-n.concluding)
	conclude = append(conclude, n.final[:k]...)
	n.final = n.final[k:]
	n.concluding += k
	return nil, conclude, pause
}

// claimed publishes the event of a claimed timer.
func (n *floorNode) claimed(t *floorTimer) {
	n.client.WriteAsync(floorFiredStream, "publish", floorFired+t.service, nil, t.data, func(_ jet.Ack, err error) {
		if err != nil {
			n.fail(fmt.Errorf("publish timer %s: %w", t.id, err))
			return
		}
		n.steps <- floorStep{t, n.published}
	})
}

// published queues the final write of a timer.
func (n *floorNode) published(t *floorTimer) {
	n.mu.Lock()
	n.firing--
	n.window = min(n.window+1, floorFiring)
	n.final = append(n.final, t)
	n.mu.Unlock()
	n.signal()
}

// done notes a concluded timer.
func (n *floorNode) done(*floorTimer) {
	n.mu.Lock()
	n.concluding--
	n.mu.Unlock()
	n.signal()
}

// cancel serves a request to cancel.
func (n *floorNode) cancel(m *nats.Msg) {
	n.mu.Lock()
	t := n.timers[string(m.Data)]
	if t != nil {
		t.gone = true
		delete(n.timers, t.id)
	}
	n.mu.Unlock()
	answer := func(text string) {
		if err := m.Respond([]byte(text)); err != nil {
			n.fail(err)
		}
	}
	if t == nil {
		answer(`{"error":"the timer is not pending"}`)
		return
	}
	n.write(t, t.rev, []byte(floorCancelled), func(*floorTimer) { answer(floorCancelled) })
}

// floorHeap is a heap of timers by due time.
type floorHeap []*floorTimer

func (h floorHeap) Len() int           { return len(h) }
func (h floorHeap) Less(i, j int) bool { return h[i].dueMs < h[j].dueMs }
func (h floorHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *floorHeap) Push(x any)        { *h = append(*h, x.(*floorTimer)) }
func (h *floorHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
