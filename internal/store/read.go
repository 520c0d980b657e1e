package store

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Reader reads records: one, a page, or all of a shard. Safe for concurrent use.
//
// A record that cannot be decoded is counted and logged (see decoder) and left out, except
// by Get, which returns the error, and where Timer.Unread says so. Reads of many records are
// direct gets: any replica may answer, and be behind.
type Reader struct {
	jet    *jet.Client
	shards *Shards
	clocks *Clocks
	dec    *decoder
	log    zerolog.Logger
	// gc deletes the replaced revisions that a count finds; nil for a reader that only reads.
	gc *revisionGC
	// ended has the timers whose returned revisions RemoveVoid deletes; nil if gc is nil.
	ended *EndedLists
	// barriers are those of GetNewest.
	barriers *barriers
	// listTime is the constant, except in tests.
	listTime time.Duration
}

func newReader(c *jet.Client, shards *Shards, clocks *Clocks, dec *decoder, log zerolog.Logger) *Reader {
	return &Reader{jet: c, shards: shards, clocks: clocks, dec: dec, log: log, barriers: newBarriers(c, shards), listTime: listTime}
}

// Get reads a record from its shard's leader.
func (rd *Reader) Get(ctx context.Context, id schemas.TimerID) (Timer, error) {
	subject, stream := rd.shards.timerSubject(id)
	m, err := rd.jet.Last(ctx, stream, subject)
	if err != nil {
		return Timer{}, err
	}
	return rd.decode(m)
}

// ErrBehind comes with schemas.ErrUnavailable from Reader.GetAsOf.
var ErrBehind = jet.ErrBehind

// GetAsOf reads a record from a server that has at least sequence rev of the shard's stream. rev may be a revision of
// the record, or any other sequence of the stream; 0 makes GetAsOf the same as Get.
//
// Get may be answered by a server that does not have the newest record: a server that led the stream and was paused
// or cut off answers as its leader until it learns of the next one (work-around 21, docs/internals/nats-server.md).
// A caller that gives a timer up because of the answer, without a compare-and-set, uses GetAsOf.
//
// Errors: those of Get; ErrBehind if no server that answered has sequence rev, or can read it. If the stream has
// lost rev, GetAsOf returns ErrBehind until the stream reaches rev again.
func (rd *Reader) GetAsOf(ctx context.Context, id schemas.TimerID, rev uint64) (Timer, error) {
	t, err := rd.Get(ctx, id)
	missing := errors.Is(err, schemas.ErrNotFound)
	if rev == 0 || err == nil && t.Rev >= rev || err != nil && !missing {
		return t, err
	}
	return rd.direct(ctx, id, rev)
}

// direct reads a record by direct get, from a server that has a sequence.
func (rd *Reader) direct(ctx context.Context, id schemas.TimerID, seq uint64) (Timer, error) {
	subject, _ := rd.shards.timerSubject(id)
	msgs, err := rd.shards.lastFor(ctx, rd.shards.geo.Shard(id), []string{subject}, seq)
	switch {
	case errors.Is(err, jet.ErrMissing):
		return Timer{}, schemas.Errorf(schemas.CodeUnavailable, "%w: %v", ErrBehind, err)
	case err != nil:
		return Timer{}, err
	case len(msgs) > 0:
		return rd.decode(msgs[0])
	}
	return Timer{}, schemas.Errorf(schemas.CodeNotFound, "timer %s has no record", id)
}

// behindPause is the pause of GetNewest after an answer of a server that is behind.
const behindPause = 5 * time.Millisecond

// GetNewest reads a record that is as new as the call. It first stores a message, which only the present leader of the
// shard can do (see barriers), and then reads by direct get as of that message. A caller that refuses an operation because of
// a record, and knows no sequence for GetAsOf, uses GetNewest.
//
// If the shard is full, GetNewest is Get, because nothing can be stored. Errors: those of Get; ErrUnavailable also while the
// shard has no leader.
func (rd *Reader) GetNewest(ctx context.Context, id schemas.TimerID) (Timer, error) {
	seq, err := rd.barriers.sequence(ctx, rd.shards.geo.Shard(id))
	switch {
	case errors.Is(err, schemas.ErrStoreFull):
		return rd.Get(ctx, id)
	case err != nil:
		return Timer{}, err
	}
	for {
		t, err := rd.direct(ctx, id, seq)
		if !errors.Is(err, ErrBehind) || !pause.For(ctx, behindPause) {
			return t, err
		}
	}
}

func (rd *Reader) decode(m *jet.Msg) (Timer, error) {
	t, err := rd.dec.timer(m)
	if errors.Is(err, schemas.ErrDamaged) {
		rd.dec.noteDamaged(m, err)
	}
	return t, err
}
