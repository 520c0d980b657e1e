package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Records writes records. Safe for concurrent use.
//
// Every write is a compare-and-set: it returns ErrRevision if the record has another
// revision, and changes nothing then. With replicas, a server that led the shard before may return ErrRevision for a write
// that the leader stores (work-around 21, docs/internals/nats-server.md). After schemas.ErrUnavailable a write may have
// taken effect.
// The revision that a write replaces is removed; see revisionGC.
type Records struct {
	jet    *jet.Client
	shards *Shards
	levels *Levels
	index  *Index
	gc     *revisionGC
	// admission refuses new timers in a shard that is nearly full.
	admission *admission
	cache     *recordCache
}

// Create writes new timers, index entries before records, all in one round trip. Errors of a
// result: ErrRevision if the timer exists, schemas.ErrStoreFull if its shard is full,
// schemas.ErrUnavailable.
func (r *Records) Create(ctx context.Context, timers []Write) []Result {
	results := make([]Result, len(timers))
	r.admitAll(ctx, timers, results)
	entries := r.index.indexEntries(timers, results)
	var wg sync.WaitGroup
	for n, e := range entries {
		// Sending blocks while the window is full, for example if the server does not answer.
		if err := ctx.Err(); err != nil {
			for _, e := range entries[n:] {
				for _, i := range e.writes {
					results[i].Err = r.jet.Error("write timer", err)
				}
			}
			entries = entries[:n]
			break
		}
		wg.Add(1 + len(e.writes))
		r.index.sendEntry(e, timers, func(err error) {
			e.err = err
			wg.Done()
		})
		for _, i := range e.writes {
			r.send(timers[i], func(a jet.Ack, err error) {
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
				// The record may exist without its index entry. The caller tries again, finds
				// the record, and writes the entry.
				res.Err = e.err
			case errors.Is(res.Err, ErrRevision):
				r.overMarker(ctx, timers[i], res)
			}
		}
	}
	r.cache.put(timers, results, r.levels.RecordFormat())
	return results
}

// admitAll takes space for the new timers in each shard. It sets the error of each refused
// timer in results.
func (r *Records) admitAll(ctx context.Context, timers []Write, results []Result) {
	need := make([]int64, r.shards.geo.Shards)
	for i := range timers {
		need[r.shards.geo.Shard(timers[i].ID)] += int64(recordOverhead + timers[i].Record.Body.Size())
	}
	for shard, bytes := range need {
		if bytes == 0 {
			continue
		}
		if err := r.admission.admit(ctx, shard, bytes); err != nil {
			for i := range timers {
				if r.shards.geo.Shard(timers[i].ID) == shard {
					results[i].Err = err
				}
			}
		}
	}
}

// overMarker creates a timer whose key was deleted with a KV client, which leaves a delete
// marker.
func (r *Records) overMarker(ctx context.Context, w Write, res *Result) {
	subject, stream := r.shards.timerSubject(w.ID)
	m, err := r.jet.Last(ctx, stream, subject)
	if err != nil || !jet.IsMarker(m) {
		return
	}
	w.Rev = m.Sequence
	a, err := r.jet.Await(ctx, "write timer", func(done func(jet.Ack, error)) { r.send(w, done) })
	res.Rev, res.Err = a.Seq, err
}

// send writes a record, and has revisionGC remove the revision that it replaces.
func (r *Records) send(w Write, done func(jet.Ack, error)) {
	if err := w.Check(); err != nil {
		done(jet.Ack{}, err)
		return
	}
	subject, stream := r.shards.timerSubject(w.ID)
	m := r.message(&w)
	const op = "write timer"
	write := func(done func(jet.Ack, error)) {
		r.jet.WriteAsync(stream, op, subject, m.Header, m.data, done)
		m.recycle()
	}
	if w.Rev == 0 {
		write(done)
		return
	}
	r.cache.remove(w.ID)
	replaced := revision{stream, w.Rev}
	deletes := r.gc.rem.deletes(replaced)
	switch {
	case r.gc.mustRollUp(&w):
		m.RollUp()
		if deletes {
			r.gc.rem.call(replaced, func() { write(done) })
			return
		}
		write(done)
		if r.gc.mayTouch(&w) {
			r.gc.touch(r.shards.geo.Shard(w.ID))
		}
		return
	case r.gc.mayRollUp(&w) && !deletes:
		m.RollUp()
		write(done)
		return
	}
	if err := r.gc.rem.reserve(context.Background(), op); err != nil {
		m.recycle()
		done(jet.Ack{}, err)
		return
	}
	reconnects := r.jet.Reconnects()
	write(func(a jet.Ack, err error) {
		switch {
		case err == nil:
			r.gc.rem.put(superseded{revision: replaced, subject: subject, by: a.Seq, reconnects: reconnects})
		case errors.Is(err, schemas.ErrUnavailable), r.gc.replicated && errors.Is(err, ErrRevision):
			// The write may be stored all the same. With replicas a wrong revision may be the answer of a server that led the
			// stream before.
			r.gc.unanswered.add(0, unansweredWrite{revision: replaced, subject: subject, at: time.Now()})
			fallthrough
		default:
			r.gc.rem.release()
		}
		done(a, err)
	})
}

// UpdateAsync replaces a record by compare-and-set, without touching the index.
// It blocks only while the window is full; done must not block.
func (r *Records) UpdateAsync(w Write, done func(Result)) {
	r.send(w, func(a jet.Ack, err error) { done(Result{Rev: a.Seq, Err: err}) })
}

// Update replaces a record by compare-and-set and waits for the acknowledgement. If the
// record is queued, Update first writes the index entry of its due time, and waits for that.
func (r *Records) Update(ctx context.Context, w Write) (uint64, error) {
	if w.Record.Queued {
		if err := r.index.PutIndex(ctx, w.ID, r.shards.geo.Tick(w.Record.DueMs)); err != nil {
			return 0, err
		}
	}
	a, err := r.jet.Await(ctx, "write timer", func(done func(jet.Ack, error)) { r.send(w, done) })
	return a.Seq, err
}
