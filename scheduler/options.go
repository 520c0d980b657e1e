package scheduler

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/schemas"
)

// Time is the cluster's time; *clustertime.Service implements it.
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
	// Node is the name of this process in the clocks. Running processes must have different
	// names.
	Node string
	// NodeExclusive is true if no earlier process with this name can still run, because this
	// process holds the lock of the data folder. The node then takes shards of its own name
	// without waiting for the lease.
	NodeExclusive bool
	// Lease is how long an owner keeps a shard without a renewal; default 3 s, 300 ms to 1
	// min. After a crash the shard's timers fire late by up to a lease.
	Lease time.Duration
	// Heartbeat is the interval at which an owner renews its lease; default 1 s, at most
	// Lease/3.
	Heartbeat time.Duration
	// Horizon is the read-ahead: timers due within Horizon are in memory; default 5 s, from
	// one slot to 10 min.
	Horizon time.Duration
	// SweepDelay is the sweeper's distance behind the low watermark; default 10 min, at least
	// 1 s.
	SweepDelay time.Duration
	// IndexKeep is the life of index entries that the store writes; default 30 min. It must be
	// at least twice SweepDelay plus 2 min. Other nodes may write entries with a shorter
	// life, but at least DefaultIndexKeep. After an outage of more than half of
	// DefaultIndexKeep, the owner therefore reads each record once.
	IndexKeep time.Duration
	// Retention is the TTL of final records; default 1 h.
	Retention time.Duration
	// InspectInterval is the time between two inspections of a shard for lost messages and
	// damaged records; default 30 s. Each inspection requests the stream's state.
	InspectInterval time.Duration
	// MaxLoaded bounds the timers of one shard in memory; default 100,000, at least 1,000.
	MaxLoaded int
	// MaxInflight bounds the writes in flight of one shard; default 2,048.
	MaxInflight int
	// Spare returns the number of cores that are not used, and false if it is not known. While few are spare, timers fire
	// up to a millisecond later, which saves CPU time. Only one goroutine calls it at a time. nil: not known.
	Spare func() (cores float64, ok bool)

	// Tracing makes the spans of firings; nil for none.
	Tracing    *tracing.Tracer
	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// Defaults of Options.
const (
	DefaultLease      = 3 * time.Second
	DefaultHeartbeat  = time.Second
	DefaultHorizon    = 5 * time.Second
	DefaultSweepDelay = 10 * time.Minute
	DefaultIndexKeep  = 30 * time.Minute
	DefaultRetention  = time.Hour
	// DefaultInspectInterval bounds the time until a loss of messages is found.
	DefaultInspectInterval = 30 * time.Second
	DefaultMaxLoaded       = 100_000
	DefaultMaxInflight     = 2048
	// firstInflight is CoreConfig.FirstInflight. Four shards then claim 64 timers of a burst, which
	// takes about a millisecond, before their first events.
	firstInflight = 16
	// firstFireAtOnce and fireAtOnce are CoreConfig.FirstFireAtOnce and FireAtOnce: some 50 µs and 2 ms of
	// CPU.
	firstFireAtOnce = 128
	fireAtOnce      = 4096
)

// Bounds of Options.
const (
	minLease = 300 * time.Millisecond
	// maxLease must not exceed the TTL of a presence key: the other nodes no longer know a
	// node whose key has expired.
	maxLease = time.Minute
	// maxHorizon limits the timers in memory to a small part of the pending timers. It must
	// stay below the life of index entries.
	maxHorizon = 10 * time.Minute
)

func (o *Options) setDurations() {
	def := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	def(&o.Lease, DefaultLease)
	def(&o.Heartbeat, min(DefaultHeartbeat, o.Lease/3))
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
	case o.Heartbeat < 10*time.Millisecond || o.Heartbeat > o.Lease/3:
		return bad("heartbeat interval is %s; it must be 10ms to a third of the lease (%s)", o.Heartbeat, o.Lease)
	case o.Horizon < g.SlotWidth || o.Horizon > maxHorizon:
		return bad("horizon is %s; it must be %s (a slot) to %s", o.Horizon, g.SlotWidth, maxHorizon)
	case o.SweepDelay < time.Second:
		return bad("sweep delay is %s; it must be 1s or more", o.SweepDelay)
	case o.IndexKeep < 2*(o.SweepDelay+time.Minute):
		return bad("index_keep is %s; it must be at least twice the sweep delay (%s) plus 2m, or index entries expire before the sweeper reads them", o.IndexKeep, o.SweepDelay)
	case o.MaxLoaded < 1000 || o.MaxInflight < 1:
		return bad("max loaded is %d and max inflight %d; they must be at least 1000 and 1", o.MaxLoaded, o.MaxInflight)
	}
	return nil
}
