package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
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

// EachRecord passes the id and the revision of each record of a shard to fn, in the order of the revisions. open is false
// for a final record, and for a record that this build cannot read and that has a TTL. It passes each record that exists
// during the whole call at least once, and leaves out damaged ones. It costs a read of the shard, and pauses as
// CountPending does. Errors: schemas.ErrUnavailable.
func (rd *Reader) EachRecord(ctx context.Context, shard int, fn func(id schemas.TimerID, revision uint64, open bool)) error {
	return rd.scanPaced(ctx, "read the records", shard, jet.Range{}, func(m jet.Msg) (bool, error) {
		if t, ok := rd.dec.decode(&m); ok || t.Unread != Readable {
			fn(t.ID, t.Rev, ok && !t.Record.State.Final() || t.Unread == UnreadOpen)
		}
		return true, nil
	})
}
