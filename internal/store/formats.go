package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// FormatLevel counts the changes of the stored formats that older builds cannot
// read. Each node states in its presence the level that it reads, and the nodes of a
// store write no more than the lowest level among those that live, so that builds
// can be exchanged one node at a time.
type FormatLevel int

// The levels. Each includes those before it.
const (
	// LevelFirst is that of builds before the first change.
	LevelFirst FormatLevel = 0
	// LevelSharedIndex adds index entries that name several timers.
	LevelSharedIndex FormatLevel = 1
	// LevelRecord2 adds schemas.RecordFormat2.
	LevelRecord2 FormatLevel = 2
	// LevelRestingServices adds services at rest, which publishers must wake.
	LevelRestingServices FormatLevel = 3
	// LevelSealedCallback adds events whose callback is in schemas.HeaderCallback.
	LevelSealedCallback FormatLevel = 4
	// NewestLevel is the level that this version reads.
	NewestLevel = LevelSealedCallback
	// LevelTest stands for the level of the next build in tests. It adds
	// schemas.RecordFormatTest.
	LevelTest = NewestLevel + 1
)

// Formats says which FormatLevel the nodes of a store write.
type Formats struct {
	// Level is the lowest level among the nodes that are alive.
	Level FormatLevel `json:"level"`
	// Newest is the highest level among them.
	Newest FormatLevel `json:"newest"`
	// HeldBackBy lists the nodes that do not read Newest, by name.
	HeldBackBy []string `json:"held_back_by,omitempty"`
	// Record is the record format of Level.
	Record schemas.RecordFormat `json:"record"`
}

// FormatsOf returns what the given nodes write together.
func FormatsOf(nodes []Member) Formats {
	var f Formats
	for i, n := range nodes {
		if l := n.Presence.Reads; i == 0 || l < f.Level {
			f.Level = l
		}
		f.Newest = max(f.Newest, n.Presence.Reads)
	}
	for _, n := range nodes {
		if n.Presence.Reads < f.Newest {
			f.HeldBackBy = append(f.HeldBackBy, n.Node)
		}
	}
	slices.Sort(f.HeldBackBy)
	f.Record = f.Level.recordFormat()
	return f
}

// recordFormat is the newest record format of a level.
func (l FormatLevel) recordFormat() schemas.RecordFormat {
	switch {
	case l >= LevelTest:
		return schemas.RecordFormatTest
	case l >= LevelRecord2:
		return schemas.RecordFormat2
	}
	return schemas.RecordFormat1
}

// layout is the newest layout version of a level.
func (l FormatLevel) layout() int {
	if l >= LevelRecord2 {
		return newestLayout
	}
	return layout1
}

// Layout versions, recorded in the clock bucket. Builds refuse to open a store of a
// version that they do not know, which keeps those that cannot read
// schemas.RecordFormat2 away from a store that may hold it.
const (
	layout1 = 1
	// layout2 says that records may have schemas.RecordFormat2.
	layout2      = 2
	newestLayout = layout2
)

const (
	// formatsEvery is the interval of looks at what the other nodes read.
	formatsEvery = 2 * time.Second
	// layoutSettle is the time between the change of a store's layout version and the
	// first use of what it allows. A node of an older build that read the version just
	// before the change must have written its presence by then.
	layoutSettle = 10 * time.Second
)

// level is the FormatLevel that this node may write now.
func (s *Store) level() FormatLevel { return FormatLevel(s.writes.Load()) }

// RecordFormat is the format in which this node writes records now.
func (s *Store) RecordFormat() schemas.RecordFormat { return s.level().recordFormat() }

// Writes returns the FormatLevel that this process writes now: the lowest that the live
// nodes read, as this process saw last.
func (s *Store) Writes() FormatLevel { return s.level() }

// Reads returns the FormatLevel that this process reads.
func (s *Store) Reads() FormatLevel { return s.cfg.Level }

// decodeRecord reads a record of a format that this process knows.
func (s *Store) decodeRecord(b []byte) (schemas.Record, error) {
	return schemas.DecodeRecordUpTo(b, s.cfg.Level.recordFormat())
}

// watchFormats keeps the level at what all live nodes read.
func (s *Store) watchFormats(ctx context.Context) {
	tick := time.NewTicker(formatsEvery)
	defer tick.Stop()
	for {
		// An error leaves the level as it is: the next look corrects it.
		if err := s.lookFormats(ctx); err != nil {
			s.log.Debug().Err(err).Msg("the formats that other nodes read are not known")
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lookFormats sets the level from one look at all presences.
func (s *Store) lookFormats(ctx context.Context) error {
	if s.firstBeat.Load() == 0 {
		if _, err := s.Beat(ctx); err != nil {
			return err
		}
	}
	c, err := s.ReadCluster(ctx)
	if err != nil {
		return err
	}
	// Any replica may have answered. One that shows this process's own presence also
	// shows the presences of all nodes that lived before this process started.
	own := slices.IndexFunc(c.Nodes, func(m Member) bool { return m.Node == s.cfg.Node })
	if own < 0 || c.Nodes[own].Rev < s.firstBeat.Load() {
		return nil
	}
	s.first.Store(own == 0)
	level, oldest := s.cfg.Level, Member{}
	for _, m := range c.Nodes {
		if l := m.Presence.Reads; l < level {
			level, oldest = l, m
		}
	}
	if level >= LevelRecord2 {
		if ok, err := s.allowLayout2(ctx); err != nil || !ok {
			level = LevelSharedIndex
			if err != nil {
				return err
			}
		}
	}
	switch was := FormatLevel(s.writes.Swap(int32(level))); {
	case level < was && level >= LevelRecord2:
		s.log.Warn().Str("node", oldest.Node).Str("release", oldest.Presence.Release).
			Msg("a node of an older version runs: services keep their consumers until it stops")
	case level < was:
		s.log.Warn().Str("node", oldest.Node).Str("release", oldest.Presence.Release).
			Msg("a node of an older version runs: records are written in the older format, without checksum and history, until it stops")
	case level > was:
		s.log.Debug().Int("level", int(level)).Msg("every live node reads this format level: it is written from now on")
	}
	return nil
}

// allowLayout2 raises the layout version of a store that an older build made. It
// reports whether records of format 2 may be written.
func (s *Store) allowLayout2(ctx context.Context) (bool, error) {
	if s.layout2.Load() {
		return true, nil
	}
	m, msg, err := s.readMeta(ctx)
	if err != nil {
		return false, err
	}
	if m.Format < layout2 {
		m.From, m.Format = m.Format, layout2
		b, err := json.Marshal(m)
		if err != nil {
			return false, fmt.Errorf("store: %w", err)
		}
		// Another node may have been faster.
		if _, err := s.jet.Put(ctx, metaSubject, b, msg.Sequence, 0); err != nil && !errors.Is(err, ErrRevision) {
			return false, err
		}
		if err := s.copyMeta(ctx, m); err != nil {
			return false, err
		}
		s.log.Info().Msg("every live node reads record format 2: this store can no longer be opened by older versions")
		return false, nil
	}
	now, err := s.nowMs(ctx)
	if err != nil {
		return false, err
	}
	settled := m.From == 0 || time.Duration(now-msg.Time.UnixMilli())*time.Millisecond >= s.layoutSettle
	s.layout2.Store(settled)
	return settled, nil
}

// readMeta reads the recorded layout from the leader. If it is damaged or gone and
// its copy is not, the copy takes its place.
func (s *Store) readMeta(ctx context.Context) (meta, *jet.Msg, error) {
	msg, err := s.jet.Last(ctx, clockStream, metaSubject)
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
	kept, cerr := s.jet.Last(ctx, clockStream, metaCopySubject)
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
		return meta{}, nil, schemas.Errorf(schemas.CodeDamaged, "%w; \"belfry repair\" shows what it can be rebuilt from", err)
	}
	s.log.Error().Err(err).Str("layout", describe(m.Geometry)).Msg("the recorded layout is damaged: it is written again from its copy")
	if _, err := s.jet.Put(ctx, metaSubject, kept.Data, msg.Sequence, 0); err != nil && !errors.Is(err, ErrRevision) {
		return meta{}, nil, err
	}
	if msg, err = s.jet.Last(ctx, clockStream, metaSubject); err != nil {
		return meta{}, nil, err
	}
	m, err = decodeMeta(msg.Data)
	return m, msg, err
}

// decodeMeta reads a layout. It returns ErrNewer for one of a newer version, and
// ErrDamaged for anything else that is not a layout.
func decodeMeta(b []byte) (meta, error) {
	var m meta
	err := json.Unmarshal(b, &m)
	switch {
	case err != nil:
	case m.Format > newestLayout:
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

// copyMeta keeps a second copy of the layout up to date: buckets do not tell the
// width of a slot.
func (s *Store) copyMeta(ctx context.Context, m meta) error {
	have, err := s.jet.Last(ctx, clockStream, metaCopySubject)
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
	if _, err := s.jet.Put(ctx, metaCopySubject, b, have.Sequence, 0); err != nil && !errors.Is(err, ErrRevision) {
		return err
	}
	return nil // ErrRevision: another node was faster
}
