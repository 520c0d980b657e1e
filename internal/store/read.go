package store

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
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
	// listTime is the constant, except in tests.
	listTime time.Duration
}

func newReader(c *jet.Client, shards *Shards, clocks *Clocks, dec *decoder, log zerolog.Logger) *Reader {
	return &Reader{jet: c, shards: shards, clocks: clocks, dec: dec, log: log, listTime: listTime}
}

// Get reads a record from its shard's leader.
func (rd *Reader) Get(ctx context.Context, id schemas.TimerID) (Timer, error) {
	subject, stream := rd.shards.timerSubject(id)
	m, err := rd.jet.Last(ctx, stream, subject)
	if err != nil {
		return Timer{}, err
	}
	t, err := rd.dec.timer(m)
	if errors.Is(err, schemas.ErrDamaged) {
		rd.dec.noteDamaged(m, err)
	}
	return t, err
}
