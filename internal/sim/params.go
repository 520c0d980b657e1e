package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// params are drawn at the start of a seed: the shape of the cluster, its settings and its
// kinds of faults. A seed has only some kinds, because faults hide each other.
type params struct {
	servers, nodes int
	geo            schemas.Geometry
	lease, tick    time.Duration
	horizon        time.Duration
	sweep          time.Duration
	indexKeep      time.Duration
	scanBehind     time.Duration // age of the low watermark above which an owner scans the shard; 0 for indexKeep/2
	retention      time.Duration
	dedup          time.Duration
	firedMaxAge    time.Duration
	maxLoaded      int
	maxInflight    int
	maxExact       int
	exclusive      bool
	share          bool // index entries name several timers
	timers         int
	active         time.Duration // how long clients add and faults happen
	quiet          time.Duration // how long all may take to settle after that
	faults         bool          // faults other than refusals

	// The latency of the network, and the odds that a request or its answer is lost: one in
	// so many, or 0 for never.
	latency     time.Duration
	loss        int
	slow        int // one request in so many takes up to slowest; 0 for none
	slowest     time.Duration
	lag         bool // replicas sometimes lag
	crashes     bool
	pauses      bool
	midPauses   bool
	cuts        bool
	elections   bool
	late        bool // servers carry requests out after the callers have given up
	replaced    bool // owners read revisions of records that were replaced before they were read, as from memory
	deposed     bool // servers that led a shard's stream answer requests after the next election
	serverKills bool
	jumps       bool
	drift       bool
	stops       bool // graceful stops and joins
	outage      bool // one outage of everything, longer than owners rely on the index
	riser       bool // a long pause: a node pauses for longer than the dedup window
	smallAge    bool // fired events leave while their callbacks hang
	burst       bool // many timers at one instant
	refusals    bool // some events, or their dead letters, are refused permanently
	shrink      bool // at some time the servers' limit of a message becomes smaller
	damage      bool // other clients overwrite clocks
	far         bool // far entries
}

func newParams(rng *rand.Rand, seed uint64) params {
	one := func(n int) bool { return rng.IntN(n) == 0 }
	sec := func(lo, hi int) time.Duration { return time.Duration(lo+rng.IntN(hi-lo+1)) * time.Second }
	p := params{
		servers: 3, nodes: 2 + rng.IntN(3), lease: 3 * time.Second, tick: time.Second, horizon: 5 * time.Second,
		sweep: sec(12, 25), retention: sec(40, 90), firedMaxAge: 6 * time.Minute,
		maxLoaded: 1000, maxInflight: 64, maxExact: 1000, exclusive: one(2),
		timers: 40 + rng.IntN(80), active: sec(20, 50), quiet: 60 * time.Second, latency: time.Duration(200+rng.IntN(800)) * time.Microsecond,
	}
	p.geo = schemas.Geometry{Shards: 1 + rng.IntN(4), SlotWidth: time.Second, WheelSize: schemas.DefaultWheelSize}
	if one(4) {
		p.servers = 1
	}
	if one(6) {
		p.nodes = 1
	} else if one(8) {
		p.nodes = 6
	}
	if one(3) {
		p.geo.SlotWidth = 100 * time.Millisecond
	}
	if one(3) {
		p.geo.WheelSize = 64 + rng.Int64N(200) // timers of other revolutions share the slots
	}
	if one(4) {
		p.lease, p.tick = 1500*time.Millisecond, 300*time.Millisecond
	}
	if one(3) {
		p.maxInflight = 1 + rng.IntN(8)
	}
	if one(3) {
		p.maxLoaded = 10 + rng.IntN(60)
	}
	if one(2) {
		p.maxExact = 6 + rng.IntN(40)
	}
	p.indexKeep = 2 * (p.sweep + time.Minute)
	p.dedup = store.DedupWindowFor(p.retention)
	// These depend on the seed without a draw, because another draw would give every seed
	// another history.
	p.share = seed%4 >= 2
	p.damage = seed%16 == 7
	p.far = seed%8 == 5
	if seed%4 == 1 {
		p.scanBehind = p.lease // a fail-over is enough for a scan
	}
	p.refusals, p.shrink = seed%5 == 3 || seed%20 == 0, seed%10 == 3
	// A tenth of the seeds have no faults. In these the checker bounds lateness.
	if seed%10 == 0 {
		return p
	}
	p.faults = true
	if !one(3) {
		p.loss = []int{8, 20, 60, 200}[rng.IntN(4)]
	}
	if !one(3) {
		p.slow, p.slowest = []int{5, 30, 150}[rng.IntN(3)], []time.Duration{50 * time.Millisecond, 800 * time.Millisecond, 7 * time.Second}[rng.IntN(3)]
	}
	p.lag, p.crashes, p.pauses, p.midPauses = one(2), one(2), one(2), one(3)
	p.cuts, p.elections, p.serverKills, p.jumps = one(2), one(2), one(3), one(3)
	p.drift, p.stops, p.burst = one(2), one(2), one(3)
	p.deposed = seed%6 == 1 && p.servers > 1
	p.replaced = seed%5 == 3
	p.late = seed%4 == 2 || seed%7 == 2
	if seed%8 == 4 { // timers wait long in the queues, while the only server's clock is set back
		p.jumps, p.servers, p.maxInflight = true, 1, 1
		p.slow, p.slowest = 5, 7*time.Second
	}
	switch rng.IntN(12) {
	case 0:
		// Records must outlast the outage: the record of an add whose acknowledgement was
		// lost before the outage shows afterwards that it was stored.
		p.outage, p.retention, p.dedup = true, 5*time.Minute, 225*time.Second
	case 1:
		// When a node continues after a long pause, its router still has adds. Their records
		// must not have expired, as with any sensible retention. And a cluster of one node must
		// still find its timers by their index entries.
		p.shrink = false // a letter of many parts takes as many publishes, and none may come after the dedup window
		p.riser, p.retention, p.indexKeep = true, 6*time.Minute, 10*time.Minute
		p.dedup = store.DedupWindowFor(p.retention)
	case 2:
		p.smallAge = true
		p.firedMaxAge = p.dedup + time.Second
	}
	return p
}

// farTicks and farLead make far entries of most timers, and let some of them come after the first load of their
// period.
const (
	farTicks = 16
	farLead  = 2 * time.Second
)

func (p *params) fake() fake.Config {
	c := fake.Config{
		Geometry: p.geo, IndexKeep: p.indexKeep, DedupWindow: p.dedup, FiredMaxAge: p.firedMaxAge, Retention: p.retention, MaxExact: p.maxExact,
		ShareIndex: p.share, Basis: scheduler.Basis(calendar.ProcessZones()),
	}
	if p.far {
		c.FarTicks, c.FarLead = farTicks, farLead
	}
	return c
}

// longest returns the longest duration of a run.
func (p *params) longest() time.Duration {
	d := p.active + p.quiet
	if p.outage || p.riser || p.smallAge {
		d += p.dedup + time.Minute
	}
	return d
}

// String lists the parameters that differ from seed to seed.
func (p *params) String() string {
	var on []string
	for _, f := range []struct {
		name string
		on   bool
	}{
		{"loss", p.loss > 0}, {"slow", p.slow > 0}, {"lag", p.lag}, {"crashes", p.crashes}, {"pauses", p.pauses}, {"mid-pauses", p.midPauses},
		{"cuts", p.cuts}, {"elections", p.elections}, {"late", p.late}, {"replaced", p.replaced}, {"deposed", p.deposed}, {"server-kills", p.serverKills}, {"jumps", p.jumps}, {"drift", p.drift}, {"stops", p.stops},
		{"outage", p.outage}, {"riser", p.riser}, {"small-age", p.smallAge}, {"burst", p.burst},
		{"refusals", p.refusals}, {"shrink", p.shrink},
		{"damage", p.damage}, {"far", p.far},
	} {
		if f.on {
			on = append(on, f.name)
		}
	}
	return fmt.Sprintf("%d servers, %d nodes, %d shards of %s x %d, lease %s, %d timers in %s; %s",
		p.servers, p.nodes, p.geo.Shards, p.geo.SlotWidth, p.geo.WheelSize, p.lease, p.timers, p.active, strings.Join(on, " "))
}
