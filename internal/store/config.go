package store

import (
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Config says how the store is laid out and bounded. A zero field means its default.
type Config struct {
	// Geometry is fixed at the first start; its zero value takes what is recorded,
	// or the defaults where nothing is.
	Geometry schemas.Geometry
	// Node names this process in presence keys.
	Node string
	// Replicas of every stream, 1 to 5; default 1.
	Replicas int
	// Retention is the TTL of final records; default 24 h.
	Retention time.Duration
	// IndexKeep is how long an index entry outlives its tick; default 30 min.
	// Each takes as much memory of the server as a record; with fewer, an outage of
	// more than half of it makes every record be read once.
	IndexKeep time.Duration
	// Timeout bounds every call to JetStream; default 5 s.
	Timeout time.Duration
	// Window bounds the publishes in flight; default 16,384.
	Window int
	// GroupCommit gathers writes into atomic batches while a stream is busy: for a
	// server that syncs every write. Where writes are not synced, batches are
	// dearer than single writes. It needs nats-server 2.12.
	GroupCommit bool

	FiredMaxAge time.Duration // default 24 h
	DeadMaxAge  time.Duration // default 30 days
	// RejectedMaxAge is how long rejected adds are kept; default 7 days.
	RejectedMaxAge time.Duration
	// FiredMaxPerService is how many events of one service TIMERS_FIRED keeps. Beyond it
	// the service's own oldest events leave; other services keep theirs. 0 takes a share
	// of the stream's bytes; see perService.
	FiredMaxPerService int
	// DedupWindow is how long the streams know an event's id; default 2 min, or
	// three quarters of Retention if that is shorter. It must not outlast
	// Retention: a timer that is added again once its record has expired is
	// another one, of the same id, and has to fire.
	DedupWindow time.Duration
	// ServiceGrace bounds how long after a service went to rest an event may still be
	// stored by a publisher that saw the service awake; default 2 min. It must be the same
	// on all nodes of a store.
	ServiceGrace time.Duration
	// MaxServices bounds the services with callbacks. An add that names another service
	// is refused. Default 20,000.
	MaxServices int

	// Bytes of each stream, and of each shard's bucket; see the defaults.
	AddMaxBytes, FiredMaxBytes, RetryMaxBytes, DeadMaxBytes, RejectedMaxBytes, ShardMaxBytes int64
	// MaxPayload bounds one message of any stream, headers and data, in bytes; default
	// 1 MiB. An event may have schemas.PayloadReserve less.
	MaxPayload int

	// Level is the FormatLevel that this process reads; default NewestLevel. Tests set it
	// to run as an older or newer build.
	Level FormatLevel
}

// Defaults of Config. A byte limit is not a reservation of disk, but JetStream
// counts it against the server's and the account's: together they stay below
// half of what the server has (see fitBytes).
const (
	DefaultRetention   = 24 * time.Hour
	DefaultIndexKeep   = 30 * time.Minute
	DefaultTimeout     = 5 * time.Second
	DefaultWindow      = 16 << 10
	DefaultFiredMaxAge = 24 * time.Hour
	DefaultDeadMaxAge  = 30 * 24 * time.Hour
	// DefaultRejectedMaxAge leaves a week to notice a mistake.
	DefaultRejectedMaxAge = 7 * 24 * time.Hour
	DefaultDedupWindow    = 2 * time.Minute
	// DefaultMaxServices bounds the server's memory for resting services: 1 to 2 kB each.
	// It must fit into servicesMaxBytes.
	DefaultMaxServices = 20_000
	// maxServices is the largest number that servicesMaxBytes has room for.
	maxServices = 100_000
	// DefaultServiceGrace is far longer than a publish takes.
	DefaultServiceGrace = 2 * time.Minute
	DefaultMaxPayload   = schemas.DefaultLimitMessage
	minRetention        = time.Second
)

// DedupWindowFor is the default of Config.DedupWindow.
func DedupWindowFor(retention time.Duration) time.Duration {
	return min(DefaultDedupWindow, retention*3/4)
}

func (c *Config) setDefaults() error {
	def := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	def(&c.Retention, DefaultRetention)
	def(&c.IndexKeep, DefaultIndexKeep)
	def(&c.Timeout, DefaultTimeout)
	def(&c.FiredMaxAge, DefaultFiredMaxAge)
	def(&c.DeadMaxAge, DefaultDeadMaxAge)
	def(&c.RejectedMaxAge, DefaultRejectedMaxAge)
	def(&c.DedupWindow, DedupWindowFor(c.Retention))
	def(&c.ServiceGrace, DefaultServiceGrace)
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Level == LevelFirst {
		c.Level = NewestLevel
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.MaxServices == 0 {
		c.MaxServices = DefaultMaxServices
	}
	if c.MaxPayload == 0 {
		c.MaxPayload = DefaultMaxPayload
	}
	bad := func(format string, args ...any) error { return schemas.Errorf(schemas.CodeConfig, format, args...) }
	switch {
	case c.Node == "":
		return bad("store needs a node name")
	case !schemas.ValidService(c.Node):
		return bad("node name %.80q must be 1 to %d letters, digits, '-' or '_'", c.Node, schemas.MaxServiceLength)
	case c.Replicas < 1 || c.Replicas > 5:
		return bad("replicas is %d; it must be 1, 3 or 5", c.Replicas)
	case c.Retention < minRetention:
		return bad("retention is %s; it must be %s or more", c.Retention, minRetention)
	case c.Timeout < 10*time.Millisecond:
		return bad("timeout is %s; it must be 10ms or more", c.Timeout)
	case c.Window < 1:
		return bad("window is %d; it must be 1 or more", c.Window)
	case c.FiredMaxPerService < 0 || c.FiredMaxPerService > 0 && c.FiredMaxPerService < leastPerService:
		return bad("fired-max-per-service is %d; it must be %d or more, or 0 for a share of the stream", c.FiredMaxPerService, leastPerService)
	case c.MaxServices < 1 || c.MaxServices > maxServices:
		return bad("max-services is %d; it must be 1 to %d", c.MaxServices, maxServices)
	case c.DedupWindow > c.Retention:
		return bad("dedup window (%s) is longer than retention (%s): a timer that is added again after its record has expired would not fire", c.DedupWindow, c.Retention)
	case c.DedupWindow > c.FiredMaxAge:
		return bad("fired-max-age is %s; it must be at least the dedup window, %s", c.FiredMaxAge, c.DedupWindow)
	case c.DedupWindow > c.DeadMaxAge:
		return bad("dead-max-age is %s; it must be at least the dedup window, %s", c.DeadMaxAge, c.DedupWindow)
	case c.DedupWindow > c.RejectedMaxAge:
		return bad("rejected-max-age is %s; it must be at least the dedup window, %s", c.RejectedMaxAge, c.DedupWindow)
	}
	return nil
}

// Validate returns an error of schemas.CodeConfig for settings that are out of range or
// contradict each other.
func (c Config) Validate() error { return c.setDefaults() }
