package scheduler

import (
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/schemas"
)

// This file makes the spans of firings. A term without a Tracer does not call it. The simulation
// has none.

// traceClaim makes the span of a claim. The returned function ends the span and calls done. The claim
// of a schedule has no span, because it decides about more than one run.
func (t *Term) traceClaim(a ActClaim, done func(store.Result)) func(store.Result) {
	r := a.Record
	if r.Schedule != nil {
		return done
	}
	span := t.cfg.Tracing.Claim(tracing.Firing{Run: r.RunID(a.ID), AddedMs: r.AddedMs, Add: r.Body.Trace()})
	return func(res store.Result) {
		span.End(res.Err)
		done(res)
	}
}

// tracePublish makes the span of a publish and, for the first event of a run, the span of the firing.
// The returned function ends the spans and calls done.
func (t *Term) tracePublish(a ActPublish, done func(seq uint64, duplicate bool, err error)) func(seq uint64, duplicate bool, err error) {
	header := a.Msg.Header[schemas.HeaderClaim]
	if len(header) == 0 {
		return done
	}
	claim, err := schemas.ParseClaim(header[0])
	if err != nil {
		return done
	}
	f := tracing.FiringOf(claim, a.Msg.Header, a.Msg.Data)
	first := claim.Attempt == 0 && claim.Deferred == 0
	// The span begins at the claim. The claim has the cluster's time, which is converted to the
	// host's.
	begun := time.Now().Add(min(time.Duration(claim.FiredMs)*time.Millisecond-time.Duration(t.cfg.Time.EarliestNs()), 0))
	span := t.cfg.Tracing.Publish(f, a.Msg.Subject)
	return func(seq uint64, duplicate bool, err error) {
		span.End(err)
		if err == nil && first {
			t.cfg.Tracing.Fired(f, a.Service, begun, time.Duration(a.LateMs)*time.Millisecond+time.Since(begun))
		}
		done(seq, duplicate, err)
	}
}
