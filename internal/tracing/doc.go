// Package tracing makes the OpenTelemetry spans of a node and sends them over OTLP/HTTP.
//
// # Spans
//
//	trace of the client:  … ── add timer
//	                              ▲ link
//	trace of the run:        fire timer ─┬─ claim timer
//	                                     ├─ publish timer
//	                                     ├─ POST, or request (attempt 1)
//	                                     └─ POST, or request (attempt 2) ── spans of the callee
//
// The add is a child of the context that the event carries (schemas.TraceOf). A firing begins a
// trace of its own, because it comes hours or months later, and links to that context. All attempts
// of a run are children of its firing, on whichever node they are made: the ids of the trace and of
// the firing are a hash of the run's identity (Firing), so nothing has to be stored or sent.
//
// The sampler gets the context of the add as the parent of the firing, so it decides about the
// firing as about the add. Nodes with the same settings decide alike, and the firing of a sampled
// add is sampled.
//
// # Guarantees
//
// Without an endpoint New returns a nil *Tracer. Callers then start no spans; a nil *Span does
// nothing. No call blocks: spans go to a bounded queue, and one goroutine sends them in batches. Spans
// that do not fit, or cannot be sent, are dropped and counted (belfry_trace_spans_dropped_total).
// Stop sends the queued spans until its context ends.
//
// No span has the data of an event, the path or the query of a URL, a header or an error text of a
// callee.
package tracing
