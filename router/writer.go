package router

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Records is the part of the store that writes and reads single records; *store.Store has
// it.
type Records interface {
	Create(ctx context.Context, timers []store.Write) []store.Result
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	GetNewest(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	Update(ctx context.Context, w store.Write) (uint64, error)
	PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error
}

// Services is the part of the store that knows services with callbacks; *store.Store has
// it.
type Services interface {
	RegisterService(ctx context.Context, svc string) error
}

// DedupCheck finds adds whose record has expired since an earlier delivery stored it;
// *store.DedupCheck has it.
type DedupCheck interface {
	Needed(k store.AddKey, nowMs int64) bool
	Fired(ctx context.Context, nowMs int64, keys []store.AddKey) (map[uint64]struct{}, error)
	Stored(startMs int64, seq uint64)
}

// Sink receives the outcomes of adds. Its methods may be called concurrently.
type Sink interface {
	// Store: the timer is stored, or was before; rec is its record.
	Store(a *Add, result Result, rec *schemas.Record)
	// Reject: the add will never be stored.
	Reject(a *Add, reason error)
	// Delay: the add could not be stored now.
	Delay(a *Add, err error)
}

// Writer stores validated adds. It waits only in the methods of its interfaces, and reads
// no clock but NowMs, so the simulation drives the same code as production. The fields are
// set once.
type Writer struct {
	Records  Records
	Services Services
	Dedup    DedupCheck
	Sink     Sink
	Breakers *Breakers
	Geometry schemas.Geometry
	// NowMs is the cluster's time, never behind the leader's.
	NowMs func() int64
	Log   zerolog.Logger
}

// Write stores adds, whose Spec and Record are set. Each add has gone to the Sink when
// Write returns. Adds of one timer are written one after the other, in their order; if one
// is delayed, so are those after it.
func (w *Writer) Write(ctx context.Context, adds []*Add) {
	delayed := map[schemas.TimerID]error{}
	var repeated map[schemas.TimerID]bool
	for len(adds) > 0 {
		var now, later []*Add
		seen := make(map[schemas.TimerID]struct{}, len(adds))
		for _, a := range adds {
			_, again := seen[a.Spec.Timer]
			switch err := delayed[a.Spec.Timer]; {
			case err != nil:
				w.Sink.Delay(a, err)
			case again:
				later = append(later, a)
				if _, known := repeated[a.Spec.Timer]; !known {
					if repeated == nil {
						repeated = map[schemas.TimerID]bool{}
					}
					repeated[a.Spec.Timer] = false
				}
			default:
				seen[a.Spec.Timer] = struct{}{}
				now = append(now, a)
			}
		}
		r := round{Writer: w, ctx: ctx, delayed: delayed, repeated: repeated}
		r.run(now)
		adds = later
	}
}

// round is one round of Write, in which all timers differ.
type round struct {
	*Writer
	ctx context.Context

	mu      sync.Mutex
	delayed map[schemas.TimerID]error
	// repeated has the timers that Write has several adds of, and whether it has written their record and index entry.
	repeated map[schemas.TimerID]bool
}

// wrote notes that the round has written the record and the index entry of a timer.
func (r *round) wrote(id schemas.TimerID) {
	if r.repeated == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, again := r.repeated[id]; again {
		r.repeated[id] = true
	}
}

// written reports whether this Write has written the record and the index entry of a timer.
func (r *round) written(id schemas.TimerID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repeated[id]
}

// delay delays an add, and later adds of the same timer.
func (r *round) delay(a *Add, err error) {
	r.mu.Lock()
	r.delayed[a.Spec.Timer] = err
	r.mu.Unlock()
	r.Sink.Delay(a, err)
}

func (r *round) run(adds []*Add) {
	var old []*Add
	adds = slices.DeleteFunc(adds, func(a *Add) bool {
		if a.Old {
			old = append(old, a)
		}
		return a.Old
	})
	adds = r.available(adds)
	adds = r.register(adds)
	adds = r.dedup(adds)
	if len(adds) > 0 {
		each(r.create(adds), r.exists)
	}
	if len(old) > 0 {
		// Together they take no longer than one operation, also if a shard has no leader.
		ctx, cancel := context.WithTimeout(r.ctx, OperationTimeout)
		defer cancel()
		each(r.dedup(old), func(a *Add) { r.settleOld(ctx, a) })
	}
}

// available removes the adds of shards that fail.
func (r *round) available(adds []*Add) []*Add {
	asked := map[int]error{}
	out := make([]*Add, 0, len(adds))
	for _, a := range adds {
		shard := r.Geometry.Shard(a.Spec.Timer)
		err, known := asked[shard]
		if !known {
			err = r.Breakers.shards[shard].allow()
			asked[shard] = err
		}
		if err != nil {
			r.delay(a, err)
			continue
		}
		out = append(out, a)
	}
	return out
}

// register registers services with callbacks. It rejects adds of services beyond the limit.
func (r *round) register(adds []*Add) []*Add {
	asked := map[string]error{}
	out := adds[:0]
	var refused []*Add
	for _, a := range adds {
		if a.Spec.Callback == "" {
			out = append(out, a)
			continue
		}
		err, known := asked[a.Spec.Service]
		if !known {
			err = r.registerOne(a.Spec.Service)
			asked[a.Spec.Service] = err
		}
		switch {
		case schemas.CodeOf(err) == schemas.CodeTooManyServices:
			refused = append(refused, a)
		case err != nil:
			r.delay(a, err)
		default:
			out = append(out, a)
		}
	}
	each(refused, func(a *Add) { r.Sink.Reject(a, asked[a.Spec.Service]) })
	return out
}

func (r *round) registerOne(svc string) error {
	if err := r.Breakers.services.allow(); err != nil {
		return err
	}
	err := r.Services.RegisterService(r.ctx, svc)
	if schemas.CodeOf(err) == schemas.CodeTooManyServices {
		r.Breakers.services.note(nil) // the store works
	} else {
		r.Breakers.services.note(err)
	}
	return err
}

// dedup removes adds that an earlier delivery has stored and whose record has expired
// since; see store.DedupCheck.
func (r *round) dedup(adds []*Add) []*Add {
	nowMs := r.NowMs()
	var keys []store.AddKey
	for _, a := range adds {
		if a.Seq == 0 {
			continue
		}
		k := store.AddKey{Timer: a.Spec.Timer, Service: a.Spec.Service, Seq: a.Seq, FireMs: max(a.Record.DueMs, a.AddedMs)}
		if a.suspect = r.Dedup.Needed(k, nowMs); a.suspect {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return adds
	}
	err := r.Breakers.lookup.allow()
	var fired map[uint64]struct{}
	if err == nil {
		fired, err = r.Dedup.Fired(r.ctx, nowMs, keys)
		r.Breakers.lookup.note(err)
	}
	out := adds[:0]
	for _, a := range adds {
		_, hasFired := fired[a.Seq]
		switch {
		case !a.suspect:
			out = append(out, a)
		case err != nil:
			r.delay(a, err)
		case hasFired:
			r.Sink.Store(a, Duplicate, &a.Record)
		default:
			out = append(out, a)
		}
	}
	return out
}

// create creates the records and returns the adds whose record exists, or may exist.
func (r *round) create(adds []*Add) (exist []*Add) {
	writes := make([]store.Write, len(adds))
	for i, a := range adds {
		writes[i] = store.Write{ID: a.Spec.Timer, Record: &a.Record}
	}
	startMs := r.NowMs()
	tried := map[int]error{}
	for i, res := range r.Records.Create(r.ctx, writes) {
		a, err := adds[i], res.Err
		switch {
		case err == nil:
			a.rev = res.Rev
			if a.Seq != 0 {
				r.Dedup.Stored(startMs, a.Seq)
			}
			r.wrote(a.Spec.Timer)
			r.Sink.Store(a, Stored, &a.Record)
		case errors.Is(err, store.ErrRevision):
			exist = append(exist, a)
			err = nil
		case store.Permanent(err):
			// An earlier delivery of the add may have stored the record, before max_payload was lowered.
			a.refusal, err = err, nil
			exist = append(exist, a)
		default:
			r.delay(a, err)
		}
		shard := r.Geometry.Shard(a.Spec.Timer)
		if first := tried[shard]; first == nil {
			tried[shard] = err
		}
	}
	for shard, err := range tried {
		r.Breakers.shards[shard].note(err)
	}
	return exist
}

// maxRepairTries bounds how often a record is read that changes in between. Usually another write has succeeded each time: of
// the groups that a node processes at a time, up to maxParallel may have an add of one timer, and other nodes may have some.
const maxRepairTries = 64

// repaired reports whether a record waits, and a repair or a change has written it since it was created. These writes follow an
// index entry for the due time. So does the write of a retry. After such a write a repair is not needed.
func repaired(r *schemas.Record) bool {
	return r.Pending() && r.Queued && r.Moves > 0 && r.Schedule == nil && r.Origin == nil
}

// exists settles an add whose record exists: it is a duplicate or a conflict. An add that the store has refused for good may have
// no record: it is rejected.
func (r *round) exists(a *Add) {
	var t store.Timer
	var lost uint64 // the revision that the last repair could not replace; 0 before the first
	err := store.ErrRevision
	get := r.Records.Get
	if a.refusal != nil {
		get = r.Records.GetNewest // a replica that is behind may not have the record yet
	}
	for try := 0; try < maxRepairTries && errors.Is(err, store.ErrRevision); try++ {
		t, err = get(r.ctx, a.Spec.Timer)
		if reason := a.refusedBy(&t, err); reason != nil {
			r.Sink.Reject(a, reason)
			return
		}
		switch {
		case errors.Is(err, schemas.ErrNotFound) && a.refusal != nil:
			r.Sink.Reject(a, a.refusal)
			return
		case errors.Is(err, schemas.ErrNotFound):
			r.delay(a, schemas.Errorf(schemas.CodeUnavailable, "the record expired between two reads"))
			return
		case err == nil && (r.written(a.Spec.Timer) || t.Rev > lost && lost > 0 && repaired(&t.Record)):
			// Of many equal adds at the same time, one repairs the record. Either this Write has written the record, or
			// another write came between the read and the repair.
		case err == nil && !t.Record.State.Final():
			lost = max(lost, t.Rev) // a former leader may answer with an older revision
			if _, err = repair(r.ctx, r.Records, r.Geometry, r.NowMs, t); err == nil {
				r.wrote(a.Spec.Timer)
			}
		}
	}
	if errors.Is(err, store.ErrRevision) {
		err = schemas.Errorf(schemas.CodeUnavailable, "the record of timer %s could not be written: it changed after each read, or each read came from a former leader", t.ID)
	}
	if store.Permanent(err) {
		// max_payload was lowered after the record was stored, so the record cannot be
		// written again. The shard's owner handles it.
		r.Log.Warn().Err(err).Stringer("timer", t.ID).Msg("the record of a repeated add cannot be written again: the server's max_payload was lowered")
		err = nil
	}
	r.Breakers.records.note(err)
	if err != nil {
		r.delay(a, err)
		return
	}
	r.Sink.Store(a, Duplicate, &t.Record)
}

// refusedBy returns why an add is rejected because of the record that was read, or that could not be decoded; nil if it is not.
func (a *Add) refusedBy(t *store.Timer, err error) error {
	switch {
	case errors.Is(err, schemas.ErrDamaged):
		// Whether the timer has fired is not known, so the add cannot replace the record. It
		// is kept with the rejected adds, from which an operator can restore the timer.
		return schemas.Errorf(schemas.CodeDamaged, "timer %s was stored before, and its record is damaged: run belfry repair", a.Spec.Timer)
	case err == nil && t.Record.Hash != a.Record.Hash:
		return schemas.Errorf(schemas.CodeConflict, "source %.200q and id %.200q are taken by another timer, %s, which is %s: use another id, or reschedule that one",
			a.Spec.Source, a.Spec.EventID, a.Spec.Timer, t.Record.State)
	}
	return nil
}

// errOld is the reason why an old add without a record is rejected.
var errOld = schemas.Errorf(schemas.CodeNotFound, "the add was still in its stream although it counted as handled, and the timer has no record: the timer has ended, or was never stored. Add it again if it neither fired nor was cancelled")

// settleOld settles an old add (work-around 24): it is a duplicate, a conflict, or has no record. It writes no record. The
// record may be an earlier revision that the server has brought back, too, and such a timer fires if its record is written again.
func (r *round) settleOld(ctx context.Context, a *Add) {
	t, err := r.Records.GetNewest(ctx, a.Spec.Timer)
	reason := a.refusedBy(&t, err)
	if errors.Is(err, schemas.ErrNotFound) {
		reason = errOld
	}
	switch {
	case reason != nil:
		r.Sink.Reject(a, reason)
	case err != nil:
		r.delay(a, err)
	default:
		r.Sink.Store(a, Duplicate, &t.Record)
	}
}

// maxFanOut bounds the duplicates that one group reads, or the rejections that it
// publishes, at a time.
const maxFanOut = 16

// each calls f for all, up to maxFanOut at a time; for one it starts no goroutine.
func each[T any](all []T, f func(T)) {
	if len(all) == 1 {
		f(all[0])
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	permits := make(chan struct{}, maxFanOut)
	for _, v := range all {
		permits <- struct{}{}
		wg.Go(func() {
			defer func() { <-permits }()
			f(v)
		})
	}
}
