package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// streamMaker makes the streams and buckets of a store, and checks and updates existing ones.
// Only Open uses it. Each step can be repeated, and other nodes may make the same streams at
// the same time.
type streamMaker struct {
	jet     *jet.Client
	log     zerolog.Logger
	configs streamConfigs
}

// ensureAll calls ensure for each configuration.
func (m *streamMaker) ensureAll(ctx context.Context, configs []jet.StreamConfig) error {
	for _, cfg := range configs {
		if err := m.ensure(ctx, cfg); err != nil {
			return err
		}
	}
	return nil
}

// fitDefaults measures how much of the default limits the server and the account have room
// for, by making and removing a stream of that size. Once the streams exist it does
// nothing.
func (m *streamMaker) fitDefaults(ctx context.Context) error {
	m.configs.shrink = 1
	if _, err := m.jet.Stream(ctx, "KV_"+schemas.BucketTimers(m.configs.shards-1)); err == nil {
		return nil // the streams exist, and keep their limits
	} else if !errors.Is(err, jet.ErrNoStream) {
		return err
	}
	for left, taken := 0, 0; ; {
		total := m.configs.defaultTotal() / m.configs.shrink
		probe := m.configs.stream(m.probe(), "Belfry: measures the room for its streams", total+total/spareParts)
		probe.Subjects = []string{probe.Name}
		err := m.jet.CreateStream(ctx, probe)
		if err == nil {
			return m.jet.DeleteStream(ctx, probe.Name)
		}
		switch {
		case errors.Is(err, jet.ErrExists) && left < makeTries:
			// An interrupted start of this node, or a lost answer, left a probe of another size.
			left++
			if err := m.jet.DeleteStream(ctx, probe.Name); err != nil {
				return err
			}
		case !errors.Is(err, jet.ErrFull):
			return refused(err, "a stream of %d replicas cannot be made", m.configs.cfg.Replicas)
		case total <= leastTotal && taken < fitTries:
			// Probes of other nodes that start at the same time may hold the storage: try again.
			taken, m.configs.shrink = taken+1, 1
			select {
			case <-ctx.Done():
				return m.jet.Error("measure the room for streams", ctx.Err())
			case <-time.After(makePause):
			}
		case total <= leastTotal:
			return schemas.Errorf(schemas.CodeStoreFull, "JetStream has less than %d MiB of file storage left for Belfry's streams (%w): raise max_file_store, or the account's limit", leastTotal>>20, err)
		default:
			m.configs.shrink *= 2
		}
	}
}

// probe returns the name of the stream that fitDefaults makes.
func (m *streamMaker) probe() string { return probeName + "_" + m.configs.cfg.Node }

// removeProbe removes a probe that an interrupted start of this node has left. It would take
// storage from the streams.
func (m *streamMaker) removeProbe(ctx context.Context) {
	if _, err := m.jet.Stream(ctx, m.probe()); err != nil {
		return // no probe, or JetStream does not answer: then the next request fails
	}
	if err := m.jet.DeleteStream(ctx, m.probe()); err != nil {
		m.log.Warn().Err(err).Str("stream", m.probe()).Msg("an interrupted start has left a stream that takes storage, and it could not be removed")
	}
}

// refused returns an error of schemas.CodeConfig for an error that a retry would repeat. It
// returns other errors, such as those of an incomplete cluster, unchanged: the caller tries
// again.
func refused(err error, what string, args ...any) error {
	var refusal *jet.Error
	if !errors.As(err, &refusal) || !errors.Is(refusal.Kind, jet.ErrRefused) {
		return err
	}
	// MapError has made err an ErrUnavailable, which the caller would repeat.
	return schemas.Errorf(schemas.CodeConfig, what+": %w", append(args, refusal)...)
}

// ensure makes a stream, or checks and updates the existing one. It returns an error of
// schemas.CodeConfig if a setting differs that cannot be changed without harm.
func (m *streamMaker) ensure(ctx context.Context, want jet.StreamConfig) error {
	ctx, cancel := context.WithTimeout(ctx, m.configs.cfg.Timeout)
	defer cancel()
	have, err := m.jet.Stream(ctx, want.Name)
	if errors.Is(err, jet.ErrNoStream) {
		err = m.make(ctx, want)
		if !errors.Is(err, jet.ErrExists) {
			return err
		}
		have, err = m.jet.Stream(ctx, want.Name) // another node was faster
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
	case !slices.Equal(got.Subjects, want.Subjects) && !sharesRejected(got, want) && !tenantSubjects(got, want):
		return bad("subjects", got.Subjects, want.Subjects)
	}
	if tenantSubjects(got, want) && len(got.Subjects) > len(want.Subjects) {
		want.Subjects = got.Subjects // another node serves tenants, or did
	}
	if want.Name == schemas.StreamFired && !m.configs.explicitBytes(want.Name) {
		want.MaxMsgsPerSubject = m.configs.perService(got.MaxBytes)
	}
	more := want.MaxConsumers > 0 && got.MaxConsumers <= 0
	if !more && slices.Equal(got.Subjects, want.Subjects) && (want.Name != schemas.StreamFired || got.MaxMsgsPerSubject == want.MaxMsgsPerSubject) && got.MaxAge == want.MaxAge && got.Duplicates == want.Duplicates && got.Replicas == want.Replicas && got.MaxMsgSize == want.MaxMsgSize &&
		got.AllowDirect && (got.AllowAtomicPublish || !m.configs.atomic) && got.AllowMsgTTL == want.AllowMsgTTL && (got.MaxBytes == want.MaxBytes || !m.configs.explicitBytes(want.Name)) {
		return nil
	}
	next := got
	next.Subjects = want.Subjects
	next.MaxAge, next.Duplicates, next.Replicas, next.MaxMsgSize = want.MaxAge, want.Duplicates, want.Replicas, want.MaxMsgSize
	next.AllowDirect, next.AllowMsgTTL = true, want.AllowMsgTTL
	if want.Name == schemas.StreamFired {
		next.MaxMsgsPerSubject = want.MaxMsgsPerSubject
	}
	next.AllowAtomicPublish = got.AllowAtomicPublish || m.configs.atomic
	if m.configs.explicitBytes(want.Name) {
		next.MaxBytes = want.MaxBytes
	}
	if more {
		next.MaxConsumers = want.MaxConsumers
	}
	err = m.jet.UpdateStream(ctx, next)
	if more && errors.Is(err, jet.ErrRefused) {
		// Some versions refuse to change the limit of consumers: keep it.
		next.MaxConsumers = got.MaxConsumers
		err = m.jet.UpdateStream(ctx, next)
	}
	if err != nil {
		return refused(err, "stream %s cannot be changed to the configured limits", want.Name)
	}
	return nil
}

// Bounds of make and of fitDefaults. They retry because the server may still count storage
// that another node, or a probe, has just given back.
const (
	makeTries = 20
	makePause = 100 * time.Millisecond
	fitTries  = 5
)

// make creates a stream. If the server or the account has no room for it after makeTries, and
// its byte limit is a default, make lowers the limit, down to leastBytes.
func (m *streamMaker) make(ctx context.Context, want jet.StreamConfig) error {
	for try := 1; ; try++ {
		err := m.jet.CreateStream(ctx, want)
		switch {
		case err == nil, errors.Is(err, jet.ErrExists):
			return err
		case !errors.Is(err, jet.ErrFull):
			return refused(err, "stream %s cannot be made", want.Name)
		case m.configs.explicitBytes(want.Name) || want.MaxBytes <= leastBytes:
			return schemas.Errorf(schemas.CodeStoreFull, "stream %s with %d bytes does not fit JetStream's storage limit: %w", want.Name, want.MaxBytes, err)
		case try >= makeTries:
			want.MaxBytes /= 2
			if want.Name == schemas.StreamFired {
				want.MaxMsgsPerSubject = m.configs.perService(want.MaxBytes)
			}
		}
		select {
		case <-ctx.Done():
			return m.jet.Error("make stream "+want.Name, ctx.Err())
		case <-time.After(makePause):
		}
	}
}

// minMajor and minMinor are the oldest version of nats-server with all features that the
// store uses: per-message TTLs and multi-subject direct gets came with 2.11.
const minMajor, minMinor = 2, 11

// leastMessage is the smallest max_payload, in bytes, with which Belfry runs. Every message
// without an event must fit: index entries, clocks, final records, and the parts of a large
// dead letter.
const leastMessage = 64 << 10

// checkServer checks the version and the limits of the server, and sets the configurations
// that depend on them. Errors: schemas.CodeConfig, schemas.ErrUnavailable.
func (m *streamMaker) checkServer(ctx context.Context, maxMessage func() int) error {
	server, err := m.jet.Server(ctx)
	url := schemas.RedactURL(server.URL)
	if n := maxMessage(); n < leastMessage {
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
	m.configs.atomic = server.AtomicBatches()
	if m.configs.consumers = manyConsumers; server.LimitedConsumers {
		m.configs.consumers = 0 // the account's limit is the stream's
	}
	return nil
}

// storeLayout reads the recorded layout, or records that of a new store.
func (m *streamMaker) storeLayout(ctx context.Context) (meta, error) {
	want := m.configs.cfg.Geometry
	if want == (schemas.Geometry{}) {
		want = schemas.DefaultGeometry()
	}
	layout := layoutRecord{jet: m.jet, log: m.log}
	was, _, err := layout.read(ctx)
	if errors.Is(err, schemas.ErrNotFound) {
		if err := want.Validate(); err != nil {
			return meta{}, err
		}
		format := m.configs.cfg.Level.layout()
		if m.configs.cfg.Development {
			format = layoutDevelopment
		}
		if err := layout.create(ctx, meta{Format: format, Geometry: want}); err != nil {
			return meta{}, err
		}
		was, _, err = layout.read(ctx)
		if err != nil {
			return meta{}, err
		}
	} else if err != nil {
		return meta{}, err
	}
	if err := m.configs.cfg.fits(was); err != nil {
		return meta{}, err
	}
	if m.configs.cfg.Geometry != (schemas.Geometry{}) && was.Geometry != m.configs.cfg.Geometry {
		return meta{}, schemas.Errorf(schemas.CodeConfig, "the store was made with %s; it cannot be opened with %s: these are fixed at the first start", describe(was.Geometry), describe(m.configs.cfg.Geometry))
	}
	m.configs.shards = was.Geometry.Shards
	return was, layout.copy(ctx, was)
}
