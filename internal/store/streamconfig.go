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
	// Refused adds are for people to read: they need less room than dead letters.
	defaultRejectedMaxBytes = 1 * gib
	defaultShardsBytes      = 32 * gib // all shards together
	clockMaxBytes           = 16 << 20
	servicesMaxBytes        = 16 << 20
	defaultsTotal           = defaultAddMaxBytes + defaultFiredMaxBytes + defaultRetryMaxBytes + defaultDeadMaxBytes + defaultRejectedMaxBytes + defaultShardsBytes
	// One part in spareParts of the total stays free when defaults are fitted: a server
	// with room for exactly all streams refuses its last replica when it starts again
	// (work-around 11).
	spareParts = 8
	// leastTotal is the storage below which Belfry does not start.
	leastTotal = 64 << 20
	// leastBytes is the least that a stream's default limit is lowered to.
	leastBytes = 1 << 20
	probeName  = "BELFRY_PROBE"
	// addDedupWindow is how long StreamAdd answers a repeated Nats-Msg-Id with an
	// acknowledgement and stores nothing: as short as nats-server allows. The router
	// recognises a repeated add by its source and id. A longer window lets whoever
	// guesses somebody's message ids use them first, so that adds are acknowledged and
	// lost.
	addDedupWindow = 100 * time.Millisecond
	// manyConsumers is the limit of consumers of a stream of services: more than
	// maxServices. Without a limit of its own, a stream may have the server's default,
	// 1,000 (work-around 12).
	manyConsumers = 1_000_000
)

// streamConfigs has the configurations of all streams and buckets of a store.
type streamConfigs struct {
	cfg    *Config
	shards int
	// atomic is true if the server knows atomic batches.
	atomic bool
	// consumers bounds the consumers of the streams of services; 0 for the server's default.
	consumers int
	// shrink divides the default byte limits; see fitDefaults.
	shrink int64
}

// base returns the configurations of the buckets that are made before the geometry is
// known.
func (c *streamConfigs) base() []jet.StreamConfig {
	return []jet.StreamConfig{c.clock(), c.services()}
}

// rest returns the configurations of all other streams and buckets. The stream of dead
// letters comes before that of rejections; see sharesRejected.
func (c *streamConfigs) rest() []jet.StreamConfig {
	all := []jet.StreamConfig{c.add(), c.fired(), c.retry(), c.dead(), c.rejected()}
	for n := range c.shards {
		all = append(all, c.shard(n))
	}
	return all
}

// stream returns what the configurations of all streams have in common.
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

// Bounds of the events of one service in TIMERS_FIRED. JetStream counts the messages of
// a subject and not their bytes, so the default takes an event for perServiceEvent
// bytes.
const (
	perServiceShare = 8
	perServiceEvent = 2 << 10
	// leastPerService is far more than is published within the time in which a publish
	// may still be looked up in the stream.
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

func (c *streamConfigs) dead() jet.StreamConfig {
	sc := c.stream(schemas.StreamDead, "Belfry: dead letters", c.orDefault(c.cfg.DeadMaxBytes, defaultDeadMaxBytes), schemas.SubjectDeadPrefix+"*")
	sc.MaxAge, sc.Duplicates, sc.Discard = c.cfg.DeadMaxAge, c.cfg.DedupWindow, jet.DiscardOld
	return sc
}

func (c *streamConfigs) rejected() jet.StreamConfig {
	sc := c.stream(schemas.StreamRejected, "Belfry: refused adds", c.orDefault(c.cfg.RejectedMaxBytes, defaultRejectedMaxBytes), schemas.SubjectRejected)
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
	case clockStream, servicesStream:
		return false
	}
	return c.cfg.ShardMaxBytes != 0
}

// sharesRejected reports whether a stream of dead letters, made by an earlier build, still
// captures rejected adds. ensure narrows its subjects before it makes TIMERS_REJECTED, since
// two streams must not capture one subject.
func sharesRejected(have, want jet.StreamConfig) bool {
	return want.Name == schemas.StreamDead && slices.Contains(have.Subjects, schemas.SubjectRejected)
}
