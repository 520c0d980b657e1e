package bench

import (
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
)

// floorSpec has the settings of the process of the floor.
type floorSpec struct {
	Server serverSpec `json:"server"`
	// Batches commits the writes in atomic batches, as a node does in the safe profile.
	Batches bool `json:"batches"`
}

// Bounds of the process of the floor; flooradds.go has those of adds. They are those of a node; where a node has a bound for
// each shard, this is the sum.
const (
	// floorWindow bounds the writes in flight. It exceeds the sum of the adds that are being stored, their index entries,
	// floorFiring, floorConcluding and the callers of a cancel run, so writes do not block on it.
	floorWindow     = 1 << 15
	floorFiring     = floorShards * 2048 // timers being claimed or published
	floorConcluding = floorShards * 512  // final writes
	// floorFirst is the number of timers that fire at the same time after a pause. It grows by one with each claim, up to
	// floorFiring, so that the first events do not wait behind thousands of claims.
	floorFirst = floorShards * 16
	// floorFinal is the number of published timers from which on final writes do not wait for claims.
	floorFinal = floorShards * 32768
	// Stored adds are removed floorFlush apart, or when there are floorFlushSize. floorPurge is the least number that is
	// purged together; fewer are acknowledged. The newest one stays for floorHold.
	floorFlush     = 100 * time.Millisecond
	floorFlushSize = 2048
	floorPurge     = 32
	floorHold      = 300 * time.Millisecond
	// floorUnacked bounds the adds that are delivered and not removed.
	floorUnacked = 20_000
	// floorJournalBytes bounds the journal of a batch; a part of a message is for its subject.
	floorJournalBytes, floorJournalSubject = 1 << 20, 1 << 10
	// floorHistory is the number of messages that a key keeps: those of journals and marks, which are not rolled up.
	floorHistory = 16
	// floorRetention is the time for which concluded and cancelled timers are kept. No run takes so long.
	floorRetention = 24 * time.Hour
	// floorLate is the time after which a Go timer ends a wait if the kernel's timer has not.
	floorLate = 2 * time.Millisecond
)

// floorNode is the process of the floor; see floor.go.
type floorNode struct {
	nc     *nats.Conn
	client *jet.Client
	fail   context.CancelCauseFunc
	linger bool // adds wait for others
	// steps has the answered writes, for process. It never fills: a timer has one step at most, and until process has
	// continued it, it counts as being stored, firing or concluding, or its cancel has no answer. Callbacks of the client only
	// send to it: they must not publish.
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
	// when the process starts, so stored starts at 0. toRemove are the stored adds that are not removed, in their order.
	stored   uint64
	beyond   map[uint64]*jet.Delivery
	toRemove []*jet.Delivery
	storedAt time.Time // of the newest one
}

// floorTimer is one timer.
type floorTimer struct {
	id, key string
	shard   int
	service string
	dueMs   int64
	add     *jet.Delivery
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
			client.CommitInBatches(jet.Journals{Subject: floorJournal, MaxBytes: int(min(floorJournalBytes, client.MaxPayload()-floorJournalSubject))})
		}
		ctx, fail := context.WithCancelCause(ctx)
		defer fail(nil)
		n := &floorNode{
			nc: nc, client: client, fail: fail, linger: spec.Batches, steps: make(chan floorStep, 2*floorWindow),
			wake: make(chan struct{}, 1), window: floorFirst, timers: map[string]*floorTimer{}, beyond: map[uint64]*jet.Delivery{},
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
	wg.Go(func() { n.remove(ctx) })
	adds := &floorAdds{n: n, groups: make(chan struct{}, floorGroups)}
	n.fail(adds.read(ctx, reader))
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
		streams = append(streams, jetstream.StreamConfig{
			Name: floorStream(shard), Subjects: []string{floorKeys(shard) + ">", floorIndex(shard) + ">"}, MaxMsgsPerSubject: floorHistory,
			AllowRollup: true, AllowMsgTTL: true,
		})
	}
	for _, cfg := range append(streams, jetstream.StreamConfig{Name: floorAddStream, Subjects: []string{floorAddSubject}, Retention: jetstream.WorkQueuePolicy}) {
		cfg.Storage, cfg.AllowAtomicPublish, cfg.AllowDirect = jetstream.FileStorage, true, true
		s, err := js.CreateStream(ctx, cfg)
		if err != nil {
			return fmt.Errorf("make stream %s: %w", cfg.Name, err)
		}
		if cfg.Name != floorAddStream {
			continue
		}
		// No run takes so long that an add is delivered again.
		if _, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "floor", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour, MaxAckPending: floorUnacked}); err != nil {
			return fmt.Errorf("make the consumer of %s: %w", cfg.Name, err)
		}
	}
	return nil
}

// write replaces the message of a timer's key by compare-and-set, and rolls up the replaced message. process then calls next.
func (n *floorNode) write(t *floorTimer, header nats.Header, data []byte, next func(*floorTimer)) {
	if header == nil {
		header = nats.Header{}
	}
	header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(t.rev, 10)}
	if t.rev > 0 {
		header[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	}
	n.client.WriteAsync(floorStream(t.shard), "write", t.key, header, data, func(a jet.Ack, err error) {
		if err != nil {
			n.fail(fmt.Errorf("write timer %s: %w", t.id, err))
			return
		}
		t.rev = a.Seq
		n.steps <- floorStep{t, next}
	})
}

// end writes the last message of a timer's key, which expires.
func (n *floorNode) end(t *floorTimer, data string, next func(*floorTimer)) {
	n.write(t, jet.TTLHeader(floorRetention), []byte(data), next)
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
	n.mu.Lock()
	n.timers[t.id] = t
	heap.Push(&n.heap, t)
	first := n.heap[0] == t
	n.beyond[t.add.Sequence] = t.add
	t.add = nil
	for len(n.beyond) > 0 {
		d := n.beyond[n.stored+1]
		if d == nil {
			break
		}
		n.stored++
		delete(n.beyond, n.stored)
		n.toRemove = append(n.toRemove, d)
		n.storedAt = time.Now()
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

// remove removes the adds that are stored from their stream.
func (n *floorNode) remove(ctx context.Context) {
	t := time.NewTicker(floorFlush / 10)
	defer t.Stop()
	for at := time.Now(); ; {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		n.mu.Lock()
		k := len(n.toRemove)
		if k < floorFlushSize && time.Since(at) < floorFlush {
			k = 0
		}
		if k > 0 && len(n.beyond) == 0 && time.Since(n.storedAt) < floorHold {
			k-- // the newest one stays
		}
		adds := n.toRemove[:k]
		n.toRemove = n.toRemove[k:]
		n.mu.Unlock()
		if k == 0 {
			continue
		}
		at = time.Now()
		if err := n.removeAdds(ctx, adds); err != nil {
			n.fail(fmt.Errorf("remove adds: %w", err))
			return
		}
	}
}

// removeAdds removes the oldest adds of the stream.
func (n *floorNode) removeAdds(ctx context.Context, adds []*jet.Delivery) error {
	if len(adds) >= floorPurge {
		return n.client.RemoveBelow(ctx, "purge", floorAddStream, floorAddSubject, adds[len(adds)-1].Sequence+1)
	}
	for _, d := range adds {
		if err := d.Ack(); err != nil {
			return err
		}
	}
	return nil
}

// fireAll claims due timers and concludes published ones, until ctx ends.
func (n *floorNode) fireAll(ctx context.Context) {
	exact, coarse := hrtimer.New(), time.NewTimer(time.Hour)
	defer exact.Stop()
	defer coarse.Stop()
	for {
		claim, conclude, wait := n.next()
		for _, t := range claim {
			n.write(t, nil, append([]byte(floorClaimed), t.data...), n.claimed)
		}
		for _, t := range conclude {
			n.end(t, floorConcluded, n.done)
		}
		if len(claim)+len(conclude) > 0 {
			continue
		}
		exact.Set(wait)
		coarse.Reset(wait + floorLate)
		select {
		case <-exact.C:
		case <-coarse.C:
		case <-n.wake:
		case <-ctx.Done():
			return
		}
	}
}

// next removes and returns due timers to claim, and if none is due or waits for its claim, published timers to conclude. If
// there are neither, it returns the time until the next timer is due.
func (n *floorNode) next() (claim, conclude []*floorTimer, wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	claim, wait = n.due(time.Now())
	if len(claim) > 0 || wait == 0 && len(n.final) < floorFinal {
		return claim, nil, time.Hour // an answer to a write wakes fireAll
	}
	if n.firing == 0 {
		n.window = floorFirst
	}
	k := min(len(n.final), floorConcluding-n.concluding)
	conclude = append(conclude, n.final[:k]...)
	n.final = n.final[k:]
	n.concluding += k
	return nil, conclude, wait
}

// due removes and returns the due timers for which the window has room, and the time until the next one is due: 0 if it is
// due, and the window is full. n.mu is held.
func (n *floorNode) due(now time.Time) (claim []*floorTimer, wait time.Duration) {
	for len(n.heap) > 0 {
		t := n.heap[0]
		if !t.gone && t.dueMs > now.UnixMilli() {
			return claim, max(time.UnixMilli(t.dueMs).Sub(now), 1)
		}
		if !t.gone && n.firing >= n.window {
			return claim, 0
		}
		heap.Pop(&n.heap)
		if t.gone {
			continue
		}
		delete(n.timers, t.id)
		n.firing++
		claim = append(claim, t)
	}
	return claim, time.Hour
}

// claimed publishes the event of a claimed timer.
func (n *floorNode) claimed(t *floorTimer) {
	n.mu.Lock()
	n.window = min(n.window+1, floorFiring)
	n.mu.Unlock()
	n.signal()
	header := nats.Header{}
	jet.SetMsgID(header, t.id)
	n.client.WriteAsync(floorFiredStream, "publish", floorFired+t.service, header, t.data, func(a jet.Ack, err error) {
		if err == nil && a.Duplicate {
			err = errors.New("the stream has its event already")
		}
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
	n.end(t, floorCancelled, func(*floorTimer) { answer(floorCancelled) })
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
