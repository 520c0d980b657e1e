package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/skipped"
)

type metrics struct {
	adds     *prometheus.CounterVec
	rejected *prometheus.CounterVec
	batch    prometheus.Histogram
	delayed  *prometheus.CounterVec
	panics   prometheus.Counter
	// skipped counts the nominal times that operations skip; the scheduler has the same metric.
	skipped skipped.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: name, Help: help}, labels)
	}
	m := &metrics{
		adds:     vec("adds_total", "Adds by result: accepted, duplicate, rejected.", "result"),
		rejected: vec("adds_rejected_total", "Adds rejected, by error code.", "code"),
		delayed:  vec("adds_delayed_total", "Adds from timers.add that could not be stored yet and are retried, by error code.", "code"),
		panics:   prometheus.NewCounter(prometheus.CounterOpts{Namespace: "belfry", Name: "router_panics_total", Help: "Panics of one add or request, which the router contained."}),
		batch:    prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "belfry", Name: "add_batch_size", Help: "Adds written together.", Buckets: prometheus.ExponentialBuckets(1, 2, 10)}),
	}
	for _, result := range []Result{Stored, Duplicate, Rejected} {
		m.adds.WithLabelValues(result.String())
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.adds, m.rejected, m.delayed, m.panics, m.batch} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	var err error
	m.skipped, err = skipped.NewCounter(reg)
	return m, err
}
