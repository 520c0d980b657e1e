package tracing

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/belfryio/belfry/schemas"
)

// Firing identifies the trace of a run. Equal Firings have the same trace on every node.
type Firing struct {
	// Run is the run, and AddedMs the time of its add in Unix milliseconds. AddedMs distinguishes a
	// timer that is added again after its retention from the earlier timer with the same id.
	Run     schemas.RunID
	AddedMs int64
	// Add is the context that the event carries; the zero value for none.
	Add schemas.TraceContext
}

// FiringOf returns the Firing of a claim. header and data are those of the event's message.
func FiringOf(c schemas.Claim, header map[string][]string, data []byte) Firing {
	return Firing{Run: c.RunID(), AddedMs: c.AddedMs, Add: schemas.TraceOf(header, data)}
}

// ids returns the ids of the firing's trace and of its root span, "fire timer".
func (f *Firing) ids() (trace.TraceID, trace.SpanID) {
	b := append(make([]byte, 0, 64), "belfry firing\n"...)
	b = append(b, f.Run.Timer[:]...)
	b = binary.BigEndian.AppendUint32(b, f.Run.Run)
	b = binary.BigEndian.AppendUint64(b, uint64(f.AddedMs))
	sum := sha256.Sum256(b)
	return trace.TraceID(sum[:16]), trace.SpanID(sum[16:24])
}

// contextOf converts a trace context to OpenTelemetry's type. Without a context, or for a malformed
// one, the result is not valid.
func contextOf(c schemas.TraceContext) trace.SpanContext {
	if c.Parent == "" {
		return trace.SpanContext{}
	}
	id, err := trace.TraceIDFromHex(c.Parent[3:35])
	if err != nil {
		return trace.SpanContext{}
	}
	span, err := trace.SpanIDFromHex(c.Parent[36:52])
	if err != nil {
		return trace.SpanContext{}
	}
	flags, err := hex.DecodeString(c.Parent[53:55])
	if err != nil {
		return trace.SpanContext{}
	}
	state, err := trace.ParseTraceState(c.State)
	if err != nil {
		state = trace.TraceState{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.TraceFlags(flags[0]) & trace.FlagsSampled, TraceState: state, Remote: true})
}

// traceParent returns a context in the format of the header traceparent.
func traceParent(c trace.SpanContext) string {
	b := append(make([]byte, 0, 55), "00-"...)
	id, span := c.TraceID(), c.SpanID()
	b = append(hex.AppendEncode(b, id[:]), '-')
	b = append(hex.AppendEncode(b, span[:]), '-')
	return string(hex.AppendEncode(b, []byte{byte(c.TraceFlags() & trace.FlagsSampled)}))
}

// Keys of values in a context. decision has the sdktrace.SamplingResult for the spans of a run's
// trace. rootIDs has the *Firing whose root span is started.
type decision struct{}

type rootIDs struct{}

// decide returns a context with the decision of the sampler about a firing. The sampler gets the add
// as the parent, and a ratio sampler decides by the trace id of the add, so the add and its firing
// are either both sent or both dropped. If the event carries no context, the trace id of the firing
// decides.
func (t *Tracer) decide(f *Firing) context.Context {
	add := contextOf(f.Add)
	p := sdktrace.SamplingParameters{ParentContext: trace.ContextWithRemoteSpanContext(context.Background(), add), TraceID: add.TraceID(), Name: nameFire}
	if !add.IsValid() {
		p.TraceID, _ = f.ids()
	}
	result := t.sampler.ShouldSample(p)
	result.Tracestate = trace.TraceState{} // it belongs to the trace of the add
	return context.WithValue(context.Background(), decision{}, result)
}

// inRun returns the context of a child of the firing.
func (t *Tracer) inRun(f *Firing) context.Context {
	ctx := t.decide(f)
	id, span := f.ids()
	var flags trace.TraceFlags
	if ctx.Value(decision{}).(sdktrace.SamplingResult).Decision == sdktrace.RecordAndSample {
		flags = trace.FlagsSampled
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: flags, Remote: true}))
}

// runSampler returns the decision in the context of a span, and asks its Sampler if there is none.
type runSampler struct{ sdktrace.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (s runSampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if r, ok := p.ParentContext.Value(decision{}).(sdktrace.SamplingResult); ok {
		return r
	}
	return s.Sampler.ShouldSample(p)
}

// idGenerator makes random ids, except for the root span of a firing (rootIDs).
type idGenerator struct{}

// NewIDs implements sdktrace.IDGenerator.
func (g idGenerator) NewIDs(ctx context.Context) (id trace.TraceID, span trace.SpanID) {
	if f, ok := ctx.Value(rootIDs{}).(*Firing); ok {
		return f.ids()
	}
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (idGenerator) NewSpanID(context.Context, trace.TraceID) (span trace.SpanID) {
	for !span.IsValid() {
		binary.NativeEndian.PutUint64(span[:], rand.Uint64())
	}
	return span
}
