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
	"github.com/belfryio/belfry/internal/jet"
)

// floorSpec has the settings of the process of the floor.
type floorSpec struct {
	Server serverSpec `json:"server"`
	// Batches commits the writes of keys in atomic batches, as a node does where the server syncs every write.
	Batches bool `json:"batches"`
}

// Bounds of the process of the floor.
const (
	// floorWindow bounds the writes without an answer. It has room for those of floorAdding, floorFiring and the
	// callers that cancel, so that no write waits for it.
	floorWindow = 16384
	floorAdding = 4096 // adds that are read and not stored
	floorFiring = 2048 // timers that are claimed and not concluded
	// floorReads bounds the adds that are requested from the stream, as store.AddReader does.
	floorReads = 1024
	// floorPurge is the least time between two purges of the stream of adds.
	floorPurge = 5 * time.Millisecond
)

// floorNode is the process of the floor; see floor.go.
type floorNode struct {
	nc     *nats.Conn
	client *jet.Client
	fail   context.CancelCauseFunc
	adding chan struct{}
	firing chan struct{}
	// steps are the answers to writes. Their capacity exceeds floorWindow, so an answer never waits. The answers are
	// processed by another goroutine, because they cause writes.
	steps chan floorStep
	due   chan struct{} // a timer was added

	mu     sync.Mutex
	timers map[string]*floorTimer // pending, by id
	heap   floorHeap              // of the same timers, and cancelled ones
	// stored is the last sequence of the stream of adds up to which all are stored; beyond has later ones.
	stored, purged uint64
	beyond         map[uint64]struct{}
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
			client.CommitInBatches(jet.Journals{Subject: func(string) string { return "" }})
		}
		ctx, fail := context.WithCancelCause(ctx)
		defer fail(nil)
		n := &floorNode{
			nc: nc, client: client, fail: fail, adding: make(chan struct{}, floorAdding), firing: make(chan struct{}, floorFiring),
			steps: make(chan floorStep, 2*floorWindow), due: make(chan struct{}, 1), timers: map[string]*floorTimer{}, beyond: map[uint64]struct{}{},
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
		Stream: floorAddStream, Consumer: "floor", Pace: jet.Refill, Most: floorReads, Expiry: addTimeout, Heartbeat: addTimeout / 3,
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

// makeStreams makes the streams. That of the adds is the last one, so the process is ready when it exists.
func (n *floorNode) makeStreams(ctx context.Context) error {
	js, err := jetstream.New(n.nc)
	if err != nil {
		return err
	}
	streams := []jetstream.StreamConfig{{Name: floorFiredStream, Subjects: []string{floorFired + ">"}}}
	for shard := range floorShards {
		streams = append(streams, jetstream.StreamConfig{Name: floorStream(shard), Subjects: []string{floorKeys(shard) + ">"}, MaxMsgsPerSubject: 1})
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
		// Purges remove what is stored, so the server need not keep what was delivered.
		if _, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "floor", AckPolicy: jetstream.AckNonePolicy}); err != nil {
			return fmt.Errorf("make the consumer of %s: %w", cfg.Name, err)
		}
	}
	return nil
}

// read stores the adds of the stream, until ctx or the reader ends.
func (n *floorNode) read(ctx context.Context, r *jet.Reader) error {
	for {
		d, err := r.Next(ctx)
		if err != nil {
			return err
		}
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
	}
}

// floorParse takes the id, the service and the due time from an event of an Adder, without a check.
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
	return &floorTimer{
		id: id, key: floorKey(id), stream: floorStream(floorShard(id)), service: value("timersvc"), dueMs: at.UnixMilli(), add: d.Sequence, data: d.Data,
	}, nil
}

// write replaces the message of a timer's key, if its revision is rev, and then calls next on another goroutine.
func (n *floorNode) write(t *floorTimer, rev uint64, data []byte, next func(*floorTimer)) {
	header := nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(rev, 10)}}
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
		select {
		case n.due <- struct{}{}:
		default:
		}
	}
}

// purge removes the adds that are stored.
func (n *floorNode) purge(ctx context.Context) {
	t := time.NewTicker(floorPurge)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		n.mu.Lock()
		stored, purged := n.stored, n.purged
		n.purged = stored
		n.mu.Unlock()
		if stored == purged {
			continue
		}
		if err := n.client.RemoveBelow(ctx, "purge", floorAddStream, "", stored+1); err != nil {
			n.fail(fmt.Errorf("purge the adds: %w", err))
			return
		}
	}
}

// fireAll claims the timers that are due.
func (n *floorNode) fireAll(ctx context.Context) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		t, pause := n.next()
		if t == nil {
			wait.Reset(pause)
			select {
			case <-wait.C:
			case <-n.due:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case n.firing <- struct{}{}:
		case <-ctx.Done():
			return
		}
		n.write(t, t.rev, []byte(floorClaimed), n.claimed)
	}
}

// next removes and returns a timer that is due, or returns the time until the next one is.
func (n *floorNode) next() (*floorTimer, time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.heap) > 0 {
		t := n.heap[0]
		if pause := time.Until(time.UnixMilli(t.dueMs)); pause > 0 && !t.gone {
			return nil, pause
		}
		heap.Pop(&n.heap)
		if !t.gone {
			delete(n.timers, t.id)
			return t, 0
		}
	}
	return nil, time.Hour
}

// claimed publishes the event of a claimed timer.
func (n *floorNode) claimed(t *floorTimer) {
	n.client.PublishAsync("publish", floorFired+t.service, nil, t.data, func(_ jet.Ack, err error) {
		if err != nil {
			n.fail(fmt.Errorf("publish timer %s: %w", t.id, err))
			return
		}
		n.steps <- floorStep{t, n.published}
	})
}

// published concludes a timer.
func (n *floorNode) published(t *floorTimer) {
	n.write(t, t.rev, []byte(floorConcluded), func(*floorTimer) { <-n.firing })
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
