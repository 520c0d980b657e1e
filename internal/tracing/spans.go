package tracing

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/belfryio/belfry/schemas"
)

// Names of spans. There are few, so that a viewer can group by them; what differs is in attributes.
const (
	nameAdd     = "add timer"
	nameFire    = "fire timer"
	nameClaim   = "claim timer"
	namePublish = "publish timer"
	nameHTTP    = "POST"
	nameNATS    = "request"
)

// Attributes of Belfry's own. The others are those of OpenTelemetry's semantic conventions.
const (
	attrTimer    = "belfry.timer.id"
	attrRun      = "belfry.run"
	attrService  = "belfry.service"
	attrAttempt  = "belfry.attempt"
	attrLateness = "belfry.lateness_ms"
	attrResult   = "belfry.add.result"
)

// Span is a span that has not ended. A nil *Span does nothing.
type Span struct{ span trace.Span }

// Parent returns the value of the header traceparent for requests and messages that the span causes.
func (s *Span) Parent() string { return traceParent(s.span.SpanContext()) }

// End ends a span. For an error it sets the status of the span to the error's code. The text of the
// error may quote an event, so the span does not have it.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.fail(codeOf(err))
	}
	s.span.End()
}

// fail sets the status, with a reason from a fixed set.
func (s *Span) fail(reason string) {
	s.span.SetStatus(codes.Error, reason)
	s.span.SetAttributes(attribute.String("error.type", reason))
}

// codeOf returns the reason of an error: its schemas.Code, or else "error".
func codeOf(err error) string {
	if code := schemas.CodeOf(err); code != "" {
		return string(code)
	}
	return "error"
}

// start starts a span.
func (t *Tracer) start(ctx context.Context, name string, kind trace.SpanKind, attributes ...attribute.KeyValue) *Span {
	_, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
	return &Span{span}
}

// Add starts the span of an add, which ends with EndAdd. parent is the trace context in the event.
// subject is the NATS subject of an event that came through a stream, otherwise "".
func (t *Tracer) Add(parent schemas.TraceContext, subject string) *Span {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), contextOf(parent))
	if subject == "" {
		return t.start(ctx, nameAdd, trace.SpanKindServer)
	}
	return t.start(ctx, nameAdd, trace.SpanKindConsumer, attribute.String("messaging.system", "nats"), attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.operation.type", "process"), attribute.String("messaging.destination.name", subject))
}

// EndAdd ends the span of an add. spec is the zero value for an add that could not be parsed.
func (s *Span) EndAdd(spec *schemas.Spec, result string, err error) {
	if s == nil {
		return
	}
	s.span.SetAttributes(attribute.String(attrResult, result))
	if !spec.Timer.IsZero() {
		s.span.SetAttributes(append(ofEvent(spec), attribute.String(attrTimer, spec.Timer.String()))...)
	}
	s.End(err)
}

// ofEvent returns the attributes that name an event and its service.
func ofEvent(spec *schemas.Spec) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String(attrService, spec.Service), attribute.String("cloudevents.event_id", spec.EventID),
		attribute.String("cloudevents.event_source", spec.Source), attribute.String("cloudevents.event_type", spec.Type)}
}

// ofRun returns the attributes of a run.
func (f *Firing) ofRun() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String(attrTimer, f.Run.Timer.String()), attribute.Int64(attrRun, int64(f.Run.Run))}
}

// Claim starts the span of a claim, which ends with End.
func (t *Tracer) Claim(f Firing) *Span {
	return t.start(t.inRun(&f), nameClaim, trace.SpanKindInternal, f.ofRun()...)
}

// Publish starts the span of the publish of a run's event to a subject, which ends with End.
func (t *Tracer) Publish(f Firing, subject string) *Span {
	return t.start(t.inRun(&f), namePublish, trace.SpanKindProducer, append(f.ofRun(), attribute.String("messaging.system", "nats"), attribute.String("messaging.operation.name", "publish"),
		attribute.String("messaging.operation.type", "send"), attribute.String("messaging.destination.name", subject))...)
}

// Fired makes the root span of a firing, from begun, the time of the claim, to the present. late is
// the time from the due time until the stream stored the event.
func (t *Tracer) Fired(f Firing, service string, begun time.Time, late time.Duration) {
	ctx := context.WithValue(t.decide(&f), rootIDs{}, &f)
	options := []trace.SpanStartOption{trace.WithTimestamp(begun),
		trace.WithAttributes(append(f.ofRun(), attribute.String(attrService, service), attribute.Int64(attrLateness, late.Milliseconds()))...)}
	if add := contextOf(f.Add); add.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: add}))
	}
	_, span := t.tracer.Start(ctx, nameFire, options...)
	span.End()
}

// Attempt describes one callback attempt.
type Attempt struct {
	// Spec is parsed from the fired event.
	Spec *schemas.Spec
	// Target is the URL or the nats: subject that is called.
	Target string
	// Number of the attempt, from 1.
	Number uint32
	// LateMs is the time from the due time to the call.
	LateMs int64
}

// Attempt starts the span of a callback attempt, which ends with EndAttempt.
func (t *Tracer) Attempt(f Firing, a Attempt) *Span {
	attributes := append(append(f.ofRun(), ofEvent(a.Spec)...), attribute.Int64(attrAttempt, int64(a.Number)), attribute.Int64(attrLateness, a.LateMs))
	name := nameHTTP
	if subject, ok := strings.CutPrefix(a.Target, schemas.NATSScheme); ok {
		name = nameNATS
		attributes = append(attributes, attribute.String("messaging.system", "nats"), attribute.String("messaging.operation.name", "request"),
			attribute.String("messaging.operation.type", "send"), attribute.String("messaging.destination.name", subject))
	} else {
		attributes = append(append(attributes, attribute.String("http.request.method", "POST")), ofURL(a.Target)...)
	}
	return t.start(t.inRun(&f), name, trace.SpanKindClient, attributes...)
}

// ofURL returns the scheme, host and port of a URL. It leaves out the path and the query, because
// they may contain credentials.
func ofURL(target string) []attribute.KeyValue {
	u, err := url.Parse(target)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		if port = 80; u.Scheme == "https" {
			port = 443
		}
	}
	return []attribute.KeyValue{attribute.String("url.scheme", u.Scheme), attribute.String("server.address", u.Hostname()), attribute.Int("server.port", port)}
}

// EndAttempt ends the span of an attempt. reason is why it failed, from a fixed set; "" for success.
// status is the HTTP status, 0 for none.
func (s *Span) EndAttempt(reason string, status int32) {
	if s == nil {
		return
	}
	if status >= 100 && status <= 599 {
		s.span.SetAttributes(attribute.Int64("http.response.status_code", int64(status)))
	}
	if reason != "" {
		s.fail(reason)
	}
	s.span.End()
}
