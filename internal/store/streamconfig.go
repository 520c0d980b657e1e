package store

import (
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Default byte limits. JetStream counts them against the limits of the server and of the
// account when a stream is made. If these have less room, fitDefaults divides all defaults
// by the same number.
const (
	gib                  = 1 << 30
	defaultAddMaxBytes   = 8 * gib
	defaultFiredMaxBytes = 16 * gib
	defaultRetryMaxBytes = 4 * gib
	defaultDeadMaxBytes  = 4 * gib
	// Rejected adds are only read by people, and need less space than dead letters.
	defaultRejectedMaxBytes = 1 * gib
	// Overdue events are alarms: few, and read at once.
	defaultOverdueMaxBytes = gib / 2
	overdueMaxAge          = 7 * 24 * time.Hour
	// Only a store with Config.TenantFired has this stream.
	defaultTenantFiredMaxBytes = 4 * gib
	// The state of a flow key takes about 400 bytes: room for 300,000 keys.
	defaultFlowsMaxBytes = gib / 8
	defaultShardsBytes   = 32 * gib // all shards together
	clockMaxBytes        = 16 << 20
	servicesMaxBytes     = 16 << 20
	defaultsTotal        = defaultAddMaxBytes + defaultFiredMaxBytes + defaultRetryMaxBytes + defaultDeadMaxBytes + defaultRejectedMaxBytes + defaultOverdueMaxBytes + defaultFlowsMaxBytes + defaultShardsBytes
	// One part in spareParts of the total stays free when defaults are fitted: a server
	// with room for exactly all streams refuses its last replica when it starts again
	// (work-around 11).
	spareParts = 8
	// leastTotal is the storage below which Belfry does not start.
	leastTotal = 64 << 20
	// leastBytes is the least that a stream's default limit is lowered to.
	leastBytes = 1 << 20
	probeName  = "BELFRY_PROBE"
	// addDedupWindow is the time in which TIMERS_ADD acknowledges a repeated Nats-Msg-Id without
	// storing the message. It is as short as nats-server allows, because the router recognises a
	// repeated add by its source and id. With a longer window, a client that guesses the
	// message ids of another could use them first: the other's adds would be acknowledged and
	// lost.
	addDedupWindow = 100 * time.Millisecond
	// manyConsumers is the limit of consumers of TIMERS_FIRED and TIMERS_RETRY. It is far above
	// maxServices. A stream that sets no limit may get the server's default, 1,000
	// (work-around 12).
	manyConsumers = 1_000_000
)

// streamConfigs has the configurations of all streams and buckets of a store.
type streamConfigs struct {
	cfg    *Config
	shards int
	// atomic is true if the server knows atomic batches.
	atomic bool
	// consumers bounds the consumers of TIMERS_FIRED and of TIMERS_RETRY; 0 for the server's
	// default.
	consumers int
	// shrink divides the default byte limits; see fitDefaults.
	shrink int64
}

// base returns the configurations of the buckets that are made before the geometry is
// known.
func (c *streamConfigs) base() []jet.StreamConfig {
	return []jet.StreamConfig{c.clock(), c.services(), c.calendars()}
}

// rest returns the configurations of all other streams and buckets. The stream of dead
// letters comes before that of rejections; see sharesRejected.
func (c *streamConfigs) rest() []jet.StreamConfig {
	all := []jet.StreamConfig{c.add(), c.fired(), c.retry(), c.dead(), c.rejected(), c.overdue(), c.flows()}
	if len(c.cfg.TenantFired) > 0 {
		all = append(all, c.tenantFired())
	}
	for n := range c.shards {
		all = append(all, c.shard(n))
	}
	return all
}

// StreamCount returns the number of streams and buckets of a store; tenantFired is true if Config.TenantFired has tenants.
func StreamCount(shards int, tenantFired bool) int {
	c := streamConfigs{cfg: &Config{}, shards: shards, shrink: 1}
	if tenantFired {
		c.cfg.TenantFired = map[string]string{"": ""}
	}
	return len(c.base()) + len(c.rest())
}

// stream returns a configuration with the settings that all streams share.
func (c *streamConfigs) stream(name, description string, maxBytes int64, subjects ...string) jet.StreamConfig {
	return jet.StreamConfig{
		Name: name, Description: description, Subjects: subjects, Storage: jet.FileStorage,
		Replicas: c.cfg.Replicas, MaxBytes: maxBytes, MaxMsgSize: int32(c.cfg.MaxPayload), AllowDirect: true,
		AllowAtomicPublish: c.atomic,
	}
}

// orDefault returns a configured limit, or for 0 the default, shrunk to fit the server.
func (c *streamConfigs) orDefault(n, def int64) int64 {
	if n == 0 {
		return def / c.shrink
	}
	return n
}

func (c *streamConfigs) add() jet.StreamConfig {
	sc := c.stream(schemas.StreamAdd, "Belfry: adds waiting for a router", c.orDefault(c.cfg.AddMaxBytes, defaultAddMaxBytes), schemas.SubjectAdd)
	if c.cfg.Tenants {
		sc.Subjects = append(sc.Subjects, schemas.SubjectTenantAdd)
	}
	sc.Retention, sc.Discard, sc.Duplicates = jet.WorkQueuePolicy, jet.DiscardNew, addDedupWindow
	return sc
}

func (c *streamConfigs) fired() jet.StreamConfig {
	sc := c.stream(schemas.StreamFired, "Belfry: due events", c.orDefault(c.cfg.FiredMaxBytes, defaultFiredMaxBytes), schemas.SubjectFiredPrefix+"*")
	sc.MaxAge, sc.Duplicates, sc.Discard = c.cfg.FiredMaxAge, c.cfg.DedupWindow, jet.DiscardOld
	sc.MaxConsumers = c.consumers
	sc.MaxMsgsPerSubject = c.perService(sc.MaxBytes)
	return sc
}

// defaultTotal returns the sum of the default byte limits, which fitDefaults divides.
func (c *streamConfigs) defaultTotal() int64 {
	if len(c.cfg.TenantFired) > 0 {
		return defaultsTotal + defaultTenantFiredMaxBytes
	}
	return defaultsTotal
}

// tenantFired is the stream of the copies that tenants import; see tenantfired.go.
func (c *streamConfigs) tenantFired() jet.StreamConfig {
	sc := c.stream(schemas.StreamTenantFired, "Belfry: due events of tenants, for their accounts", defaultTenantFiredMaxBytes/c.shrink, schemas.SubjectTenantFired)
	sc.MaxAge, sc.Duplicates, sc.Discard = c.cfg.FiredMaxAge, c.cfg.DedupWindow, jet.DiscardOld
	sc.MaxConsumers = c.consumers
	return sc
}

// Bounds of the events of one service in TIMERS_FIRED.
const (
	// perServiceShare: one service may fill one eighth of the stream.
	perServiceShare = 8
	// perServiceEvent is the assumed size of an event in bytes. JetStream bounds the events of
	// a subject by their number, not by their bytes.
	perServiceEvent = 2 << 10
	// leastPerService is the smallest bound. A service must not publish more events between a
	// publish and the dedup check for it, which searches the stream.
	leastPerService = 1000
)

// perService returns the greatest number of events of one service that TIMERS_FIRED keeps
// if the stream has maxBytes.
func (c *streamConfigs) perService(maxBytes int64) int64 {
	if c.cfg.FiredMaxPerService > 0 {
		return int64(c.cfg.FiredMaxPerService)
	}
	return max(maxBytes/perServiceShare/perServiceEvent, leastPerService)
}

func (c *streamConfigs) retry() jet.StreamConfig {
	sc := c.stream(schemas.StreamRetry, "Belfry: retries for functions", c.orDefault(c.cfg.RetryMaxBytes, defaultRetryMaxBytes), schemas.SubjectRetryPrefix+"*")
	sc.Retention, sc.Discard, sc.Duplicates = jet.WorkQueuePolicy, jet.DiscardNew, c.cfg.DedupWindow
	sc.MaxConsumers = c.consumers
	return sc
}

func (c *streamConfigs) overdue() jet.StreamConfig {
	sc := c.stream(schemas.StreamOverdue, "Belfry: schedules without a success in time", defaultOverdueMaxBytes/c.shrink, schemas.SubjectOverduePrefix+"*")
	sc.MaxAge, sc.Duplicates, sc.Discard = overdueMaxAge, c.cfg.DedupWindow, jet.DiscardOld
	return sc
}

func (c *streamConfigs) dead() jet.StreamConfig {
	sc := c.stream(schemas.StreamDead, "Belfry: dead letters", c.orDefault(c.cfg.DeadMaxBytes, defaultDeadMaxBytes), schemas.SubjectDeadPrefix+"*")
	sc.MaxAge, sc.Duplicates, sc.Discard = c.cfg.DeadMaxAge, c.cfg.DedupWindow, jet.DiscardOld
	return sc
}

func (c *streamConfigs) rejected() jet.StreamConfig {
	sc := c.stream(schemas.StreamRejected, "Belfry: rejected adds", c.orDefault(c.cfg.RejectedMaxBytes, defaultRejectedMaxBytes), schemas.SubjectRejected)
	sc.MaxAge, sc.Duplicates, sc.Discard = c.cfg.RejectedMaxAge, c.cfg.DedupWindow, jet.DiscardOld
	return sc
}

// bucket is a KV bucket as nats.go would make it, with limits and TTLs.
func (c *streamConfigs) bucket(name, description string, maxBytes int64) jet.StreamConfig {
	sc := c.stream("KV_"+name, description, maxBytes, "$KV."+name+".>")
	sc.MaxMsgsPerSubject, sc.Discard = 1, jet.DiscardNew
	sc.AllowRollup, sc.DenyDelete, sc.AllowMsgTTL = true, true, true
	sc.Duplicates = min(c.cfg.DedupWindow, 2*time.Minute)
	return sc
}

func (c *streamConfigs) clock() jet.StreamConfig {
	return c.bucket(schemas.BucketClock, "Belfry: clocks, nodes, layout", clockMaxBytes)
}

func (c *streamConfigs) services() jet.StreamConfig {
	return c.bucket(schemas.BucketServices, "Belfry: services that have callbacks", servicesMaxBytes)
}

func (c *streamConfigs) calendars() jet.StreamConfig {
	sc := c.bucket(schemas.BucketCalendars, "Belfry: calendars of excluded dates", calendarsMaxBytes)
	sc.MaxMsgsPerSubject = calendarHistory
	return sc
}

func (c *streamConfigs) flows() jet.StreamConfig {
	return c.bucket(schemas.BucketFlows, "Belfry: flow limits and the states of their keys", defaultFlowsMaxBytes/c.shrink)
}

func (c *streamConfigs) shard(n int) jet.StreamConfig {
	sc := c.bucket(schemas.BucketTimers(n), "Belfry: timers of one shard", c.orDefault(c.cfg.ShardMaxBytes, defaultShardsBytes/int64(c.shards)))
	// Superseded revisions are removed one by one, never by the limit.
	sc.MaxMsgsPerSubject, sc.DenyDelete = history, false
	return sc
}

// explicitBytes reports whether the stream's byte limit was configured, rather
// than a default that was fitted to the server when the stream was made.
func (c *streamConfigs) explicitBytes(name string) bool {
	switch name {
	case schemas.StreamAdd:
		return c.cfg.AddMaxBytes != 0
	case schemas.StreamFired:
		return c.cfg.FiredMaxBytes != 0
	case schemas.StreamRetry:
		return c.cfg.RetryMaxBytes != 0
	case schemas.StreamDead:
		return c.cfg.DeadMaxBytes != 0
	case schemas.StreamRejected:
		return c.cfg.RejectedMaxBytes != 0
	case clockStream, servicesStream, calendarsStream, flowsStream, schemas.StreamOverdue, schemas.StreamTenantFired:
		return false
	}
	return c.cfg.ShardMaxBytes != 0
}

// tenantSubjects reports whether two lists of subjects of TIMERS_ADD differ in the adds of
// tenants alone.
func tenantSubjects(have, want jet.StreamConfig) bool {
	return want.Name == schemas.StreamAdd && slices.Contains(have.Subjects, schemas.SubjectAdd) && !slices.ContainsFunc(have.Subjects, func(s string) bool {
		return s != schemas.SubjectAdd && s != schemas.SubjectTenantAdd
	})
}

// sharesRejected reports whether a stream of dead letters, made by an earlier build, still
// captures rejected adds. ensure narrows its subjects before it makes TIMERS_REJECTED, since
// two streams must not capture one subject.
func sharesRejected(have, want jet.StreamConfig) bool {
	return want.Name == schemas.StreamDead && slices.Contains(have.Subjects, schemas.SubjectRejected)
}
