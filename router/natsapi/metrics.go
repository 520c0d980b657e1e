package natsapi

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	requests *prometheus.CounterVec
	replies  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: "api_requests_total", Help: "API requests by verb and error code (ok for none)."}, []string{"verb", "code"}),
		replies:  prometheus.NewCounter(prometheus.CounterOpts{Namespace: "belfry", Name: "api_replies_refused_total", Help: "API requests refused because their reply subject is not an inbox."}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.replies} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
