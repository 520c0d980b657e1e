package functions

import (
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxLabels bounds the services that have time series of their own; the others
// are counted together as otherServices.
const (
	maxLabels     = 1000
	otherServices = "_other"
)

// metrics are the package's time series. Labels come only from registered
// services and from fixed words, so their number is bounded.
type metrics struct {
	callbacks *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	inFlight  *prometheus.GaugeVec
	dead      *prometheus.CounterVec
	retries   *prometheus.CounterVec
	skipped   *prometheus.CounterVec
	active    prometheus.Gauge
	overtaken prometheus.Gauge
	wakes     prometheus.Counter
	rests     prometheus.Counter

	mu    sync.Mutex
	known map[string]struct{}
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const ns, sub = "belfry", "functions"
	m := &metrics{
		known: map[string]struct{}{},
		callbacks: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "callbacks_total",
			Help: "Callback attempts, by service and outcome (success, or the reason of the failure)."}, []string{"service", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "callback_seconds",
			Help: "Duration of callback attempts.", Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900}}, []string{"service"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "in_flight",
			Help: "Callbacks running now."}, []string{"service"}),
		dead: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "dead_letters_total",
			Help: "Timers that were dead-lettered, by service and reason."}, []string{"service", "reason"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "retries_total",
			Help: "Retries planned: short ones wait in the consumer, long ones in the wheel."}, []string{"service", "kind"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "skipped_total",
			Help: "Deliveries that needed no call, by service and why."}, []string{"service", "why"}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "services_active",
			Help: "Consumers of services that this node serves now; a service has one, or two while retries come from the wheel, and none at rest."}),
		overtaken: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: "fired_consumers_overtaken",
			Help: "Durable consumers of TIMERS_FIRED, other than Belfry's, whose next event left the stream unread."}),
		wakes: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "services_woken_total",
			Help: "Times that this node began to serve a service's events or retries."}),
		rests: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "services_rested_total",
			Help: "Times that this node put a service's events or retries to rest."}),
	}
	if reg == nil {
		return m, nil
	}
	var errs error
	for _, c := range []prometheus.Collector{m.callbacks, m.duration, m.inFlight, m.dead, m.retries, m.skipped, m.active, m.overtaken, m.wakes, m.rests} {
		errs = errors.Join(errs, reg.Register(c))
	}
	if errs != nil {
		return nil, fmt.Errorf("functions: register metrics: %w", errs)
	}
	return m, nil
}

// label is the label of a service.
func (m *metrics) label(svc string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.known[svc]; ok {
		return svc
	}
	if len(m.known) >= maxLabels {
		return otherServices
	}
	m.known[svc] = struct{}{}
	return svc
}
