package scheduler

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Store is what the scheduler needs of the store; *store.Store has it.
type Store interface {
	TermStore
	Geometry() schemas.Geometry
	// Reads is the format level that this process reads.
	Reads() store.FormatLevel
	SealCallback(id schemas.TimerID, callback string) string
	Tail(ctx context.Context, shard int, after uint64, fn func(store.Timer)) (*store.Tail, error)
	ReadCluster(ctx context.Context) (store.Cluster, error)
	Messages(ctx context.Context, shard int) (n uint64, atMs int64, err error)
	LastSeq(ctx context.Context, shard int) (uint64, error)
	Inspect(ctx context.Context, shard int, seen, end uint64, expect *store.Expectation) (store.Inspection, error)
	Audit(ctx context.Context, shard int, in store.Inspection, expect store.Expectation, throughMs int64, fn func(store.Timer) error) (store.ShardDamage, error)
	Interruptions() uint64
	Announce(change func(*store.Presence))
}

// Time is the cluster's time; *clustertime.Service has it.
type Time interface {
	TermTime
	// Age is the time since the last reading.
	Age() time.Duration
	// Ready waits for the first reading.
	Ready(ctx context.Context) error
}

// Options configure a Scheduler. A zero field means its default.
type Options struct {
	Store Store
	Time  Time
	// Node names this process in the clock; no two that run may share it.
	Node string
	// NodeExclusive says that an earlier process of the same name is certainly
	// gone (its data folder's lock is ours), so its shards need no lease to end.
	NodeExclusive bool
	// Lease is how long a silent owner keeps its shards; default 3 s.
	Lease time.Duration
	// Tick is how often the clock is moved; default 1 s, at most Lease/3.
	Tick time.Duration
	// Horizon is how far ahead of now timers are read into memory; default 5 s.
	Horizon time.Duration
	// SweepDelay is how far behind the mark the sweeper audits; default 10 min.
	SweepDelay time.Duration
	// IndexKeep is that of the store; see package store. Other nodes may write entries
	// with a shorter life, but at least DefaultIndexKeep. After an outage of more than
	// half of DefaultIndexKeep, the owner reads each record once.
	IndexKeep time.Duration
	// Retention is how long final records are kept; default 24 h.
	Retention time.Duration
	// InspectInterval is the time between two checks of a shard for lost messages and
	// damaged records; default 30 s. Each check requests the stream's state.
	InspectInterval time.Duration
	// MaxLoaded bounds the entries in memory of one shard; default 100,000.
	MaxLoaded int
	// MaxInflight bounds the writes in flight of one shard; default 2,048.
	MaxInflight int

	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// Defaults of Options.
const (
	DefaultLease      = 3 * time.Second
	DefaultTick       = time.Second
	DefaultHorizon    = 5 * time.Second
	DefaultSweepDelay = 10 * time.Minute
	DefaultIndexKeep  = 30 * time.Minute
	DefaultRetention  = 24 * time.Hour
	// DefaultInspectInterval bounds how long a loss of messages goes unnoticed.
	DefaultInspectInterval = 30 * time.Second
	DefaultMaxLoaded       = 100_000
	DefaultMaxInflight     = 2048
)

// Bounds of Options.
const (
	minLease = 300 * time.Millisecond
	// maxLease is the life of a node's presence. After a longer silence a node is no
	// longer assigned any shards.
	maxLease = time.Minute
	// maxHorizon keeps the timers in memory a small part of those pending, and the
	// horizon within the life of index entries.
	maxHorizon = 10 * time.Minute
)

func (o *Options) setDurations() {
	def := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	def(&o.Lease, DefaultLease)
	def(&o.Tick, min(DefaultTick, o.Lease/3))
	def(&o.Horizon, DefaultHorizon)
	def(&o.SweepDelay, DefaultSweepDelay)
	def(&o.IndexKeep, DefaultIndexKeep)
	def(&o.Retention, DefaultRetention)
	def(&o.InspectInterval, DefaultInspectInterval)
	if o.MaxLoaded == 0 {
		o.MaxLoaded = DefaultMaxLoaded
	}
	if o.MaxInflight == 0 {
		o.MaxInflight = DefaultMaxInflight
	}
}

func (o *Options) setDefaults() error {
	o.setDurations()
	switch {
	case o.Store == nil || o.Time == nil:
		return badConfig("scheduler needs a store and a time source")
	case o.Node == "":
		return badConfig("scheduler needs a node name")
	}
	return o.check(o.Store.Geometry())
}

func badConfig(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeConfig, format, args...)
}

// Validate reports durations that are out of range or contradict each other, as an
// error of schemas.CodeConfig. It needs neither a store nor a time source.
func (o Options) Validate(g schemas.Geometry) error {
	o.setDurations()
	return o.check(g)
}

func (o *Options) check(g schemas.Geometry) error {
	bad := badConfig
	switch {
	case o.Lease < minLease || o.Lease > maxLease:
		return bad("lease is %s; it must be %s to %s", o.Lease, minLease, maxLease)
	case o.Tick < 10*time.Millisecond || o.Tick > o.Lease/3:
		return bad("tick is %s; it must be 10ms to a third of the lease (%s)", o.Tick, o.Lease)
	case o.Horizon < g.SlotWidth || o.Horizon > maxHorizon:
		return bad("horizon is %s; it must be %s (a slot) to %s", o.Horizon, g.SlotWidth, maxHorizon)
	case o.SweepDelay < time.Second:
		return bad("sweep delay is %s; it must be 1s or more", o.SweepDelay)
	case o.IndexKeep < 2*(o.SweepDelay+time.Minute):
		return bad("index_keep is %s; it must be twice the sweep delay (%s) and two minutes, or the sweeper finds nothing", o.IndexKeep, o.SweepDelay)
	case o.MaxLoaded < 1000 || o.MaxInflight < 1:
		return bad("max loaded is %d and max inflight %d; they must be at least 1000 and 1", o.MaxLoaded, o.MaxInflight)
	}
	return nil
}
