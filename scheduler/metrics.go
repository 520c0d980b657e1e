package scheduler

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxLabels bounds the services with their own time series. The other services are
// counted together as otherServices, as in functions.
const (
	maxLabels     = 1000
	otherServices = "_other"
)

type metrics struct {
	fired      *prometheus.CounterVec
	labelled   atomic.Int64 // services in services
	services   sync.Map     // service -> prometheus.Counter of fired
	lateness   prometheus.Histogram
	duplicates prometheus.Counter
	orphans    prometheus.Counter
	refired    prometheus.Counter
	swept      prometheus.Counter
	owner      *prometheus.GaugeVec
	pending    *prometheus.GaugeVec
	loaded     *prometheus.GaugeVec
	lag        *prometheus.GaugeVec
	takeovers  prometheus.Counter
	deposed    prometheus.Counter
	storeErrs  *prometheus.CounterVec
	refused    prometheus.Counter

	damagedClocks prometheus.Counter
	damaged       *prometheus.GaugeVec
	lost          *prometheus.GaugeVec
}

// firedOf counts the events of a service.
func (m *metrics) firedOf(svc string) prometheus.Counter {
	if c, ok := m.services.Load(svc); ok {
		return c.(prometheus.Counter)
	}
	if m.labelled.Add(1) > maxLabels {
		m.labelled.Add(-1)
		return m.fired.WithLabelValues(otherServices)
	}
	c, twice := m.services.LoadOrStore(svc, m.fired.WithLabelValues(svc))
	if twice {
		m.labelled.Add(-1)
	}
	return c.(prometheus.Counter)
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "belfry", Name: name, Help: help})
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "belfry", Name: name, Help: help}, []string{"shard"})
	}
	m := &metrics{
		fired: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: "fired_total", Help: "Events published when due, by service."}, []string{"service"}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "belfry", Name: "lateness_seconds", Help: "Time from due to the acknowledged publish.",
			Buckets: []float64{.001, .002, .003, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 600, 3600},
		}),
		duplicates: counter("fired_duplicates_total", "Publishes that the stream's dedup window answered."),
		orphans:    counter("sweeper_orphans_total", "Timers found unfired behind the mark and fired by the sweeper."),
		refired:    counter("sweeper_refired_total", "Events fired again because they left TIMERS_FIRED unconcluded."),
		swept:      counter("sweeper_records_total", "Records that the sweeper has looked at."),
		owner:      gauge("shard_owned", "1 where this node owns the shard."),
		pending:    gauge("pending_timers", "Timers in state pending in a shard that this node owns; absent while they are not counted."),
		loaded:     gauge("loaded_timers", "Entries that a shard holds in memory."),
		lag:        gauge("clock_lag_seconds", "How far the shard's low-water mark is behind the cluster's time."),
		takeovers:  counter("shard_takeovers_total", "Times that this node became the owner of a shard."),
		deposed:    counter("shard_deposed_total", "Times that this node lost a shard to another."),
		refused:    counter("undeliverable_total", "Timers that ended as dead letters because JetStream will never store their events."),
		storeErrs:  prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: "scheduler_store_errors_total", Help: "Store calls that failed and are tried again, by call."}, []string{"call"}),

		damagedClocks: counter("damaged_clocks_total", "Clocks found overwritten or removed by somebody who does not own the shard."),
		damaged:       gauge("damaged_records", "Records of a shard that this node owns which cannot be decoded."),
		lost:          gauge("lost_messages", "Messages that the server has lost of a shard that this node owns."),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.refused, m.fired, m.lateness, m.duplicates, m.orphans, m.refired, m.swept, m.owner, m.pending, m.loaded, m.lag, m.takeovers, m.deposed, m.storeErrs, m.damagedClocks, m.damaged, m.lost} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
