package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// The index keys of a slot are divided by the first characters of the timer id,
// so that a slot of any size is read part by part, each as of one sequence.
const (
	slotTokens = 3
	idAlphabet = "0123456789abcdefghijklmnopqrstuv"
	// slotParts is how many parts there are: 32 to the power of slotTokens.
	slotParts = 1 << 15
	// firstParts is how many parts a page begins with; it adapts.
	firstParts = slotParts / 8
)

// LoadTicks reads the records that the index names for the ticks of a shard, if
// they are at most limit (of up to 1,000). If there are more in several ticks, the
// answer is incomplete and empty; a single tick is answered page by page, each of
// up to twice the limit, after being the last page's Next. seen
// is a sequence that the answering replica must have reached; one that has not is
// schemas.ErrUnavailable.
//
// Answers that are refused for good, because the stream has lost what it had, end
// in a slower way to read; see loadDamaged.
func (s *Store) LoadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64) (Load, error) {
	sh := &s.subjects[shard]
	load, err := s.loadTicks(ctx, shard, ticks, limit, after, seen)
	switch {
	case err == nil:
		if sh.damaged.stuck.Load() != 0 {
			s.settled(sh, false)
		}
		return load, nil
	case errors.Is(err, jet.ErrBehind):
		last, serr := s.LastSeq(ctx, shard)
		if serr != nil || last >= seen || !s.longStuck(sh) {
			return load, err
		}
		// No replica will ever have it.
		load, err = s.loadTicks(ctx, shard, ticks, limit, after, last)
	}
	if errors.Is(err, jet.ErrMissing) && s.settled(sh, true) {
		return s.loadDamaged(ctx, shard, ticks, max(1, min(limit, jet.MaxSubjects)))
	}
	return load, err
}

func (s *Store) loadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64) (Load, error) {
	limit = max(1, min(limit, jet.MaxSubjects))
	if len(ticks) == 0 {
		return Load{Complete: true}, nil
	}
	if after == 0 {
		load, err := s.loadAtOnce(ctx, shard, ticks, limit, seen)
		if !errors.Is(err, jet.ErrTooMany) {
			return load, err
		}
		if len(ticks) > 1 {
			return Load{}, nil
		}
	}
	return s.loadPage(ctx, shard, ticks[0], limit, after, seen)
}

func (s *Store) loadAtOnce(ctx context.Context, shard int, ticks []int64, limit int, seen uint64) (Load, error) {
	if len(ticks) > jet.MaxSubjects {
		return Load{}, jet.ErrTooMany
	}
	subjects := make([]string, len(ticks))
	for i, t := range ticks {
		subjects[i] = s.slotPrefix(shard, t) + ">"
	}
	index, err := s.lastFor(ctx, shard, subjects, seen)
	if err != nil {
		return Load{}, err
	}
	ids := s.timersOf(index)
	if len(ids) > limit {
		return Load{}, jet.ErrTooMany
	}
	timers, err := s.indexed(ctx, shard, ids, seen)
	if err != nil {
		return Load{}, err
	}
	return s.loaded(shard, ticks, index, timers), nil
}

// loaded separates the records that this build cannot read from those that it can.
// index has the entries that name them.
func (s *Store) loaded(shard int, ticks []int64, index []*jet.Msg, timers []Timer) Load {
	load := Load{Timers: timers, Complete: true}
	if !slices.ContainsFunc(timers, func(t Timer) bool { return t.Unread != Readable }) {
		return load
	}
	load.Timers = make([]Timer, 0, len(timers))
	for _, t := range timers {
		switch t.Unread {
		case Readable:
			load.Timers = append(load.Timers, t)
		case UnreadOpen:
			load.Newer = append(load.Newer, NewerRecord{ID: t.ID, Rev: t.Rev, Tick: s.tickNaming(shard, ticks, index, t.ID)})
		case UnreadFinal:
		}
	}
	return load
}

// tickNaming returns the first of the ticks whose index entries name a timer.
func (s *Store) tickNaming(shard int, ticks []int64, index []*jet.Msg, id schemas.TimerID) int64 {
	slots := map[int64]bool{}
	for _, m := range index {
		var slot int64
		if _, err := fmt.Sscanf(strings.TrimPrefix(m.Subject, s.subjects[shard].slot), "%d.", &slot); err != nil {
			continue
		}
		if slices.Contains(s.timersOf([]*jet.Msg{m}), id) {
			slots[slot] = true
		}
	}
	for _, t := range ticks {
		if slots[s.geo.Slot(t)] {
			return t
		}
	}
	return ticks[0]
}

// loadPage reads as many parts of a tick, from a first one on, as one answer
// holds.
func (s *Store) loadPage(ctx context.Context, shard int, tick int64, limit int, first, seen uint64) (Load, error) {
	prefix, hint := s.slotPrefix(shard, tick), &s.subjects[shard].parts
	width := hint.Load()
	if width == 0 {
		width = firstParts
	}
	for first < slotParts {
		end := min(first+uint64(width), slotParts)
		index, err := s.lastFor(ctx, shard, partFilters(prefix, first, end), seen)
		if errors.Is(err, jet.ErrTooMany) && width == 1 {
			return Load{}, schemas.Errorf(schemas.CodeUnavailable, "read index of tick %d, shard %d: more than %d entries in one part of it", tick, shard, jet.MaxMultiLast)
		}
		if err != nil && !errors.Is(err, jet.ErrTooMany) {
			return Load{}, err
		}
		ids := s.timersOf(index)
		// A page of more than twice what was asked for is read again in part; after one
		// of less than a third the next is wider.
		if err != nil || len(ids) > 2*limit && width > 1 {
			width = max(1, width/4)
			continue
		}
		if len(ids) < limit/3 {
			width = min(2*width, slotParts)
		}
		hint.Store(width)
		timers, err := s.indexed(ctx, shard, ids, seen)
		if err != nil {
			return Load{}, err
		}
		load := s.loaded(shard, []int64{tick}, index, timers)
		load.Next = end % slotParts
		return load, nil
	}
	return Load{Complete: true}, nil
}

// partFilters covers the parts from first up to end with as few filters as it takes.
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

func (s *Store) slotPrefix(shard int, tick int64) string {
	return s.subjects[shard].slot + strconv.FormatInt(s.geo.Slot(tick), 10) + "."
}

// indexed reads the records that the index names.
func (s *Store) indexed(ctx context.Context, shard int, ids []schemas.TimerID, seen uint64) ([]Timer, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	subjects := make([]string, len(ids))
	for i, id := range ids {
		subjects[i] = s.subjects[shard].timer + id.String()
	}
	got, err := s.lastFor(ctx, shard, subjects, seen)
	if err != nil {
		return nil, err
	}
	return s.decodeAll(got), nil
}

// decodeAll reads records. One of a newer format comes without its Record; see
// Timer.Unread. A damaged one is logged, counted and left out: it must not stop the
// others.
func (s *Store) decodeAll(msgs []*jet.Msg) []Timer {
	timers := make([]Timer, 0, len(msgs))
	for _, m := range msgs {
		if t, ok := s.decode(m); ok || t.Unread != Readable {
			timers = append(timers, t)
		}
	}
	return timers
}

// decode reads a record; false if it cannot be read, which it logs and counts. A record
// of a newer format comes with its identity; see Timer.Unread.
func (s *Store) decode(m *jet.Msg) (Timer, bool) {
	t, err := s.timer(m)
	if err == nil {
		if s.undecodable.Load() > 0 {
			if d := s.damagedOf(m.Subject); d != nil && d.n.Load() > 0 {
				d.good(lastToken(m.Subject), m.Sequence)
			}
		}
		return t, true
	}
	if errors.Is(err, schemas.ErrNotFound) {
		return Timer{}, false
	}
	if !errors.Is(err, schemas.ErrNewer) {
		s.noteDamaged(m, err)
		return Timer{}, false
	}
	t = s.unread(m)
	if t.Unread != UnreadFinal {
		s.noteDamaged(m, err)
	}
	return t, false
}

// unread identifies a record of a newer format. A record with a TTL is final in every
// format: Write.Check gives a TTL to no other, and an older build must be able to tell.
func (s *Store) unread(m *jet.Msg) Timer {
	id, err := schemas.ParseTimerID(lastToken(m.Subject))
	if err != nil {
		return Timer{} // nobody's
	}
	t := Timer{ID: id, Rev: m.Sequence, StoredMs: m.Time.UnixMilli(), Unread: UnreadOpen}
	if jet.TTL(m) > 0 {
		t.Unread = UnreadFinal
	}
	return t
}

// Undecodable counts the records that were skipped because they could not be
// decoded, each time they were met.
func (s *Store) Undecodable() uint64 { return s.undecodable.Load() }
