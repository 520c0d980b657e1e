package app

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
)

// storeMetricsInterval is the time between two readings of the store's state. A reading
// costs one list of the streams and the state of two of them.
const storeMetricsInterval = 15 * time.Second

// storeState is the part of the store that storeMetrics reads.
type storeState interface {
	DeadCounts(ctx context.Context) (store.LetterTotals, error)
	Streams(ctx context.Context) ([]store.StreamHealth, error)
}

// storeMetrics exports the number of dead letters and rejections, and the size of the
// streams. Every node exports the same values, so use max, not sum, over nodes. Before
// the first reading the series are absent. After a failed reading they keep their values.
type storeMetrics struct {
	store storeState
	log   zerolog.Logger

	dead, deadExpired, rejected, rejectedExpired *prometheus.Desc
	messages, bytes, maxBytes                    *prometheus.Desc

	mu      sync.Mutex
	loss    *store.LetterTotals
	streams []store.StreamHealth
}

func newStoreMetrics(s storeState, log zerolog.Logger) *storeMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("belfry_"+name, help, labels, nil)
	}
	return &storeMetrics{
		store: s, log: log,
		dead:            desc("dead_letters", "Dead letters in TIMERS_DEAD."),
		deadExpired:     desc("dead_letters_expired_total", "Dead letters that left TIMERS_DEAD by age or size, neither replayed nor discarded, since the store was created."),
		rejected:        desc("rejections", "Rejected adds in TIMERS_REJECTED."),
		rejectedExpired: desc("rejections_expired_total", "Rejected adds that left TIMERS_REJECTED by age or size since the store was created."),
		messages:        desc("stream_messages", "Messages in a JetStream stream of Belfry's.", "stream"),
		bytes:           desc("stream_bytes", "Bytes in a JetStream stream of Belfry's.", "stream"),
		maxBytes:        desc("stream_max_bytes", "Size limit of a JetStream stream of Belfry's, in bytes.", "stream"),
	}
}

// run reads the state until ctx ends.
func (m *storeMetrics) run(ctx context.Context) {
	t := time.NewTicker(storeMetricsInterval)
	defer t.Stop()
	for {
		m.read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (m *storeMetrics) read(ctx context.Context) {
	loss, err := m.store.DeadCounts(ctx)
	if err == nil {
		var streams []store.StreamHealth
		if streams, err = m.store.Streams(ctx); err == nil {
			m.mu.Lock()
			m.loss, m.streams = &loss, streams
			m.mu.Unlock()
		}
	}
	if err != nil && ctx.Err() == nil {
		m.log.Debug().Err(err).Msg("the store's metrics were not read")
	}
}

// Describe implements prometheus.Collector.
func (m *storeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.dead, m.deadExpired, m.rejected, m.rejectedExpired, m.messages, m.bytes, m.maxBytes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *storeMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	loss, streams := m.loss, m.streams
	m.mu.Unlock()
	if loss == nil {
		return
	}
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	dead := uint64(0)
	for _, n := range loss.Dead {
		dead += n
	}
	send(m.dead, prometheus.GaugeValue, float64(dead))
	send(m.deadExpired, prometheus.CounterValue, float64(loss.DeadExpired))
	send(m.rejected, prometheus.GaugeValue, float64(loss.Rejected))
	send(m.rejectedExpired, prometheus.CounterValue, float64(loss.RejectedExpired))
	for _, s := range streams {
		name := strings.TrimPrefix(s.Name, "KV_")
		send(m.messages, prometheus.GaugeValue, float64(s.Messages), name)
		send(m.bytes, prometheus.GaugeValue, float64(s.Bytes), name)
		if s.MaxBytes > 0 {
			send(m.maxBytes, prometheus.GaugeValue, float64(s.MaxBytes), name)
		}
	}
}

// startStoreMetrics registers the metrics and reads them until the node stops.
func (a *App) startStoreMetrics() error {
	m := newStoreMetrics(a.store, a.component("metrics"))
	if err := a.reg.Register(m); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.run(ctx)
	}()
	a.onStop("store metrics", 0, func(context.Context) error {
		cancel()
		<-done
		return nil
	})
	return nil
}
