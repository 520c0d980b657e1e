package sim

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// This file drives router.Writer and router.Operations of production. It repeats the code
// around them: the acknowledgements of natsapi's intake, and the order of the steps of a fast
// cancel.

// retryPause and retryMax are natsapi's; apiTimeout bounds a request.
const (
	retryPause = 100 * time.Millisecond
	retryMax   = 2 * time.Second
	apiTimeout = router.OperationTimeout
)

// newRouter makes the router of a process.
func (n *node) newRouter() {
	n.created = map[schemas.TimerID]store.Timer{}
	n.breakers = router.NewBreakers(n.w.p.geo.Shards, n.monoTime, zerolog.Nop())
	n.ops = router.Operations{
		Records: records{n}, Adds: n.client, Geometry: n.w.p.geo, Retention: n.w.p.retention, NowMs: n.nowMs,
		Zones: n.zones, Calendars: n.currentCalendars, Confirm: n.w.p.deposed,
		SameTimer: func(_ string, _ map[string][]string, data []byte, rec *schemas.Record) bool {
			return string(data) == rec.EventID
		},
	}
}

// outcome receives the outcome of one add.
type outcome struct {
	result router.Result
	err    error
}

// Store implements router.Sink.
func (o *outcome) Store(_ *router.Add, result router.Result, _ *schemas.Record) { o.result = result }

// Reject implements router.Sink.
func (o *outcome) Reject(_ *router.Add, reason error) { o.result, o.err = router.Rejected, reason }

// Delay implements router.Sink.
func (o *outcome) Delay(_ *router.Add, err error) { o.result, o.err = router.Delayed, err }

// routeAdd processes an add of the stream.
func (n *node) routeAdd(m *msg) {
	i, err := strconv.Atoi(string(m.Data))
	if err != nil {
		panic(err) // the client wrote a number
	}
	var l *life
	s := n.w.scheduleOf(i)
	if s == nil {
		l = n.w.lives[i]
	} else {
		l = s.life
	}
	n.w.spawn(n, func(*proc) {
		if n.w.cfg.Plant == PlantEarlyAck {
			m.ack()
		}
		// Rounded up, as in natsapi.
		addedMs := (m.StampNs + int64(time.Millisecond) - 1) / int64(time.Millisecond)
		var o outcome
		if s != nil {
			o = n.createSchedule(s, addedMs, m.Seq)
		} else {
			o = n.create(l, addedMs, m.Seq)
		}
		switch o.result {
		case router.Delayed:
			m.nak(min(retryPause<<min(m.deliveries-1, 10), retryMax))
			return
		case router.Rejected:
			l.rejected = true // and published to timers.rejected
		}
		m.ack()
	})
}

// create writes a timer. seq is the add's in TIMERS_ADD, 0 for an add of the API.
func (n *node) create(l *life, addedMs int64, seq uint64) outcome {
	return n.store(l.id, l.record(addedMs), seq)
}

// store writes the record of an add.
func (n *node) store(id schemas.TimerID, rec *schemas.Record, seq uint64) outcome {
	a := &router.Add{AddedMs: rec.AddedMs, Seq: seq, Record: *rec}
	a.Spec = schemas.Spec{Timer: id, Service: rec.Service, Callback: a.Record.Callback, Source: a.Record.Source, EventID: a.Record.EventID}
	o := outcome{}
	w := router.Writer{
		Records: records{n}, Services: n.client, Dedup: dedup{n}, Sink: &o, Breakers: n.breakers, Geometry: n.w.p.geo, NowMs: n.nowMs, Log: zerolog.Nop(),
	}
	w.Write(within(callTimeout), []*router.Add{a})
	return o
}

// dedup is the dedup check without its memory: a simulation has few timers.
type dedup struct{ n *node }

// Needed implements router.DedupCheck.
func (d dedup) Needed(k store.AddKey, nowMs int64) bool {
	return k.FireMs+d.n.w.p.retention.Milliseconds() <= nowMs
}

// Fired implements router.DedupCheck.
func (d dedup) Fired(ctx context.Context, nowMs int64, keys []store.AddKey) (map[uint64]struct{}, error) {
	found := map[uint64]struct{}{}
	for _, k := range keys {
		ids := map[string]struct{}{k.Timer.MsgID(1): {}}
		got, err := d.n.client.FiredSince(ctx, []string{schemas.SubjectFired(k.Service)}, time.UnixMilli(min(nowMs, k.FireMs-1000)), ids)
		if err != nil {
			return nil, err
		}
		if len(got) > 0 {
			found[k.Seq] = struct{}{}
		}
	}
	return found, nil
}

// Stored implements router.DedupCheck.
func (dedup) Stored(int64, uint64) {}

// records are the store's, with the planted bug of a cancel without compare-and-set.
type records struct{ n *node }

// Create implements router.Records. Like the store, it keeps the new records for cancels.
func (r records) Create(ctx context.Context, timers []store.Write) []store.Result {
	results := r.n.client.Create(ctx, timers)
	for i, w := range timers {
		if rec := *w.Record; results[i].Err == nil && rec.Schedule == nil && rec.Origin == nil {
			rec.Body = schemas.Body{}
			r.n.created[w.ID] = store.Timer{ID: w.ID, Rev: results[i].Rev, Record: rec}
		}
	}
	return results
}

// Get implements router.Records.
func (r records) Get(ctx context.Context, id schemas.TimerID) (store.Timer, error) {
	return r.n.client.Get(ctx, id)
}

// GetNewest implements router.Records.
func (r records) GetNewest(ctx context.Context, id schemas.TimerID) (store.Timer, error) {
	return r.n.client.GetNewest(ctx, id)
}

// PutIndex implements router.Records.
func (r records) PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error {
	return r.n.client.PutIndex(ctx, id, tick)
}

// Update implements router.Records.
func (r records) Update(ctx context.Context, w store.Write) (uint64, error) {
	if r.n.w.cfg.Plant == PlantBlindCancel && w.Record.State == schemas.StateCancelled {
		return 0, r.n.overwrite(w)
	}
	return r.n.client.Update(ctx, w)
}

// overwrite is a planted bug.
func (n *node) overwrite(w store.Write) error {
	p := n.w.current
	var got error
	n.client.Unfenced(w, func(res store.Result) {
		got = res.Err
		p.resume()
	})
	p.park()
	return got
}

// cancelTimer cancels a timer on the fast path, by the record that this process has created or
// by a read that may be stale, or on the slow path. Unlike the store, it uses the created record
// also after the timer is due or was changed, so that more of them are old.
func (n *node) cancelTimer(id schemas.TimerID, by schemas.Caller) (schemas.Record, error) {
	done := n.w.check.operates("cancel", id, func(r *schemas.Record) error {
		_, err := r.Cancel(n.nowMs(), by)
		return err
	})
	rec, err := n.cancelStale(id, by)
	done(err)
	return rec, err
}

func (n *node) cancelStale(id schemas.TimerID, by schemas.Caller) (schemas.Record, error) {
	var got []store.Timer
	t, cached := n.created[id]
	var err error
	if cached {
		delete(n.created, id)
		got = append(got, t)
	} else {
		got, err = n.client.GetMany(within(apiTimeout), []schemas.TimerID{id})
	}
	if err == nil && len(got) > 0 && n.w.cfg.Plant != PlantBlindCancel {
		if w, ok := n.ops.CancelStale(&got[0], by); ok {
			if cached && n.w.cfg.Plant == PlantCachedCancel {
				return got[0].Record, n.overwrite(w)
			}
			_, err := n.client.Update(within(apiTimeout), w)
			if !errors.Is(err, store.ErrRevision) {
				return got[0].Record, err
			}
		}
	}
	t, err = n.ops.Cancel(within(apiTimeout), id, by)
	return t.Record, err
}

func (n *node) reschedule(id schemas.TimerID, dueMs int64) (schemas.Record, error) {
	done := n.w.check.operates("reschedule", id, func(r *schemas.Record) error { return r.Reschedule(dueMs, n.nowMs(), schemas.Caller{}) })
	t, err := n.ops.Reschedule(within(apiTimeout), id, dueMs, schemas.Caller{})
	done(err)
	return t.Record, err
}
