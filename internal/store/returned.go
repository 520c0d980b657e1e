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
// in a shard. An owner that takes a shard whose last owner has died counts the shard (Reader.CountPending), which reads
// every record. So the count finds records with several revisions, counts the newest one only, and has the others
// deleted before the newest one expires. If the successors of a revision had expired before the kill, or expire before the
// count, the shard's list of ended timers shows that the revision is void; see void.go.

// maxEnded bounds the records in ended, 16 bytes each: 64 MiB for each shard that is counted. A count does not search
// for replaced revisions among further records.
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

// waitingTwice returns a revision of each record that is in waiting more than once. waiting is sorted. It reads the shard
// again if there is such a record.
func (rd *Reader) waitingTwice(ctx context.Context, shard int, waiting []uint64) (found ended, err error) {
	missing := map[uint64]bool{} // by CountKey
	for i, key := range waiting {
		if i > 0 && waiting[i-1] == key {
			missing[key] = true
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	err = rd.scanPaced(ctx, "count timers", shard, jet.Range{HeadersOnly: true}, func(m jet.Msg) (bool, error) {
		id, err := schemas.ParseTimerID(lastToken(m.Subject))
		if key := CountKey(id); err == nil && missing[key] {
			delete(missing, key)
			found.add(id, m.Sequence)
		}
		return len(missing) > 0, nil
	})
	return found, err
}

// onlyNewest returns the timers of waiting whose newest revision waits, each once. waiting is sorted and has revisions up
// to through. done has the other records. onlyNewest has the older revisions of records in waiting or done deleted, unless
// the newest one is damaged or another client wrote it. Errors: schemas.ErrUnavailable, and that of ctx.
func (rd *Reader) onlyNewest(ctx context.Context, shard int, waiting []uint64, done ended, through uint64) ([]uint64, error) {
	several, err := rd.waitingTwice(ctx, shard, waiting)
	if err != nil {
		return nil, err
	}
	over := map[uint64]bool{} // by CountKey of the records with several revisions: the newest one does not wait
	removing := 0
	for _, r := range append(several, done.twice(waiting)...) {
		if _, known := over[r.key]; known {
			continue
		}
		over[r.key] = false
		newest, older, err := rd.revisions(ctx, shard, r.rev)
		if err != nil {
			return nil, err
		}
		if newest == nil {
			continue // it has ended meanwhile
		}
		t, err := rd.dec.timer(newest)
		if errors.Is(err, schemas.ErrDamaged) {
			continue // Repair may need the others
		}
		over[r.key] = err == nil && !t.Record.State.Waits() && newest.Sequence <= through
		if rd.gc == nil || !rd.gc.replaces(newest) {
			continue
		}
		for _, m := range older {
			// The newest revision may be lost since it was read, so the remover checks it.
			if err := rd.gc.discard(ctx, revision{rd.shards.subjects[shard].stream, m.Sequence}, newest, checkFirst); err != nil {
				return nil, err
			}
			removing++
		}
	}
	if removing > 0 {
		rd.log.Warn().Int("shard", shard).Int("revisions", removing).Msg("removing replaced revisions of records that a killed node had not removed, or a killed server has brought back")
	}
	return slices.DeleteFunc(slices.Compact(waiting), func(key uint64) bool { return over[key] }), nil
}

// revisions returns the newest revision of the record that has the revision rev, and the revisions before it. newest is
// nil if rev does not exist any more.
func (rd *Reader) revisions(ctx context.Context, shard int, rev uint64) (newest *jet.Msg, older []*jet.Msg, err error) {
	stream := rd.shards.subjects[shard].stream
	m, err := rd.jet.At(ctx, stream, rev)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return rd.revisionsOf(ctx, stream, m.Subject)
}

// revisionsOf returns the newest revision of a record, and the revisions before it. newest is nil if there is none.
func (rd *Reader) revisionsOf(ctx context.Context, stream, subject string) (newest *jet.Msg, older []*jet.Msg, err error) {
	older, _, err = rd.jet.Next(ctx, stream, subject, 0, history)
	if err == nil {
		newest, err = rd.jet.Last(ctx, stream, subject)
	}
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return newest, slices.DeleteFunc(older, func(m *jet.Msg) bool { return m.Sequence >= newest.Sequence }), nil
}
