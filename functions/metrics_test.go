package functions

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/labels"
	"github.com/belfryio/belfry/internal/metrictest"
)

// TestServiceLabelsAreBounded: 1,200 services do not make 1,200 series of any metric.
func TestServiceLabelsAreBounded(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m, err := newMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 1200 {
		svc := m.services.Label(fmt.Sprint("svc-", n))
		m.callbacks.WithLabelValues(svc, "success").Inc()
		m.duration.WithLabelValues(svc).Observe(1)
		m.inFlight.WithLabelValues(svc).Inc()
		m.retries.WithLabelValues(svc, "short").Inc()
		m.skipped.WithLabelValues(svc, "cancelled").Inc()
	}
	series := map[string]int{}
	for key := range metrictest.Series(t, reg) {
		name, _, _ := strings.Cut(key, "/")
		series[name]++
	}
	for name, n := range series {
		if n > labels.MaxServices+1 {
			t.Errorf("%s has %d series, want %d at most", name, n, labels.MaxServices+1)
		}
	}
}
