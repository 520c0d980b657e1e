package scheduler

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// CoordinatorConfig configures a Coordinator.
type CoordinatorConfig struct {
	// Node is this node's name. Exclusive is true if no other process can have that name.
	Node      string
	Exclusive bool
	Shards    int
	// Lease is how long an owner keeps a shard without a renewal. Heartbeat is the interval
	// at which owners renew.
	Lease, Heartbeat time.Duration
	// Level is the format level that this node reads; see store.Clock.Needs.
	Level store.FormatLevel
}

// Coordinator decides for one node which shards it takes and which it releases. It is
// pure: it does no I/O, and times are the node's monotonic clock, counted from any start.
// It is not safe for concurrent use.
//
// Each membership snapshot has the clocks of all shards and the presence of all nodes. A
// node takes a shard at once if the shard is assigned to it and its clock is released. It
// takes a shard from an owner whose clock has not changed for a lease. While this node's
// own heartbeats fail or are late, it does not count that time: if the store does not
// answer, owners cannot renew. A decision on a stale snapshot is harmless, because the
// compare-and-set of the clock fails.
type Coordinator struct {
	cfg    CoordinatorConfig
	shards []shardView
	peers  map[string]*peer
	// lastDoubt is the last time when a snapshot failed or this node's heartbeat was late.
	// Leases of other nodes are counted from then on.
	lastDoubt time.Duration
	// lastLate is the last time when this node's heartbeat was late.
	lastLate time.Duration

	live     []string // nodes that schedule, with this node unless it leaves
	levels   map[string]store.FormatLevel
	needs    []store.FormatLevel // by shard
	assigned []string            // node by shard
	// assignedSince is the time of the last change of live or assigned.
	assignedSince time.Duration

	leaving bool
	leaveAt time.Duration // when the node started to leave

	actions []CoordinatorAction
}

// ownership is this node's relation to a shard.
type ownership uint8

const (
	ownershipNone      ownership = iota
	ownershipTaking              // the compare-and-set of its clock is in flight
	ownershipHeld                // this node fires it
	ownershipReleasing           // the release was requested
)

// shardView is what the coordinator knows of one shard.
type shardView struct {
	seen      bool // a snapshot contained the clock since this node last owned the shard
	rev       uint64
	storedMs  int64         // when the leader stored the clock at rev, Unix milliseconds
	clock     store.Clock   // the last clock that could be decoded, or its copy; a take-over resumes from it
	changed   time.Duration // when this node last saw the clock change
	ownership ownership
	tried     uint64 // the epoch of this node's last attempt to take the shard
	// newer is true if nodes of a newer version own the shard. damaged is true if the
	// clock at rev cannot be decoded; the next epoch must then be above floor.
	newer, damaged bool
	floor          uint64
	needs          store.FormatLevel // as stated by the last clock that this node saw
	// refused is true if the server refused this node's attempts to change the clock since refusedSince, and no
	// snapshot has shown a change since then.
	refused      bool
	refusedSince time.Duration
}

// peer is what the coordinator knows of a node, this one included, from its presence key.
type peer struct {
	rev      uint64
	storedMs int64         // when the leader stored the key at rev, Unix milliseconds
	changed  time.Duration // when this node last saw the presence key change
	state    string
	level    store.FormatLevel
}

// replaces reports whether a key at a revision and with a storage time is newer than the one seen before.
// A lower revision usually comes from a replica that is behind. It was stored later only if the bucket was
// made again, or its server has lost writes: then the bucket uses the lower revisions again.
func replaces(rev uint64, storedMs int64, wasRev uint64, wasMs int64) bool {
	return rev > wasRev || storedMs > wasMs
}

// CoordinatorEvent is an input of Coordinator.Step: SnapshotRead, ShardTaken, TermEnded or
// LeaveCluster.
type CoordinatorEvent interface{ coordinatorEvent() }

// SnapshotRead is the result of reading a membership snapshot. HeartbeatAge is the time
// since this node's last successful heartbeat.
type SnapshotRead struct {
	Cluster      store.Cluster
	HeartbeatAge time.Duration
	Err          error
}

// ShardTaken is the result of TakeShard.
type ShardTaken struct {
	Shard int
	Err   error
}

// TermEnded reports that this node no longer owns a shard: it released or lost it.
type TermEnded struct{ Shard int }

// LeaveCluster makes the node release all its shards. The caller announces in the node's
// presence that it leaves.
type LeaveCluster struct{}

func (SnapshotRead) coordinatorEvent() {}
func (ShardTaken) coordinatorEvent()   {}
func (TermEnded) coordinatorEvent()    {}
func (LeaveCluster) coordinatorEvent() {}

// CoordinatorAction is an output of Coordinator.Step, which CoordinatorLoop carries out:
// TakeShard or ReleaseShard.
type CoordinatorAction interface{ coordinatorAction() }

// TakeShard requests a compare-and-set of a shard's clock from revision Rev to Clock.
// ShardTaken answers it.
type TakeShard struct {
	Shard int
	Clock store.Clock
	Rev   uint64
	From  string // the previous owner if it has not released the shard, else empty
	// Damaged is true if the clock at Rev cannot be decoded.
	Damaged bool
}

// ReleaseShard requests the hand-over of an owned shard. TermEnded answers it.
type ReleaseShard struct{ Shard int }

func (TakeShard) coordinatorAction()    {}
func (ReleaseShard) coordinatorAction() {}

// Membership snapshots per heartbeat interval, and periods in heartbeat intervals.
const (
	snapshotsPerHeartbeat     = 4
	fastSnapshotsPerHeartbeat = 50 // while a live owner is about to hand a shard over to this node
	stableHeartbeats          = 2  // an assignment must be this old before an owner hands a shard over
	fastHeartbeats            = 8  // bounds the fast snapshots after a change of the assignment
)

// NewCoordinator returns a coordinator that has not seen a snapshot.
func NewCoordinator(cfg CoordinatorConfig) *Coordinator {
	return &Coordinator{cfg: cfg, shards: make([]shardView, cfg.Shards), peers: map[string]*peer{}}
}

// Step processes one event at the time now and returns the actions that follow. The slice
// is valid until the next call.
func (k *Coordinator) Step(now time.Duration, ev CoordinatorEvent) []CoordinatorAction {
	k.actions = k.actions[:0]
	switch ev := ev.(type) {
	case SnapshotRead:
		k.onSnapshot(now, ev)
	case ShardTaken:
		k.shards[ev.Shard].taken(now, ev.Err)
	case TermEnded:
		// The clock seen before is this node's own. The next snapshot brings the clock to
		// take the shard from.
		k.shards[ev.Shard] = shardView{changed: now, needs: k.shards[ev.Shard].needs}
	case LeaveCluster:
		if !k.leaving {
			k.leaving, k.leaveAt = true, now
			k.assign(now)
		}
	}
	k.releaseShards(now)
	return k.actions
}

// taken updates the view of a shard with the result of a take-over.
func (s *shardView) taken(now time.Duration, err error) {
	s.ownership = ownershipNone
	switch {
	case err == nil:
		s.ownership, s.refused = ownershipHeld, false
	case isRevision(err):
		// A clock with this epoch may be that of another process with this node's name. If the refusal is that of a former
		// leader and the take-over is stored, this node waits for its own lease.
		s.tried = 0
		if !s.refused {
			s.refused, s.refusedSince = true, now
		}
	}
}

// Holds reports whether this node owns, takes or releases any shard.
func (k *Coordinator) Holds() bool {
	return slices.ContainsFunc(k.shards, func(s shardView) bool { return s.ownership != ownershipNone })
}

// Changing reports whether this node takes or releases any shard right now.
func (k *Coordinator) Changing() bool {
	return slices.ContainsFunc(k.shards, func(s shardView) bool { return s.ownership == ownershipTaking || s.ownership == ownershipReleasing })
}

// Owner returns the owner of a shard in the last clock that this node saw.
func (k *Coordinator) Owner(shard int) string { return k.shards[shard].clock.Owner }

// NextSnapshot returns how long to wait before reading the next membership snapshot.
func (k *Coordinator) NextSnapshot(now time.Duration) time.Duration {
	for n := range k.shards {
		s := &k.shards[n]
		if s.ownership != ownershipNone || k.leaving || k.assignee(n) != k.cfg.Node {
			continue
		}
		// The owner is alive or leaving, so it is about to hand over.
		if k.peers[s.clock.Owner] != nil && now-k.assignedSince < fastHeartbeats*k.cfg.Heartbeat {
			return k.cfg.Heartbeat / fastSnapshotsPerHeartbeat
		}
	}
	return k.cfg.Heartbeat / snapshotsPerHeartbeat
}

func (k *Coordinator) onSnapshot(now time.Duration, ev SnapshotRead) {
	late := ev.HeartbeatAge > k.cfg.Lease/2
	if late {
		k.lastLate = now
	}
	if ev.Err != nil || late {
		k.lastDoubt = now
	}
	if ev.Err != nil {
		return
	}
	for _, c := range ev.Cluster.Clocks {
		if c.Shard >= len(k.shards) {
			continue
		}
		k.shards[c.Shard].apply(now, c)
	}
	seen := make(map[string]bool, len(ev.Cluster.Nodes))
	newest := int64(0)
	for _, m := range ev.Cluster.Nodes {
		newest = max(newest, m.StoredMs)
	}
	for _, m := range ev.Cluster.Nodes {
		seen[m.Node] = true
		p := k.peers[m.Node]
		switch {
		case p == nil:
			// If the key is older than another node's newest key, its node may have died
			// before this node started.
			before := min(time.Duration(newest-m.StoredMs)*time.Millisecond, k.cfg.Lease)
			k.peers[m.Node] = &peer{rev: m.Rev, storedMs: m.StoredMs, changed: now - before, state: m.Presence.Scheduler, level: m.Presence.Reads}
		case replaces(m.Rev, m.StoredMs, p.rev, p.storedMs):
			*p = peer{rev: m.Rev, storedMs: m.StoredMs, changed: now, state: m.Presence.Scheduler, level: m.Presence.Reads}
		}
	}
	for node := range k.peers {
		if !seen[node] {
			delete(k.peers, node)
		}
	}
	k.assign(now)
	if k.leaving {
		return
	}
	for n := range k.shards {
		k.maybeTake(now, n)
	}
}

// apply updates the view of a shard with its clock from a membership snapshot.
func (s *shardView) apply(now time.Duration, c store.ClockAt) {
	// A clock that is gone has revision 0, and the time of the snapshot.
	gone := c.Rev == 0 && s.rev != 0
	if s.seen && !gone && (c.Rev == 0 || !replaces(c.Rev, c.StoredMs, s.rev, s.storedMs)) {
		return
	}
	known := s.clock.Epoch != 0
	s.seen, s.rev, s.storedMs, s.changed, s.refused = true, c.Rev, c.StoredMs, now, false
	s.newer, s.damaged = errors.Is(c.Err, schemas.ErrNewer), errors.Is(c.Err, schemas.ErrDamaged)
	switch {
	case s.newer:
		s.clock = store.Clock{}
	case s.damaged:
		// The clock that this node saw last is later than the clock's copy.
		if s.floor = c.Clock.Epoch; !known {
			s.clock = c.Clock
		}
	default:
		s.clock = c.Clock
	}
	s.needs = s.clock.Needs
}

func (k *Coordinator) alive(now time.Duration, p *peer) bool {
	return p.state == store.SchedulerActive && now-max(p.changed, k.lastDoubt) < k.cfg.Lease
}

// assign recomputes the assignment from the nodes that are alive now.
func (k *Coordinator) assign(now time.Duration) {
	var live []string
	for node, p := range k.peers {
		if node != k.cfg.Node && k.alive(now, p) {
			live = append(live, node)
		}
	}
	if !k.leaving {
		live = append(live, k.cfg.Node)
	}
	slices.Sort(live)
	levels := map[string]store.FormatLevel{k.cfg.Node: k.cfg.Level}
	for _, node := range live {
		if node != k.cfg.Node {
			levels[node] = k.peers[node].level
		}
	}
	needs := make([]store.FormatLevel, len(k.shards))
	for n := range k.shards {
		needs[n] = k.shards[n].needs
	}
	if k.assigned != nil && slices.Equal(live, k.live) && maps.Equal(levels, k.levels) && slices.Equal(needs, k.needs) {
		return
	}
	was := k.assigned
	k.levels, k.needs = levels, needs
	k.assigned = k.assignTo(live)
	if !slices.Equal(live, k.live) || !slices.Equal(was, k.assigned) {
		k.live, k.assignedSince = live, now
	}
}

// assignTo spreads the shards over nodes. A shard that needs a format level goes to a node
// that reads that level, or to any node if none does.
func (k *Coordinator) assignTo(nodes []string) []string {
	return assign(k.cfg.Shards, nodes, func(shard int) []string {
		if k.needs[shard] == 0 {
			return nodes
		}
		able := make([]string, 0, len(nodes))
		for _, node := range nodes {
			if k.levels[node] >= k.needs[shard] {
				able = append(able, node)
			}
		}
		if len(able) == 0 {
			return nodes
		}
		return able
	})
}

// assignee returns the node that a shard is assigned to, "" before the first assignment.
func (k *Coordinator) assignee(shard int) string {
	if k.assigned == nil {
		return ""
	}
	return k.assigned[shard]
}

// maybeTake takes a shard that is free, or whose owner's lease has expired, if it is this
// node's turn.
func (k *Coordinator) maybeTake(now time.Duration, n int) {
	s := &k.shards[n]
	c := s.clock
	if s.ownership != ownershipNone || !s.seen || s.newer {
		return
	}
	// A clock with this node's name is free if no other process can have that name, or if
	// the answer to this node's own attempt was lost. A damaged clock does not name its
	// owner, who writes it again within the lease.
	free := !s.damaged && (c.Owner == "" || c.Owner == k.cfg.Node && (k.cfg.Exclusive || s.tried != 0 && c.Epoch == s.tried))
	// If the owner has a longer lease, it counts: the owner fires until it ends.
	lease := max(k.cfg.Lease, min(time.Duration(c.LeaseMs)*time.Millisecond, maxLease))
	silent := now - max(s.changed, k.lastDoubt)
	if !free && silent < lease {
		return
	}
	// The assigned node takes the shard at once. The others wait in rank order, in case that
	// node does not take it.
	takeoverDelay := time.Duration(0)
	if rank := k.rank(n, c.Owner); rank > 0 {
		takeoverDelay = k.cfg.Lease/4 + time.Duration(rank)*k.cfg.Heartbeat/4
	}
	if free {
		silent = now - s.changed
	} else {
		silent -= lease
	}
	if silent < takeoverDelay {
		return
	}
	c.Owner, c.LeaseMs = k.cfg.Node, k.cfg.Lease.Milliseconds()
	if s.damaged {
		c.Epoch = max(c.Epoch, s.floor)
	}
	// The count lacks the last claims of an owner that has not released the shard.
	c.PendingUnknown = c.PendingUnknown || s.damaged || s.clock.Owner != ""
	c.Epoch++
	s.ownership, s.tried = ownershipTaking, c.Epoch
	k.actions = append(k.actions, TakeShard{Shard: n, Clock: c, Rev: s.rev, From: s.clock.Owner, Damaged: s.damaged})
}

// rank returns 0 if the shard would be assigned to this node if owner were dead, else this
// node's position, from 1, in the shard's ranking of the other live nodes.
func (k *Coordinator) rank(shard int, owner string) int {
	want, live := k.assigned, k.live
	if owner != k.cfg.Node && slices.Contains(live, owner) {
		live = slices.DeleteFunc(slices.Clone(live), func(n string) bool { return n == owner })
		want = k.assignTo(live)
	}
	if want[shard] == k.cfg.Node {
		return 0
	}
	return 1 + slices.Index(ranking(shard, live), k.cfg.Node)
}

// releaseShards releases the shards that are assigned to other nodes, or all shards when
// the node leaves.
func (k *Coordinator) releaseShards(now time.Duration) {
	for n := range k.shards {
		s := &k.shards[n]
		if s.ownership != ownershipHeld {
			continue
		}
		if k.leaving {
			// Wait until the other nodes have read that this node leaves, so that they take
			// the released shards quickly.
			if len(k.live) > 0 && now-k.leaveAt < 2*k.cfg.Heartbeat/snapshotsPerHeartbeat {
				continue
			}
		} else if w := k.assignee(n); w == k.cfg.Node || w == "" || now-k.assignedSince < stableHeartbeats*k.cfg.Heartbeat || now-k.lastDoubt < k.cfg.Lease {
			continue
		}
		s.ownership = ownershipReleasing
		k.actions = append(k.actions, ReleaseShard{Shard: n})
	}
}

// isRevision reports whether a compare-and-set failed because the revision had changed.
func isRevision(err error) bool { return errors.Is(err, store.ErrRevision) }
