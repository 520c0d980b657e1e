package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Orders keeps the state of each busy ordering key (schemas.AttrKey) in bucket flows, changed by
// compare-and-set:
//
//	order.<hash of service and key>   an order.State; expires when the key is idle
//
// The decisions are those of package order.
type Orders struct {
	jet     *jet.Client
	records *Records
	reader  *Reader
	// replicated is true if the shards' streams have replicas: then a server that has led a shard may answer.
	replicated bool
}

const (
	orderPrefix = flowsPrefix + "order."
	// orderIdleTTL is how long the state of an idle key is kept; it saves nothing but the
	// marker of each deletion. It must be longer than order.CollectFor.
	orderIdleTTL = time.Minute
	// orderBusyTTL is how long the state of a key with events is kept after its last change. It
	// is longer than every delay between two attempts; each attempt is a change.
	orderBusyTTL = 366 * 24 * time.Hour
	// orderConflictPause bounds the random pause after a conflict with another node.
	orderConflictPause = 5 * time.Millisecond
	// maxWakeTries bounds the repetitions of a wake, orderWakePause apart: others of the key wait
	// meanwhile.
	maxWakeTries   = 3
	orderWakePause = 100 * time.Millisecond
)

// OrderKey names an ordering key: the same key of two services are two keys.
type OrderKey struct{ Service, Key string }

func (k OrderKey) subject() string {
	sum := sha256.Sum256([]byte(k.Service + " " + k.Key)) // a service has no space
	return orderPrefix + hex.EncodeToString(sum[:16])
}

// storedOrder is the value of a key: JSON with a checksum.
type storedOrder struct {
	Version int         `json:"v"`
	Service string      `json:"svc"`
	Key     string      `json:"key"`
	State   order.State `json:"state"`
}

// OrderState reads the state of an ordering key from the leader, and its revision; both are zero
// for an idle key. Errors: schemas.ErrUnavailable; schemas.ErrDamaged and schemas.ErrNewer, with
// the revision of the value.
func (o *Orders) OrderState(ctx context.Context, k OrderKey) (s order.State, rev uint64, err error) {
	m, err := o.jet.Last(ctx, flowsStream, k.subject())
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return s, 0, nil
	case err != nil:
		return s, 0, err
	case jet.IsMarker(m):
		return s, m.Sequence, nil
	}
	_, s, err = decodeOrder(m.Data)
	return s, m.Sequence, err
}

func decodeOrder(b []byte) (k OrderKey, s order.State, err error) {
	var v struct {
		storedOrder
		Sum uint32 `json:"sum"`
	}
	if err := unmarshalFlow("state of an ordering key", b, &v, &v.Version, &v.Sum); err != nil {
		return k, s, err
	}
	return OrderKey{v.Service, v.Key}, v.State, nil
}

// DecideOrder decides about questions of one key on this node (order.Decide), stores the decision, and
// carries out its wakes. now returns the cluster's time in Unix milliseconds. After a conflict with
// another node it decides again. The answers are in the order of the questions. Errors:
// schemas.ErrStoreFull; schemas.ErrNewer; schemas.ErrUnavailable, after which the decision may be
// stored: the same questions get the same answers.
func (o *Orders) DecideOrder(ctx context.Context, k OrderKey, node string, now func() int64, asks []order.Ask) ([]order.Answer, error) {
	n := len(asks)
	asks = asks[:n:n]
	for {
		answers, wakes, err := o.decide(ctx, k, node, now(), asks)
		if err != nil {
			return nil, err
		}
		ended := slices.DeleteFunc(o.wake(ctx, wakes, now()), func(e order.Event) bool {
			// A question may ask for the same look again, such as the Confirm of a cancelled event.
			return slices.ContainsFunc(asks[n:], func(a order.Ask) bool { return a.Event.ID == e.ID })
		})
		if len(ended) == 0 {
			return answers[:n], nil
		}
		// The next decision gives the turns of these events to others.
		for _, e := range ended {
			asks = append(asks, order.Ask{Kind: order.Done, Event: e})
		}
	}
}

// decide stores one decision.
func (o *Orders) decide(ctx context.Context, k OrderKey, node string, nowMs int64, asks []order.Ask) (answers []order.Answer, wakes []order.Wake, err error) {
	err = onConflict(ctx, 0, orderConflictPause, func() error {
		was, rev, err := o.OrderState(ctx, k)
		if errors.Is(err, schemas.ErrDamaged) {
			// The waiting events ask again by themselves, and give the state its content back.
			was, err = order.State{}, nil
		}
		if err != nil {
			return err
		}
		next := was.Clone()
		answers, wakes = order.Decide(&next, node, nowMs, order.MaxWaiting, asks)
		if reflect.DeepEqual(was, next) {
			return nil
		}
		return o.put(ctx, k, &next, rev)
	})
	if errors.Is(err, ErrRevision) {
		err = o.jet.Error("order events", context.Cause(ctx))
	}
	return answers, wakes, err
}

func (o *Orders) put(ctx context.Context, k OrderKey, s *order.State, rev uint64) error {
	b, err := marshalSummed(storedOrder{Version: flowVersion, Service: k.Service, Key: k.Key, State: *s})
	if err != nil {
		return err
	}
	ttl := orderBusyTTL
	if s.Head.IsZero() && len(s.Waiting) == 0 {
		ttl = orderIdleTTL
	}
	_, err = o.jet.Put(ctx, k.subject(), b, rev, ttl)
	return err
}

// wake makes the records that wait for their turns due, and returns the events that are
// concluded. A record that cannot be changed now comes back by itself, later.
func (o *Orders) wake(ctx context.Context, wakes []order.Wake, nowMs int64) (ended []order.Event) {
	for _, w := range wakes {
		done, err := o.wakeOne(ctx, w, nowMs)
		for range maxWakeTries {
			if err == nil || !pause.For(ctx, orderWakePause) {
				break
			}
			done, err = o.wakeOne(ctx, w, nowMs)
		}
		if err != nil {
			continue // the record comes back by itself
		}
		if done {
			ended = append(ended, w.Event)
		}
	}
	return ended
}

// wakeOne reports whether an event is concluded. A record that waits in its consumer, or is on its
// way there, asks by itself.
func (o *Orders) wakeOne(ctx context.Context, w order.Wake, nowMs int64) (ended bool, err error) {
	get, sure := o.reader.Get, !o.replicated
	for {
		t, err := get(ctx, w.Event.ID)
		if !sure && (errors.Is(err, schemas.ErrNotFound) || err == nil && hasEnded(&t.Record)) {
			// Nothing else checks this answer: the turn is given to the next event.
			get, sure = o.reader.GetNewest, true
			continue
		}
		switch {
		case errors.Is(err, schemas.ErrNotFound):
			return true, nil
		case errors.Is(err, schemas.ErrDamaged), errors.Is(err, schemas.ErrNewer):
			return false, nil // it may have been called: the next waits until somebody has repaired it
		case err != nil:
			return false, err
		}
		rec := t.Record
		if hasEnded(&rec) {
			return true, nil
		}
		if atMs := max(w.AtMs, nowMs); rec.AwaitsTurn() && rec.Deferral.SlotMs > atMs {
			rec.MoveSlot(0, atMs)
		} else {
			return false, nil
		}
		_, err = o.records.Update(ctx, Write{ID: t.ID, Rev: t.Rev, Record: &rec})
		if Permanent(err) {
			return false, nil // max_payload was lowered: it comes back by itself
		}
		if !errors.Is(err, ErrRevision) {
			return false, err
		}
	}
}

// hasEnded reports whether an event in an ordering key is concluded, according to its record. A pending record is that of a later
// timer with the same id.
func hasEnded(r *schemas.Record) bool {
	return r.State.Final() || r.State.Waits()
}

// EndOrder reports that an event is concluded, such as by a cancel, and gives its turn to the next.
// Errors: as DecideOrder.
func (o *Orders) EndOrder(ctx context.Context, k OrderKey, id schemas.TimerID, nowMs int64) error {
	_, err := o.DecideOrder(ctx, k, "", func() int64 { return nowMs }, []order.Ask{{Kind: order.Done, Event: order.Event{ID: id}}})
	return err
}
