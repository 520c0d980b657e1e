package router

import (
	"context"
	"fmt"

	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Orders is the part of the store that keeps the states of ordering keys; *store.Store has it.
type Orders interface {
	OrderState(ctx context.Context, k store.OrderKey) (order.State, uint64, error)
	EndOrder(ctx context.Context, k store.OrderKey, id schemas.TimerID, nowMs int64) error
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
			s.o.Log.Debug().Err(err).Stringer("timer", id).Str("key", k.Key).Msg("the turn of a cancelled event was not given to the next; that asks again by itself")
		}
	})
}

// turnOf returns the timer whose turn it is among those of a record's ordering key, zero if none or
// if it cannot be read, and the number of events that wait.
func (s *Service) turnOf(ctx context.Context, rec *schemas.Record) (head schemas.TimerID, waiting int) {
	st, _, err := s.o.Store.OrderState(ctx, store.OrderKey{Service: rec.Service, Key: rec.Key})
	if err != nil {
		return schemas.TimerID{}, 0
	}
	return st.Head.ID, len(st.Waiting)
}

// whyTurn says for which event a timer waits, and how that event is doing: the time of its next attempt,
// and the error of the last one.
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
