package scheduler

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/labels"
	"github.com/belfryio/belfry/internal/metrictest"
)

// TestLabelsAreBounded: services beyond labels.MaxServices share one time series.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := newMetrics()
	if err := m.register(reg); err != nil {
		t.Fatal(err)
	}
	for n := range labels.MaxServices + 50 {
		for range 2 {
			m.firedOf(fmt.Sprintf("svc-%d", n)).Inc()
		}
	}
	got := metrictest.Of(t, reg, "belfry_fired_total")
	if len(got) != labels.MaxServices+1 || got["svc-7"] != 2 || got[labels.OtherServices] != 100 {
		t.Errorf("%d time series; svc-7 counts %v, the others %v; want %d, 2 and 100", len(got), got["svc-7"], got[labels.OtherServices], labels.MaxServices+1)
	}
}
