package visibility

import (
	"context"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// leastAway is the minimum age of the as-of time at which timers may have ended unseen. The as-of time of a follower
	// that keeps up is less old.
	leastAway = 10 * time.Second
	// comparePace is the interval at which compareAll is called if records are kept for too short a time for leastAway.
	// It takes at most one part in compareShare of the time.
	comparePace  = time.Minute
	compareShare = 20
)

// compareIfDue compares the open entries of all shards if timers may have ended unseen without a gap in the as-of times.
func (f *follower) compareIfDue(ctx context.Context) error {
	begun := time.Now()
	if f.o.kept() >= leastAway || begun.Sub(f.compared) < max(f.o.comparePace(), compareShare*f.compareTook) {
		return nil
	}
	for shard := range f.offsets {
		if _, err := f.compare(ctx, shard); err != nil {
			return err
		}
	}
	f.compared = time.Now()
	f.compareTook = f.compared.Sub(begun)
	return nil
}

// compare removes the open entries of a shard whose records are gone. compared is false if the shard could not be read.
// Errors are those of the store.
func (f *follower) compare(ctx context.Context, shard int) (compared bool, err error) {
	if m, _, _ := f.queue.state(); m == following {
		f.catchUp(ctx) // changes wait, because nothing is written meanwhile
	}
	// A store that cannot be written fails here, before the shard is read.
	offset := f.offsets[shard]
	if err := f.store.Write(ctx, Batch{Offsets: map[int]Offset{shard: offset}}); err != nil {
		return false, err
	}
	var open []uint64
	changed := map[schemas.TimerID]bool{} // after the offset: the tail brings these records
	err = f.o.Buckets.EachRecord(ctx, shard, func(id schemas.TimerID, revision uint64, isOpen bool) {
		switch {
		case revision > offset.Revision:
			changed[id] = true
		case isOpen:
			open = append(open, revision)
		}
	})
	if err != nil {
		if ctx.Err() == nil {
			f.log.Debug().Err(err).Int("shard", shard).Msg("the open entries of a shard are not compared with its records")
		}
		return false, nil
	}
	removed, err := f.store.Reconcile(ctx, shard, offset.Revision, func(id schemas.TimerID, revision uint64) bool {
		_, found := slices.BinarySearch(open, revision)
		return found || changed[id]
	})
	if removed > 0 {
		f.log.Info().Int("shard", shard).Int("entries", removed).Msg("open entries removed: their records expired while this node did not read them")
	}
	return err == nil, err
}
