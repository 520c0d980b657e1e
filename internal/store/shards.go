package store

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Shards names the streams and keys of the shards. It does not change after Open, and
// its methods may be called concurrently.
type Shards struct {
	jet      *jet.Client
	geo      schemas.Geometry
	subjects []shardSubjects // by shard
}

// newShards returns the shards of a geometry. The zero geometry, of a View, has no shards.
func newShards(c *jet.Client, geo schemas.Geometry) *Shards {
	h := &Shards{jet: c, geo: geo, subjects: make([]shardSubjects, geo.Shards)}
	for n := range h.subjects {
		p := "$KV." + schemas.BucketTimers(n) + "."
		sh := &h.subjects[n]
		sh.stream, sh.timer, sh.slot, sh.far, sh.meta, sh.journal, sh.touch, sh.ended = "KV_"+schemas.BucketTimers(n), p+"timer.", p+"slot.", p+"far.", p+"meta", p+"journal", p+"touch", p+"ended."
	}
	return h
}

// Geometry is the layout that the store was made with.
func (h *Shards) Geometry() schemas.Geometry { return h.geo }

// Messages returns the number of messages in a shard's stream, and the server's time of
// the count in Unix milliseconds. Errors: schemas.ErrUnavailable.
func (h *Shards) Messages(ctx context.Context, shard int) (n uint64, atMs int64, err error) {
	info, err := h.jet.Stream(ctx, h.subjects[shard].stream)
	return info.State.Msgs, info.TimeStamp.UnixMilli(), err
}

// LastSeq is the last sequence of a shard's stream. Errors: schemas.ErrUnavailable.
func (h *Shards) LastSeq(ctx context.Context, shard int) (uint64, error) {
	info, err := h.jet.Stream(ctx, h.subjects[shard].stream)
	return info.State.LastSeq, err
}

// timerSubject returns the key of a timer's record, as a subject, and its stream.
func (h *Shards) timerSubject(id schemas.TimerID) (subject, stream string) {
	sh := &h.subjects[h.geo.Shard(id)]
	return sh.timer + id.String(), sh.stream
}

// nextRecords reads the records among the next messages of a shard after a sequence, in stream order, at most as
// many messages as batch. It requests all messages and leaves index entries out: with a filter the server counts the matching
// messages in each request, without one only in requests after the first message of the stream (work-around 10). Few large requests are
// therefore faster than many small ones.
// last is the sequence to continue after, looked the number of messages that were read.
func (h *Shards) nextRecords(ctx context.Context, shard int, after uint64, batch int) (records []*jet.Msg, last uint64, looked int, more bool, err error) {
	msgs, last, more, err := h.nextMessages(ctx, shard, after, batch)
	for _, m := range msgs {
		if strings.HasPrefix(m.Subject, h.subjects[shard].timer) {
			records = append(records, m)
		}
	}
	return records, last, len(msgs), more, err
}

// nextMessages reads the next messages of a shard after a sequence, records and others, like nextRecords. It returns
// none, and the sequence after, at the end of the stream and after an error.
func (h *Shards) nextMessages(ctx context.Context, shard int, after uint64, batch int) (msgs []*jet.Msg, last uint64, more bool, err error) {
	a, err := h.jet.Direct(ctx, h.subjects[shard].stream, jet.Get{Seq: after + 1, Batch: batch, MaxBytes: jet.MaxAnswerBytes})
	if err != nil || len(a.Msgs) == 0 {
		return nil, after, false, err
	}
	return a.Msgs, a.Msgs[len(a.Msgs)-1].Sequence, a.More > 0, nil
}

// HasNext asks the leader of a shard's stream whether a record follows a sequence. Its cost does not depend on
// the number of records: a request for the newest record would make nats-server look at every key of the
// stream. Errors: schemas.ErrUnavailable.
func (h *Shards) HasNext(ctx context.Context, shard int, after uint64) (bool, error) {
	sh := &h.subjects[shard]
	if after == 0 {
		// For a search from the first message on, the server would look at every key, too. The first message
		// is the key meta, unless the stream has lost it; see Inspector.lostStart.
		m, err := h.jet.At(ctx, sh.stream, 1)
		if err == nil && strings.HasPrefix(m.Subject, sh.timer) {
			return true, nil
		}
		if err != nil && !errors.Is(err, schemas.ErrNotFound) {
			return false, err
		}
		after = 1
	}
	return h.jet.HasNext(ctx, sh.stream, sh.timer+">", after)
}

// lastFor reads the last message of each subject (which may have wildcards) of a shard, as
// of the sequence seen or later; see jet.Client.LastEach.
func (h *Shards) lastFor(ctx context.Context, shard int, subjects []string, seen uint64) ([]*jet.Msg, error) {
	sh := &h.subjects[shard]
	return h.jet.LastEach(ctx, sh.stream, sh.meta, subjects, seen)
}

// slotPrefix returns the prefix of the keys of all index entries of a tick.
func (h *Shards) slotPrefix(shard int, tick int64) string {
	return h.subjects[shard].slot + strconv.FormatInt(h.geo.Slot(tick), 10) + "."
}

// slotSubject returns the key of an index entry, slot.<slot>.<a>.<b>.<c>.<rest>. The first
// characters of the id are tokens of their own, so that a filter can select a part of a
// large slot.
func (h *Shards) slotSubject(shard int, id schemas.TimerID, tick int64) string {
	return spreadKey(h.subjects[shard].slot, h.geo.Slot(tick), id)
}

// spreadKey returns the key <prefix><n>.<a>.<b>.<c>.<rest> of an index entry.
func spreadKey(prefix string, n int64, id schemas.TimerID) string {
	b := make([]byte, 0, len(prefix)+20+schemas.TimerIDLength+slotTokens+1)
	b = append(b, prefix...)
	b = append(strconv.AppendInt(b, n, 10), '.')
	text := id.String()
	for i := range slotTokens {
		b = append(b, text[i], '.')
	}
	return string(append(b, text[slotTokens:]...))
}
