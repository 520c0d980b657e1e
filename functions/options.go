package functions

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Store is what functions needs of the store.
type Store interface {
	// Get reads a record from the leader. Errors: schemas.ErrNotFound, schemas.ErrUnavailable.
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	// Update replaces a record if its revision is still w.Rev.
	// Errors: store.ErrRevision, schemas.ErrUnavailable, schemas.ErrStoreFull.
	Update(ctx context.Context, w store.Write) (uint64, error)
	// PublishLetter publishes a dead letter in a form that fits a message, and waits
	// for the acknowledgement. Errors: schemas.ErrUnavailable, schemas.ErrStoreFull.
	PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error)
	// SealCallback and OpenCallback are how a callback travels outside its event: it
	// stays in the event if SealCallback returns "".
	SealCallback(id schemas.TimerID, callback string) string
	OpenCallback(id schemas.TimerID, sealed string) (string, error)
	// ServiceConsumer returns the feed's durable consumer, made behind floor if absent.
	ServiceConsumer(ctx context.Context, f store.Feed, floor uint64, maxAckPending int, ackWait time.Duration) (jetstream.Consumer, error)
	// WatchServices yields every feed that is awake, and every change, until ctx is done.
	WatchServices(ctx context.Context) (<-chan store.ServiceChange, error)
	Services
}

// Services is how the feeds of services are woken and put to rest; see package store for
// what each call does.
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
	// Conn makes the NATS callbacks; required.
	Conn *nats.Conn
	// Now is the cluster's time in Unix milliseconds; required.
	Now func() int64
	Log zerolog.Logger
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer

	// Concurrency is how many callbacks of one service run at once; default 64.
	Concurrency int
	// Total is how many callbacks run at once in this process; default 512. It
	// is exceeded only to give each service one place when there are more
	// services than places.
	Total int
	// AckWait is after how long a delivery whose process died comes again;
	// default 15 s, at least 1 s.
	AckWait time.Duration
	// MaxAckPending bounds the deliveries of a service that are being called or
	// wait for a short retry; default 10,000.
	MaxAckPending int
	// ShortDelay is up to which delay a retry waits in its consumer; a longer
	// one waits in the wheel. Default 30 s.
	ShortDelay time.Duration
	// Retention is how long the record of a concluded timer is kept; default 24 h.
	Retention time.Duration
	// MaxNotNow is how often a run's "not now" answers are not counted as
	// attempts; default 100, negative for never.
	MaxNotNow int
	// ServiceIdle is after how long without an event a service comes to rest: it loses
	// its consumers until its next one. Default 30 s, at least 100 ms, negative for never.
	ServiceIdle time.Duration
	// StopGrace is how long Stop lets running callbacks finish; default 8 s.
	StopGrace time.Duration

	// Settings can be replaced later; see Reconfigure.
	Settings

	// AllowLoopback, AllowPrivate and AllowPrefixes open the guard on HTTP
	// callbacks; see httpcall.Guard.
	AllowLoopback bool
	AllowPrivate  bool
	AllowPrefixes []netip.Prefix
	// ReadLimit is how much of an HTTP answer is read, in bytes; default 64 KiB.
	ReadLimit int64
	// TLS adds roots or a client certificate to HTTP callbacks; nil for the system's.
	TLS *tls.Config
	// Resolver resolves the names of HTTP callbacks; nil for the system's.
	Resolver *net.Resolver
	// UserAgent is sent with HTTP callbacks; default "belfry".
	UserAgent string
}

// outcomesPerPlace is how many outcomes may be written without a place, for each
// place that there is.
const outcomesPerPlace = 4

// Defaults.
const (
	DefaultConcurrency   = 64
	DefaultTotal         = 512
	DefaultAckWait       = 15 * time.Second
	DefaultMaxAckPending = 10_000
	DefaultShortDelay    = 30 * time.Second
	DefaultRetention     = 24 * time.Hour
	DefaultMaxNotNow     = 100
	DefaultStopGrace     = 8 * time.Second
	DefaultServiceIdle   = 30 * time.Second
)

// Bounds that are not settings.
const (
	minAckWait = time.Second
	// minServiceIdle keeps a service with a steady flow of events awake.
	minServiceIdle = 100 * time.Millisecond
	// fetchExpiry is how long one pull waits for messages.
	fetchExpiry = 30 * time.Second
	// fetchHeartbeat finds a pull that the server has forgotten.
	fetchHeartbeat = 5 * time.Second
	// linger lets places of a busy service add up before the next pull.
	linger = time.Millisecond
	// stopWrites is what Stop grants, beyond StopGrace, to write down the
	// outcomes of callbacks that finished in time.
	stopWrites = time.Second
	// Pauses between attempts to reach the store.
	minPause = 50 * time.Millisecond
	maxPause = 2 * time.Second
	// maxTimeout bounds a callback whose event names no time-out that can be read.
	maxTimeout = 15 * time.Minute
	// doubtAfter: an event published this much later than its claim was
	// published again after an outage; the record is read before it is called.
	doubtAfter = 5 * time.Second
)

func (o *Options) fill() error {
	switch {
	case o.Store == nil, o.Conn == nil, o.Now == nil:
		return schemas.Errorf(schemas.CodeConfig, "functions: Store, Conn and Now are required")
	case o.AckWait != 0 && o.AckWait < minAckWait:
		return schemas.Errorf(schemas.CodeConfig, "functions: ack wait is %s; it must be %s or more", o.AckWait, minAckWait)
	case o.Retention != 0 && o.Retention < time.Second:
		return schemas.Errorf(schemas.CodeConfig, "functions: retention is %s; it must be 1s or more", o.Retention)
	case o.Concurrency < 0, o.Total < 0, o.MaxAckPending < 0, o.ShortDelay < 0, o.StopGrace < 0:
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
	// One service cannot have more than all together, and has what it may call in hand.
	o.Concurrency = min(o.Concurrency, o.Total)
	o.MaxAckPending = max(o.MaxAckPending, o.Concurrency)
	orDur(&o.AckWait, DefaultAckWait)
	orDur(&o.ShortDelay, DefaultShortDelay)
	orDur(&o.Retention, DefaultRetention)
	orDur(&o.StopGrace, DefaultStopGrace)
	orDur(&o.ServiceIdle, DefaultServiceIdle)
	if o.ServiceIdle > 0 && o.ServiceIdle < minServiceIdle {
		return schemas.Errorf(schemas.CodeConfig, "service-idle is %s; it must be %s or more, or negative for never", o.ServiceIdle, minServiceIdle)
	}
	return nil
}
