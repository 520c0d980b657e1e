package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/jet"
)

// Newest says how far the stream of a shard has come.
type Newest struct {
	// Stream identifies the stream: a stream that was made again has another identity.
	Stream string
	// LastSeq is the last sequence of the stream at AtMs. Its message need not be a record; see
	// Shards.HasNext.
	LastSeq uint64
	// AtMs is the server's time of the answer, in Unix milliseconds.
	AtMs int64
}

// Newest says how far the stream of a shard has come: a reader of its records that no record follows
// after this answer knows all changes up to AtMs. Errors: schemas.ErrUnavailable.
func (rd *Reader) Newest(ctx context.Context, shard int) (Newest, error) {
	info, err := rd.jet.Stream(ctx, rd.shards.subjects[shard].stream)
	if err != nil {
		return Newest{}, err
	}
	return Newest{Stream: info.Created.UTC().Format(time.RFC3339Nano), LastSeq: info.State.LastSeq, AtMs: info.TimeStamp.UnixMilli()}, nil
}

// EachOpen passes the revisions up to through of the records of a shard that are not final to fn, in
// rising order, with the records that this build cannot read and that have no TTL. It costs a read of the
// shard, and pauses as CountPending does. Errors: schemas.ErrUnavailable.
func (rd *Reader) EachOpen(ctx context.Context, shard int, through uint64, fn func(revision uint64)) error {
	return rd.scanPaced(ctx, "read open timers", shard, jet.Range{}, func(m jet.Msg) (bool, error) {
		if m.Sequence > through {
			return false, nil
		}
		if t, ok := rd.dec.decode(&m); ok && !t.Record.State.Final() || t.Unread == UnreadOpen {
			fn(m.Sequence)
		}
		return true, nil
	})
}
