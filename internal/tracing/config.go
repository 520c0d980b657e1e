package tracing

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Config holds the settings of traces. FromEnv returns a complete one; the zero value means no
// traces.
type Config struct {
	// Endpoint is the URL to which spans are posted; "" for no traces.
	Endpoint string
	// Headers are sent with each request. The values are secrets.
	Headers map[string]string
	// Timeout bounds one request.
	Timeout time.Duration
	// Gzip compresses the requests.
	Gzip bool
	// CA, Cert and Key are PEM files: an authority to trust in addition to the system's, and a client
	// certificate. "" for none.
	CA, Cert, Key string
	// Resource describes the node, in addition to the attributes that New sets. It has service.name.
	Resource map[string]string
	// Sampler decides which traces are sent.
	Sampler sdktrace.Sampler
	// Delay is the longest time that a span waits for a batch. ExportTimeout bounds the attempts to
	// send one batch.
	Delay, ExportTimeout time.Duration
	// Queue bounds the spans that wait, Batch those of one request.
	Queue, Batch int
}

// Defaults, those of the OpenTelemetry specification.
const (
	defaultService       = "belfry"
	defaultTimeout       = 10 * time.Second
	defaultDelay         = 5 * time.Second
	defaultExportTimeout = 30 * time.Second
	defaultQueue         = 2048
	defaultBatch         = 512
	// maxQueue bounds the memory of the queue: about 2 kB a span.
	maxQueue = 1 << 17
)

// FromEnv reads the standard variables OTEL_…. It ignores an invalid value, as the OpenTelemetry
// specification asks, so the node starts. warnings has one line for each ignored value, without
// secrets. The result has no Endpoint unless a variable sets one.
func FromEnv(getenv func(string) string) (c Config, warnings []string) {
	e := env{getenv: getenv}
	if e.disabled() {
		return Config{}, nil
	}
	c.Endpoint = e.endpoint()
	if c.Endpoint == "" {
		return Config{}, e.warnings
	}
	if exporter := e.text("OTEL_TRACES_EXPORTER"); exporter != "" && exporter != "otlp" {
		e.warn("OTEL_TRACES_EXPORTER", "%.40q is not a supported exporter (otlp or none): no traces are sent", exporter)
		return Config{}, e.warnings
	}
	switch protocol := e.otlp("PROTOCOL"); protocol {
	case "", "http/protobuf":
	case "http/json":
		e.warn("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json is not supported: traces are sent as http/protobuf, which a receiver of http/json also accepts")
	default:
		e.warn("OTEL_EXPORTER_OTLP_PROTOCOL", "%.40q is not supported, only http/protobuf is: no traces are sent. Set it to http/protobuf, and the endpoint to the collector's port for HTTP, usually 4318", protocol)
		return Config{}, e.warnings
	}
	c.Headers = e.pairs("OTEL_EXPORTER_OTLP_HEADERS", e.otlp("HEADERS"))
	c.Timeout = e.milliseconds("OTEL_EXPORTER_OTLP_TIMEOUT", e.otlp("TIMEOUT"), defaultTimeout)
	switch compression := e.otlp("COMPRESSION"); compression {
	case "", "none":
	case "gzip":
		c.Gzip = true
	default:
		e.warn("OTEL_EXPORTER_OTLP_COMPRESSION", "%.40q is not gzip or none", compression)
	}
	c.CA, c.Cert, c.Key = e.otlp("CERTIFICATE"), e.otlp("CLIENT_CERTIFICATE"), e.otlp("CLIENT_KEY")
	c.Resource = map[string]string{"service.name": defaultService}
	maps.Copy(c.Resource, e.pairs("OTEL_RESOURCE_ATTRIBUTES", e.text("OTEL_RESOURCE_ATTRIBUTES")))
	if name := e.text("OTEL_SERVICE_NAME"); name != "" {
		c.Resource["service.name"] = name
	}
	c.Sampler = e.sampler()
	c.Delay = e.milliseconds("OTEL_BSP_SCHEDULE_DELAY", e.text("OTEL_BSP_SCHEDULE_DELAY"), defaultDelay)
	c.ExportTimeout = e.milliseconds("OTEL_BSP_EXPORT_TIMEOUT", e.text("OTEL_BSP_EXPORT_TIMEOUT"), defaultExportTimeout)
	c.Queue = e.count("OTEL_BSP_MAX_QUEUE_SIZE", defaultQueue)
	c.Batch = min(e.count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", defaultBatch), c.Queue)
	return c, e.warnings
}

// env reads variables. An empty variable counts as not set.
type env struct {
	getenv   func(string) string
	warnings []string
}

func (e *env) text(name string) string { return strings.TrimSpace(e.getenv(name)) }

// otlp returns the value of OTEL_EXPORTER_OTLP_TRACES_<name> or, if it is not set, of
// OTEL_EXPORTER_OTLP_<name>, which is for all signals.
func (e *env) otlp(name string) string {
	if v := e.text("OTEL_EXPORTER_OTLP_TRACES_" + name); v != "" {
		return v
	}
	return e.text("OTEL_EXPORTER_OTLP_" + name)
}

func (e *env) warn(name, format string, args ...any) {
	e.warnings = append(e.warnings, name+": "+fmt.Sprintf(format, args...))
}

func (e *env) disabled() bool {
	return strings.EqualFold(e.text("OTEL_SDK_DISABLED"), "true") || e.text("OTEL_TRACES_EXPORTER") == "none"
}

// endpoint returns the URL for traces: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT as it is, or
// OTEL_EXPORTER_OTLP_ENDPOINT with the path of traces.
func (e *env) endpoint() string {
	name, suffix := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""
	text := e.text(name)
	if text == "" {
		name, suffix = "OTEL_EXPORTER_OTLP_ENDPOINT", "v1/traces"
		text = e.text(name)
	}
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.Fragment != "" {
		// err quotes the URL, which may hold credentials.
		e.warn(name, "this is not a URL such as http://localhost:4318: no traces are sent")
		return ""
	}
	if suffix != "" {
		return u.JoinPath(suffix).String()
	}
	if u.Path == "" {
		u.Path = "/"
	}
	return u.String()
}

// pairs reads a list such as key=value,key=value with percent-encoded values.
func (e *env) pairs(name, text string) map[string]string {
	out := map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		key, value, ok := strings.Cut(item, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || key == "" || err != nil {
			e.warn(name, "an entry is ignored, because it is not key=value with a percent-encoded value")
			continue
		}
		out[key] = value
	}
	return out
}

func (e *env) milliseconds(name, text string, def time.Duration) time.Duration {
	if text == "" {
		return def
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || n > int64(time.Hour/time.Millisecond) {
		e.warn(name, "%.40q is not a number of milliseconds from 1 to 3600000; using %d", text, def.Milliseconds())
		return def
	}
	return time.Duration(n) * time.Millisecond
}

func (e *env) count(name string, def int) int {
	text := e.text(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxQueue {
		e.warn(name, "%.40q is not a number from 1 to %d; using %d", text, maxQueue, def)
		return def
	}
	return n
}

// samplers are the values of OTEL_TRACES_SAMPLER, with their samplers for a ratio.
var samplers = map[string]func(ratio float64) sdktrace.Sampler{
	"always_on":                func(float64) sdktrace.Sampler { return sdktrace.AlwaysSample() },
	"always_off":               func(float64) sdktrace.Sampler { return sdktrace.NeverSample() },
	"traceidratio":             sdktrace.TraceIDRatioBased,
	"parentbased_always_on":    func(float64) sdktrace.Sampler { return sdktrace.ParentBased(sdktrace.AlwaysSample()) },
	"parentbased_always_off":   func(float64) sdktrace.Sampler { return sdktrace.ParentBased(sdktrace.NeverSample()) },
	"parentbased_traceidratio": func(ratio float64) sdktrace.Sampler { return sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio)) },
}

func (e *env) sampler() sdktrace.Sampler {
	name, ratio := strings.ToLower(e.text("OTEL_TRACES_SAMPLER")), 1.0
	if strings.HasSuffix(name, "traceidratio") {
		if arg := e.text("OTEL_TRACES_SAMPLER_ARG"); arg != "" {
			v, err := strconv.ParseFloat(arg, 64)
			if err != nil || !(v >= 0 && v <= 1) {
				e.warn("OTEL_TRACES_SAMPLER_ARG", "%.40q is not a number from 0 to 1; using 1", arg)
			} else {
				ratio = v
			}
		}
	}
	if name != "" && samplers[name] == nil {
		e.warn("OTEL_TRACES_SAMPLER", "%.40q is not one of %s; using parentbased_always_on", name, strings.Join(slices.Sorted(maps.Keys(samplers)), ", "))
		name = ""
	}
	if name == "" {
		name = "parentbased_always_on"
	}
	return samplers[name](ratio)
}

// readFile returns a PEM file, nil for "".
func readFile(name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	return os.ReadFile(name)
}
