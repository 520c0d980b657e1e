package router

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	adds     *prometheus.CounterVec
	rejected *prometheus.CounterVec
	batch    prometheus.Histogram
	delayed  *prometheus.CounterVec
	panics   prometheus.Counter
	requests *prometheus.CounterVec
	loss     lossGauges
	replies  prometheus.Counter
}

// lossGauges count dead letters and rejected adds, as status does. watchLoss sets them.
type lossGauges struct{ dead, deadExpired, rejected, rejectedExpired prometheus.Gauge }

func newLossGauges() lossGauges {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "belfry", Name: name, Help: help})
	}
	return lossGauges{
		dead:            gauge("dead_letters", "Dead letters that are kept."),
		deadExpired:     gauge("dead_letters_expired", "Dead letters that left TIMERS_DEAD by age or size, without a replay, since the store was made."),
		rejected:        gauge("rejections", "Rejected adds in TIMERS_REJECTED."),
		rejectedExpired: gauge("rejections_expired", "Rejected adds that left TIMERS_REJECTED by age or size since the store was created."),
	}
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: name, Help: help}, labels)
	}
	m := &metrics{
		adds:     vec("adds_total", "Adds by result: accepted, duplicate, rejected.", "result"),
		rejected: vec("rejected_total", "Adds refused, by error code.", "code"),
		delayed:  vec("adds_delayed_total", "Adds of the stream that could not be stored yet and come again, by error code.", "code"),
		panics:   prometheus.NewCounter(prometheus.CounterOpts{Namespace: "belfry", Name: "router_panics_total", Help: "Panics contained to one add or request."}),
		requests: vec("api_requests_total", "API requests by verb and error code (ok for none).", "verb", "code"),
		replies:  prometheus.NewCounter(prometheus.CounterOpts{Namespace: "belfry", Name: "api_refused_replies_total", Help: "API requests refused because their reply subject is not an inbox."}),
		batch:    prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "belfry", Name: "add_batch_size", Help: "Adds written together.", Buckets: prometheus.ExponentialBuckets(1, 2, 10)}),
	}
	m.loss = newLossGauges()
	for _, result := range []string{resultAccepted, resultDuplicate, resultRejected} {
		m.adds.WithLabelValues(result)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.adds, m.rejected, m.delayed, m.panics, m.batch, m.requests, m.replies, m.loss.dead, m.loss.deadExpired, m.loss.rejected, m.loss.rejectedExpired} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
