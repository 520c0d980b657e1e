package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Newest says how far the stream of a shard has come.
type Newest struct {
	// Stream identifies the stream: a stream that was made again has another identity.
	Stream string
	// LastSeq is the last sequence of the stream at AtMs, the server's time of the answer in Unix
	// milliseconds.
	LastSeq uint64
	AtMs    int64
	// More is true if a record follows the reader's position. It is read after AtMs, so without more
	// the reader knows all changes up to AtMs.
	More bool
}

// Newest says how far the stream of a shard has come, for a reader of its records that has come to the
// revision after. Its cost does not depend on the number of records: a request for the newest record
// would make nats-server look at every key of the stream. Errors: schemas.ErrUnavailable.
func (rd *Reader) Newest(ctx context.Context, shard int, after uint64) (Newest, error) {
	sh := &rd.shards.subjects[shard]
	info, err := rd.jet.Stream(ctx, sh.stream)
	if err != nil {
		return Newest{}, err
	}
	n := Newest{Stream: info.Created.UTC().Format(time.RFC3339Nano), LastSeq: info.State.LastSeq, AtMs: info.TimeStamp.UnixMilli()}
	// For a search from the first message on, nats-server would look at every key, too.
	if first := info.State.FirstSeq; after < first && first <= n.LastSeq {
		m, err := rd.jet.At(ctx, sh.stream, first)
		if err == nil && strings.HasPrefix(m.Subject, sh.timer) {
			n.More = true
			return n, nil
		}
		if err != nil && !errors.Is(err, schemas.ErrNotFound) {
			return Newest{}, err
		}
		after = first
	}
	if after < n.LastSeq {
		n.More, err = rd.shards.hasNext(ctx, shard, after)
	}
	return n, err
}

// EachOpen passes the revisions up to through of the records of a shard that are not final to fn, in
// rising order, with the records that this build cannot read and that have no TTL. It costs a read of the
// shard, and pauses as CountPending does. Errors: schemas.ErrUnavailable.
func (rd *Reader) EachOpen(ctx context.Context, shard int, through uint64, fn func(revision uint64)) error {
	sh := &rd.shards.subjects[shard]
	n := 0
	return rd.jet.Scan(ctx, sh.stream, jet.Range{Filters: []string{sh.timer + "*"}}, func(m jet.Msg) (bool, error) {
		if n++; !pauseScan(ctx, n) {
			return false, rd.jet.Error("read open timers", ctx.Err())
		}
		if m.Sequence > through {
			return false, nil
		}
		if t, ok := rd.dec.decode(&m); ok && !t.Record.State.Final() || t.Unread == UnreadOpen {
			fn(m.Sequence)
		}
		return true, nil
	})
}
