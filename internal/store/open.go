package store

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// minServer is the oldest nats-server that has all that the store uses:
// per-message TTLs and multi-subject direct gets came with 2.11.
const minMajor, minMinor = 2, 11

// Store is an open store. Safe for concurrent use.
type Store struct {
	jet *jet.Client
	cfg Config
	log zerolog.Logger

	*Seal
	*FiredShare
	*ServiceKeys
	*Services
	*FeedActivator
	*FeedConsumers
	*Events
	*Letters
	*LetterCounts
	*Adds

	// consumers is how many the streams of services may have; 0 for the default.
	consumers int
	// atomic says that the server knows atomic batches.
	atomic bool
	// shrink divides the default byte limits; see fitDefaults.
	shrink int64

	*Nodes
	*Levels
	*Shards
	*Clocks
	*decoder
	*Index
	*Reader
	*Loader
	*Records
	*revisionGC
	*Inspector
	DamageReports
	Health

	background *background
}

// shardSubjects names the stream of a shard and the prefixes of its keys.
type shardSubjects struct {
	stream, timer, slot, meta string
}

const (
	clockStream    = "KV_" + schemas.BucketClock
	servicesStream = "KV_" + schemas.BucketServices
	clockPrefix    = "$KV." + schemas.BucketClock + "."
	nodePrefix     = clockPrefix + "node."
	servicesPrefix = "$KV." + schemas.BucketServices + "."
	metaSubject    = clockPrefix + "meta"
	// copyPrefix begins the keys of copies: of the clocks, and of meta. Earlier builds
	// do not read them.
	copyPrefix      = clockPrefix + "copy."
	metaCopySubject = copyPrefix + "meta"
)

// Open creates what is missing and checks what is there. It returns an error of
// schemas.CodeConfig if the server cannot serve, or if the store was made with
// other settings. The connection stays the caller's.
func Open(ctx context.Context, nc *jet.Conn, cfg Config, log zerolog.Logger) (*Store, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c, err := jet.New(nc, jet.Options{Timeout: cfg.Timeout, Window: cfg.Window, MapError: MapError})
	if err != nil {
		return nil, err
	}
	nodes := newNodes(c, cfg.Node, cfg.Level)
	s := &Store{
		DamageReports: DamageReports{jet: c}, Health: Health{jet: c},
		jet: c, cfg: cfg, log: log, background: newBackground(ctx),
		Nodes: nodes, Levels: newLevels(nodes, layoutRecord{jet: c, log: log}, log),
	}
	s.Seal = newSeal(c, log, s.Levels.Writes)
	s.FiredShare = newFiredShare(c, log, nodes.first.Load, nodes.carriedMs)
	s.ServiceKeys = newServiceKeys(c, log, cfg.FiredMaxAge)
	s.FeedActivator = newFeedActivator(s.ServiceKeys, cfg.ServiceGrace, s.background, s.Levels.Writes)
	s.Services = newServices(s.ServiceKeys, s.FeedActivator.waker, cfg.MaxServices)
	s.Events = newEvents(c, s.FeedActivator, cfg.MaxPayload)
	s.LetterCounts = &LetterCounts{jet: c}
	s.Letters = newLetters(c, log, s.Events, s.LetterCounts)
	s.Adds = newAdds(c, log, s.Events, cfg.Retention)
	s.FeedConsumers = &FeedConsumers{jet: c}
	if err := waitUntilReady(ctx, s.checkServer); err != nil {
		c.Close()
		return nil, err
	}
	if err := waitUntilReady(ctx, s.create); err != nil {
		c.Close()
		return nil, err
	}
	if cfg.GroupCommit && s.atomic {
		c.CommitInBatches()
	}
	s.openRecords()
	for _, f := range []func(context.Context){s.revisionGC.removeLeftovers, s.revisionGC.warmth, s.Levels.run, s.FeedActivator.follow, s.FiredShare.run} {
		s.background.run(f)
	}
	return s, nil
}

// openRecords makes the parts that read and write records.
func (s *Store) openRecords() {
	dec, replicated := s.decoder, s.cfg.Replicas > 1
	s.Index = &Index{jet: s.jet, shards: s.Shards, nodes: s.Nodes, levels: s.Levels, keep: s.cfg.IndexKeep}
	s.Reader = &Reader{jet: s.jet, shards: s.Shards, clocks: s.Clocks, dec: dec, log: s.log}
	s.Loader = newLoader(s.jet, s.Shards, dec, replicated, s.log)
	s.revisionGC = newRevisionGC(s.jet, s.Shards, s.Nodes, s.cfg.Window, replicated, s.log)
	s.Records = &Records{jet: s.jet, shards: s.Shards, levels: s.Levels, index: s.Index, gc: s.revisionGC, admit: newAdmission(s.jet, s.Shards).admit}
	s.Inspector = &Inspector{
		jet: s.jet, shards: s.Shards, nodes: s.Nodes, dec: dec, index: s.Index, reports: s.DamageReports,
		retention: s.cfg.Retention, replicated: replicated,
	}
}

// Bounds of waitUntilReady. Streams that were just made, or whose servers have just
// started, have no leader for a while; a busy disk delays a stream for longer.
const (
	readyWithin = time.Minute
	readyPause  = 100 * time.Millisecond
)

// waitUntilReady repeats do, which must be repeatable, while JetStream does not answer.
func waitUntilReady(ctx context.Context, do func(context.Context) error) error {
	until := time.Now().Add(readyWithin)
	for {
		err := do(ctx)
		if !errors.Is(err, schemas.ErrUnavailable) || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(readyPause):
		}
	}
}

// Close fails calls in flight with schemas.ErrUnavailable and waits for the store's
// goroutines. It leaves the connection open. It may be called twice.
func (s *Store) Close() {
	s.background.stop()
	if s.revisionGC != nil {
		s.rem.close()
	}
	s.jet.Close()
}

// Retention is the TTL of final records.
func (s *Store) Retention() time.Duration { return s.cfg.Retention }

// JetStream is the store's JetStream context.
func (s *Store) JetStream() jetstream.JetStream { return s.jet.JetStream() }

// Conn is the store's connection.
func (s *Store) Conn() *jet.Conn { return s.jet.Conn() }

// leastMessage is the least max_payload that Belfry runs with. Every message that
// carries no event fits in it: index entries, clocks, final records, and the parts of
// a large dead letter.
const leastMessage = 64 << 10

func (s *Store) checkServer(ctx context.Context) error {
	server, err := s.jet.Server(ctx)
	url := schemas.RedactURL(server.URL)
	if n := s.MaxMessage(); n < leastMessage {
		return schemas.Errorf(schemas.CodeConfig, "nats-server at %s takes messages of %d bytes; Belfry needs %d: raise max_payload", url, n, leastMessage)
	}
	if server.Older(minMajor, minMinor) {
		return schemas.Errorf(schemas.CodeConfig, "nats-server at %s is version %s; Belfry needs %d.%d or later", url, server.Version, minMajor, minMinor)
	}
	if errors.Is(err, jet.ErrDisabled) {
		return schemas.Errorf(schemas.CodeConfig, "%s: %w", url, err)
	}
	if err != nil {
		return err
	}
	s.atomic = server.AtomicBatches()
	if s.consumers = manyConsumers; server.LimitedConsumers {
		s.consumers = 0 // the account's limit is the stream's
	}
	return nil
}

// create makes every stream and bucket, in an order that a second node, or a
// second try, can join at any point.
func (s *Store) create(ctx context.Context) error {
	s.removeProbe(ctx)
	for _, cfg := range []jet.StreamConfig{s.clockConfig(), s.servicesConfig()} {
		if err := s.ensure(ctx, cfg); err != nil {
			return err
		}
	}
	if err := s.Seal.loadKey(ctx); err != nil {
		return err
	}
	if err := s.recordGeometry(ctx); err != nil {
		return err
	}
	if err := s.fitDefaults(ctx); err != nil {
		return err
	}
	configs := []jet.StreamConfig{s.addConfig(), s.firedConfig(), s.retryConfig(), s.deadConfig(), s.rejectedConfig()}
	for n := range s.geo.Shards {
		configs = append(configs, s.shardConfig(n))
	}
	for _, cfg := range configs {
		if err := s.ensure(ctx, cfg); err != nil {
			return err
		}
	}
	if err := s.LetterCounts.create(ctx); err != nil {
		return err
	}
	for n := range s.geo.Shards {
		if err := s.jet.CreateOnce(ctx, s.subjects[n].stream, s.subjects[n].meta, []byte("belfry")); err != nil {
			return err
		}
		if err := s.Clocks.create(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// recordGeometry takes the recorded geometry, or records the one asked for.
func (s *Store) recordGeometry(ctx context.Context) error {
	want := s.cfg.Geometry
	if want == (schemas.Geometry{}) {
		want = schemas.DefaultGeometry()
	}
	layout := layoutRecord{jet: s.jet, log: s.log}
	m, _, err := layout.read(ctx)
	if errors.Is(err, schemas.ErrNotFound) {
		if err := want.Validate(); err != nil {
			return err
		}
		if err := layout.create(ctx, meta{Format: s.cfg.Level.layout(), Geometry: want}); err != nil {
			return err
		}
		m, _, err = layout.read(ctx)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if s.cfg.Geometry != (schemas.Geometry{}) && m.Geometry != s.cfg.Geometry {
		return schemas.Errorf(schemas.CodeConfig, "the store was made with %s; it cannot be opened with %s: these are fixed at the first start", describe(m.Geometry), describe(s.cfg.Geometry))
	}
	s.Shards = newShards(s.jet, m.Geometry)
	s.decoder = newDecoder(s.Shards, s.cfg.Level, s.log)
	s.Clocks = newClocks(s.jet, s.Shards, s.Nodes, layout, s.log, s.DamageReports.of(s.decoder))
	return layout.copy(ctx, m)
}
