package functions

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/labels"
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
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); n > labels.MaxServices+1 {
			t.Errorf("%s has %d series", f.GetName(), n)
		}
	}
}
