package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Layout versions, recorded in bucket clock. A build refuses to open a store of a version that
// it does not know. So builds that cannot read schemas.RecordFormat2 refuse a store that may
// hold such records.
const (
	layout1 = 1
	// layout2 allows records of schemas.RecordFormat2.
	layout2 = 2
	// layout3 allows far entries.
	layout3      = 3
	newestLayout = layout3
	// layoutDevelopment is newestLayout in a development store; see Config.Development. Builds
	// that know no development stores refuse it.
	layoutDevelopment = 1000
)

// meta is the value of the key meta of bucket clock: the layout of the store.
type meta struct {
	Format   int              `json:"format"`
	Geometry schemas.Geometry `json:"geometry"`
	// From is the layout version that the store had before it was raised to Format; 0
	// if it was made with Format.
	From int `json:"from,omitempty"`
}

// layoutRecord reads and writes the recorded layout, under the key meta of bucket clock,
// and its copy.
type layoutRecord struct {
	jet *jet.Client
	log zerolog.Logger
}

// read reads the layout from the leader. If it is damaged or gone and its copy is not, the
// copy takes its place. Errors: schemas.ErrNotFound for a new store, schemas.ErrDamaged,
// schemas.ErrNewer, schemas.ErrUnavailable.
func (l layoutRecord) read(ctx context.Context) (meta, *jet.Msg, error) {
	msg, err := l.jet.Last(ctx, clockStream, metaSubject)
	gone := errors.Is(err, schemas.ErrNotFound)
	if err != nil && !gone {
		return meta{}, nil, err
	}
	if gone {
		msg = &jet.Msg{}
	}
	m, err := decodeMeta(msg.Data)
	if !errors.Is(err, schemas.ErrDamaged) {
		return m, msg, err
	}
	kept, cerr := l.jet.Last(ctx, clockStream, metaCopySubject)
	if cerr != nil && !errors.Is(cerr, schemas.ErrNotFound) {
		return meta{}, nil, cerr
	}
	if cerr == nil {
		m, cerr = decodeMeta(kept.Data)
	}
	if cerr != nil {
		if gone {
			return meta{}, nil, schemas.ErrNotFound // a new store
		}
		return meta{}, nil, schemas.Errorf(schemas.CodeDamaged, "%w; \"belfry repair\" shows how to rebuild it", err)
	}
	l.log.Error().Err(err).Str("layout", describe(m.Geometry)).Msg("the recorded layout is damaged: restoring it from its copy")
	if _, err := l.jet.Put(ctx, metaSubject, kept.Data, msg.Sequence, 0); err != nil && !errors.Is(err, ErrRevision) {
		return meta{}, nil, err
	}
	if msg, err = l.jet.Last(ctx, clockStream, metaSubject); err != nil {
		return meta{}, nil, err
	}
	m, err = decodeMeta(msg.Data)
	return m, msg, err
}

// create records the layout of a new store. If another node was faster, its layout stays.
func (l layoutRecord) create(ctx context.Context, m meta) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return l.jet.CreateOnce(ctx, clockStream, metaSubject, b)
}

// replace writes a layout by compare-and-set. Errors: ErrRevision,
// schemas.ErrUnavailable.
func (l layoutRecord) replace(ctx context.Context, m meta, rev uint64) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	_, err = l.jet.Put(ctx, metaSubject, b, rev, 0)
	return err
}

// copy writes the copy of the layout if it differs. There must be one, because the
// buckets do not show the width of a slot.
func (l layoutRecord) copy(ctx context.Context, m meta) error {
	have, err := l.jet.Last(ctx, clockStream, metaCopySubject)
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		have = &jet.Msg{}
	case err != nil:
		return err
	}
	if was, err := decodeMeta(have.Data); err == nil && was == m {
		return nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if _, err := l.jet.Put(ctx, metaCopySubject, b, have.Sequence, 0); err != nil && !errors.Is(err, ErrRevision) {
		return err
	}
	return nil // ErrRevision: another node was faster
}

// shards reads the number of shards from the layout, or from its copy; 0 if neither can be
// read.
func (l layoutRecord) shards(ctx context.Context) int {
	for _, subject := range []string{metaSubject, metaCopySubject} {
		msg, err := l.jet.Last(ctx, clockStream, subject)
		if err != nil {
			continue
		}
		if m, err := decodeMeta(msg.Data); err == nil {
			return m.Geometry.Shards
		}
	}
	return 0
}

// decodeMeta decodes a layout. It returns schemas.ErrNewer for a layout of a newer version, and
// schemas.ErrDamaged for anything else that is not a layout.
func decodeMeta(b []byte) (meta, error) {
	var m meta
	err := json.Unmarshal(b, &m)
	switch {
	case err != nil:
	case m.Format > newestLayout && m.Format != layoutDevelopment:
		return meta{}, schemas.Errorf(schemas.CodeUnknownFormat, "the store has layout version %d; this version of belfry knows %d to %d: use the version that wrote it, or a newer one", m.Format, layout1, newestLayout)
	case m.Format < layout1:
		err = fmt.Errorf("it has format version %d", m.Format)
	default:
		err = m.Geometry.Validate()
	}
	if err != nil {
		return meta{}, schemas.Errorf(schemas.CodeDamaged, "the recorded layout (key meta of bucket clock) is damaged: %w", err)
	}
	return m, nil
}

// describe returns a geometry as settings.
func describe(g schemas.Geometry) string {
	return fmt.Sprintf("shards=%d slot_width=%s wheel_size=%d", g.Shards, g.SlotWidth, g.WheelSize)
}
