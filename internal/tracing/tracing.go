package tracing

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/belfryio/belfry/schemas"
)

// scope is the name of the instrumentation scope of all spans.
const scope = "github.com/belfryio/belfry"

// Tracer makes the spans of a node. It is safe for concurrent use. A node without traces has a nil
// *Tracer; only Stop may be called on it.
type Tracer struct {
	tracer  trace.Tracer
	sampler sdktrace.Sampler
	queue   *queue
}

// Node describes the node to the receiver of the spans.
type Node struct{ Name, Version string }

// New returns a Tracer that sends spans until Stop, and nil without an endpoint. It does not connect.
// Errors: schemas.CodeConfig for certificate files that cannot be used, and errors of the Registerer.
func New(c Config, n Node, reg prometheus.Registerer, log zerolog.Logger) (*Tracer, error) {
	if c.Endpoint == "" {
		return nil, nil
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, fmt.Errorf("tracing: register metrics: %w", err)
	}
	e, err := newExporter(c, n)
	if err != nil {
		return nil, err
	}
	t := &Tracer{sampler: c.Sampler, queue: newQueue(c, e, m, log)}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithResource(resourceOf(c, n)), sdktrace.WithSampler(runSampler{c.Sampler}), sdktrace.WithIDGenerator(idGenerator{}), sdktrace.WithSpanProcessor(t.queue))
	t.tracer = provider.Tracer(scope, trace.WithInstrumentationVersion(n.Version))
	log.Info().Str("endpoint", schemas.RedactURL(c.Endpoint)).Str("service_name", c.Resource["service.name"]).Str("sampler", c.Sampler.Description()).
		Msg("tracing is on: spans are sent to the endpoint")
	return t, nil
}

// resourceOf describes the node by the names of OpenTelemetry's semantic conventions.
func resourceOf(c Config, n Node) *resource.Resource {
	all := map[string]string{"service.version": n.Version, "service.instance.id": n.Name, "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.language": "go", "telemetry.sdk.version": sdk.Version()}
	maps.Copy(all, c.Resource)
	attributes := make([]attribute.KeyValue, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		attributes = append(attributes, attribute.String(key, all[key]))
	}
	return resource.NewSchemaless(attributes...)
}

// Stop sends the queued spans until ctx ends, and drops the rest. Spans that end later are dropped.
// It always returns nil, and may be called more than once.
func (t *Tracer) Stop(ctx context.Context) error {
	if t != nil {
		t.queue.stop(ctx)
	}
	return nil
}
