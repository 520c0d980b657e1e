package router

import (
	"github.com/belfryio/belfry/schemas"
)

// This file makes the spans of adds. Without a Tracer an add has a nil span, on which every method
// does nothing.

// beginTrace starts the span of an add that has arrived.
func (s *Service) beginTrace(a *Add) {
	if s.o.Tracing == nil {
		return
	}
	subject := ""
	if a.Seq != 0 {
		subject = schemas.SubjectAdd
	}
	a.span = s.o.Tracing.Add(schemas.TraceOf(a.Header, a.Data), subject)
}

// carryTrace gives a valid add without a trace context the context of its span, so that its firing
// links to the span.
func (s *Service) carryTrace(a *Add, maxMessage int) {
	if a.span == nil || a.Record.Body.Trace().Parent != "" {
		return
	}
	a.Record.Body = a.Record.Body.WithTrace(a.span.Parent(), maxMessage)
}

// endTrace ends the span of an add that is settled.
func (a *Add) endTrace(result Result, err error) {
	if a.span != nil {
		a.span.EndAdd(&a.Spec, result.String(), err)
	}
}

// expireTrace ends the span of an add after OperationTimeout. The add may still be processed, so its
// Spec must not be read.
func (w *waitingAdd) expireTrace(err error) {
	w.span.EndAdd(&schemas.Spec{}, Delayed.String(), err)
}
