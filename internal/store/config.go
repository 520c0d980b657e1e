package store

import (
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Config is the configuration of a Store. A zero field has its default.
type Config struct {
	// Geometry is fixed when the store is made. The zero value stands for the recorded
	// geometry, or for schemas.DefaultGeometry in a new store.
	Geometry schemas.Geometry
	// Node names this process in its presence key: 1 to 64 letters, digits, '-' or '_',
	// unique in the cluster. Required.
	Node string
	// Replicas is the number of replicas of every stream: 1, 3 or 5; default 1. Validate also
	// accepts 2 and 4, which JetStream allows, but which survive no more failures.
	Replicas int
	// Retention is the TTL of final records, at least 1 s; default 1 h.
	Retention time.Duration
	// IndexKeep is how long an index entry stays after its tick is due; default 30 min. An
	// entry takes as much memory of the server as a record. After an outage longer than half
	// of IndexKeep, owners read every record of their shards once; see ScanQueued.
	IndexKeep time.Duration
	// Timeout bounds every request to JetStream, at least 10 ms; default 5 s.
	Timeout time.Duration
	// DirectGets, if not nil, is a second connection to NATS for direct gets; see jet.Options. It stays the caller's.
	// With one connection, a read that waits for the stream of one shard delays the timers of all shards.
	DirectGets *jet.Conn
	// ReadyWithin bounds the time for which Open waits for JetStream; default 1 min.
	ReadyWithin time.Duration
	// Window bounds the writes that wait for their acknowledgements; default 16,384.
	Window int
	// GroupCommit lets the store commit writes in atomic batches while a stream is busy. It
	// is for servers that sync every write; without syncs, batches cost more than single
	// writes. It has no effect before nats-server 2.12.
	GroupCommit bool

	// FiredMaxAge, DeadMaxAge and RejectedMaxAge are the times after which JetStream removes
	// an event from TIMERS_FIRED (default 24 h), a dead letter (default 30 days) and a
	// rejected add (default 7 days). None may be shorter than DedupWindow.
	FiredMaxAge    time.Duration
	DeadMaxAge     time.Duration
	RejectedMaxAge time.Duration
	// FiredMaxPerService is the number of events of one service that TIMERS_FIRED keeps, at
	// least 1,000. When a service exceeds it, the stream drops the oldest events of that
	// service only. With 0 the number follows from the stream's bytes; see perService.
	FiredMaxPerService int
	// DedupWindow is how long a stream remembers the message id of an event; default 2 min,
	// or three quarters of Retention if that is shorter. It must not be longer than
	// Retention: once a record has expired, the same add makes a new timer with the same id,
	// and the stream would drop its event as a duplicate.
	DedupWindow time.Duration
	// ServiceGrace is the time after a service was put to rest in which a publisher that saw
	// it awake before may still store an event; default 2 min. It must be the same on all
	// nodes of a store.
	ServiceGrace time.Duration
	// MaxServices bounds the services with callbacks, 1 to 100,000; default 20,000. Beyond
	// it, an add that names a new service is rejected.
	MaxServices int

	// The byte limits of the streams, and of the bucket of one shard. 0 stands for the default
	// (streamconfig.go), which fitDefaults reduces on a server with less storage.
	AddMaxBytes, FiredMaxBytes, RetryMaxBytes, DeadMaxBytes, RejectedMaxBytes, ShardMaxBytes int64
	// Tenants lets TIMERS_ADD store the adds of tenants. A store that has stored them once goes
	// on, and older versions refuse to open it.
	Tenants bool
	// TenantFired has, by their names, the accounts of the tenants whose fired events
	// TIMERS_TENANT_FIRED stores as well. Without any, Open does not make that stream.
	TenantFired map[string]string
	// MaxPayload bounds one message of any stream, headers and data, in bytes; default
	// 1 MiB. An event may have schemas.PayloadReserve bytes less.
	MaxPayload int

	// Development makes a development store, whose clock can be moved, or opens one. Open refuses
	// a development store without it, and any other store with it.
	Development bool
	// Moved maps a time of the stream leader's clock to the moved time of a development store;
	// nil in all others.
	Moved func(time.Time) time.Time

	// Level is the FormatLevel that this process reads; default NewestLevel. Tests set it
	// to run as an older or newer build.
	Level FormatLevel
}

// Defaults and bounds of Config. The default byte limits are in streamconfig.go.
const (
	DefaultRetention   = time.Hour
	DefaultIndexKeep   = 30 * time.Minute
	DefaultTimeout     = 5 * time.Second
	DefaultReadyWithin = time.Minute
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
	// DefaultServiceGrace is far longer than a publish takes. A Waker trusts for half of it
	// that a feed is awake.
	DefaultServiceGrace = 2 * time.Minute
	DefaultMaxPayload   = schemas.DefaultLimitMessage
	minRetention        = time.Second
)

// DedupWindowFor returns the default of Config.DedupWindow for a retention.
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
	def(&c.ReadyWithin, DefaultReadyWithin)
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
