package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Bounds of List.
const (
	MaxListLimit     = 1000
	DefaultListLimit = 100
	// listScan bounds the messages that one call reads, listTime the time after which it ends its page.
	listScan = 20_000
	listTime = time.Second
	// listBatch is the number of letters that one request reads, scanBatch that of records. A page of records
	// begins with a smaller request: see batchOf.
	listBatch = 500
	scanBatch = 5000
)

// batchOf returns the number of messages that the first request for a page of records reads. For each request but the first of a shard
// the server counts the keys that follow, which takes 100 ms and more in a shard of 250,000 timers and holds up its writes
// (work-around 10, docs/internals/nats-server.md). A message takes a few microseconds. So the first request reads enough for
// most pages: their records, index entries, and what is not a record.
func batchOf(limit int) int { return min(4*limit+64, scanBatch) }

// ListQuery selects records. An empty field matches all.
type ListQuery struct {
	States         []schemas.State
	Service, Group string
	// Tenant selects the timers of one tenant, "" those of the default tenant; nil for all.
	Tenant *string
	// Schedule selects schedules (true) or all other timers (false).
	Schedule *bool
	// Cursor is ListPage.Cursor of the previous page; empty for the first page.
	Cursor string
	// Limit bounds the records of the page; default DefaultListLimit, at most MaxListLimit.
	Limit int
}

// ListPage is one page. Cursor is empty on the last page. Because the work and the time of one
// call are bounded, a page before the last may have fewer records than the limit, or none.
//
// Unread counts the records of a newer format (schemas.ErrNewer) that may have to fire. They
// are not in Timers, because this build cannot tell whether the query selects them.
type ListPage struct {
	Timers []Timer
	Cursor string
	Unread int
}

// List pages through the records, shard by shard, in the order of their last change. It
// holds at most one page in memory. A record that changes moves to the end of its shard, so it may
// come twice. The pages leave out no record that was stored before the first of them and that the query
// selects all the time, also if a replica answers that is behind (see shardEnd).
// Errors: schemas.CodeBadRequest, schemas.ErrUnavailable.
func (rd *Reader) List(ctx context.Context, q ListQuery) (ListPage, error) {
	limit := q.Limit
	if limit == 0 {
		limit = DefaultListLimit
	}
	if limit < 1 || limit > MaxListLimit {
		return ListPage{}, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, MaxListLimit)
	}
	var shard int
	var after uint64
	if q.Cursor != "" {
		if n, err := fmt.Sscanf(q.Cursor, "%d.%d", &shard, &after); n != 2 || err != nil || shard < 0 || shard >= rd.shards.geo.Shards {
			return ListPage{}, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by list", q.Cursor)
		}
	}
	var page ListPage
	var end shardEnd
	batch, begun := batchOf(limit), time.Now()
	for looked := 0; shard < rd.shards.geo.Shards; batch = scanBatch {
		if looked >= listScan || looked > 0 && time.Since(begun) >= rd.listTime {
			page.Cursor = fmt.Sprintf("%d.%d", shard, after)
			return page, nil
		}
		msgs, last, seen, more, err := rd.shards.nextRecords(ctx, shard, after, batch)
		if err != nil {
			return ListPage{}, err
		}
		for _, m := range msgs {
			if len(page.Timers) == limit {
				page.Cursor = fmt.Sprintf("%d.%d", shard, after)
				return page, nil
			}
			after = m.Sequence
			switch t, ok := rd.dec.decode(m); {
			case t.Unread == UnreadOpen:
				page.Unread++
			case ok && q.Selects(&t.Record):
				page.Timers = append(page.Timers, t)
			}
		}
		looked += seen
		if after = last; !more {
			read, err := end.read(ctx, rd.shards, shard, after)
			if err != nil {
				return ListPage{}, err
			}
			if read {
				shard, after, end = shard+1, 0, shardEnd{}
			}
		}
	}
	return page, nil
}

// endReads bounds the reads of the end of one shard.
const endReads = 20

// shardEnd finds out whether a read of a shard has come to its end: a replica that is behind has
// nothing more to answer too early. A read has every record that existed all the time if nothing
// follows in the leader's stream, or if its last answer is of a replica that has reached the last
// sequence that the leader had before.
type shardEnd struct {
	last  uint64 // of the leader, before the last answer; 0 if it was not asked for
	tries int
}

// read reports whether the read, whose last answer was the last one of a replica, has come to the
// end. Otherwise the caller reads again. Errors: schemas.ErrUnavailable, with jet.ErrBehind after
// endReads.
func (e *shardEnd) read(ctx context.Context, shards *Shards, shard int, after uint64) (bool, error) {
	if e.last > 0 && after >= e.last {
		return true, nil
	}
	if more, err := shards.HasNext(ctx, shard, after); err != nil || !more {
		return err == nil, err
	}
	if e.tries++; e.tries > endReads {
		return false, schemas.Errorf(schemas.CodeUnavailable, "read shard %d: %w (at %d): try again", shard, jet.ErrBehind, after)
	}
	var err error
	e.last, err = shards.LastSeq(ctx, shard)
	return false, err
}

// Selects reports whether the query selects a record.
func (q *ListQuery) Selects(r *schemas.Record) bool {
	return (len(q.States) == 0 || slices.Contains(q.States, r.State)) &&
		(q.Service == "" || q.Service == r.Service) && (q.Tenant == nil || *q.Tenant == schemas.TenantOf(r.Service)) && (q.Group == "" || q.Group == r.Group) &&
		(q.Schedule == nil || *q.Schedule == (r.Schedule != nil))
}
