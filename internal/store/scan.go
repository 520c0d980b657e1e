package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// ScanQueued reads every record of a shard once, in stream order, and passes to fn the
// pending and claimed records that are due by throughMs (Unix milliseconds). Use it when the
// low watermark is older than the index entries; it costs a read of the whole shard.
//
// It leaves out records due before the low watermark whose revision is up to the applied
// offset: owners have handled them, so such a record that looks open is an old revision. It
// also passes every record of a newer format that may have to fire (see Timer.Unread), and
// every schedule whose last run or overdue event was claimed after the shard's clock was
// written, because its owner may have died before it published the event. Errors: those of
// fn, schemas.ErrUnavailable.
func (rd *Reader) ScanQueued(ctx context.Context, shard int, throughMs int64, fn func(Timer) error) error {
	clock, _, err := rd.clocks.ReadClock(ctx, shard)
	if err != nil {
		return err
	}
	watermark := rd.shards.geo.Tick(clock.TimeMs)
	sh := &rd.shards.subjects[shard]
	return rd.jet.Scan(ctx, sh.stream, jet.Range{Filters: []string{sh.timer + "*"}}, func(m jet.Msg) (bool, error) {
		t, ok := rd.dec.decode(&m)
		if !ok {
			if t.Unread == UnreadOpen {
				return true, fn(t)
			}
			return true, nil
		}
		r := &t.Record
		done := rd.shards.geo.Tick(r.DueMs) < watermark && t.Rev <= clock.Tail
		claimed := r.Schedule != nil && clock.MissesAny(rd.shards.geo, r.Schedule, t.Rev)
		if !claimed && (done || r.DueMs > throughMs || !r.Pending() && r.State != schemas.StateDelivered) {
			return true, nil
		}
		return true, fn(t)
	})
}

// EachSchedule passes the schedules of a shard in state pending or paused to fn, in stream
// order, starting after a sequence, until fn returns false. It reads every record of the shard
// after that sequence, with the pauses of scanPaced. It also passes every record of a newer
// format that may have to fire (see Timer.Unread), because it may be a schedule. It leaves out
// records that are damaged. Errors: those of fn, schemas.ErrUnavailable.
func (rd *Reader) EachSchedule(ctx context.Context, shard int, after uint64, fn func(Timer) (more bool, err error)) error {
	return rd.scanPaced(ctx, "read schedules", shard, jet.Range{AfterSeq: after}, func(m jet.Msg) (bool, error) {
		t, ok := rd.dec.decode(&m)
		if t.Unread == UnreadOpen {
			return fn(t)
		}
		if r := &t.Record; !ok || r.Schedule == nil || !r.State.Waits() {
			return true, nil
		}
		return fn(t)
	})
}

// EachDeferred reads the records of a shard, in stream order, and passes the records that wait in the
// wheel for a slot of their flow key to fn, until fn returns false. It costs a read of the whole
// shard, and pauses as CountPending does. Errors: those of fn, schemas.ErrUnavailable.
func (rd *Reader) EachDeferred(ctx context.Context, shard int, fn func(Timer) (more bool, err error)) error {
	return rd.scanPaced(ctx, "read deferred timers", shard, jet.Range{}, func(m jet.Msg) (bool, error) {
		t, ok := rd.dec.decode(&m)
		if r := &t.Record; !ok || !r.Deferred() || !r.Queued {
			return true, nil
		}
		return fn(t)
	})
}

const (
	// pacedPause is the pause of scanPaced after each pacedBatch records. It leaves the
	// server time for other requests.
	pacedPause = 5 * time.Millisecond
	pacedBatch = 1000
)

// scanPaced passes the records of a shard to fn, in stream order, until fn returns false, and pauses after each pacedBatch
// of them. It sets r.Filters. Errors name the operation op: those of fn, schemas.ErrUnavailable, also if ctx ends.
func (rd *Reader) scanPaced(ctx context.Context, op string, shard int, r jet.Range, fn func(jet.Msg) (more bool, err error)) error {
	sh, n := &rd.shards.subjects[shard], 0
	r.Filters = []string{sh.timer + "*"}
	return rd.jet.Scan(ctx, sh.stream, r, func(m jet.Msg) (bool, error) {
		if n++; n%pacedBatch == 0 && !pause.For(ctx, pacedPause) {
			return false, rd.jet.Error(op, ctx.Err())
		}
		return fn(m)
	})
}

// lastRecord returns the revision of a shard's newest record, according to the leader; 0 if there is none. Errors:
// schemas.ErrUnavailable.
func (rd *Reader) lastRecord(ctx context.Context, shard int) (uint64, error) {
	sh := &rd.shards.subjects[shard]
	return rd.jet.LastOf(ctx, sh.stream, jet.Range{Filters: []string{sh.timer + "*"}})
}
