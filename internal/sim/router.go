package sim

import (
	"errors"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file is router's way with adds and requests, for one of each at a time.

// retryPause and retryMax are router's; apiTimeout bounds a request.
const (
	retryPause = 100 * time.Millisecond
	retryMax   = 2 * time.Second
	apiTimeout = 4 * time.Second
)

// routeAdd takes an add of the stream.
func (n *node) routeAdd(m *msg) {
	i, err := strconv.Atoi(string(m.Data))
	if err != nil {
		panic(err) // the client wrote a number
	}
	l := n.w.lives[i]
	n.w.spawn(n, func(*proc) {
		if n.w.cfg.Plant == PlantEarlyAck {
			m.ack()
		}
		// Rounded up, as in router.
		addedMs := (m.StampNs + int64(time.Millisecond) - 1) / int64(time.Millisecond)
		err := n.create(l, addedMs, true)
		if store.Permanent(err) {
			l.rejected, err = true, nil // and published on timers.rejected
		}
		if err != nil {
			m.nak(min(retryPause<<min(m.deliveries-1, 10), retryMax))
			return
		}
		m.ack()
	})
}

// create writes a timer's record; a timer that is there already is no error.
// fromStream says that the add may have been delivered before.
func (n *node) create(l *life, addedMs int64, fromStream bool) error {
	ctx := within(callTimeout)
	rec := l.record(addedMs)
	if l.callback {
		if err := n.client.RegisterService(ctx, l.service); err != nil {
			return err
		}
	}
	nowMs := n.nowMs()
	if fromStream && max(rec.DueMs, addedMs)+n.w.p.retention.Milliseconds() <= nowMs {
		// Its timer may have fired, concluded and expired since.
		ids := map[string]struct{}{l.id.MsgID(1): {}}
		found, err := n.client.FiredSince(ctx, []string{schemas.SubjectFired(l.service)}, time.UnixMilli(min(nowMs, rec.DueMs-1000)), ids)
		if err != nil || len(found) > 0 {
			return err
		}
	}
	err := n.client.Create(ctx, []store.Write{{ID: l.id, Record: rec}})[0].Err
	if !errors.Is(err, store.ErrRevision) {
		return err
	}
	t, err := n.client.Get(ctx, l.id)
	if errors.Is(err, schemas.ErrNotFound) {
		return schemas.ErrUnavailable // it expired while it was looked at
	}
	if err == nil && !t.Record.State.Final() {
		if err = n.mend(t); store.Permanent(err) {
			err = nil // it is stored, and cannot be written again
		}
	}
	return err
}

// mend is router's: the first try may have left a record without index entry.
func (n *node) mend(t store.Timer) error {
	ctx, rec := within(callTimeout), t.Record
	if !rec.Queued {
		if err := n.client.PutIndex(ctx, t.ID, n.w.p.geo.Tick(n.nowMs())); err != nil {
			return err
		}
	}
	rec.Moves = max(rec.Moves, 1)
	_, err := n.client.Update(ctx, store.Write{ID: t.ID, Rev: t.Rev, Record: &rec})
	return err
}

// change replaces a record by what f makes of it, as often as it takes to meet no
// other writer.
func (n *node) change(id schemas.TimerID, blind bool, f func(*schemas.Record) (ttl time.Duration, unchanged bool, err error)) (schemas.Record, error) {
	until := n.mono() + apiTimeout
	for {
		left := until - n.mono()
		if left <= 0 {
			return schemas.Record{}, schemas.ErrUnavailable
		}
		t, err := n.client.Get(within(left), id)
		if err != nil {
			return schemas.Record{}, err
		}
		ttl, unchanged, err := f(&t.Record)
		if err != nil || unchanged {
			return t.Record, err
		}
		w := store.Write{ID: t.ID, Rev: t.Rev, Record: &t.Record, TTL: ttl}
		if blind {
			return t.Record, n.overwrite(w)
		}
		_, err = n.client.Update(within(left), w)
		if !errors.Is(err, store.ErrRevision) {
			return t.Record, err
		}
	}
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

func (n *node) cancelTimer(id schemas.TimerID) (schemas.Record, error) {
	if rec, err := n.cancelShort(id); !errors.Is(err, errAlone) {
		return rec, err
	}
	return n.change(id, n.w.cfg.Plant == PlantBlindCancel, func(r *schemas.Record) (time.Duration, bool, error) {
		unchanged, err := r.Cancel(n.nowMs(), schemas.Caller{})
		return n.w.p.retention, unchanged, err
	})
}

var errAlone = errors.New("it is not for the short way")

// cancelShort is router's way with cancels that come many at a time: what a replica
// says that may be behind is good for a compare-and-set.
func (n *node) cancelShort(id schemas.TimerID) (schemas.Record, error) {
	got, err := n.client.GetMany(within(apiTimeout), []schemas.TimerID{id})
	if err != nil || len(got) == 0 || n.w.cfg.Plant == PlantBlindCancel {
		return schemas.Record{}, errAlone
	}
	t := got[0]
	if unchanged, err := t.Record.Cancel(n.nowMs(), schemas.Caller{}); err != nil || unchanged {
		return schemas.Record{}, errAlone
	}
	_, err = n.client.Update(within(apiTimeout), store.Write{ID: t.ID, Rev: t.Rev, Record: &t.Record, TTL: n.w.p.retention})
	if errors.Is(err, store.ErrRevision) {
		return schemas.Record{}, errAlone
	}
	return t.Record, err
}

func (n *node) reschedule(id schemas.TimerID, dueMs int64) (schemas.Record, error) {
	return n.change(id, false, func(r *schemas.Record) (time.Duration, bool, error) {
		return 0, false, r.Reschedule(dueMs, n.nowMs(), schemas.Caller{})
	})
}
