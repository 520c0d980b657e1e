package tracing_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/tracing"
)

// TestFromEnv: the standard variables, alone and together.
func TestFromEnv(t *testing.T) {
	t.Parallel()
	const base = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, c := range map[string]struct {
		env     []string
		want    string // endpoint
		warning string
		check   func(tracing.Config) bool
	}{
		"nothing":          {nil, "", "", nil},
		"base":             {[]string{base, "http://localhost:4318"}, "http://localhost:4318/v1/traces", "", nil},
		"base with a path": {[]string{base, "https://otel.example.com/otlp/"}, "https://otel.example.com/otlp/v1/traces", "", nil},
		"traces as it is":  {[]string{base, "http://x:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:4318"}, "http://localhost:4318/", "", nil},
		"disabled":         {[]string{base, "http://localhost:4318", "OTEL_SDK_DISABLED", "TRUE"}, "", "", nil},
		"no exporter":      {[]string{base, "http://localhost:4318", "OTEL_TRACES_EXPORTER", "none"}, "", "", nil},
		"other exporter":   {[]string{base, "http://localhost:4318", "OTEL_TRACES_EXPORTER", "console"}, "", "OTEL_TRACES_EXPORTER", nil},
		"gRPC":             {[]string{base, "http://localhost:4317", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}, "", "http/protobuf", nil},
		"gRPC for metrics": {[]string{base, "http://localhost:4318", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"}, "http://localhost:4318/v1/traces", "", nil},
		"JSON":             {[]string{base, "http://localhost:4318", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"}, "http://localhost:4318/v1/traces", "OTEL_EXPORTER_OTLP_PROTOCOL", nil},
		"no URL":           {[]string{base, "localhost:4318/secret"}, "", base, nil},
		"headers": {[]string{base, "http://h", "OTEL_EXPORTER_OTLP_HEADERS", "a=b%20c, d = e ,,x,y=%zz"}, "http://h/v1/traces", "OTEL_EXPORTER_OTLP_HEADERS", func(c tracing.Config) bool {
			return maps.Equal(c.Headers, map[string]string{"a": "b c", "d": "e"})
		}},
		"headers of traces": {[]string{base, "http://h", "OTEL_EXPORTER_OTLP_HEADERS", "a=b", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "c=d"}, "http://h/v1/traces", "", func(c tracing.Config) bool {
			return maps.Equal(c.Headers, map[string]string{"c": "d"})
		}},
		"resource": {[]string{base, "http://h", "OTEL_RESOURCE_ATTRIBUTES", "service.name=a,k=v%2C"}, "http://h/v1/traces", "", func(c tracing.Config) bool {
			return maps.Equal(c.Resource, map[string]string{"service.name": "a", "k": "v,"})
		}},
		"service name": {[]string{base, "http://h", "OTEL_RESOURCE_ATTRIBUTES", "service.name=a", "OTEL_SERVICE_NAME", "b"}, "http://h/v1/traces", "", func(c tracing.Config) bool {
			return c.Resource["service.name"] == "b"
		}},
		"defaults": {[]string{base, "http://h"}, "http://h/v1/traces", "", func(c tracing.Config) bool {
			return c.Resource["service.name"] == "belfry" && c.Timeout == 10*time.Second && c.Delay == 5*time.Second && c.ExportTimeout == 30*time.Second && c.Queue == 2048 && c.Batch == 512 && !c.Gzip &&
				strings.HasPrefix(c.Sampler.Description(), "ParentBased{root:AlwaysOnSampler")
		}},
		"numbers": {[]string{base, "http://h", "OTEL_EXPORTER_OTLP_TIMEOUT", "1", "OTEL_BSP_MAX_QUEUE_SIZE", "5", "OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"}, "http://h/v1/traces", "", func(c tracing.Config) bool {
			return c.Timeout == time.Millisecond && c.Queue == 5 && c.Batch == 5 && c.Gzip
		}},
		"bad number": {[]string{base, "http://h", "OTEL_BSP_MAX_QUEUE_SIZE", "-1"}, "http://h/v1/traces", "OTEL_BSP_MAX_QUEUE_SIZE", func(c tracing.Config) bool { return c.Queue == 2048 }},
		"ratio": {[]string{base, "http://h", "OTEL_TRACES_SAMPLER", "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG", "0.25"}, "http://h/v1/traces", "", func(c tracing.Config) bool {
			return strings.HasPrefix(c.Sampler.Description(), "ParentBased{root:TraceIDRatioBased{0.25}")
		}},
		"bad ratio": {[]string{base, "http://h", "OTEL_TRACES_SAMPLER", "traceidratio", "OTEL_TRACES_SAMPLER_ARG", "NaN"}, "http://h/v1/traces", "OTEL_TRACES_SAMPLER_ARG", func(c tracing.Config) bool {
			return c.Sampler.Description() == "TraceIDRatioBased{1}"
		}},
		"bad sampler": {[]string{base, "http://h", "OTEL_TRACES_SAMPLER", "jaeger_remote"}, "http://h/v1/traces", "OTEL_TRACES_SAMPLER", func(c tracing.Config) bool {
			return strings.HasPrefix(c.Sampler.Description(), "ParentBased{root:AlwaysOnSampler")
		}},
	} {
		got, warnings := tracing.FromEnv(env(c.env...))
		if got.Endpoint != c.want || c.check != nil && !c.check(got) {
			t.Errorf("%s: got %+v, want the endpoint %q", name, got, c.want)
		}
		text := fmt.Sprint(warnings)
		if (len(warnings) > 0) != (c.warning != "") || !strings.Contains(text, c.warning) || strings.Contains(text, "secret") {
			t.Errorf("%s: got warnings %s, want %q", name, text, c.warning)
		}
	}
}
