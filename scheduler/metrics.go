package scheduler

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/labels"
	"github.com/belfryio/belfry/internal/skipped"
)

// metrics are the Prometheus metrics of a scheduler.
type metrics struct {
	fired        *prometheus.CounterVec
	services     labels.Services
	firedBySvc   sync.Map // service -> prometheus.Counter of fired
	lateness     prometheus.Histogram
	duplicates   prometheus.Counter
	missed       prometheus.Counter
	redispatched prometheus.Counter
	swept        prometheus.Counter
	owner        *prometheus.GaugeVec
	pending      *prometheus.GaugeVec
	loaded       *prometheus.GaugeVec
	lag          *prometheus.GaugeVec
	takeovers    *prometheus.CounterVec
	deposed      prometheus.Counter
	storeErrs    *prometheus.CounterVec
	refused      prometheus.Counter
	skipped      skipped.Counter
	replanned    prometheus.Counter
	overdue      prometheus.Counter

	damagedClocks prometheus.Counter
	damaged       *prometheus.GaugeVec
	lost          *prometheus.GaugeVec
	newer         *prometheus.GaugeVec
}

// firedOf returns the counter of a service's events. It does not allocate for a service
// that has its own time series.
func (m *metrics) firedOf(svc string) prometheus.Counter {
	if c, ok := m.firedBySvc.Load(svc); ok {
		return c.(prometheus.Counter)
	}
	label := m.services.Label(svc)
	c := m.fired.WithLabelValues(label)
	if label == svc {
		m.firedBySvc.Store(svc, c)
	}
	return c
}

// Reasons of take-overs.
const (
	takenReleased = "released"
	takenExpired  = "expired"
	takenRestart  = "restart"
)

// tookOver counts a take-over by node.
func (m *metrics) tookOver(a TakeShard, node string) {
	reason := takenExpired
	switch {
	case a.Clock.Epoch == 1:
		return // the shard had no owner before
	case a.From == "":
		reason = takenReleased
	case a.From == node:
		reason = takenRestart
	}
	m.takeovers.WithLabelValues(reason).Inc()
}

// newMetrics returns metrics that are not registered.
func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "belfry", Name: name, Help: help})
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "belfry", Name: name, Help: help}, []string{"shard"})
	}
	m := &metrics{
		fired: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: "fired_total", Help: "Events published when due, by service."}, []string{"service"}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "belfry", Name: "lateness_seconds", Help: "Time from max(due, added) to the acknowledged publish.",
			Buckets: []float64{.001, .002, .003, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 600, 3600},
		}),
		duplicates:   counter("fired_duplicates_total", "Publishes that the stream discarded as duplicates."),
		missed:       counter("missed_timers_total", "Timers that the sweeper found behind the low watermark unfired, and fired."),
		redispatched: counter("redispatched_total", "Events fired again because they left TIMERS_FIRED, or were acknowledged, before their callback concluded."),
		swept:        counter("swept_records_total", "Records that the sweeper has audited."),
		owner:        gauge("shard_owned", "1 if this node owns the shard."),
		pending:      gauge("pending_timers", "Timers in state pending or paused in a shard that this node owns; absent while the number is unknown."),
		loaded:       gauge("loaded_timers", "Timers of a shard in this node's memory."),
		lag:          gauge("low_watermark_lag_seconds", "Time from the low watermark of a shard that this node owns to now, by the cluster's clock."),
		takeovers: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: "shard_takeovers_total",
			Help: "Shards that this node took over, by reason: released (by their owner), expired (the owner's lease expired), or restart (this node's own earlier process). The first ownership of a new shard does not count."}, []string{"reason"}),
		deposed:   counter("shard_leases_lost_total", "Times that this node lost a shard to another owner."),
		refused:   counter("undeliverable_timers_total", "Timers that ended as dead letters because JetStream will never store their events."),
		storeErrs: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: "scheduler_store_errors_total", Help: "Store calls that failed and are retried, by call."}, []string{"call"}),

		replanned: counter("schedule_replanned_total", "Schedules whose next run this node moved because newer zone data, or a calendar, changed it."),
		overdue:   counter("schedule_overdue_total", "Nominal times of schedules without a success by their deadline (timerexpect), for which an overdue event was published."),

		damagedClocks: counter("damaged_clocks_total", "Clocks that a client other than the shard's owner overwrote or removed."),
		damaged:       gauge("damaged_records", "Records that cannot be decoded, in a shard that this node owns."),
		lost:          gauge("lost_messages", "Messages that the server has lost, in a shard that this node owns."),
		newer:         gauge("newer_records", "Records of a newer format than this node reads, in a shard that this node owns; they hold the low watermark back."),
	}
	for _, reason := range []string{takenReleased, takenExpired, takenRestart} {
		m.takeovers.WithLabelValues(reason)
	}
	return m
}

func (m *metrics) register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.refused, m.fired, m.lateness, m.duplicates, m.missed, m.redispatched, m.swept, m.owner, m.pending, m.loaded, m.lag, m.takeovers, m.deposed, m.storeErrs, m.replanned, m.overdue, m.damagedClocks, m.damaged, m.lost, m.newer} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	var err error
	if m.skipped, err = skipped.NewCounter(reg); err != nil {
		return err
	}
	m.skipped.Init()
	return nil
}
