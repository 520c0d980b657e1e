package scheduler

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// CoordinatorConfig is what a coordinator has to know of its node.
type CoordinatorConfig struct {
	// Node is this node's name; Exclusive that no other process can have it.
	Node      string
	Exclusive bool
	Shards    int
	// Lease is how long a silent owner keeps its shards; Tick how often owners
	// write.
	Lease, Tick time.Duration
	// Level is the format level that this node reads; see store.Clock.Needs.
	Level store.FormatLevel
}

// Coordinator decides for one node which shards it takes and which it gives back. It
// is pure: it does no I/O, and times are the node's monotonic clock, counted from
// any start. Not safe for concurrent use.
//
// It sees all clocks and presences with every look. A shard whose clock is
// released is taken at once by the node that it is assigned to; one whose clock
// has not moved for a lease is taken from its owner. While this node's own beats
// fail, or are late, nobody's silence counts: if the store does not answer,
// owners cannot renew. What is decided on a look that was stale does no harm: the
// compare-and-set on the clock fails.
type Coordinator struct {
	cfg     CoordinatorConfig
	seats   []seat
	peers   map[string]*peer
	trouble time.Duration // until then the store was in doubt

	live     []string // nodes that schedule, this one included unless it leaves
	levels   map[string]store.FormatLevel
	needs    []store.FormatLevel // by shard
	want     []string            // by shard
	wantFrom time.Duration

	leaving bool
	leaveAt time.Duration

	actions []KeepAction
}

type hold uint8

const (
	holdNone hold = iota
	holdTaking
	holdOwned
	holdReleasing
)

type seat struct {
	seen    bool // a look brought the clock since the shard was last ours
	rev     uint64
	clock   store.Clock   // the last decoded clock, or the one to resume from
	changed time.Duration // when this node saw it move
	hold    hold
	tried   uint64 // the epoch of our last attempt to take it
	// newer is true if nodes of a newer version own the shard. damaged is true if the
	// clock at rev cannot be decoded; the next epoch must then be above floor.
	newer, damaged bool
	floor          uint64
	needs          store.FormatLevel // as the last clock stated that this node saw
}

type peer struct {
	rev     uint64
	changed time.Duration
	state   string
	level   store.FormatLevel
}

// KeepEvent is something that happened to a node's ownership; see the Keep types.
type KeepEvent interface{ keepEvent() }

// KeepLooked is one look at the cluster. BeatAge is the time since this node's
// last successful beat.
type KeepLooked struct {
	Cluster store.Cluster
	BeatAge time.Duration
	Err     error
}

// KeepTook answers KeepTake.
type KeepTook struct {
	Shard int
	Err   error
}

// KeepEnded says that a shard is no longer ours: released, or lost.
type KeepEnded struct{ Shard int }

// KeepLeave says that the node stops. Its presence is to say so from now on.
type KeepLeave struct{}

func (KeepLooked) keepEvent() {}
func (KeepTook) keepEvent()   {}
func (KeepEnded) keepEvent()  {}
func (KeepLeave) keepEvent()  {}

// KeepAction is something that the shell has to do.
type KeepAction interface{ keepAction() }

// KeepTake asks for a compare-and-set of a shard's clock from revision Rev.
type KeepTake struct {
	Shard int
	Clock store.Clock
	Rev   uint64
	From  string // the owner it is taken from, or empty
	// Damaged is true if the clock at Rev cannot be decoded.
	Damaged bool
}

// KeepRelease asks for a shard to be given back.
type KeepRelease struct{ Shard int }

func (KeepTake) keepAction()    {}
func (KeepRelease) keepAction() {}

// Intervals of looks, in parts of a tick.
const (
	lookPart     = 4  // while other nodes own shards, or may come
	lookFastPart = 50 // while a shard is about to be handed to us
	settleTicks  = 2  // an assignment holds this long before a shard moves for it
	fastTicks    = 8  // how long a hand-over is waited for with fast looks
)

// NewCoordinator makes a coordinator that has seen nothing yet.
func NewCoordinator(cfg CoordinatorConfig) *Coordinator {
	return &Coordinator{cfg: cfg, seats: make([]seat, cfg.Shards), peers: map[string]*peer{}}
}

// Step takes one event at now and returns what to do. The slice is valid until
// the next call.
func (k *Coordinator) Step(now time.Duration, ev KeepEvent) []KeepAction {
	k.actions = k.actions[:0]
	switch ev := ev.(type) {
	case KeepLooked:
		k.onLooked(now, ev)
	case KeepTook:
		s := &k.seats[ev.Shard]
		s.hold = holdNone
		if ev.Err == nil {
			s.hold = holdOwned
		}
	case KeepEnded:
		// What was seen of it before is our own doing: look anew. Until then there
		// is no clock to take it by.
		k.seats[ev.Shard] = seat{changed: now, needs: k.seats[ev.Shard].needs}
	case KeepLeave:
		if !k.leaving {
			k.leaving, k.leaveAt = true, now
			k.assign(now)
		}
	}
	k.giveBack(now)
	return k.actions
}

// Holds reports whether any shard is ours, or is being taken or released.
func (k *Coordinator) Holds() bool {
	return slices.ContainsFunc(k.seats, func(s seat) bool { return s.hold != holdNone })
}

// Changing reports whether any shard is being taken or released right now.
func (k *Coordinator) Changing() bool {
	return slices.ContainsFunc(k.seats, func(s seat) bool { return s.hold == holdTaking || s.hold == holdReleasing })
}

// Owner is who owns a shard as this node last saw it.
func (k *Coordinator) Owner(shard int) string { return k.seats[shard].clock.Owner }

// NextLook is how long to wait with the next look.
func (k *Coordinator) NextLook(now time.Duration) time.Duration {
	for n := range k.seats {
		s := &k.seats[n]
		if s.hold != holdNone || k.leaving || k.wanted(n) != k.cfg.Node {
			continue
		}
		// An owner that lives, or says that it leaves, is about to hand over.
		if k.peers[s.clock.Owner] != nil && now-k.wantFrom < fastTicks*k.cfg.Tick {
			return k.cfg.Tick / lookFastPart
		}
	}
	return k.cfg.Tick / lookPart
}

func (k *Coordinator) onLooked(now time.Duration, ev KeepLooked) {
	if ev.Err != nil || ev.BeatAge > k.cfg.Lease/2 {
		k.trouble = now
	}
	if ev.Err != nil {
		return
	}
	for _, c := range ev.Cluster.Clocks {
		if c.Shard >= len(k.seats) {
			continue
		}
		k.seats[c.Shard].look(now, c)
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
			// A key that others have outlived by a lease is that of a node that died
			// before this one came.
			before := min(time.Duration(newest-m.StoredMs)*time.Millisecond, k.cfg.Lease)
			k.peers[m.Node] = &peer{rev: m.Rev, changed: now - before, state: m.Presence.Scheduler, level: m.Presence.Reads}
		case m.Rev > p.rev:
			*p = peer{rev: m.Rev, changed: now, state: m.Presence.Scheduler, level: m.Presence.Reads}
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
	for n := range k.seats {
		k.maybeTake(now, n)
	}
}

// look applies the clock of a membership snapshot to a shard.
func (s *seat) look(now time.Duration, c store.ClockAt) {
	gone := c.Rev == 0 && s.rev != 0
	if s.seen && c.Rev <= s.rev && !gone {
		return
	}
	known := s.clock.Epoch != 0
	s.seen, s.rev, s.changed = true, c.Rev, now
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
	return p.state == store.SchedulerActive && now-max(p.changed, k.trouble) < k.cfg.Lease
}

// assign spreads the shards over the nodes that live now.
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
	needs := make([]store.FormatLevel, len(k.seats))
	for n := range k.seats {
		needs[n] = k.seats[n].needs
	}
	if k.want != nil && slices.Equal(live, k.live) && maps.Equal(levels, k.levels) && slices.Equal(needs, k.needs) {
		return
	}
	was := k.want
	k.levels, k.needs = levels, needs
	k.want = k.assignTo(live)
	if !slices.Equal(live, k.live) || !slices.Equal(was, k.want) {
		k.live, k.wantFrom = live, now
	}
}

// assignTo spreads the shards over nodes. A shard that needs a format level goes to the
// nodes that read it, or to any if none does.
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

// wanted is the node that a shard is assigned to.
func (k *Coordinator) wanted(shard int) string {
	if k.want == nil {
		return ""
	}
	return k.want[shard]
}

func (k *Coordinator) maybeTake(now time.Duration, n int) {
	s := &k.seats[n]
	c := s.clock
	if s.hold != holdNone || !s.seen || s.newer {
		return
	}
	// A clock in our name is nobody else's if the folder's lock is ours, or if the
	// answer to our own attempt was lost. A damaged clock does not tell its owner,
	// who writes it again within the lease.
	free := !s.damaged && (c.Owner == "" || c.Owner == k.cfg.Node && (k.cfg.Exclusive || s.tried != 0 && c.Epoch == s.tried))
	// A longer lease of the owner's counts: the owner fires until it ends.
	lease := max(k.cfg.Lease, min(time.Duration(c.LeaseMs)*time.Millisecond, maxLease))
	silent := now - max(s.changed, k.trouble)
	if !free && silent < lease {
		return
	}
	// Whom it is assigned to comes first; the others wait, in turn, in case that
	// node does not come.
	patience := time.Duration(0)
	if rank := k.rank(n, c.Owner); rank > 0 {
		patience = k.cfg.Lease/4 + time.Duration(rank)*k.cfg.Tick/4
	}
	if free {
		silent = now - s.changed
	} else {
		silent -= lease
	}
	if silent < patience {
		return
	}
	c.Owner, c.LeaseMs = k.cfg.Node, k.cfg.Lease.Milliseconds()
	if s.damaged {
		c.Epoch = max(c.Epoch, s.floor)
	}
	// The last claims of an owner that has not released the shard are not in the count.
	c.PendingUnknown = c.PendingUnknown || s.damaged || s.clock.Owner != ""
	c.Epoch++
	s.hold, s.tried = holdTaking, c.Epoch
	k.actions = append(k.actions, KeepTake{Shard: n, Clock: c, Rev: s.rev, From: s.clock.Owner, Damaged: s.damaged})
}

// rank is 0 if a shard is assigned to this node once its owner does not count,
// or else this node's place among those that live.
func (k *Coordinator) rank(shard int, owner string) int {
	want, live := k.want, k.live
	if owner != k.cfg.Node && slices.Contains(live, owner) {
		live = slices.DeleteFunc(slices.Clone(live), func(n string) bool { return n == owner })
		want = k.assignTo(live)
	}
	if want[shard] == k.cfg.Node {
		return 0
	}
	return 1 + slices.Index(ranking(shard, live), k.cfg.Node)
}

// giveBack releases what is assigned to others, or all of it when leaving.
func (k *Coordinator) giveBack(now time.Duration) {
	for n := range k.seats {
		s := &k.seats[n]
		if s.hold != holdOwned {
			continue
		}
		if k.leaving {
			// The others are given the time to notice, so that they wait at the
			// door when the shard is released.
			if len(k.live) > 0 && now-k.leaveAt < 2*k.cfg.Tick/lookPart {
				continue
			}
		} else if w := k.wanted(n); w == k.cfg.Node || w == "" || now-k.wantFrom < settleTicks*k.cfg.Tick || now-k.trouble < k.cfg.Lease {
			continue
		}
		s.hold = holdReleasing
		k.actions = append(k.actions, KeepRelease{Shard: n})
	}
}

// isRevision reports whether a compare-and-set came second.
func isRevision(err error) bool { return errors.Is(err, store.ErrRevision) }
