package store

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Store is an open store: the parts in the table of the package comment. It has no state of
// its own except their lifetime. Safe for concurrent use.
type Store struct {
	jet *jet.Client
	cfg Config
	log zerolog.Logger

	*Seal
	*FiredShare
	*ServiceKeys
	*Services
	*Calendars
	*Flows
	*Orders
	*FeedActivator
	*FeedConsumers
	*Events
	*Letters
	*LetterCounts
	*Adds

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
	*EndedLists
	*Inspector
	DamageReports
	Health

	journals   *journals
	background *jet.Background
}

// shardSubjects names the stream of a shard and the prefixes of its keys.
type shardSubjects struct {
	stream, timer, slot, far, meta, journal, touch, ended string
}

const (
	clockStream    = "KV_" + schemas.BucketClock
	servicesStream = "KV_" + schemas.BucketServices
	clockPrefix    = "$KV." + schemas.BucketClock + "."
	nodePrefix     = clockPrefix + "node."
	servicesPrefix = "$KV." + schemas.BucketServices + "."
	metaSubject    = clockPrefix + "meta"
	// copyPrefix begins the keys of the copies of clocks and of meta. It differs from their
	// own prefixes, so that older builds do not take a copy for a clock.
	copyPrefix      = clockPrefix + "copy."
	metaCopySubject = copyPrefix + "meta"
)

// Open opens a store. It makes the streams, buckets and keys that are missing, and checks the
// existing ones. It writes this node's presence and reads those of all nodes, so that Levels is
// right from the first write on. It waits up to Config.ReadyWithin for JetStream. The caller must
// call Close, and close the connections itself. Errors: schemas.CodeConfig if the server lacks a required
// feature, or if the store was made with settings that cannot be changed;
// schemas.CodeStoreFull if there is too little storage; schemas.ErrDamaged or
// schemas.ErrNewer if the recorded layout cannot be read; schemas.ErrUnavailable.
func Open(ctx context.Context, nc *jet.Conn, cfg Config, log zerolog.Logger) (*Store, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c, err := jet.New(nc, jet.Options{Timeout: cfg.Timeout, Window: cfg.Window, DirectGets: cfg.DirectGets, MapError: MapError})
	if err != nil {
		return nil, err
	}
	nodes := newNodes(c, cfg.Node, cfg.Level)
	s := &Store{
		DamageReports: DamageReports{jet: c}, Health: Health{jet: c},
		jet: c, cfg: cfg, log: log, background: jet.NewBackground(ctx),
		Nodes: nodes, Levels: newLevels(nodes, layoutRecord{jet: c, log: log}, log),
	}
	s.Seal = newSeal(c, log, s.Writes)
	s.FiredShare = newFiredShare(c, log, nodes.first.Load, nodes.carriedMs)
	s.ServiceKeys = newServiceKeys(c, log, cfg.FiredMaxAge)
	s.FeedActivator = newFeedActivator(s.ServiceKeys, cfg.ServiceGrace, s.background, s.Writes)
	s.Services = newServices(s.ServiceKeys, s.FeedActivator.waker, cfg.MaxServices)
	calendars := newCalendars(c, cfg.Moved, log)
	s.Calendars = calendars
	s.Flows = newFlows(c, cfg.Replicas > 1, s.CanLimit, s.CanKeyTenants, s.CanLimitAdds, s.CanLimitPending, s.CanLimitQuotas, log)
	s.Events = newEvents(c, s.FeedActivator, cfg.MaxPayload, newTenantFired(c, s.background, cfg.TenantFired))
	s.LetterCounts = &LetterCounts{jet: c}
	s.Letters = newLetters(c, log, s.Events, s.LetterCounts)
	s.Adds = newAdds(c, log, s.Events, cfg.Retention)
	s.Letters.moved, s.Adds.moved, s.Events.moved = cfg.Moved, cfg.Moved, cfg.Moved
	s.FeedConsumers = &FeedConsumers{jet: c}
	m := &streamMaker{jet: c, log: log, configs: streamConfigs{cfg: &s.cfg, shrink: 1}}
	if err := waitUntilReady(ctx, log, cfg.ReadyWithin, func(ctx context.Context) error { return m.checkServer(ctx, s.MaxMessage) }); err != nil {
		c.Close()
		return nil, err
	}
	if err := waitUntilReady(ctx, log, cfg.ReadyWithin, func(ctx context.Context) error { return s.create(ctx, m) }); err != nil {
		c.Close()
		return nil, err
	}
	if err := s.learn(ctx, cfg.ReadyWithin); err != nil {
		c.Close()
		return nil, err
	}
	s.keepWrites()
	s.journals = &journals{jet: c, shards: s.Shards, log: log, restored: map[int]uint64{}}
	if err := waitUntilReady(ctx, log, cfg.ReadyWithin, func(ctx context.Context) error { return s.journal(ctx, m.configs.atomic) }); err != nil {
		c.Close()
		return nil, err
	}
	s.openRecords()
	if cfg.Replicas <= 1 || c.InBatches() {
		s.background.Run(s.journals.run)
	}
	for _, f := range []func(context.Context){s.removeLeftovers, s.lookAtUnanswered, s.warmth, s.touchShards, s.Levels.run, s.follow, s.FiredShare.run, calendars.Run, s.Flows.run} {
		s.background.Run(f)
	}
	return s, nil
}

// journal begins batches with journals, and restores what a power loss took. It can be repeated.
func (s *Store) journal(ctx context.Context, atomic bool) error {
	if s.cfg.GroupCommit && atomic && !s.jet.InBatches() {
		to, err := s.journals.settings(ctx, min(s.jet.MaxPayload(), int64(s.cfg.MaxPayload)))
		if err != nil {
			return err
		}
		s.jet.CommitInBatches(to)
	}
	if s.cfg.Replicas > 1 && !s.jet.InBatches() {
		return nil
	}
	return s.journals.restore(ctx)
}

// keepWrites has the tails of the shards take what this process writes from memory. A shard with replicas is read from its
// stream: a replica that is behind would answer that there is nothing.
func (s *Store) keepWrites() {
	if s.cfg.Replicas > 1 {
		return
	}
	for n := range s.subjects {
		s.jet.KeepWrites(s.subjects[n].stream, s.subjects[n].timer)
	}
}

// openRecords constructs the parts that read and write records. Their streams must exist.
func (s *Store) openRecords() {
	dec, replicated := s.decoder, s.cfg.Replicas > 1
	s.Index = &Index{jet: s.jet, shards: s.Shards, nodes: s.Nodes, levels: s.Levels, keep: s.cfg.IndexKeep}
	s.Reader = newReader(s.jet, s.Shards, s.Clocks, dec, s.log)
	s.Loader = newLoader(s.jet, s.Shards, dec, replicated, s.log)
	s.revisionGC = newRevisionGC(s.jet, s.Shards, s.Nodes, s.cfg.Window, replicated, s.log)
	s.EndedLists = newEndedLists(s.jet, s.Shards, s.revisionGC, s.cfg.Retention, min(s.jet.MaxPayload(), int64(s.cfg.MaxPayload)), s.log)
	r := s.Reader
	r.gc, r.ended = s.revisionGC, s.EndedLists
	s.Records = &Records{jet: s.jet, shards: s.Shards, levels: s.Levels, index: s.Index, gc: s.revisionGC, admission: newAdmission(s.jet, s.Shards), cache: newRecordCache(s.jet)}
	s.Orders = &Orders{jet: s.jet, records: s.Records, reader: s.Reader, replicated: replicated}
	s.Inspector = &Inspector{
		jet: s.jet, shards: s.Shards, nodes: s.Nodes, dec: dec, index: s.Index, reports: s.DamageReports,
		retention: s.cfg.Retention, replicated: replicated,
	}
}

const (
	// readyPause is the pause before waitUntilReady repeats.
	readyPause = 100 * time.Millisecond
	// readyQuiet is the wait after which waitUntilReady logs why it waits, and the interval of further lines.
	readyQuiet = 3 * time.Second
)

// waitUntilReady repeats do, which must be repeatable, while JetStream does not answer, for a time. A stream has no
// leader for a while after it was made, or after its servers have started; a busy disk makes that longer.
func waitUntilReady(ctx context.Context, log zerolog.Logger, within time.Duration, do func(context.Context) error) error {
	begun := time.Now()
	logged := begun
	for {
		err := do(ctx)
		if !errors.Is(err, schemas.ErrUnavailable) || time.Since(begun) > within {
			return err
		}
		if ctx.Err() == nil && time.Since(logged) >= readyQuiet {
			logged = time.Now()
			log.Warn().Err(err).Dur("waited_ms", time.Since(begun)).Dur("within_ms", within).Msg("JetStream is not ready for the store: waiting")
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
	s.background.Stop()
	s.rem.close()
	s.cache.close()
	s.jet.Close()
}

// Retention is the TTL of final records.
func (s *Store) Retention() time.Duration { return s.cfg.Retention }

// Replicated reports whether the streams have more than one replica.
func (s *Store) Replicated() bool { return s.cfg.Replicas > 1 }

// GroupCommits reports whether records that are written at the same time share a sync: Config.GroupCommit is
// set, and the server has batch commit.
func (s *Store) GroupCommits() bool { return s.cfg.GroupCommit && s.jet.InBatches() }

// create makes every stream, bucket and key that is missing. It can be interrupted and
// repeated, and other nodes may run it at the same time.
func (s *Store) create(ctx context.Context, m *streamMaker) error {
	if err := CheckRestored(ctx, m.jet, schemas.CodeConfig); err != nil {
		return err
	}
	if err := m.checkDevelopment(ctx); err != nil {
		return err
	}
	m.removeProbe(ctx)
	if err := m.ensureAll(ctx, m.configs.base()); err != nil {
		return err
	}
	if err := s.loadKey(ctx); err != nil {
		return err
	}
	layout, err := m.storeLayout(ctx)
	if err != nil {
		return err
	}
	geo := layout.Geometry
	s.sawLayout(layout.Format)
	if err := m.fitDefaults(ctx); err != nil {
		return err
	}
	if err := m.ensureAll(ctx, m.configs.rest()); err != nil {
		return err
	}
	if err := s.tenants.createConsumers(ctx); err != nil {
		return err
	}
	if err := s.LetterCounts.create(ctx); err != nil {
		return err
	}
	s.Shards = newShards(s.jet, geo)
	s.decoder = newDecoder(s.Shards, s.cfg.Level, s.log)
	s.Clocks = newClocks(s.jet, s.Shards, s.Nodes, s.Levels.layout, s.log, s.of(s.decoder))
	s.needs = s.clockNeeds
	for n := range geo.Shards {
		if err := s.jet.CreateOnce(ctx, s.subjects[n].stream, s.subjects[n].meta, []byte("belfry")); err != nil {
			return err
		}
		if err := s.Clocks.create(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
