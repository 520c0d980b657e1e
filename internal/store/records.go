package store

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Create writes new timers: index entries, then records, for all of them in one
// round trip. A timer that exists answers ErrRevision; a shard that is full,
// schemas.ErrStoreFull.
func (s *Store) Create(ctx context.Context, timers []Write) []Result {
	results := make([]Result, len(timers))
	s.admitAll(ctx, timers, results)
	entries := s.indexEntries(timers, results)
	var wg sync.WaitGroup
	for n, e := range entries {
		// Sending may wait for room as long as the server is silent.
		if err := ctx.Err(); err != nil {
			for _, e := range entries[n:] {
				for _, i := range e.writes {
					results[i].Err = s.jet.Error("write timer", err)
				}
			}
			entries = entries[:n]
			break
		}
		wg.Add(1 + len(e.writes))
		s.sendEntry(e, timers, func(_ jet.Ack, err error) {
			e.err = err
			wg.Done()
		})
		for _, i := range e.writes {
			s.send(timers[i], func(a jet.Ack, err error) {
				results[i].Rev, results[i].Err = a.Seq, err
				wg.Done()
			})
		}
	}
	wg.Wait()
	for _, e := range entries {
		for _, i := range e.writes {
			switch res := &results[i]; {
			case e.err != nil && (res.Err == nil || errors.Is(res.Err, ErrRevision)):
				// The record is there, or will be, and its index entry is not: not done. The
				// caller tries again, finds the record, and makes sure of its index.
				res.Err = e.err
			case errors.Is(res.Err, ErrRevision):
				s.overMarker(ctx, timers[i], res)
			}
		}
	}
	return results
}

// admitAll takes room in each shard for its part of the timers.
func (s *Store) admitAll(ctx context.Context, timers []Write, results []Result) {
	need := make([]int64, s.geo.Shards)
	for i := range timers {
		need[s.geo.Shard(timers[i].ID)] += int64(recordOverhead + timers[i].Record.Body.Size())
	}
	for shard, bytes := range need {
		if bytes == 0 {
			continue
		}
		if err := s.admit(ctx, shard, bytes); err != nil {
			for i := range timers {
				if s.geo.Shard(timers[i].ID) == shard {
					results[i].Err = err
				}
			}
		}
	}
}

// overMarker creates a timer whose key somebody deleted with a KV client: a
// delete marker is in its place.
func (s *Store) overMarker(ctx context.Context, w Write, res *Result) {
	subject, stream := s.timerSubject(w.ID)
	m, err := s.jet.Last(ctx, stream, subject)
	if err != nil || !jet.IsMarker(m) {
		return
	}
	w.Rev = m.Sequence
	a, err := s.jet.Await(ctx, "write timer", func(done func(jet.Ack, error)) { s.send(w, done) })
	res.Rev, res.Err = a.Seq, err
}

// send writes a record and sees to it that the revision it replaces is removed;
// see supersede.go.
func (s *Store) send(w Write, done func(jet.Ack, error)) {
	if err := w.Check(); err != nil {
		done(jet.Ack{}, err)
		return
	}
	subject, stream := s.timerSubject(w.ID)
	m := s.message(&w)
	defer m.recycle()
	const op = "write timer"
	switch {
	case w.Rev == 0:
		s.jet.WriteAsync(stream, op, subject, m.Header, m.data, done)
	case s.rollsUp(&w):
		m.RollUp()
		s.jet.WriteAsync(stream, op, subject, m.Header, m.data, done)
	default:
		if !s.rem.reserve() {
			done(jet.Ack{}, s.jet.ClosedError(op))
			return
		}
		replaced := w.Rev
		s.jet.WriteAsync(stream, op, subject, m.Header, m.data, func(a jet.Ack, err error) {
			if err != nil {
				s.rem.release()
			} else {
				s.rem.put(superseded{stream: stream, seq: replaced})
			}
			done(a, err)
		})
	}
}

// UpdateAsync replaces a record by compare-and-set, without touching the index.
// It blocks only for a place in the window; done must not block.
func (s *Store) UpdateAsync(w Write, done func(Result)) {
	s.send(w, func(a jet.Ack, err error) { done(Result{Rev: a.Seq, Err: err}) })
}

// Update replaces a record by compare-and-set and waits. If the record is
// queued, the index entry of its due time is written, and acknowledged, first.
func (s *Store) Update(ctx context.Context, w Write) (uint64, error) {
	if w.Record.Queued {
		if err := s.PutIndex(ctx, w.ID, s.geo.Tick(w.Record.DueMs)); err != nil {
			return 0, err
		}
	}
	a, err := s.jet.Await(ctx, "write timer", func(done func(jet.Ack, error)) { s.send(w, done) })
	return a.Seq, err
}

// PutIndex writes the index entry of one timer for a tick, and waits.
func (s *Store) PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error {
	now, err := s.nowMs(ctx)
	if err != nil {
		return err
	}
	_, err = s.jet.Await(ctx, "index timer", func(done func(jet.Ack, error)) {
		s.sendIndex(s.geo.Shard(id), id, tick, nil, s.indexFor(s.geo.TickStart(tick+1), now), done)
	})
	return err
}

// Get reads a record from its shard's leader.
func (s *Store) Get(ctx context.Context, id schemas.TimerID) (Timer, error) {
	subject, stream := s.timerSubject(id)
	m, err := s.jet.Last(ctx, stream, subject)
	if err != nil {
		return Timer{}, err
	}
	t, err := s.timer(m)
	if errors.Is(err, schemas.ErrDamaged) {
		s.noteDamaged(m, err)
	}
	return t, err
}

// timer decodes a stored message. Its id is the subject's last token. A marker
// of a KV client's delete is schemas.ErrNotFound.
func (s *Store) timer(m *jet.Msg) (Timer, error) {
	if jet.IsMarker(m) {
		return Timer{}, schemas.ErrNotFound
	}
	id, err := schemas.ParseTimerID(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if err != nil {
		return Timer{}, err
	}
	r, err := s.cfg.Level.decodeRecord(m.Data)
	if err != nil {
		return Timer{}, err
	}
	return Timer{ID: id, Rev: m.Sequence, StoredMs: m.Time.UnixMilli(), Record: r}, nil
}

// GetMany reads records by direct get: any replica may answer, and be behind.
// Timers that are not there, and records that cannot be decoded, are left out.
func (s *Store) GetMany(ctx context.Context, ids []schemas.TimerID) ([]Timer, error) {
	byShard := map[int][]string{}
	for _, id := range ids {
		subject, _ := s.timerSubject(id)
		n := s.geo.Shard(id)
		byShard[n] = append(byShard[n], subject)
	}
	out := make([]Timer, 0, len(ids))
	for n, subjects := range byShard {
		got, err := s.lastFor(ctx, n, subjects, 0)
		if err != nil {
			return nil, err
		}
		for _, t := range s.decodeAll(got) {
			if t.Unread == Readable {
				out = append(out, t)
			}
		}
	}
	return out, nil
}
