package store

import (
	"context"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/schemas"
)

// minServer is the oldest nats-server that has all that the store uses:
// per-message TTLs and multi-subject direct gets came with 2.11.
const minMajor, minMinor = 2, 11

// atomicMinor is the first that knows atomic batches.
const atomicMinor = 12

// Store is an open store. Safe for concurrent use.
type Store struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	cfg Config
	geo schemas.Geometry
	log zerolog.Logger
	pub *publisher
	// groups is nil where writes go one by one.
	groups *groups
	// consumers is how many the streams of services may have; 0 for the default.
	consumers int
	// atomic says that the server knows atomic batches.
	atomic bool
	// shrink divides the default byte limits; see fitDefaults.
	shrink int64

	subjects    []shardSubjects
	undecodable atomic.Uint64

	rem *remover
	// rush says that many old timers are replaced in some shard; see warmth.
	rush chan struct{}
	// shortTTL is the constant; tests change it.
	shortTTL time.Duration
	rooms    []room

	// background ends with cancel; Close waits for it.
	background sync.WaitGroup
	cancel     context.CancelFunc

	stamp   atomic.Pointer[Stamp] // the last reading of the leader's clock
	beating chan struct{}
	oldest  oldestAdd

	// seal seals callbacks; nil if its key is damaged.
	seal cipher.AEAD
	// writes is the FormatLevel that may be written; see watchFormats.
	writes atomic.Int32
	// firstBeat is the revision of the first presence that this process wrote.
	firstBeat atomic.Uint64
	// layout2 says that the store's layout version has been layout2 for long enough.
	layout2 atomic.Bool
	// layoutSettle is the constant; tests change it.
	layoutSettle time.Duration

	// first says that this node is the first of the live ones, by name: it does what one
	// node does for all.
	first atomic.Bool
	// trimmed counts events; see FiredTrimmed.
	trimmed atomic.Uint64

	services registrations
	waker    *Waker
	life     context.Context // ends with Close

	mu       sync.Mutex
	copied   map[int]lastCopy // by shard
	closing  bool
	presence Presence
}

// shardSubjects are the prefixes of a shard's keys.
type shardSubjects struct {
	stream, timer, slot, meta string
	// parts is how many parts of a large slot its last page had; see loadPage.
	parts atomic.Int64
	// farWrites counts replaced records of old timers; see warmth.
	farWrites atomic.Int64
	warm      atomic.Bool
	damaged   damagedSet
}

// meta is what the clock bucket records of the layout.
type meta struct {
	Format   int              `json:"format"`
	Geometry schemas.Geometry `json:"geometry"`
	// From is the layout version that the store had before it was raised to Format; 0
	// if it was made with Format.
	From int `json:"from,omitempty"`
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
func Open(ctx context.Context, nc *nats.Conn, cfg Config, log zerolog.Logger) (*Store, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(cfg.Timeout))
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Store{nc: nc, js: js, cfg: cfg, log: log, beating: make(chan struct{}, 1), rush: make(chan struct{}, 1), shortTTL: shortTTL, layoutSettle: layoutSettle, copied: map[int]lastCopy{}}
	s.waker = NewWaker(s, cfg.ServiceGrace, time.Now)
	if err := patiently(ctx, s.checkServer); err != nil {
		return nil, err
	}
	if s.pub, err = newPublisher(nc, cfg.Window, cfg.Timeout); err != nil {
		return nil, err
	}
	if err := patiently(ctx, s.create); err != nil {
		s.pub.close()
		return nil, err
	}
	if cfg.GroupCommit && s.atomic {
		s.groups = newGroups(s.pub, cfg.Window)
	}
	s.rem = newRemover(s.pub, cfg.Window)
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.life, s.cancel = background, cancel
	s.background.Go(func() { s.removeLeftovers(background) })
	s.background.Go(func() { s.warmth(background) })
	s.background.Go(func() { s.watchFormats(background) })
	s.background.Go(func() { s.followServices(background) })
	s.background.Go(func() { s.shareFired(background) })
	return s, nil
}

// Bounds of Open while JetStream does not answer: streams that were just made, or
// whose servers have just started, have no leader for a while, and a disk that has
// much else to do keeps a stream waiting for longer still.
const (
	openPatience = time.Minute
	openPause    = 100 * time.Millisecond
)

// patiently repeats what may be repeated while JetStream does not answer.
func patiently(ctx context.Context, do func(context.Context) error) error {
	until := time.Now().Add(openPatience)
	for {
		err := do(ctx)
		if !errors.Is(err, schemas.ErrUnavailable) || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(openPause):
		}
	}
}

// Close answers calls in flight and ends them. It leaves the connection open. It
// may be called twice.
func (s *Store) Close() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.cancel()
	s.background.Wait()
	s.rem.close()
	if s.groups != nil {
		s.groups.close()
	}
	s.pub.close()
}

// Geometry is the layout that the store was made with.
func (s *Store) Geometry() schemas.Geometry { return s.geo }

// Retention is the TTL of final records.
func (s *Store) Retention() time.Duration { return s.cfg.Retention }

// IndexKeep is how long an index entry outlives its tick.
func (s *Store) IndexKeep() time.Duration { return s.cfg.IndexKeep }

// JetStream is the store's JetStream context.
func (s *Store) JetStream() jetstream.JetStream { return s.js }

// Conn is the store's connection.
func (s *Store) Conn() *nats.Conn { return s.nc }

// MaxMessage is the size of the largest message that can be stored now, headers and
// data, in bytes: the server's max_payload, or the streams' limit if that is lower.
func (s *Store) MaxMessage() int {
	if n := s.nc.MaxPayload(); n > 0 {
		return int(min(n, int64(s.cfg.MaxPayload)))
	}
	return s.cfg.MaxPayload
}

// leastMessage is the least max_payload that Belfry runs with. Every message that
// carries no event fits in it: index entries, clocks, final records, and the parts of
// a large dead letter.
const leastMessage = 64 << 10

func (s *Store) checkServer(ctx context.Context) error {
	if n := s.MaxMessage(); n < leastMessage {
		return schemas.Errorf(schemas.CodeConfig, "nats-server at %s takes messages of %d bytes; Belfry needs %d: raise max_payload", s.nc.ConnectedUrlRedacted(), n, leastMessage)
	}
	var major, minor int
	v := s.nc.ConnectedServerVersion()
	if n, err := fmt.Sscanf(v, "%d.%d", &major, &minor); n == 2 && err == nil && (major < minMajor || major == minMajor && minor < minMinor) {
		return schemas.Errorf(schemas.CodeConfig, "nats-server at %s is version %s; Belfry needs %d.%d or later", schemas.RedactURL(s.nc.ConnectedUrl()), v, minMajor, minMinor)
	}
	s.atomic = major > minMajor || minor >= atomicMinor
	info, err := again(ctx, func(ctx context.Context, _ func()) (*jetstream.AccountInfo, error) { return s.js.AccountInfo(ctx) })
	switch {
	case err == nil:
		s.consumers = manyConsumers
		if info.Limits.MaxConsumers > 0 || len(info.Tiers) > 0 {
			s.consumers = 0 // the account's limit is the stream's
		}
		return nil
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return schemas.Errorf(schemas.CodeConfig, "nats-server at %s runs without JetStream; start it with -js, or with a jetstream block in its config", schemas.RedactURL(s.nc.ConnectedUrl()))
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return schemas.Errorf(schemas.CodeConfig, "JetStream is not enabled for this account at %s", schemas.RedactURL(s.nc.ConnectedUrl()))
	}
	return mapError("ask for JetStream's account", err)
}

// create makes every stream and bucket, in an order that a second node, or a
// second try, can join at any point.
func (s *Store) create(ctx context.Context) error {
	s.removeProbe(ctx)
	for _, cfg := range []jetstream.StreamConfig{s.clockConfig(), s.servicesConfig()} {
		if err := s.ensure(ctx, cfg); err != nil {
			return err
		}
	}
	if err := s.loadSealKey(ctx); err != nil {
		return err
	}
	if err := s.recordGeometry(ctx); err != nil {
		return err
	}
	if err := s.fitDefaults(ctx); err != nil {
		return err
	}
	configs := []jetstream.StreamConfig{s.addConfig(), s.firedConfig(), s.retryConfig(), s.deadConfig(), s.rejectedConfig()}
	for n := range s.geo.Shards {
		configs = append(configs, s.shardConfig(n))
	}
	for _, cfg := range configs {
		if err := s.ensure(ctx, cfg); err != nil {
			return err
		}
	}
	if err := s.startDeadCount(ctx); err != nil {
		return err
	}
	s.setSubjects()
	for n := range s.geo.Shards {
		if err := s.createOnce(ctx, s.subjects[n].stream, s.subjects[n].meta, []byte("belfry")); err != nil {
			return err
		}
		if err := s.createClock(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// setSubjects names the keys of every shard.
func (s *Store) setSubjects() {
	s.rooms, s.subjects = make([]room, s.geo.Shards), make([]shardSubjects, s.geo.Shards)
	for n := range s.geo.Shards {
		p := "$KV." + schemas.BucketTimers(n) + "."
		sh := &s.subjects[n]
		sh.stream, sh.timer, sh.slot, sh.meta = "KV_"+schemas.BucketTimers(n), p+"timer.", p+"slot.", p+"meta"
	}
}

// createOnce creates a key unless it exists. It is repeated if nobody answers.
func (s *Store) createOnce(ctx context.Context, stream, subject string, data []byte) error {
	_, err := again(ctx, func(ctx context.Context, _ func()) (uint64, error) {
		return s.putCAS(ctx, subject, data, 0, 0)
	})
	if !errors.Is(err, ErrRevision) {
		return err
	}
	// It is there, or a first write is on its way to the other servers yet, and may
	// still come to nothing: a leader refuses the second one in both cases.
	if _, err := s.getLast(ctx, stream, subject); !errors.Is(err, schemas.ErrNotFound) {
		return err
	}
	return schemas.Errorf(schemas.CodeUnavailable, "write %s: JetStream has not decided on it yet", subject)
}

// recordGeometry takes the recorded geometry, or records the one asked for.
func (s *Store) recordGeometry(ctx context.Context) error {
	want := s.cfg.Geometry
	if want == (schemas.Geometry{}) {
		want = schemas.DefaultGeometry()
	}
	m, _, err := s.readMeta(ctx)
	if errors.Is(err, schemas.ErrNotFound) {
		if err := want.Validate(); err != nil {
			return err
		}
		b, err := json.Marshal(meta{Format: s.cfg.Level.layout(), Geometry: want})
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if err := s.createOnce(ctx, clockStream, metaSubject, b); err != nil {
			return err
		}
		m, _, err = s.readMeta(ctx)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if s.cfg.Geometry != (schemas.Geometry{}) && m.Geometry != s.cfg.Geometry {
		return schemas.Errorf(schemas.CodeConfig, "the store was made with %s; it cannot be opened with %s: these are fixed at the first start", describe(m.Geometry), describe(s.cfg.Geometry))
	}
	s.geo = m.Geometry
	return s.copyMeta(ctx, m)
}

func describe(g schemas.Geometry) string {
	return fmt.Sprintf("shards=%d slot_width=%s wheel_size=%d", g.Shards, g.SlotWidth, g.WheelSize)
}
