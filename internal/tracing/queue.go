package tracing

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/belfryio/belfry/internal/throttle"
)

// failureLogEvery is the minimum time between two lines about batches that were not sent.
const failureLogEvery = time.Minute

// Reasons of belfry_trace_spans_dropped_total.
const (
	dropQueueFull = "queue_full"
	dropExport    = "export"   // the receiver cannot be reached, or does not answer with success
	dropRejected  = "rejected" // the receiver took the batch, but not these spans
	dropStopped   = "stopped"  // the node stopped first
)

// metrics counts spans.
type metrics struct {
	sent    prometheus.Counter
	dropped *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const ns = "belfry"
	m := &metrics{
		sent: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Name: "trace_spans_sent_total",
			Help: "Spans that the receiver of traces has taken."}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "trace_spans_dropped_total",
			Help: "Spans that were not sent, by reason: queue_full, export, rejected (by the receiver), stopped."}, []string{"reason"}),
	}
	for _, reason := range []string{dropQueueFull, dropExport, dropRejected, dropStopped} {
		m.dropped.WithLabelValues(reason)
	}
	if reg == nil {
		return m, nil
	}
	if err := reg.Register(m.sent); err != nil {
		return nil, err
	}
	return m, reg.Register(m.dropped)
}

// sender sends a batch. *exporter is the real one.
type sender interface {
	// send returns the number of spans that the receiver refused. It ends soon after ctx.
	send(ctx context.Context, spans []sdktrace.ReadOnlySpan) (rejected int64, err error)
	close()
}

// queue is a bounded queue of ended spans, which one goroutine sends in batches. It is the only
// sdktrace.SpanProcessor. The SDK's batch processor does not report how many spans it drops.
type queue struct {
	c        Config
	sender   sender
	m        *metrics
	log      zerolog.Logger
	failures throttle.Log

	spans chan sdktrace.ReadOnlySpan
	// exporting ends when the rest of the queue must be dropped. stopping is closed when stop
	// begins, done when every span is sent or dropped.
	exporting      context.Context
	drop           context.CancelFunc
	stopping, done chan struct{}
	once           sync.Once
}

func newQueue(c Config, s sender, m *metrics, log zerolog.Logger) *queue {
	q := &queue{c: c, sender: s, m: m, log: log, failures: throttle.Log{Every: failureLogEvery},
		spans: make(chan sdktrace.ReadOnlySpan, c.Queue), stopping: make(chan struct{}), done: make(chan struct{})}
	q.exporting, q.drop = context.WithCancel(context.Background())
	go q.run()
	return q
}

// OnStart implements sdktrace.SpanProcessor.
func (q *queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor. It never blocks.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	select {
	case <-q.stopping:
		q.m.dropped.WithLabelValues(dropStopped).Inc()
		return
	default:
	}
	select {
	case q.spans <- s:
	default:
		q.m.dropped.WithLabelValues(dropQueueFull).Inc()
	}
}

// Shutdown implements sdktrace.SpanProcessor. Tracer.Stop stops the queue.
func (q *queue) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor. Nobody calls it.
func (q *queue) ForceFlush(context.Context) error { return nil }

// stop sends what is queued until ctx ends, and drops the rest.
func (q *queue) stop(ctx context.Context) {
	q.once.Do(func() { close(q.stopping) })
	defer context.AfterFunc(ctx, q.drop)()
	<-q.done
}

func (q *queue) run() {
	defer close(q.done)
	defer q.sender.close()
	defer q.drop()
	batch := make([]sdktrace.ReadOnlySpan, 0, q.c.Batch)
	due := time.NewTimer(q.c.Delay)
	due.Stop()
	send := func() {
		due.Stop()
		q.send(batch)
		clear(batch)
		batch = batch[:0]
	}
	for {
		select {
		case s := <-q.spans:
			if batch = append(batch, s); len(batch) == 1 {
				due.Reset(q.c.Delay)
			}
			if len(batch) == q.c.Batch {
				send()
			}
		case <-due.C:
			send()
		case <-q.stopping:
			for {
				select {
				case s := <-q.spans:
					if batch = append(batch, s); len(batch) == q.c.Batch {
						send()
					}
				default:
					send()
					return
				}
			}
		}
	}
}

// send sends a batch, and counts the spans that were sent, rejected and dropped.
func (q *queue) send(batch []sdktrace.ReadOnlySpan) {
	if len(batch) == 0 {
		return
	}
	count := float64(len(batch))
	if q.exporting.Err() != nil {
		q.m.dropped.WithLabelValues(dropStopped).Add(count)
		return
	}
	ctx, cancel := context.WithTimeout(q.exporting, q.c.ExportTimeout)
	defer cancel()
	refused, err := q.sender.send(ctx, batch)
	if err != nil {
		reason := dropExport
		if q.exporting.Err() != nil {
			reason = dropStopped
		}
		q.m.dropped.WithLabelValues(reason).Add(count)
		if suppressed, ok := q.failures.Allow(time.Now()); ok {
			q.log.Warn().Err(err).Int("spans", len(batch)).Int("others_since_last_line", suppressed).Msg("spans were not sent, and are dropped; timers are not affected")
		}
		return
	}
	lost := min(float64(refused), count)
	q.m.sent.Add(count - lost)
	if lost > 0 {
		q.m.dropped.WithLabelValues(dropRejected).Add(lost)
	}
}

// validText returns a text that protobuf can carry.
func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
