package router

import (
	"context"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// FlowReset ends the hold of a flow key: a pause of Retry-After, or an open circuit. The events that
// wait are called soon, and the next answer of the target may set a hold again. When FlowReset returns
// without an error, the reset is in force on all nodes. Errors: bad_request for a pattern, not_found
// for a key without a hold, unavailable, after which the reset may have been made.
func (s *Service) FlowReset(ctx context.Context, q schemas.FlowResetRequest, from schemas.Caller) (schemas.FlowResetReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.FlowResetReply, err error) {
		if err := checkFlowPattern(q.Key); err != nil {
			return reply, err
		}
		if strings.Contains(q.Key, "*") {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "%s is a pattern: name one flow key; flow.list has the keys that are stopped", q.Key)
		}
		by, err := claimed(from, q.By)
		if err != nil {
			return reply, err
		}
		before, ok, err := s.o.Store.ResetHold(ctx, q.Key, by.Name(), s.nowMs())
		switch {
		case err != nil:
			return reply, err
		case !ok:
			return reply, schemas.Errorf(schemas.CodeNotFound, "nothing was reset: the target of flow key %s has not asked for a pause, and its circuit is closed; to end a pause that a user made, use flow.resume", q.Key)
		}
		s.o.Log.Info().Str("flow", q.Key).Str("reason", before.Reason).Str("by", by.Name()).Msg("flow reset")
		reply.Before = holdInfo(&before)
		return reply, nil
	})
}

// holdInfo describes a hold.
func holdInfo(h *store.FlowHold) schemas.FlowHoldInfo {
	at := func(ns int64) time.Time {
		if ns == 0 {
			return time.Time{}
		}
		return schemas.TimeOf(ns / int64(time.Millisecond))
	}
	return schemas.FlowHoldInfo{
		Key: h.Key, Until: at(h.Hold.UntilNs), Open: at(h.Hold.OpenNs), Probes: h.Hold.Probes, NextProbe: at(h.Hold.ProbeNs),
		Reason: h.Reason, Changed: schemas.TimeOf(h.AtMs), By: h.By,
	}
}

// heldBy adds the hold of a timer's flow key, as this node knows it, to the wait of the timer.
func (s *Service) heldBy(f *schemas.FlowInfo) {
	set, _ := s.o.Store.FlowsNow()
	if set == nil {
		return
	}
	h, _ := set.HoldOf(f.Key)
	p, atNs := h.Hold.Ask(s.nowMs() * int64(time.Millisecond))
	if p == flow.Free {
		return
	}
	if f.Hold = schemas.HoldPause; h.Hold.OpenNs != 0 {
		f.Hold = schemas.HoldCircuit
	}
	f.Until = schemas.TimeOf(atNs / int64(time.Millisecond))
}
