package sim

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// recordBuffer is the number of records of the tail, and of a scan, that wait for the
// term.
const recordBuffer = 1024

// term drives a scheduler.Term of one process from the simulation's only goroutine.
type term struct {
	*scheduler.Term
	n     *node
	w     *world
	shard int
	epoch uint64
	ended bool
	// listFailed is true after a failed call for the list of ended timers; see noteOwners.
	listFailed bool
	end        signal // for the coordinator

	waking bool
	timer  uint64 // number of the present wait

	tail    []store.Timer
	scan    []scheduler.Event
	tailPos uint64
	// replacedFrom is the sequence after which the tail has replaced revisions.
	replacedFrom uint64
	fetching     bool
	scanRoom     signal
}

var _ scheduler.Host = (*term)(nil)

// startTerm starts a term after the take-over of a shard.
func startTerm(n *node, shard int, lease *scheduler.Lease) *term {
	clock, _ := lease.Clock()
	t := &term{n: n, w: n.w, shard: shard, epoch: clock.Epoch}
	t.Term = scheduler.NewTerm(t.config(), lease, t)
	n.terms[shard] = t
	t.Start()
	if n.w.cfg.Damage {
		t.Go(t.inspect)
	}
	t.turn()
	return t
}

// maxLeaseCheckEvery bounds the number of actions between looks at the lease. A turn has fewer
// actions here than in production, and takes no time.
const maxLeaseCheckEvery = 6

func (t *term) config() scheduler.TermConfig {
	p := &t.w.p
	c := scheduler.TermConfig{
		Shard: t.shard, Store: termStore{Client: t.n.client, t: t}, Time: t.n, Lease: p.lease, Heartbeat: p.tick, Log: zerolog.Nop(),
		Core: scheduler.CoreConfig{
			Geometry: p.geo, HorizonMs: p.horizon.Milliseconds(), ScanBehindMs: cmp.Or(p.scanBehind, p.indexKeep/2).Milliseconds(),
			SweepMs: p.sweep.Milliseconds(), MaxLoaded: p.maxLoaded, MaxInflight: p.maxInflight, FirstInflight: max(p.maxInflight/4, 8), FirstFireAtOnce: 1 + p.maxInflight/32, FireAtOnce: 1 + p.maxInflight/8, Retention: p.retention, Backlog: t.n.backlog,
			Level: t.n.client.Reads(), Zones: t.n.zones, Head: t.head(),
		},
		Near:            t.n.near,
		Trace:           t.trace,
		LeaseCheckEvery: 1 + t.w.rng.IntN(maxLeaseCheckEvery),
		HoldRenewal:     func() bool { return t.w.oneIn(2) },
	}
	if t.n.calendars != nil {
		c.Calendars = t.n.calendars.CalendarsNow
	}
	if t.w.quotas != nil {
		c.Limits = termLimits{t.n.client, t.n}
	}
	if t.w.cfg.Returned {
		c.Ended = termStore{Client: t.n.client, t: t}
	}
	if t.w.cfg.Trace != nil {
		c.Log = zerolog.New(t)
	}
	return c
}

// head returns the last sequence of the shard's stream; math.MaxUint64 if no leader could tell it.
func (t *term) head() uint64 {
	stream := fake.StreamShard(t.shard)
	if l, known := t.w.net.leader[stream]; known && l < 0 {
		return math.MaxUint64
	}
	return t.w.server.LastSeq(stream)
}

// Write puts a line of the term's log into the trace.
func (t *term) Write(line []byte) (int, error) {
	t.w.trace("%s: shard %d logs %s", t.n.name, t.shard, strings.TrimSpace(string(line)))
	return len(line), nil
}

// trace gets all events and actions of the term.
func (t *term) trace(what any) {
	if ev, ok := what.(scheduler.EvSwept); ok && !t.ended {
		t.w.check.swept(t, ev)
	}
	if ev, ok := what.(scheduler.EvTail); ok && !t.ended {
		t.w.check.tailed(t, ev)
	}
	if t.w.cfg.Trace != nil && !t.ended {
		t.w.trace("%s: shard %d: %s", t.n.name, t.shard, t.w.describe(what))
	}
}

// turn runs one turn of the term, and plans the next.
func (t *term) turn() {
	wait, more := t.Turn()
	if !more {
		t.over()
		return
	}
	t.timer++
	timer := t.timer
	t.n.after(wait, func() {
		if t.timer == timer {
			t.Wake()
		}
	})
	if t.WantsRecords() && (len(t.tail) > 0 || len(t.scan) > 0) {
		t.Wake()
	}
}

// over ends the term.
func (t *term) over() {
	t.ended = true
	t.End()
	t.w.trace("%s: shard %d, epoch %d: the term is over", t.n.name, t.shard, t.epoch)
	t.n.terms[t.shard] = nil
	if n := t.n.backlog.Shards(); n > 0 && !slices.ContainsFunc(t.n.terms, func(t *term) bool { return t != nil }) {
		t.w.check.fail(PropFinished, "no term of %s is left, and final records wait for %d shards", t.n.name, n)
	}
	t.end.give()
}

// release makes the term hand the shard over, after the process's earlier steps.
func (t *term) release() {
	t.n.soon(func() {
		if !t.ended {
			t.Release()
			t.Wake()
		}
	})
}

// Monotonic implements scheduler.Host.
func (t *term) Monotonic() time.Duration { return t.n.mono() }

// Go implements scheduler.Host.
func (t *term) Go(f func(context.Context)) {
	t.w.spawn(t.n, func(*proc) { f(within(callTimeout)) })
}

// Pause implements scheduler.Host.
func (t *term) Pause(_ context.Context, d time.Duration) bool {
	if d > 0 {
		t.w.current.sleep(d)
	}
	return !t.ended
}

// WithTimeout implements scheduler.Host.
func (t *term) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return t.n.until(ctx, d), func() {}
}

// Wake implements scheduler.Host.
func (t *term) Wake() {
	if t.waking || t.ended {
		return
	}
	t.waking = true
	t.n.soon(func() {
		t.waking = false
		if !t.ended {
			t.turn()
		}
	})
}

// Follow implements scheduler.Host.
func (t *term) Follow(after uint64) {
	if t.tailPos = after; t.w.cfg.Plant == PlantTailDropped {
		t.tailPos = t.w.server.LastSeq(fake.StreamShard(t.shard))
	}
	if t.replacedFrom = math.MaxUint64; t.w.p.replaced {
		t.replacedFrom = t.w.server.LastSeq(fake.StreamShard(t.shard))
	}
	t.fetch()
}

// Record implements scheduler.Host.
func (t *term) Record() (ev scheduler.Event) {
	switch {
	case len(t.tail) > 0 && (len(t.scan) == 0 || t.w.oneIn(2)):
		ev = scheduler.EvTail{Timer: t.tail[0]}
		t.tail = t.tail[1:]
		t.fetch()
	case len(t.scan) > 0:
		ev = t.scan[0]
		t.scan = t.scan[1:]
		t.scanRoom.give()
	default:
		return nil
	}
	t.trace(ev)
	return ev
}

// Offer implements scheduler.Host.
func (t *term) Offer(_ context.Context, ev scheduler.Event) error {
	for len(t.scan) >= recordBuffer && !t.ended {
		t.w.current.sleepOr(time.Second, &t.scanRoom)
	}
	if t.ended {
		return schemas.ErrUnavailable
	}
	t.scan = append(t.scan, ev)
	t.Wake()
	return nil
}

// Missing implements scheduler.Host.
func (t *term) Missing(n int64) {
	t.w.check.fail(PropKept, "shard %d: a count misses %d timers", t.shard, n)
}

// termStore is a node's client as a term sees it: the checker sees each claim and publish
// of the term, and planted bugs and faults change them.
type termStore struct {
	*fake.Client
	t *term
}

// nearMemory is the memory of a process for timers that are due soon: two blocks. A process that owns more shards has none for some
// of them.
const nearMemory = 128 << 10

// LoadTicks implements scheduler.TermStore.
func (s termStore) LoadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64, near *store.Near) (store.Load, error) {
	if near == nil {
		return s.Client.LoadTicks(ctx, shard, ticks, limit, after, seen, nil)
	}
	kept := near.Len()
	load, err := s.Client.LoadTicks(ctx, shard, ticks, limit, after, seen, near)
	w := s.t.w
	w.stats.Near += max(kept-near.Len(), 0)
	for i := range load.Timers {
		t := &load.Timers[i]
		if newest := w.server.RevisionAsOf(t.ID, seen); t.Rev < newest {
			w.check.fail(PropLoaded, "%s: a load has revision %d, and the tail has passed %d", w.byID[t.ID], t.Rev, newest)
		}
	}
	return load, err
}

// UpdateAsync implements scheduler.TermStore.
func (s termStore) UpdateAsync(w store.Write, done func(store.Result)) {
	if w.Record.State != schemas.StateDelivered && (w.Record.Schedule == nil || w.Record.State.Final()) {
		s.Client.UpdateAsync(w, done)
		return
	}
	t := s.t
	t.w.check.claims(t, w)
	if w.Record.Schedule != nil {
		t.w.check.claimsExcluded(t, w)
	}
	t.w.stats.Claims++
	write := s.Client.UpdateAsync
	if t.w.cfg.Plant == PlantUnfenced {
		write = s.Unfenced
	}
	write(w, done)
	if t.w.diesAtOverdue(w) {
		t.w.after(0, func() { t.n.crash(overdueDown) })
	}
	if d := t.n.pauseAtClaim; d > 0 && !t.w.p.refusals {
		t.n.pauseAtClaim = 0
		t.w.rises(d)
		t.w.after(0, func() { t.n.pause(d) })
	}
}

// PublishAsync implements scheduler.TermStore.
func (s termStore) PublishAsync(m store.Msg, done func(seq uint64, duplicate bool, err error)) {
	s.t.w.check.publishes(s.t, "publish", m)
	switch s.t.w.cfg.Plant {
	case PlantEndless:
		// Treat every error as temporary.
		s.Client.PublishAsync(m, func(seq uint64, duplicate bool, err error) {
			if store.Permanent(err) {
				err = schemas.ErrUnavailable
			}
			done(seq, duplicate, err)
		})
	case PlantEarlyMark:
		done(0, false, nil)
		s.Client.PublishAsync(m, func(uint64, bool, error) {})
	default:
		s.Client.PublishAsync(m, done)
	}
}

// PublishLetter implements scheduler.TermStore.
func (s termStore) PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error) {
	t := s.t
	t.w.check.publishes(t, "dead-letter", m)
	if t.w.cfg.Plant == PlantUnstableLetter {
		t.w.letters++
		m.MsgID += "." + strconv.Itoa(t.w.letters)
	}
	duplicate, err = s.Client.PublishLetter(ctx, m)
	if d := t.n.pauseAtClaim; err == nil && d > 0 {
		// All processes die, and the next owner starts after the stream's dedup window has
		// forgotten the letter.
		t.n.pauseAtClaim = 0
		t.w.rises(d)
		t.w.after(0, func() {
			for _, n := range t.w.nodes {
				n.crash(d)
			}
		})
	}
	return duplicate, err
}

// CountPending implements scheduler.TermStore at one instant of the server.
func (s termStore) CountPending(_ context.Context, shard int, through uint64) (store.Count, error) {
	c := store.Count{Late: map[uint64]store.LateRecord{}}
	w := s.t.w
	for _, l := range w.counted(shard) {
		t, err := w.server.Record(l.id)
		if err != nil {
			continue
		}
		c.Last = max(c.Last, t.Rev)
		switch waiting := waits(t.Record.State); {
		case t.Rev > through:
			c.Late[store.CountKey(l.id)] = store.LateRecord{Rev: t.Rev, Waiting: waiting}
		case waiting:
			c.Waiting = append(c.Waiting, store.CountKey(l.id))
		}
	}
	c.Unread = w.unreadRecords(shard)
	slices.Sort(c.Waiting)
	return c, nil
}
