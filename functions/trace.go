package functions

import (
	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/schemas"
)

// beginTrace starts the span of an attempt. The request gets the context of the span; the context
// that the event carries stays in the event's attributes. It returns nil without traces.
func (d *delivery) beginTrace(c *caller, req *callback.Request) *tracing.Span {
	t := d.f.o.Tracing
	if t == nil {
		return nil
	}
	target, err := c.rules.Resolve(req.Target, d.svc.name)
	if err != nil {
		target = ""
	}
	span := t.Attempt(tracing.FiringOf(d.claim, d.msg.Header, d.msg.Data), tracing.Attempt{
		Spec: &d.spec, Target: target, Number: d.timer.Record.Attempt + 1, LateMs: max(req.NowMs-max(d.fired.ScheduledMs, d.claim.AddedMs), 0),
	})
	trace := map[string]string{schemas.TraceParent: span.Parent()}
	if v := req.Trace["baggage"]; v != "" {
		trace["baggage"] = v
	}
	req.Trace = trace
	return span
}

// endTrace ends the span of an attempt.
func endTrace(span *tracing.Span, out *callback.Outcome) {
	span.EndAttempt(string(out.Reason), out.Code)
}
