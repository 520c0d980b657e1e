package store

import (
	"context"
	"errors"
	"slices"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// VoidRecord is a record that RemoveVoid has deleted, with its last revision.
type VoidRecord struct {
	ID  schemas.TimerID
	Rev uint64
}

// RemoveVoid deletes the revisions that the shard's list of ended timers shows to be void (endedlist.go; work-around 23), waits
// until they are gone or an attempt has failed, and returns their records. An owner calls it when the server may have been
// killed, and every ten minutes. It reads the list, and the record of each timer in it, 1,000 at a time with a pause of
// pacedPause. It leaves records that are damaged, or that another client wrote. Errors: schemas.ErrUnavailable; some records may be gone then, which it returns.
//
// The owner may have loaded a void record. A claim after the delete is refused. If the claim comes before the delete, the timer
// fires.
func (rd *Reader) RemoveVoid(ctx context.Context, shard int) (removed []VoidRecord, err error) {
	if rd.gc == nil {
		return nil, nil
	}
	err = rd.ended.each(ctx, shard, func(timers []EndedTimer, seq uint64) error {
		// A final record is before the chunk that lists it. Otherwise the stream has lost messages since, and may have
		// given the sequence to another message.
		timers = slices.DeleteFunc(timers, func(e EndedTimer) bool { return e.Rev >= seq })
		for part := range slices.Chunk(timers, jet.MaxSubjects) {
			gone, err := rd.removeVoid(ctx, shard, part, seq)
			removed = append(removed, gone...)
			if err != nil {
				return err
			}
			if !pause.For(ctx, pacedPause) {
				return rd.jet.Error("remove returned revisions", context.Cause(ctx))
			}
		}
		return nil
	})
	if len(removed) > 0 {
		rd.log.Warn().Int("shard", shard).Int("timers", len(removed)).Msg("removed ended timers that a killed server had brought back after their records had expired")
	}
	return removed, err
}

// removeVoid is RemoveVoid for up to jet.MaxSubjects timers, which were listed at a sequence.
func (rd *Reader) removeVoid(ctx context.Context, shard int, timers []EndedTimer, seq uint64) (removed []VoidRecord, err error) {
	found, err := rd.recordsOf(ctx, shard, timers, seq)
	if err != nil {
		return nil, err
	}
	for i := range timers {
		e := &timers[i]
		m := found[e.ID]
		if m == nil || !rd.isVoid(m, e) {
			continue
		}
		rev, err := rd.removeVoidTimer(ctx, shard, e)
		if err != nil {
			return removed, err
		}
		if rev != 0 {
			delete(found, e.ID)
			removed = append(removed, VoidRecord{e.ID, rev})
		}
	}
	return removed, nil
}

// recordsOf reads the records of timers. Any replica may answer. If it cannot read one of them (work-around 2), recordsOf asks
// the leader for one after the other.
func (rd *Reader) recordsOf(ctx context.Context, shard int, timers []EndedTimer, seq uint64) (map[schemas.TimerID]*jet.Msg, error) {
	subjects := make([]string, len(timers))
	ids := make(map[string]schemas.TimerID, len(timers))
	for i := range timers {
		subjects[i], _ = rd.shards.timerSubject(timers[i].ID)
		ids[subjects[i]] = timers[i].ID
	}
	msgs, err := rd.shards.lastFor(ctx, shard, subjects, seq)
	if errors.Is(err, jet.ErrMissing) {
		msgs, err = rd.lastOneByOne(ctx, shard, subjects)
	}
	found := make(map[schemas.TimerID]*jet.Msg, len(msgs))
	for _, m := range msgs {
		found[ids[m.Subject]] = m
	}
	return found, err
}

func (rd *Reader) lastOneByOne(ctx context.Context, shard int, subjects []string) (msgs []*jet.Msg, err error) {
	for _, subject := range subjects {
		m, err := rd.jet.Last(ctx, rd.shards.subjects[shard].stream, subject)
		if errors.Is(err, schemas.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, m)
	}
	return msgs, nil
}

// isVoid reports whether e voids a record, which may be deleted. A record that cannot be decoded is not void.
func (rd *Reader) isVoid(m *jet.Msg, e *EndedTimer) bool {
	t, err := rd.dec.timer(m)
	return err == nil && e.Voids(&t) && rd.gc.replaces(m)
}

// removeVoidTimer deletes the record of a timer, and all revisions before it, if the leader also has a void record. It returns
// the revision of that, otherwise 0.
func (rd *Reader) removeVoidTimer(ctx context.Context, shard int, e *EndedTimer) (rev uint64, err error) {
	subject, stream := rd.shards.timerSubject(e.ID)
	m, older, err := rd.revisionsOf(ctx, stream, subject)
	if err != nil || m == nil || !rd.isVoid(m, e) {
		return 0, err
	}
	for _, v := range append(older, m) {
		if err := rd.gc.removeVoid(ctx, shard, v); err != nil {
			return 0, err
		}
	}
	return m.Sequence, nil
}

// removeVoid deletes a void revision, and waits until it is gone, or an attempt has failed: then the remover goes on. Errors:
// those of remover.reserve.
func (g *revisionGC) removeVoid(ctx context.Context, shard int, m *jet.Msg) error {
	if err := g.rem.reserve(ctx, "remove returned revisions"); err != nil {
		return err
	}
	at := revision{g.shards.subjects[shard].stream, m.Sequence}
	g.rem.put(superseded{revision: at, subject: m.Subject, by: m.Sequence, reconnects: checkFirst, void: m.Time.UnixNano()})
	tried := make(chan struct{})
	g.rem.call(at, func() { close(tried) })
	select {
	case <-tried:
		return nil
	case <-ctx.Done():
		return g.jet.Error("remove returned revisions", context.Cause(ctx))
	}
}
