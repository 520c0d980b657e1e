package visibility

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of one Visibility.
type metrics struct {
	rows, coalesced, pruned prometheus.Counter
	seconds                 prometheus.Counter
}

// newMetrics registers the metrics, unless r is nil.
func newMetrics(r prometheus.Registerer, progress func() Progress) (*metrics, error) {
	name := func(n string) string { return prometheus.BuildFQName("belfry", "", n) }
	counter := func(n, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name(n), Help: help})
	}
	gauge := func(n, help string, f func(Progress) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name(n), Help: help}, func() float64 { return f(progress()) })
	}
	m := &metrics{
		rows:      counter("visibility_written_total", "Changes of timers that were written to the search index."),
		coalesced: counter("visibility_coalesced_total", "Changes of timers that a later change replaced before they were written to the search index."),
		pruned:    counter("visibility_pruned_total", "Entries that were removed from the search index for their age or its size."),
		seconds:   counter("visibility_write_seconds_total", "Time spent on writing the search index, in seconds."),
	}
	all := []prometheus.Collector{m.rows, m.coalesced, m.pruned, m.seconds,
		gauge("visibility_entries", "Entries of the search index.", func(p Progress) float64 { return float64(p.Rows) }),
		gauge("visibility_bytes", "Size of the file of the search index, in bytes.", func(p Progress) float64 { return float64(p.Bytes) }),
		gauge("visibility_behind", "Sequences of the shards' streams after the offsets of the search index, an upper bound of the changes that it lacks.", func(p Progress) float64 { return float64(p.Behind) }),
		gauge("visibility_as_of_seconds", "Each timer that has not changed since this time, in seconds since 1970, is in the search index in its current state; 0 before it is known.", func(p Progress) float64 {
			if p.AsOf.IsZero() {
				return 0
			}
			return float64(p.AsOf.UnixMilli()) / 1000
		}),
		gauge("visibility_counting", "1 while timers change faster than the search index can be written, and their outcomes are only counted.", func(p Progress) float64 { return flag(p.CountsOnly) }),
		gauge("visibility_failing", "1 while the search index cannot be written.", func(p Progress) float64 { return flag(p.Problem != "") }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "belfry", Name: "visibility_dropped_total", Help: "Changes that were only counted, and read again later, because the search index could not keep up."}, func() float64 { return float64(progress().Skipped) }),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("visibility: register metrics: %w", err)
		}
	}
	return m, nil
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// written takes note of a transaction.
func (m *metrics) written(rows, coalesced int, took time.Duration) {
	m.rows.Add(float64(rows))
	m.coalesced.Add(float64(coalesced))
	m.seconds.Add(took.Seconds())
}

func (m *metrics) removed(entries int) { m.pruned.Add(float64(entries)) }
