package functions

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/schemas"
)

// Store has the calls that functions make to the store, by concern.
type Store interface {
	Timers
	Feeds
	Services
	Flows
	Orders
}

// Timers has the store's calls for the record, the dead letter and the callback of a timer.
type Timers interface {
	// Get reads a record from the leader. Errors: schemas.ErrNotFound, schemas.ErrUnavailable.
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	// GetAsOf reads a record as of a revision or later. Errors: those of Get, and store.ErrBehind.
	GetAsOf(ctx context.Context, id schemas.TimerID, rev uint64) (store.Timer, error)
	// Update replaces a record if its revision is still w.Rev.
	// Errors: store.ErrRevision, schemas.ErrUnavailable, schemas.ErrStoreFull.
	Update(ctx context.Context, w store.Write) (uint64, error)
	// PublishLetter publishes a dead letter in a form that fits a message, and waits
	// for the acknowledgement. Errors: schemas.ErrUnavailable, schemas.ErrStoreFull.
	PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error)
	// SealCallback encrypts a callback for a header; it returns "" if the callback stays in
	// the event. OpenCallback decrypts it.
	SealCallback(id schemas.TimerID, callback string) string
	OpenCallback(id schemas.TimerID, sealed string) (string, error)
}

// Feeds has the store's calls that read the events of services.
type Feeds interface {
	// ReadFeed reads the events of a feed. Error: schemas.ErrUnavailable.
	ReadFeed(ctx context.Context, f store.Feed, o store.FeedOptions) (*store.FeedReader, error)
	// WaitConnected waits until the connection is up. Errors: schemas.ErrUnavailable,
	// ctx.Err().
	WaitConnected(ctx context.Context) error
	// WatchServices sends every feed that is awake, then every change, until ctx is done.
	WatchServices(ctx context.Context) (<-chan store.ServiceChange, error)
}

// Services has the store's calls that wake feeds and put them to rest. A feed is the part of
// TIMERS_FIRED or TIMERS_RETRY that belongs to one service. Package store documents each
// call.
type Services interface {
	RestStore
	MayRest() bool
	ServedFeeds(ctx context.Context) ([]store.Feed, error)
	RetryBacklog(ctx context.Context) ([]string, error)
	OvertakenConsumers(ctx context.Context) ([]store.Overtaken, error)
	ServiceGrace() time.Duration
}

// Options configures Functions. The zero value of a field means its default.
type Options struct {
	Store Store // required
	// Node is the name of this process, unique in the cluster, for the slots of limits of
	// parallel calls.
	Node string
	// NATS makes the callbacks to nats: subjects; required. It must work until Stop has
	// returned.
	NATS callback.Invoker
	// Now is the cluster's time in Unix milliseconds; required.
	Now func() int64
	// SteadyFor returns the time since the cluster's clock was last stepped, or was first read.
	// Flow control decides nothing for flow.StepSettle after that; nil for a clock that is never
	// stepped.
	SteadyFor func() time.Duration
	Log       zerolog.Logger
	// Tracing makes a span of each attempt; nil for none.
	Tracing *tracing.Tracer
	// Registerer registers the metrics; nil for none.
	Registerer prometheus.Registerer

	// Concurrency bounds the callbacks of one service that run at once; default 64.
	Concurrency int
	// Total bounds the callbacks that run at once in this process; default 512. Each service
	// has at least one permit, also if there are more services than that.
	Total int
	// AckWait is the time after which the event of a process that died is redelivered; default
	// 15 s, at least 1 s.
	AckWait time.Duration
	// MaxAckPending bounds the events of a service that are being called or wait for a
	// short retry; default 10,000.
	MaxAckPending int
	// ShortDelay is the longest delay for which a retry waits in its consumer; a longer
	// retry waits in the wheel. Default 30 s.
	ShortDelay time.Duration
	// Retention is how long the record of a timer is kept after its final state; default
	// 1 h, at least 1 s.
	Retention time.Duration
	// MaxNotNow is the number of "not now" answers of a run that are not counted as
	// attempts; default 100, negative for none.
	MaxNotNow int
	// ServiceIdle is the time without an event after which a service comes to rest: it has
	// no consumers until its next event. Default 30 s, at least 100 ms, negative for never.
	ServiceIdle time.Duration
	// WebhookPermission is the duration of a permission that a target gave in a handshake; default 1 h.
	// Belfry asks again when a tenth of it is left.
	WebhookPermission time.Duration
	// StopGrace is how long Stop lets running callbacks finish; default 8 s.
	StopGrace time.Duration

	// Settings are the initial settings; Reconfigure replaces them.
	Settings

	// AllowLoopback, AllowPrivate and AllowPrefixes allow HTTP callbacks to addresses that
	// are refused otherwise; see httpcall.Guard.
	AllowLoopback bool
	AllowPrivate  bool
	AllowPrefixes []netip.Prefix
	// ReadLimit bounds the bytes of an HTTP response that are read; default 64 KiB.
	ReadLimit int64
	// TLS adds roots or a client certificate to HTTP callbacks; nil for the system's.
	TLS *tls.Config
	// Resolver resolves the names of HTTP callbacks; nil for the system's.
	Resolver *net.Resolver
	// UserAgent is sent with HTTP callbacks; default "belfry".
	UserAgent string

	claimLost time.Duration // the constant, except in tests
}

// resultsPerPermit is the number of results that may be recorded without a permit, for each
// permit of Options.Total.
const resultsPerPermit = 4

// Defaults of Options.
const (
	DefaultConcurrency   = 64
	DefaultTotal         = 512
	DefaultAckWait       = 15 * time.Second
	DefaultMaxAckPending = 10_000
	DefaultShortDelay    = 30 * time.Second
	DefaultRetention     = time.Hour
	DefaultMaxNotNow     = 100
	DefaultStopGrace     = 8 * time.Second
	DefaultServiceIdle   = 30 * time.Second
)

// Bounds that are not settings.
const (
	minAckWait = time.Second
	// minServiceIdle keeps a service with a steady flow of events awake.
	minServiceIdle = 100 * time.Millisecond
	// linger is how long a busy service waits for more permits before it requests events.
	linger = time.Millisecond
	// recordGrace is the time after StopGrace in which Stop lets the results of callbacks
	// be recorded.
	recordGrace = time.Second
	// minPause and maxPause bound the pause before a failed store call is repeated.
	minPause = 50 * time.Millisecond
	maxPause = 2 * time.Second
	// maxTimeout bounds a callback whose event has no time-out, or an invalid one.
	maxTimeout = 15 * time.Minute
	// maxClaimAge is the time from claim to publish above which the record is read before the
	// call: the event was published again after an outage, so the record may have changed.
	maxClaimAge = 5 * time.Second
)

func (o *Options) fill() error {
	switch {
	case o.Store == nil, o.NATS == nil, o.Now == nil:
		return schemas.Errorf(schemas.CodeConfig, "functions: Store, NATS and Now are required")
	case o.AckWait != 0 && o.AckWait < minAckWait:
		return schemas.Errorf(schemas.CodeConfig, "functions: ack wait is %s; it must be %s or more", o.AckWait, minAckWait)
	case o.Retention != 0 && o.Retention < time.Second:
		return schemas.Errorf(schemas.CodeConfig, "functions: retention is %s; it must be 1s or more", o.Retention)
	case o.Concurrency < 0, o.Total < 0, o.MaxAckPending < 0, o.ShortDelay < 0, o.StopGrace < 0, o.WebhookPermission < 0:
		return schemas.Errorf(schemas.CodeConfig, "functions: a limit is negative")
	}
	orInt := func(p *int, d int) {
		if *p == 0 {
			*p = d
		}
	}
	orDur := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	orInt(&o.Concurrency, DefaultConcurrency)
	orInt(&o.Total, DefaultTotal)
	orInt(&o.MaxAckPending, DefaultMaxAckPending)
	orInt(&o.MaxNotNow, DefaultMaxNotNow)
	// A service cannot use more than all permits, and needs an event for each of its own.
	o.Concurrency = min(o.Concurrency, o.Total)
	o.MaxAckPending = max(o.MaxAckPending, o.Concurrency)
	orDur(&o.AckWait, DefaultAckWait)
	orDur(&o.ShortDelay, DefaultShortDelay)
	orDur(&o.Retention, DefaultRetention)
	orDur(&o.WebhookPermission, DefaultWebhookPermission)
	orDur(&o.StopGrace, DefaultStopGrace)
	orDur(&o.claimLost, claimLost)
	orDur(&o.ServiceIdle, DefaultServiceIdle)
	if o.ServiceIdle > 0 && o.ServiceIdle < minServiceIdle {
		return schemas.Errorf(schemas.CodeConfig, "service-idle is %s; it must be %s or more, or negative for never", o.ServiceIdle, minServiceIdle)
	}
	return nil
}
