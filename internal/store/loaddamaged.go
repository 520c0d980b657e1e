package store

import (
	"context"
	"errors"
	"slices"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// loadDamaged is LoadTicks for a stream whose direct gets fail permanently: if one of the
// messages is in a damaged block, or the shard's key meta is gone, nats-server 2.15.2 answers
// "not found" to the whole multi-subject direct get (work-around 2,
// docs/internals/nats-server.md). loadDamaged reads the index with a consumer, which skips
// unreadable messages, and the records in halves until each half succeeds or is a single
// unreadable record.
func (l *Loader) loadDamaged(ctx context.Context, shard int, ticks []int64, limit int) (Load, error) {
	sh := &l.shards.subjects[shard]
	if _, err := l.jet.Last(ctx, sh.stream, sh.meta); errors.Is(err, schemas.ErrNotFound) {
		if err := l.jet.CreateOnce(ctx, sh.stream, sh.meta, []byte("belfry")); err != nil {
			return Load{}, err
		}
		return l.loadTicks(ctx, shard, ticks, limit, 0, 0, nil)
	}
	filters := make([]string, 0, len(ticks)+1)
	for _, t := range ticks {
		filters = append(filters, l.shards.slotPrefix(shard, t)+">")
	}
	if l.dec.reads >= LevelFarIndex {
		for _, mark := range l.shards.farMarks(shard, ticks) {
			filters = append(filters, mark+".>")
		}
	}
	var index []*jet.Msg
	var far []schemas.TimerID
	err := l.jet.Scan(ctx, sh.stream, jet.Range{Filters: filters}, func(m jet.Msg) (bool, error) {
		if period, _, ok := l.shards.farPeriodOf(shard, m.Subject); ok {
			l.dec.farTimers(&m, func(id schemas.TimerID, tick int64) {
				if slices.Contains(ticks, period*l.shards.farTicks()+tick) {
					far = append(far, id)
				}
			})
			return true, nil
		}
		index = append(index, &m)
		return true, nil
	})
	if err != nil {
		return Load{}, err
	}
	ids := l.dec.timersOf(index, far...)
	if len(ids) > limit && len(ticks) > 1 {
		return Load{}, nil
	}
	var timers []Timer
	for some := range slices.Chunk(ids, jet.MaxSubjects) {
		got, err := l.readable(ctx, shard, some)
		if err != nil {
			return Load{}, err
		}
		timers = append(timers, got...)
	}
	// Unreadable messages may be index entries, whose timers are unknown here. Report an
	// unreadable message, so that the inspector audits the shard and finds these timers.
	if l.dec.damaged[shard].unreadable.Load() == 0 {
		l.dec.damaged[shard].unreadable.Add(1)
	}
	return l.loaded(shard, ticks, index, len(ids), timers), nil
}

// readable reads the records that the server can read.
func (l *Loader) readable(ctx context.Context, shard int, ids []schemas.TimerID) ([]Timer, error) {
	timers, err := l.indexed(ctx, shard, ids, jet.MaxSubjects, 0, nil)
	if err == nil || !errors.Is(err, jet.ErrMissing) {
		return timers, err
	}
	if len(ids) > 1 {
		half := len(ids) / 2
		a, err := l.readable(ctx, shard, ids[:half])
		if err != nil {
			return nil, err
		}
		b, err := l.readable(ctx, shard, ids[half:])
		return append(a, b...), err
	}
	if l.dec.damaged[shard].note(DamagedRecord{Timer: ids[0].String(), Reason: "the server cannot read it: a block of the stream's file is damaged"}) {
		l.dec.damaged[shard].unreadable.Add(1)
		l.log.Error().Int("shard", shard).Stringer("timer", ids[0]).Msg("record lost: the server cannot read it; a block of the stream's file is damaged")
	}
	return nil, nil
}
