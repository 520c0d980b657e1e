package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// snapshotBound bounds one reading of the membership snapshot.
const snapshotBound = 2 * time.Second

// CoordinatorHost is the environment of a CoordinatorLoop: the driver's clock, goroutines
// and terms.
type CoordinatorHost interface {
	// Monotonic returns the process's monotonic clock, counted from any start.
	Monotonic() time.Duration
	// Go runs f concurrently; f may block. The context ends with the loop.
	Go(f func(ctx context.Context))
	// WithTimeout is context.WithTimeout by the host's clock, for functions that Go runs.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Wake makes the driver call Turn soon. Any goroutine may call it.
	Wake()
	// Own runs the term of a shard that the loop has taken. It returns when the shard is
	// released or lost. The loop calls it within a function that Go runs, so it may block.
	Own(ctx context.Context, take TakeShard, lease *Lease, release *ReleaseRequest)
	// NotTaken reports a take-over that failed.
	NotTaken(shard int, err error)
	// HeartbeatAge is the time since this node's last successful heartbeat.
	HeartbeatAge() time.Duration
}

// ReleaseRequest is the coordinator's request to the running term of a shard to release it.
type ReleaseRequest struct {
	mu   sync.Mutex
	made bool
	then func()
}

// Then runs f once when the release is requested, or at once if it was requested before. f
// must not block. Call Then once.
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

// CoordinatorLoop carries out the decisions of a node's Coordinator: it reads membership
// snapshots at intervals, takes shards, starts their terms and requests their release. Like
// a Term it has no goroutine and no timer: a driver calls Turn, and calls that may block
// run through CoordinatorHost. Turn and Leave must not run at the same time.
type CoordinatorLoop struct {
	callLog
	cfg   CoordinatorConfig
	store CoordinatorStore
	host  CoordinatorHost
	k     *Coordinator

	mu     sync.Mutex
	events []CoordinatorEvent // at most one for each shard, and a snapshot

	reading bool
	next    time.Duration           // when to read the next snapshot
	release map[int]*ReleaseRequest // by shard that this node takes or owns
	left    bool                    // Leave was called
	changes ownershipLog
	untaken untakenLog
}

// NewCoordinatorLoop returns a loop whose first turn reads a membership snapshot.
func NewCoordinatorLoop(c CoordinatorConfig, s CoordinatorStore, host CoordinatorHost, log zerolog.Logger) *CoordinatorLoop {
	return &CoordinatorLoop{
		callLog: newCallLog(log), cfg: c, store: s, host: host, k: NewCoordinator(c),
		next: host.Monotonic(), release: map[int]*ReleaseRequest{},
	}
}

// Leave makes the node release all its shards. Turn returns false when it has.
func (l *CoordinatorLoop) Leave() {
	l.left = true
	l.step(LeaveCluster{})
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
		if _, ok := ev.(SnapshotRead); ok {
			now := l.host.Monotonic()
			l.reading, l.next = false, now+l.k.NextSnapshot(now)
			late, refused := l.k.Untaken(now)
			l.untaken.write(l.log, now, l.host.HeartbeatAge(), late, refused)
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
		l.host.Go(func(ctx context.Context) { l.put(l.readSnapshot(ctx)) })
		return maxSleep, true
	}
	return wait, true
}

func (l *CoordinatorLoop) put(ev CoordinatorEvent) {
	l.mu.Lock()
	l.events = append(l.events, ev)
	l.mu.Unlock()
	l.host.Wake()
}

func (l *CoordinatorLoop) readSnapshot(ctx context.Context) CoordinatorEvent {
	ctx, cancel := l.host.WithTimeout(ctx, snapshotBound)
	defer cancel()
	c, err := l.store.ReadCluster(ctx)
	l.logChange("read clocks", err)
	return SnapshotRead{Cluster: c, HeartbeatAge: l.host.HeartbeatAge(), Err: err}
}

func (l *CoordinatorLoop) step(ev CoordinatorEvent) {
	actions := l.k.Step(l.host.Monotonic(), ev)
	l.changes.note(ev)
	for _, a := range actions {
		switch a := a.(type) {
		case TakeShard:
			l.changes.taking(a)
			release := &ReleaseRequest{}
			l.release[a.Shard] = release
			l.host.Go(func(ctx context.Context) { l.take(ctx, a, release) })
		case ReleaseShard:
			l.release[a.Shard].make()
		}
	}
	if !l.k.Changing() {
		l.changes.flush(l.log)
	}
}

// take writes this node into a shard's clock, and runs the term if the write succeeds.
func (l *CoordinatorLoop) take(ctx context.Context, a TakeShard, release *ReleaseRequest) {
	start := l.host.Monotonic()
	write, cancel := l.host.WithTimeout(ctx, l.cfg.Lease)
	rev, err := l.store.WriteClock(write, a.Shard, a.Clock, a.Rev)
	cancel()
	l.put(ShardTaken{Shard: a.Shard, Err: err})
	if err != nil {
		// Lost to another node, or not answered: the next snapshot shows which.
		l.host.NotTaken(a.Shard, err)
		return
	}
	l.host.Own(ctx, a, NewLease(l.cfg.Lease, l.cfg.Heartbeat, start, a.Clock, rev), release)
	l.put(TermEnded{Shard: a.Shard})
}
