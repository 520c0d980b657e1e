package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// The index keys of a slot are divided by the first characters of the timer id,
// so that a slot of any size is read part by part, each as of one sequence.
const (
	slotTokens = 3
	idAlphabet = "0123456789abcdefghijklmnopqrstuv"
	// slotParts is the number of parts: 32 to the power of slotTokens.
	slotParts = 1 << 15
)

// Loader reads the records that the index names for a tick. Safe for concurrent use.
//
// If the file of a stream is damaged, it returns the readable records, and notes the others
// for the next inspection.
type Loader struct {
	jet    *jet.Client
	shards *Shards
	dec    *decoder
	far    farReader
	log    zerolog.Logger
	// replicated is true if the shards' streams have replicas.
	replicated bool

	// sizes estimates for each shard how many timers the index names for a tick. Each read of a single tick
	// updates it.
	sizes []atomic.Int64
}

func newLoader(c *jet.Client, shards *Shards, dec *decoder, replicated bool, log zerolog.Logger) *Loader {
	return &Loader{jet: c, shards: shards, dec: dec, far: farReader{shards, dec, NewFarIndex(shards.geo.Shards)}, log: log, replicated: replicated, sizes: make([]atomic.Int64, shards.geo.Shards)}
}

// LoadTicks reads the records that the index names for the ticks of a shard, if there are
// at most limit (up to 1,000). If several ticks have more, the answer is incomplete and
// empty. A single tick is read in pages if it has more, or if the last reads suggest that it has. A page
// has at most twice the limit, unless one shared index entry or one part of the slot names more timers.
// A request names at most limit records. after is the Next of the last page. The replica that answers
// must have reached sequence seen. Records that near has are not read, and near forgets them; nil for none. Its owner has noted
// the tail's records up to seen. After a lost connection LoadTicks empties near first. Errors: schemas.ErrUnavailable, also for a replica that is behind.
//
// If the server refuses the reads permanently, because the stream has lost messages,
// LoadTicks reads in a slower way; see loadDamaged.
func (l *Loader) LoadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64, near *Near) (Load, error) {
	near.connected(l.jet.Reconnects())
	load, err := l.loadTicks(ctx, shard, ticks, limit, after, seen, near)
	switch {
	case err == nil:
		if l.dec.damaged[shard].stuck.Load() != 0 {
			l.dec.damaged[shard].settled(false, l.replicated)
		}
		return load, nil
	case errors.Is(err, jet.ErrBehind):
		last, serr := l.shards.LastSeq(ctx, shard)
		if serr != nil || last >= seen || !l.dec.damaged[shard].longStuck() {
			return load, err
		}
		// The stream has lost the messages up to seen: no replica has them.
		load, err = l.loadTicks(ctx, shard, ticks, limit, after, last, near)
	}
	if errors.Is(err, jet.ErrMissing) && l.dec.damaged[shard].settled(true, l.replicated) {
		return l.loadDamaged(ctx, shard, ticks, max(1, min(limit, jet.MaxSubjects)))
	}
	return load, err
}

func (l *Loader) loadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64, near *Near) (Load, error) {
	limit = max(1, min(limit, jet.MaxSubjects))
	if len(ticks) == 0 {
		return Load{Complete: true}, nil
	}
	if after == 0 && (len(ticks) > 1 || l.sizes[shard].Load() <= int64(limit)) {
		load, err := l.loadAtOnce(ctx, shard, ticks, limit, seen, near)
		if !errors.Is(err, jet.ErrTooMany) {
			return load, err
		}
		if len(ticks) > 1 {
			return Load{}, nil
		}
		if l.sizes[shard].Load() <= int64(limit) {
			// The server has refused to list the entries, so they are not counted.
			l.sizes[shard].Store(max(8*int64(limit), jet.MaxMultiLast))
		}
	}
	return l.loadPage(ctx, shard, ticks[0], limit, after, seen, near)
}

func (l *Loader) loadAtOnce(ctx context.Context, shard int, ticks []int64, limit int, seen uint64, near *Near) (Load, error) {
	subjects := make([]string, len(ticks))
	for i, t := range ticks {
		subjects[i] = l.shards.slotPrefix(shard, t) + ">"
	}
	index, far, err := l.entries(ctx, shard, ticks, subjects, seen)
	if err != nil {
		return Load{}, err
	}
	ids := l.dec.timersOf(index, far...)
	if len(ticks) == 1 {
		l.sizes[shard].Store(int64(len(ids)))
	}
	if len(ids) > limit {
		return Load{}, jet.ErrTooMany
	}
	timers, err := l.indexed(ctx, shard, ids, limit, seen, near)
	if err != nil {
		return Load{}, err
	}
	return l.loaded(shard, ticks, index, len(ids), timers), nil
}

// entries reads the index entries that match filters, and the timers that far entries name for the ticks.
func (l *Loader) entries(ctx context.Context, shard int, ticks []int64, filters []string, seen uint64) (index []*jet.Msg, far []schemas.TimerID, err error) {
	if l.dec.reads >= LevelFarIndex {
		filters = append(filters, l.shards.farMarks(shard, ticks)...)
	}
	if len(filters) > jet.MaxSubjects {
		return nil, nil, jet.ErrTooMany
	}
	msgs, err := l.shards.lastFor(ctx, shard, filters, seen)
	if err != nil {
		return nil, nil, err
	}
	if l.dec.reads >= LevelFarIndex {
		l.far.readAhead(ctx, shard, ticks[len(ticks)-1], seen)
	}
	index, marks := l.far.split(shard, msgs)
	far, err = l.far.named(ctx, shard, ticks, marks, seen)
	return index, far, err
}

// loaded makes the Load of records that were read: it separates records of newer formats from
// readable ones. index has the entries that name the records, named is the number of timers that they name.
func (l *Loader) loaded(shard int, ticks []int64, index []*jet.Msg, named int, timers []Timer) Load {
	load := Load{Timers: timers, Named: named, Complete: true}
	if !slices.ContainsFunc(timers, func(t Timer) bool { return t.Unread != Readable }) {
		return load
	}
	load.Timers = make([]Timer, 0, len(timers))
	for _, t := range timers {
		switch t.Unread {
		case Readable:
			load.Timers = append(load.Timers, t)
		case UnreadOpen:
			load.Newer = append(load.Newer, NewerRecord{ID: t.ID, Rev: t.Rev, Tick: l.tickNaming(shard, ticks, index, t.ID)})
		case UnreadFinal:
		}
	}
	return load
}

// tickNaming returns the first of the ticks whose own index entries name a timer, and the first tick for
// a timer that only far entries name.
func (l *Loader) tickNaming(shard int, ticks []int64, index []*jet.Msg, id schemas.TimerID) int64 {
	slots := map[int64]bool{}
	for _, m := range index {
		var slot int64
		if _, err := fmt.Sscanf(strings.TrimPrefix(m.Subject, l.shards.subjects[shard].slot), "%d.", &slot); err != nil {
			continue
		}
		if slices.Contains(l.dec.timersOf([]*jet.Msg{m}), id) {
			slots[slot] = true
		}
	}
	for _, t := range ticks {
		if slots[l.shards.geo.Slot(t)] {
			return t
		}
	}
	return ticks[0]
}

// loadPage reads the next page of a tick: the parts from first on, as many as are expected
// to name up to limit timers.
func (l *Loader) loadPage(ctx context.Context, shard int, tick int64, limit int, first, seen uint64, near *Near) (Load, error) {
	prefix := l.shards.slotPrefix(shard, tick)
	size := l.sizes[shard].Load()
	for first < slotParts {
		width := partsOf(limit, size)
		end := min(first+width, slotParts)
		index, far, err := l.entries(ctx, shard, []int64{tick}, partFilters(prefix, first, end), seen)
		if errors.Is(err, jet.ErrTooMany) && width == 1 {
			return Load{}, schemas.Errorf(schemas.CodeUnavailable, "read index of tick %d, shard %d: more than %d entries in one part of it", tick, shard, jet.MaxMultiLast)
		}
		if err != nil && !errors.Is(err, jet.ErrTooMany) {
			return Load{}, err
		}
		far = inParts(far, first, end)
		ids := l.dec.timersOf(index, far...)
		// One shared index entry cannot be read in parts.
		if err != nil || len(ids) > 2*limit && len(index)+len(far) > 1 && width > 1 {
			size = 4 * int64(limit) * slotParts / int64(width) // read a quarter of these parts
			continue
		}
		found := int64(len(ids)) * slotParts / int64(end-first)
		size = (3*size + found) / 4
		l.sizes[shard].Store(size)
		timers, err := l.indexed(ctx, shard, ids, limit, seen, near)
		if err != nil {
			return Load{}, err
		}
		load := l.loaded(shard, []int64{tick}, index, len(ids), timers)
		load.Next = end % slotParts
		return load, nil
	}
	return Load{Complete: true}, nil
}

// partsOf returns the greatest power of two of parts in which at most limit timers are expected, if the
// slot has size timers; at least 1.
func partsOf(limit int, size int64) uint64 {
	if size <= int64(limit) {
		return slotParts
	}
	return 1 << (bits.Len64(max(1, uint64(limit)*slotParts/uint64(size))) - 1)
}

// partFilters returns the fewest filters that cover the parts from first to end-1.
func partFilters(prefix string, first, end uint64) []string {
	const level1, level2 = slotParts / 32, slotParts / 32 / 32
	var out []string
	for p := first; p < end; {
		f := prefix + idAlphabet[p/level1:p/level1+1] + "."
		switch {
		case p%level1 == 0 && p+level1 <= end:
			p += level1
		case p%level2 == 0 && p+level2 <= end:
			f += idAlphabet[p/level2%32:p/level2%32+1] + "."
			p += level2
		default:
			f += idAlphabet[p/level2%32:p/level2%32+1] + "." + idAlphabet[p%32:p%32+1] + "."
			p++
		}
		out = append(out, f+">")
	}
	return out
}

// inParts returns the timers whose own index entries would be in the parts from first to end-1.
func inParts(ids []schemas.TimerID, first, end uint64) []schemas.TimerID {
	return slices.DeleteFunc(ids, func(id schemas.TimerID) bool {
		part := uint64(binary.BigEndian.Uint16(id[:2]) >> 1)
		return part < first || part >= end
	})
}

// indexed returns the records that the index names: from near, or read from the stream, up to limit in one request. It may
// change the array of ids.
func (l *Loader) indexed(ctx context.Context, shard int, ids []schemas.TimerID, limit int, seen uint64, near *Near) ([]Timer, error) {
	timers := make([]Timer, 0, len(ids))
	ids = slices.DeleteFunc(ids, func(id schemas.TimerID) bool {
		t, kept := near.Take(id)
		if kept {
			timers = append(timers, t)
		}
		return kept
	})
	for some := range slices.Chunk(ids, limit) {
		subjects := make([]string, len(some))
		for i, id := range some {
			subjects[i] = l.shards.subjects[shard].timer + id.String()
		}
		got, err := l.shards.lastFor(ctx, shard, subjects, seen)
		if err != nil {
			return nil, err
		}
		timers = append(timers, l.dec.decodeAll(got)...)
	}
	return timers, nil
}
