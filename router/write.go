package router

import (
	"errors"
	"runtime/debug"
	"sync"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// validate parses an add. A panic in parsing is a refusal of this add alone.
func (r *Router) validate(a *add) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.m.panics.Inc()
			r.o.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("an add made the parser panic; it is rejected")
			err = schemas.Errorf(schemas.CodeInvalidEvent, "the event cannot be parsed: %v", p)
		}
	}()
	limits := r.o.Limits
	limits.MaxMessage = r.o.Store.MaxMessage() // of the server that this node is connected to now
	body, spec, err := r.parse(a.hdr, a.data, a.addedMs, limits)
	if err != nil {
		return err
	}
	if spec.Callback != "" {
		if err := r.callbacks.Load().Check(spec.Callback, spec.Service); err != nil {
			return schemas.Errorf(schemas.CodeInvalidAttribute, "%s %q: %w", schemas.AttrCallback, schemas.RedactURL(spec.Callback), err)
		}
	}
	a.spec = spec
	a.rec = schemas.Record{
		State: schemas.StatePending, Queued: true, Run: 1, MaxAttempt: spec.MaxAttempts,
		DueMs: spec.DueMs, ScheduledMs: spec.DueMs, AddedMs: a.addedMs, Hash: spec.Hash,
		Service: spec.Service, Group: spec.Group, Callback: spec.Callback, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Body: body,
	}
	return nil
}

// write creates the records. Adds of one timer are written one after the other,
// in their order; if one has to wait, so do those after it.
func (r *Router) write(adds []*add) {
	waits := map[schemas.TimerID]error{}
	for len(adds) > 0 {
		var now, later []*add
		seen := make(map[schemas.TimerID]struct{}, len(adds))
		for _, a := range adds {
			_, twice := seen[a.spec.Timer]
			switch err := waits[a.spec.Timer]; {
			case err != nil:
				r.later(a, err)
			case twice:
				later = append(later, a)
			default:
				seen[a.spec.Timer] = struct{}{}
				now = append(now, a)
			}
		}
		c := creation{r: r, waits: waits}
		c.run(now)
		adds = later
	}
}

// creation is one round of write, in which each timer stands once.
type creation struct {
	r *Router

	mu    sync.Mutex
	waits map[schemas.TimerID]error
}

// wait leaves an add for another time.
func (c *creation) wait(a *add, err error) {
	c.mu.Lock()
	c.waits[a.spec.Timer] = err
	c.mu.Unlock()
	c.r.later(a, err)
}

func (c *creation) run(adds []*add) {
	adds = c.open(adds)
	adds = c.register(adds)
	adds = c.lookup(adds)
	if len(adds) == 0 {
		return
	}
	writes := make([]store.Write, len(adds))
	for i, a := range adds {
		writes[i] = store.Write{ID: a.spec.Timer, Record: &a.rec}
	}
	var exist []*add
	startMs := c.r.nowMs()
	tried := map[int]error{}
	for i, res := range c.r.o.Store.Create(c.r.run, writes) {
		a, err := adds[i], res.Err
		switch {
		case err == nil:
			if a.msg != nil {
				c.r.o.Dedup.Stored(startMs, a.seq)
			}
			c.r.accept(a, resultAccepted, &a.rec)
		case errors.Is(err, store.ErrRevision):
			exist = append(exist, a)
			err = nil
		case store.Permanent(err):
			c.r.reject([]refusal{{a, err}})
			err = nil
		default:
			c.wait(a, err)
		}
		shard := c.r.geo.Shard(a.spec.Timer)
		tried[shard] = errors.Join(tried[shard], err)
	}
	for shard, err := range tried {
		c.r.ills.shards[shard].note(firstOf(err))
	}
	each(exist, c.exists)
}

// firstOf is the first of joined errors: one is enough to log.
func firstOf(err error) error {
	var joined interface{ Unwrap() []error }
	for errors.As(err, &joined) && len(joined.Unwrap()) > 0 {
		err = joined.Unwrap()[0]
	}
	return err
}

// open leaves out the adds of shards that are in trouble.
func (c *creation) open(adds []*add) []*add {
	asked := map[int]error{}
	out := make([]*add, 0, len(adds))
	for _, a := range adds {
		shard := c.r.geo.Shard(a.spec.Timer)
		err, known := asked[shard]
		if !known {
			err = c.r.ills.shards[shard].allow()
			asked[shard] = err
		}
		if err != nil {
			c.wait(a, err)
			continue
		}
		out = append(out, a)
	}
	return out
}

// register registers the services with callbacks. It refuses adds of services beyond the
// limit.
func (c *creation) register(adds []*add) []*add {
	asked := map[string]error{}
	out := adds[:0]
	var refused []refusal
	for _, a := range adds {
		if a.spec.Callback == "" {
			out = append(out, a)
			continue
		}
		err, known := asked[a.spec.Service]
		if !known {
			if err = c.r.ills.services.allow(); err == nil {
				err = c.r.o.Store.RegisterService(c.r.run, a.spec.Service)
				if schemas.CodeOf(err) == schemas.CodeTooManyServices {
					c.r.ills.services.note(nil) // the store answered
				} else {
					c.r.ills.services.note(err)
				}
			}
			asked[a.spec.Service] = err
		}
		switch {
		case schemas.CodeOf(err) == schemas.CodeTooManyServices:
			refused = append(refused, refusal{a, err})
		case err != nil:
			c.wait(a, err)
		default:
			out = append(out, a)
		}
	}
	if len(refused) > 0 {
		c.r.reject(refused)
	}
	return out
}

// lookup finds adds that an earlier delivery has stored and whose record has expired since;
// see store.DedupCheck.
func (c *creation) lookup(adds []*add) []*add {
	nowMs := c.r.nowMs()
	var keys []store.AddKey
	doubtful := map[*add]struct{}{}
	for _, a := range adds {
		if a.msg == nil {
			continue
		}
		k := store.AddKey{Timer: a.spec.Timer, Service: a.spec.Service, Seq: a.seq, FireMs: max(a.rec.DueMs, a.addedMs)}
		if c.r.o.Dedup.Needed(k, nowMs) {
			keys = append(keys, k)
			doubtful[a] = struct{}{}
		}
	}
	if len(keys) == 0 {
		return adds
	}
	err := c.r.ills.lookup.allow()
	var found map[schemas.TimerID]struct{}
	if err == nil {
		found, err = c.r.o.Dedup.Fired(c.r.run, nowMs, keys)
		c.r.ills.lookup.note(err)
	}
	out := adds[:0]
	for _, a := range adds {
		_, doubt := doubtful[a]
		_, fired := found[a.spec.Timer]
		switch {
		case !doubt:
			out = append(out, a)
		case err != nil:
			c.wait(a, err)
		case fired:
			c.r.accept(a, resultDuplicate, &a.rec)
		default:
			out = append(out, a)
		}
	}
	return out
}

// mendTries is how often a record is looked at that changes meanwhile.
const mendTries = 8

// exists settles an add whose record is there: a duplicate, or a conflict.
func (c *creation) exists(a *add) {
	var t store.Timer
	err := store.ErrRevision
	for try := 0; try < mendTries && errors.Is(err, store.ErrRevision); try++ {
		t, err = c.r.o.Store.Get(c.r.run, a.spec.Timer)
		switch {
		case errors.Is(err, schemas.ErrNotFound):
			c.wait(a, schemas.Errorf(schemas.CodeUnavailable, "the record expired while it was looked at"))
			return
		case err == nil && t.Record.Hash != a.rec.Hash:
			c.r.reject([]refusal{{a, schemas.Errorf(schemas.CodeConflict, "source %.200q and id %.200q are taken by another timer, %s, which is %s: use another id, or reschedule that one",
				a.spec.Source, a.spec.EventID, a.spec.Timer, t.Record.State)}})
			return
		case err == nil && !t.Record.State.Final():
			err = c.mend(t)
		}
	}
	if errors.Is(err, store.ErrRevision) {
		err = schemas.Errorf(schemas.CodeUnavailable, "timer %s changed each time its record was looked at", t.ID)
	}
	if store.Permanent(err) {
		// max_payload was lowered after the record was stored, so the record cannot be
		// written again. The shard's owner handles it.
		c.r.o.Log.Warn().Err(err).Stringer("timer", t.ID).Msg("the record of a repeated add cannot be written again: the server's max_payload was lowered")
		err = nil
	}
	c.r.ills.record.note(err)
	if err != nil {
		c.wait(a, err)
		return
	}
	c.r.accept(a, resultDuplicate, &t.Record)
}

// mend makes up for a first try whose index entry was lost and whose record was
// not. The shard's owner may have read the entry's tick since, or claimed the
// record and died, and then neither it nor the next owner would come by: so the
// record is written again, after its entry, and the tail brings it. It returns
// store.ErrRevision if the record has changed since.
func (c *creation) mend(t store.Timer) error {
	rec := t.Record
	if !rec.Queued {
		// Not for the wheel, which is done with it, but for the sweeper.
		if err := c.r.o.Store.PutIndex(c.r.run, t.ID, c.r.geo.Tick(c.r.nowMs())); err != nil {
			return err
		}
	}
	rec.Moves = max(rec.Moves, 1) // it is not a new timer
	_, err := c.r.o.Store.Update(c.r.run, store.Write{ID: t.ID, Rev: t.Rev, Record: &rec})
	return err
}

// each calls f for all, some at a time.
func each[T any](all []T, f func(T)) {
	if len(all) == 1 {
		f(all[0])
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	places := make(chan struct{}, maxFanOut)
	for _, v := range all {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			f(v)
		})
	}
}
