package router

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	adds     *prometheus.CounterVec
	rejected *prometheus.CounterVec
	batch    prometheus.Histogram
	requests *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: name, Help: help}, labels)
	}
	m := &metrics{
		adds:     vec("adds_total", "Adds by result: accepted, duplicate, rejected.", "result"),
		rejected: vec("rejected_total", "Adds refused, by error code.", "code"),
		requests: vec("api_requests_total", "API requests by verb and error code (ok for none).", "verb", "code"),
		batch:    prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "belfry", Name: "add_batch_size", Help: "Adds written together.", Buckets: prometheus.ExponentialBuckets(1, 2, 10)}),
	}
	for _, result := range []string{resultAccepted, resultDuplicate, resultRejected} {
		m.adds.WithLabelValues(result)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.adds, m.rejected, m.batch, m.requests} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
