package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Orders is the part of the store that keeps the states of ordering keys; *store.Store has it.
type Orders interface {
	OrderState(ctx context.Context, k store.OrderKey) (order.State, uint64, error)
	EndOrder(ctx context.Context, k store.OrderKey, id schemas.TimerID, nowMs int64) error
	OrderList(ctx context.Context, q store.OrderQuery) (store.OrderPage, error)
}

// endTurn gives the turn of an event that was cancelled to the next of its ordering key. If that
// fails, the next event finds the cancelled one when it asks again.
func (s *Service) endTurn(t *store.Timer) {
	rec := &t.Record
	if rec.Key == "" || rec.State != schemas.StateCancelled || rec.FiredMs == 0 {
		return
	}
	k, id := store.OrderKey{Service: rec.Service, Key: rec.Key}, t.ID
	// The caller holds the gate, or is one of cancelling, so Stop waits.
	s.cancelling.Go(func() {
		ctx, cancel := context.WithTimeout(s.run, OperationTimeout)
		defer cancel()
		if err := s.o.Store.EndOrder(ctx, k, id, s.nowMs()); err != nil {
			s.o.Log.Debug().Err(err).Stringer("timer", id).Str("key", k.Key).Msg("the turn of a cancelled event was not passed on; the next event asks again by itself")
		}
	})
}

// turnOf returns the timer whose turn it is under a record's ordering key, and the number of waiting
// events. The timer is zero if there is none, or if the state cannot be read.
func (s *Service) turnOf(ctx context.Context, rec *schemas.Record) (head schemas.TimerID, waiting int) {
	st, _, err := s.o.Store.OrderState(ctx, store.OrderKey{Service: rec.Service, Key: rec.Key})
	if err != nil {
		return schemas.TimerID{}, 0
	}
	return st.Head.ID, len(st.Waiting)
}

// whyTurn explains for which event a timer waits, with the state of that event, the time of its next
// attempt and the error of its last one.
func (s *Service) whyTurn(ctx context.Context, t *store.Timer) []string {
	head, waiting := s.turnOf(ctx, &t.Record)
	k := t.Record.Key
	switch {
	case head.IsZero():
		return []string{"No event of key " + k + " has its turn now: the next begins soon."}
	case head == t.ID:
		return []string{"It is the turn of this event: its call begins soon."}
	}
	text := "It waits for " + head.String() + " of key " + k
	if h, err := s.ops.get(ctx, head); err == nil {
		text += ", which is " + h.Record.State.String()
		r := &h.Record
		if r.State == schemas.StateRetrying && r.NextMs > 0 {
			text += " until " + schemas.FormatTime(r.NextMs)
		}
		if r.State == schemas.StateRetrying && r.Attempt > 0 {
			text += fmt.Sprintf(" after attempt %d of %d%s", r.Attempt, r.MaxAttempt, because(r))
		}
	}
	if others := waiting - 1; others > 0 {
		text += fmt.Sprintf("; others of the key that wait: %d", others)
	}
	return []string{text + ". \"belfry why " + head.String() + "\" says more."}
}

// OrderList returns a page of the ordering keys that have events, with the state of the event whose
// turn it is. The key that has not changed for the longest time is first. Errors: bad_request,
// unavailable.
func (s *Service) OrderList(ctx context.Context, q schemas.OrderListRequest) (schemas.OrderListReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.OrderListReply, err error) {
		if q.Limit < 0 || q.Limit > schemas.MaxOrderKeys {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, schemas.MaxOrderKeys)
		}
		service, tenant, err := s.scope.selects(q.Service)
		if err != nil {
			return reply, err
		}
		page, err := s.o.Store.OrderList(ctx, store.OrderQuery{Service: service, Tenant: tenant, Cursor: q.Cursor, Limit: q.Limit})
		if err != nil {
			return reply, err
		}
		reply = schemas.OrderListReply{Keys: make([]schemas.OrderKeyInfo, 0, len(page.Keys)), Cursor: page.Cursor}
		for i := range page.Keys {
			k := &page.Keys[i]
			info := schemas.OrderKeyInfo{Key: k.Key, Waiting: len(k.State.Waiting), More: !k.State.Bound.IsZero()}
			info.Tenant, info.Service = schemas.SplitService(k.Service)
			if info.Head, err = s.orderHead(ctx, &k.State); err != nil {
				return reply, err
			}
			reply.Keys = append(reply.Keys, info)
		}
		return reply, nil
	})
}

// orderHead describes the head of an ordering key; nil if there is none.
func (s *Service) orderHead(ctx context.Context, st *order.State) (*schemas.OrderHead, error) {
	if st.Head.IsZero() {
		return nil, nil
	}
	h := &schemas.OrderHead{Timer: st.Head.ID, State: schemas.OrderUnknown, Since: schemas.TimeOf(cmp.Or(st.TurnMs, st.SinceMs))}
	t, err := s.o.Store.Get(ctx, st.Head.ID)
	switch {
	case err == nil:
		describeHead(h, &t.Record)
	case errors.Is(err, schemas.ErrNotFound):
		h.State = schemas.OrderEnded
	case !errors.Is(err, schemas.ErrDamaged) && !errors.Is(err, schemas.ErrNewer):
		return nil, err
	}
	if st.CallingAt(s.nowMs()) && h.State != schemas.OrderEnded {
		h.State, h.Until = schemas.OrderCalling, time.Time{}
		if h.Node = st.Node; strings.Contains(h.Node, ".") {
			h.Node = h.Node[:strings.LastIndexByte(h.Node, '.')] // a process adds a number to the name of its node
		}
	}
	return h, nil
}

// describeHead adds the state of the head of an ordering key, from its record.
func describeHead(h *schemas.OrderHead, r *schemas.Record) {
	h.ID, h.Source, h.Attempts, h.MaxAttempts, h.Error = r.EventID, r.Source, r.Attempt, r.MaxAttempt, r.Outcome.Error
	switch {
	case r.State.Final():
		h.State = schemas.OrderEnded
	case r.Deferred():
		h.State, h.Until = schemas.OrderWaiting, schemas.TimeOf(r.Deferral.SlotMs)
	case r.State == schemas.StateRetrying && !r.AwaitsTurn():
		h.State, h.Until = schemas.OrderRetrying, schemas.TimeOf(r.NextMs)
	default:
		h.State = schemas.OrderWaiting
	}
}
