package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
)

// A CoordinatorLoop carries out what a node's shard coordinator (Coordinator) decides: it reads
// the membership snapshot at intervals, takes shards and has them owned, and asks for
// releases. Like a Term it has no goroutine and no timer of its own: a driver calls Turn,
// and CoordinatorHost runs what takes time.

// snapshotBound bounds one reading of the membership snapshot.
const snapshotBound = 2 * time.Second

// CoordinatorHost is what a coordinator's loop needs of its driver.
type CoordinatorHost interface {
	// Monotonic returns the process's monotonic clock, counted from any start.
	Monotonic() time.Duration
	// Go runs f elsewhere, so that it may wait. The context ends with the loop.
	Go(f func(ctx context.Context))
	// WithTimeout bounds calls within a function that Go runs.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Wake makes the driver call Turn soon. Any goroutine may call it.
	Wake()
	// Own owns a shard that the loop has taken, until the release is requested or the shard
	// is lost. It runs within a function that Go runs, and may wait.
	Own(ctx context.Context, take KeepTake, tenure *Tenure, release *ReleaseRequest)
	// NotTaken reports a take-over that failed.
	NotTaken(shard int, err error)
	// HeartbeatAge is the time since this node's last successful heartbeat.
	HeartbeatAge() time.Duration
}

// CoordinatorStore is what a coordinator's loop needs of the store.
type CoordinatorStore interface {
	ReadCluster(ctx context.Context) (store.Cluster, error)
	WriteClock(ctx context.Context, shard int, c store.Clock, rev uint64) (uint64, error)
}

// ReleaseRequest tells the owner of a shard that the coordinator wants it released.
type ReleaseRequest struct {
	mu   sync.Mutex
	made bool
	then func()
}

// Then runs f once when the release is requested, or at once if it has been. f must not
// wait. Call it once.
func (r *ReleaseRequest) Then(f func()) {
	r.mu.Lock()
	made := r.made
	r.then = f
	r.mu.Unlock()
	if made {
		f()
	}
}

func (r *ReleaseRequest) make() {
	r.mu.Lock()
	f := r.then
	r.made = true
	r.mu.Unlock()
	if f != nil {
		f()
	}
}

// CoordinatorLoop is the loop of a node's shard coordinator. Turn and Leave must not run
// at the same time.
type CoordinatorLoop struct {
	callLog
	cfg   CoordinatorConfig
	store CoordinatorStore
	host  CoordinatorHost
	k     *Coordinator

	mu     sync.Mutex
	events []KeepEvent // at most one for each shard, and a snapshot

	reading bool
	next    time.Duration           // when to read the next snapshot
	release map[int]*ReleaseRequest // by shard that is ours
	left    bool
	changes ownershipLog
}

// NewCoordinatorLoop returns a loop whose first turn reads a membership snapshot.
func NewCoordinatorLoop(c CoordinatorConfig, s CoordinatorStore, host CoordinatorHost, log zerolog.Logger) *CoordinatorLoop {
	return &CoordinatorLoop{
		callLog: newCallLog(log), cfg: c, store: s, host: host, k: NewCoordinator(c),
		next: host.Monotonic(), release: map[int]*ReleaseRequest{},
	}
}

// Leave makes the node give all its shards back. Turn returns false when it has.
func (l *CoordinatorLoop) Leave() {
	l.left = true
	l.step(KeepLeave{})
}

// Turn does one turn of the loop. It returns how long the driver may wait before the next
// one unless Wake is called, and false when the node has left.
func (l *CoordinatorLoop) Turn() (wait time.Duration, more bool) {
	l.mu.Lock()
	events := l.events
	l.events = nil
	l.mu.Unlock()
	for _, ev := range events {
		l.step(ev)
		if _, ok := ev.(KeepLooked); ok {
			now := l.host.Monotonic()
			l.reading, l.next = false, now+l.k.NextLook(now)
		}
	}
	if l.left && !l.k.Holds() {
		return 0, false
	}
	if l.reading {
		return maxSleep, true
	}
	if wait = l.next - l.host.Monotonic(); wait <= 0 {
		l.reading = true
		l.host.Go(func(ctx context.Context) { l.put(l.look(ctx)) })
		return maxSleep, true
	}
	return wait, true
}

func (l *CoordinatorLoop) put(ev KeepEvent) {
	l.mu.Lock()
	l.events = append(l.events, ev)
	l.mu.Unlock()
	l.host.Wake()
}

func (l *CoordinatorLoop) look(ctx context.Context) KeepEvent {
	ctx, cancel := l.host.WithTimeout(ctx, snapshotBound)
	defer cancel()
	c, err := l.store.ReadCluster(ctx)
	l.logChange("read clocks", err)
	return KeepLooked{Cluster: c, BeatAge: l.host.HeartbeatAge(), Err: err}
}

func (l *CoordinatorLoop) step(ev KeepEvent) {
	actions := l.k.Step(l.host.Monotonic(), ev)
	l.changes.note(ev)
	for _, a := range actions {
		switch a := a.(type) {
		case KeepTake:
			l.changes.taking(a)
			release := &ReleaseRequest{}
			l.release[a.Shard] = release
			l.host.Go(func(ctx context.Context) { l.take(ctx, a, release) })
		case KeepRelease:
			l.release[a.Shard].make()
		}
	}
	if !l.k.Changing() {
		l.changes.flush(l.log)
	}
}

// take moves a shard's clock to this node, and has the shard owned from then on.
func (l *CoordinatorLoop) take(ctx context.Context, a KeepTake, release *ReleaseRequest) {
	start := l.host.Monotonic()
	write, cancel := l.host.WithTimeout(ctx, l.cfg.Lease)
	rev, err := l.store.WriteClock(write, a.Shard, a.Clock, a.Rev)
	cancel()
	l.put(KeepTook{Shard: a.Shard, Err: err})
	if err != nil {
		// Lost to another node, or not answered: the next snapshot shows which.
		l.host.NotTaken(a.Shard, err)
		return
	}
	l.host.Own(ctx, a, NewTenure(l.cfg.Lease, l.cfg.Tick, start, a.Clock, rev), release)
	l.put(KeepEnded{Shard: a.Shard})
}
