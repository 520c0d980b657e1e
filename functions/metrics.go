package functions

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/labels"
)

// metrics holds the package's time series. labels.Services bounds the label service; the
// other labels have fixed values.
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

	flowDeferred  *prometheus.CounterVec
	flowWaiting   *prometheus.GaugeVec
	flowConflicts prometheus.Counter
	orderDeferred *prometheus.CounterVec
	handshakes    *prometheus.CounterVec

	services labels.Services
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	const ns = "belfry"
	m := &metrics{
		callbacks: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "callbacks_total",
			Help: "Callback attempts, by service and outcome (success, or the reason of the failure)."}, []string{"service", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Name: "callback_duration_seconds",
			Help: "Duration of callback attempts, by service.", Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900}}, []string{"service"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Name: "callbacks_in_flight",
			Help: "Callbacks that run at present."}, []string{"service"}),
		dead: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "dead_lettered_total",
			Help: "Timers that were dead-lettered, by service and reason."}, []string{"service", "reason"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "callback_retries_total",
			Help: "Retries planned: short ones wait in the consumer, long ones in the wheel."}, []string{"service", "kind"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "callbacks_skipped_total",
			Help: "Deliveries that needed no call, by service and reason."}, []string{"service", "reason"}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: "service_consumers",
			Help: "Consumers of services that this node serves; a service has one, or two while retries come from the wheel, and none at rest."}),
		overtaken: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: "fired_consumers_overtaken",
			Help: "Durable consumers of TIMERS_FIRED (including Belfry's own) and TIMERS_TENANT_FIRED whose next event left the stream before they read it."}),
		wakes: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Name: "service_wakes_total",
			Help: "Times that this node began to serve a service's events or retries."}),
		rests: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Name: "service_rests_total",
			Help: "Times that this node put a service's events or retries to rest."}),
		flowDeferred: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "flow_deferred_total",
			Help: "Events that wait in the consumer or the wheel for their slot under the limit of their flow key, counted each time that they begin to wait, by service."}, []string{"service"}),
		flowWaiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: ns, Name: "flow_waiting",
			Help: "Events that wait in this process for a slot of their flow key, without a permit of their service, by service."}, []string{"service"}),
		flowConflicts: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Name: "flow_cas_conflicts_total",
			Help: "Decisions about a flow key that were repeated because another node decided at the same time."}),
	}
	m.orderDeferred = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "order_deferred_total",
		Help: "Events that waited in the wheel for their turn among those of their ordering key, by service."}, []string{"service"})
	m.handshakes = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "webhook_handshakes_total",
		Help: "Webhook handshakes, which ask a target whether it allows callbacks, by service and outcome (allowed, or the reason of the failure)."}, []string{"service", "outcome"})
	if reg == nil {
		return m, nil
	}
	var errs error
	for _, c := range []prometheus.Collector{m.callbacks, m.duration, m.inFlight, m.dead, m.retries, m.skipped, m.active, m.overtaken, m.wakes, m.rests, m.flowDeferred, m.flowWaiting, m.flowConflicts, m.orderDeferred, m.handshakes} {
		errs = errors.Join(errs, reg.Register(c))
	}
	if errs != nil {
		return nil, fmt.Errorf("functions: register metrics: %w", errs)
	}
	return m, nil
}
