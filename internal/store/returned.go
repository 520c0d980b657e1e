package store

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Work-around 23 (docs/internals/nats-server.md). A server that was killed may bring replaced revisions back, anywhere
// in a shard. A count of the shard (Reader.CountPending) follows the death of its owner and reads every record, so it
// finds the records that have more than one revision. It counts only the newest revision, and has the others deleted
// before the newest one expires. It cannot find a revision whose successors have expired before the kill.

// maxEnded bounds the records in ended, 16 bytes each: 64 MiB. A count does not search for replaced revisions among
// further records.
const maxEnded = 4 << 20

// ended has the records of a count that do not wait.
type ended []endedRecord

type endedRecord struct{ key, rev uint64 } // key is a CountKey

// add takes a record, unless there are too many.
func (e *ended) add(id schemas.TimerID, rev uint64) {
	if len(*e) < maxEnded {
		*e = append(*e, endedRecord{CountKey(id), rev})
	}
}

// twice returns a revision of each record that has a revision in e and another one in e or in waiting, which is sorted.
func (e ended) twice(waiting []uint64) (found ended) {
	slices.SortFunc(e, func(a, b endedRecord) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.rev, b.rev))
	})
	for i, r := range e {
		if i+1 < len(e) && e[i+1].key == r.key {
			continue // the last one of the key decides
		}
		_, waits := slices.BinarySearch(waiting, r.key)
		if waits || i > 0 && e[i-1].key == r.key {
			found = append(found, r)
		}
	}
	return found
}

// onlyNewest removes from waiting, which is sorted, the timers whose newest revision does not wait, and has the revisions
// of records in done deleted that later ones have replaced. Errors: schemas.ErrUnavailable.
func (rd *Reader) onlyNewest(ctx context.Context, shard int, waiting []uint64, done ended) ([]uint64, error) {
	over := map[uint64]bool{} // by CountKey
	removed := 0
	for _, r := range done.twice(waiting) {
		newest, older, err := rd.revisions(ctx, shard, r.rev)
		if err != nil {
			return nil, err
		}
		if newest == nil || len(older) == 0 {
			continue // it has changed meanwhile, or two timers have the key
		}
		if t, err := rd.dec.timer(newest); err == nil && !t.Record.State.Waits() {
			over[r.key] = true
		}
		if rd.gc == nil || !rd.gc.replaces(newest) {
			continue
		}
		for _, m := range older {
			if err := rd.gc.discard(ctx, shard, m.Sequence, newest); err != nil {
				return nil, err
			}
			removed++
		}
	}
	if removed > 0 {
		rd.log.Warn().Int("shard", shard).Int("revisions", removed).Msg("removed replaced revisions of records that the server had brought back")
	}
	return slices.DeleteFunc(waiting, func(key uint64) bool { return over[key] }), nil
}

// revisions returns the newest revision of the record that has the revision rev, and the revisions before it. newest is
// nil if rev does not exist any more.
func (rd *Reader) revisions(ctx context.Context, shard int, rev uint64) (newest *jet.Msg, older []*jet.Msg, err error) {
	stream := rd.shards.subjects[shard].stream
	m, err := rd.jet.At(ctx, stream, rev)
	if err == nil {
		newest, err = rd.jet.Last(ctx, stream, m.Subject)
	}
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	older, _, err = rd.jet.Next(ctx, stream, m.Subject, 0, history)
	return newest, slices.DeleteFunc(older, func(m *jet.Msg) bool { return m.Sequence >= newest.Sequence }), err
}
