package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Default byte limits. JetStream counts them against the server's and the
// account's limit when a stream is made; where those have less, all defaults
// shrink alike (fitDefaults).
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
	// spareParts of the total are left free when defaults are fitted: a server that
	// had room for exactly all refuses its last replica when it starts again:
	// work-around 11.
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
	// manyConsumers is more than there will be services. A stream that says nothing
	// may have the server's default, 1,000 (work-around 12).
	manyConsumers = 1_000_000
)

func (s *Store) stream(name, description string, maxBytes int64, subjects ...string) jet.StreamConfig {
	return jet.StreamConfig{
		Name: name, Description: description, Subjects: subjects, Storage: jet.FileStorage,
		Replicas: s.cfg.Replicas, MaxBytes: maxBytes, MaxMsgSize: int32(s.cfg.MaxPayload), AllowDirect: true,
		AllowAtomicPublish: s.atomic,
	}
}

// orDefault is a configured limit, or a default that fits the server.
func (s *Store) orDefault(n, def int64) int64 {
	if n == 0 {
		return def / s.shrink
	}
	return n
}

// fitDefaults finds out how much of the default limits the server and the
// account have room for, by making, and removing, a stream of that size. It does
// so before the first start only.
func (s *Store) fitDefaults(ctx context.Context) error {
	s.shrink = 1
	if _, err := s.jet.Stream(ctx, "KV_"+schemas.BucketTimers(s.geo.Shards-1)); err == nil {
		return nil // made before; what is there keeps its limits
	} else if !errors.Is(err, jet.ErrNoStream) {
		return err
	}
	for left, taken := 0, 0; ; {
		total := int64(defaultsTotal) / s.shrink
		probe := s.stream(s.probe(), "Belfry: measures the room for its streams", total+total/spareParts)
		probe.Subjects = []string{probe.Name}
		err := s.jet.CreateStream(ctx, probe)
		if err == nil {
			return s.jet.DeleteStream(ctx, probe.Name)
		}
		switch {
		case errors.Is(err, jet.ErrExists) && left < makeTries:
			// A start of this node that was cut off, or had no answer, left one of another size.
			left++
			if err := s.jet.DeleteStream(ctx, probe.Name); err != nil {
				return err
			}
		case !errors.Is(err, jet.ErrFull):
			return refused(err, "a stream of %d replicas cannot be made", s.cfg.Replicas)
		case total <= leastTotal && taken < fitTries:
			// The probes of other nodes that start for the first time may have it all.
			taken, s.shrink = taken+1, 1
			select {
			case <-ctx.Done():
				return s.jet.Error("measure the room for streams", ctx.Err())
			case <-time.After(makePause):
			}
		case total <= leastTotal:
			return schemas.Errorf(schemas.CodeStoreFull, "JetStream has less than %d MiB of file storage left for Belfry's streams (%w): raise max_file_store, or the account's limit", leastTotal>>20, err)
		default:
			s.shrink *= 2
		}
	}
}

// probe is the name of the stream that measures the room.
func (s *Store) probe() string { return probeName + "_" + s.cfg.Node }

// removeProbe removes what a start of this node that was cut off has left: it takes
// room from all that follows.
func (s *Store) removeProbe(ctx context.Context) {
	if _, err := s.jet.Stream(ctx, s.probe()); err != nil {
		return // there is none; if JetStream does not answer, the next look-up says so
	}
	if err := s.jet.DeleteStream(ctx, s.probe()); err != nil {
		s.log.Warn().Err(err).Str("stream", s.probe()).Msg("a start that was cut off has left a stream, which takes room and could not be removed")
	}
}

// refused makes an error of schemas.CodeConfig of one that will be the same the next time.
// Others, such as those of a cluster that is not whole, stay what they are: the caller
// tries again.
func refused(err error, what string, args ...any) error {
	if !errors.Is(err, jet.ErrRefused) {
		return err
	}
	return schemas.Errorf(schemas.CodeConfig, what+": %w", append(args, err)...)
}

func (s *Store) addConfig() jet.StreamConfig {
	c := s.stream(schemas.StreamAdd, "Belfry: adds waiting for a router", s.orDefault(s.cfg.AddMaxBytes, defaultAddMaxBytes), schemas.SubjectAdd)
	c.Retention, c.Discard, c.Duplicates = jet.WorkQueuePolicy, jet.DiscardNew, addDedupWindow
	return c
}

func (s *Store) firedConfig() jet.StreamConfig {
	c := s.stream(schemas.StreamFired, "Belfry: due events", s.orDefault(s.cfg.FiredMaxBytes, defaultFiredMaxBytes), schemas.SubjectFiredPrefix+"*")
	c.MaxAge, c.Duplicates, c.Discard = s.cfg.FiredMaxAge, s.cfg.DedupWindow, jet.DiscardOld
	c.MaxConsumers = s.consumers
	c.MaxMsgsPerSubject = s.perService(c.MaxBytes)
	return c
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

// perService is how many events of one service TIMERS_FIRED keeps, if it has so many
// bytes.
func (s *Store) perService(maxBytes int64) int64 {
	if s.cfg.FiredMaxPerService > 0 {
		return int64(s.cfg.FiredMaxPerService)
	}
	return max(maxBytes/perServiceShare/perServiceEvent, leastPerService)
}

func (s *Store) retryConfig() jet.StreamConfig {
	c := s.stream(schemas.StreamRetry, "Belfry: retries for functions", s.orDefault(s.cfg.RetryMaxBytes, defaultRetryMaxBytes), schemas.SubjectRetryPrefix+"*")
	c.Retention, c.Discard, c.Duplicates = jet.WorkQueuePolicy, jet.DiscardNew, s.cfg.DedupWindow
	c.MaxConsumers = s.consumers
	return c
}

func (s *Store) deadConfig() jet.StreamConfig {
	c := s.stream(schemas.StreamDead, "Belfry: dead letters", s.orDefault(s.cfg.DeadMaxBytes, defaultDeadMaxBytes), schemas.SubjectDeadPrefix+"*")
	c.MaxAge, c.Duplicates, c.Discard = s.cfg.DeadMaxAge, s.cfg.DedupWindow, jet.DiscardOld
	return c
}

func (s *Store) rejectedConfig() jet.StreamConfig {
	c := s.stream(schemas.StreamRejected, "Belfry: refused adds", s.orDefault(s.cfg.RejectedMaxBytes, defaultRejectedMaxBytes), schemas.SubjectRejected)
	c.MaxAge, c.Duplicates, c.Discard = s.cfg.RejectedMaxAge, s.cfg.DedupWindow, jet.DiscardOld
	return c
}

// sharesRejected reports whether a stream of dead letters, made by an earlier
// build, still captures refused adds. Its subjects are narrowed before
// TIMERS_REJECTED is made, since two streams must not capture one subject.
func sharesRejected(have, want jet.StreamConfig) bool {
	return want.Name == schemas.StreamDead && slices.Contains(have.Subjects, schemas.SubjectRejected)
}

// bucket is a KV bucket as nats.go would make it, with limits and TTLs.
func (s *Store) bucket(name, description string, maxBytes int64) jet.StreamConfig {
	c := s.stream("KV_"+name, description, maxBytes, "$KV."+name+".>")
	c.MaxMsgsPerSubject, c.Discard = 1, jet.DiscardNew
	c.AllowRollup, c.DenyDelete, c.AllowMsgTTL = true, true, true
	c.Duplicates = min(s.cfg.DedupWindow, 2*time.Minute)
	return c
}

func (s *Store) clockConfig() jet.StreamConfig {
	return s.bucket(schemas.BucketClock, "Belfry: clocks, nodes, layout", clockMaxBytes)
}

func (s *Store) servicesConfig() jet.StreamConfig {
	return s.bucket(schemas.BucketServices, "Belfry: services that have callbacks", servicesMaxBytes)
}

func (s *Store) shardConfig(n int) jet.StreamConfig {
	c := s.bucket(schemas.BucketTimers(n), "Belfry: timers of one shard", s.orDefault(s.cfg.ShardMaxBytes, defaultShardsBytes/int64(s.geo.Shards)))
	// Superseded revisions are removed one by one, never by the limit.
	c.MaxMsgsPerSubject, c.DenyDelete = history, false
	return c
}

// ensure creates a stream, or checks and updates the one that is there. What
// cannot be changed harmlessly must match.
func (s *Store) ensure(ctx context.Context, want jet.StreamConfig) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	have, err := s.jet.Stream(ctx, want.Name)
	if errors.Is(err, jet.ErrNoStream) {
		err = s.make(ctx, want)
		if !errors.Is(err, jet.ErrExists) {
			return err
		}
		have, err = s.jet.Stream(ctx, want.Name) // another node was faster
	}
	if err != nil {
		return err
	}
	got := have.Config
	bad := func(what string, g, w any) error {
		return schemas.Errorf(schemas.CodeConfig, "stream %s exists with %s %v; Belfry needs %v: use another account, or remove the stream", want.Name, what, g, w)
	}
	switch {
	case got.Storage != want.Storage:
		return bad("storage", got.Storage, want.Storage)
	case got.Retention != want.Retention:
		return bad("retention", got.Retention, want.Retention)
	case want.Name != schemas.StreamFired && max(got.MaxMsgsPerSubject, 0) != max(want.MaxMsgsPerSubject, 0):
		return bad("messages a subject", got.MaxMsgsPerSubject, want.MaxMsgsPerSubject)
	case got.Discard != want.Discard:
		return bad("discard policy", got.Discard, want.Discard)
	case !slices.Equal(got.Subjects, want.Subjects) && !sharesRejected(got, want):
		return bad("subjects", got.Subjects, want.Subjects)
	}
	if want.Name == schemas.StreamFired && !s.explicitBytes(want.Name) {
		want.MaxMsgsPerSubject = s.perService(got.MaxBytes)
	}
	more := want.MaxConsumers > 0 && got.MaxConsumers <= 0
	if !more && !sharesRejected(got, want) && (want.Name != schemas.StreamFired || got.MaxMsgsPerSubject == want.MaxMsgsPerSubject) && got.MaxAge == want.MaxAge && got.Duplicates == want.Duplicates && got.Replicas == want.Replicas && got.MaxMsgSize == want.MaxMsgSize &&
		got.AllowDirect && (got.AllowAtomicPublish || !s.atomic) && got.AllowMsgTTL == want.AllowMsgTTL && (got.MaxBytes == want.MaxBytes || !s.explicitBytes(want.Name)) {
		return nil
	}
	next := got
	next.Subjects = want.Subjects
	next.MaxAge, next.Duplicates, next.Replicas, next.MaxMsgSize = want.MaxAge, want.Duplicates, want.Replicas, want.MaxMsgSize
	next.AllowDirect, next.AllowMsgTTL = true, want.AllowMsgTTL
	if want.Name == schemas.StreamFired {
		next.MaxMsgsPerSubject = want.MaxMsgsPerSubject
	}
	next.AllowAtomicPublish = got.AllowAtomicPublish || s.atomic
	if s.explicitBytes(want.Name) {
		next.MaxBytes = want.MaxBytes
	}
	if more {
		next.MaxConsumers = want.MaxConsumers
	}
	err = s.jet.UpdateStream(ctx, next)
	if more && errors.Is(err, jet.ErrRefused) {
		// Not every version changes that; then the default stays.
		next.MaxConsumers = got.MaxConsumers
		err = s.jet.UpdateStream(ctx, next)
	}
	if err != nil {
		return refused(err, "stream %s cannot be changed to the configured limits", want.Name)
	}
	return nil
}

// explicitBytes reports whether the stream's byte limit was configured, rather
// than a default that was fitted to the server when the stream was made.
func (s *Store) explicitBytes(name string) bool {
	switch name {
	case schemas.StreamAdd:
		return s.cfg.AddMaxBytes != 0
	case schemas.StreamFired:
		return s.cfg.FiredMaxBytes != 0
	case schemas.StreamRetry:
		return s.cfg.RetryMaxBytes != 0
	case schemas.StreamDead:
		return s.cfg.DeadMaxBytes != 0
	case schemas.StreamRejected:
		return s.cfg.RejectedMaxBytes != 0
	case clockStream, servicesStream:
		return false
	}
	return s.cfg.ShardMaxBytes != 0
}

// Bounds of make: storage that another node, or a probe, has just given back may
// be counted still.
const (
	makeTries = 20
	makePause = 100 * time.Millisecond
	fitTries  = 5
)

// make creates a stream. One whose byte limit is a default becomes smaller if the
// server, or the account, has no room for it after some tries.
func (s *Store) make(ctx context.Context, want jet.StreamConfig) error {
	for try := 1; ; try++ {
		err := s.jet.CreateStream(ctx, want)
		switch {
		case err == nil, errors.Is(err, jet.ErrExists):
			return err
		case !errors.Is(err, jet.ErrFull):
			return refused(err, "stream %s cannot be made", want.Name)
		case s.explicitBytes(want.Name) || want.MaxBytes <= leastBytes:
			return schemas.Errorf(schemas.CodeStoreFull, "stream %s with %d bytes does not fit JetStream's storage limit: %w", want.Name, want.MaxBytes, err)
		case try >= makeTries:
			want.MaxBytes /= 2
			if want.Name == schemas.StreamFired {
				want.MaxMsgsPerSubject = s.perService(want.MaxBytes)
			}
		}
		select {
		case <-ctx.Done():
			return s.jet.Error("make stream "+want.Name, ctx.Err())
		case <-time.After(makePause):
		}
	}
}
