package scheduler

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/labels"
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
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "belfry_fired_total" {
			for _, s := range f.GetMetric() {
				got[s.GetLabel()[0].GetValue()] = s.GetCounter().GetValue()
			}
		}
	}
	if len(got) != labels.MaxServices+1 || got["svc-7"] != 2 || got[labels.OtherServices] != 100 {
		t.Errorf("%d time series; svc-7 counts %v, the others %v; want %d, 2 and 100", len(got), got["svc-7"], got[labels.OtherServices], labels.MaxServices+1)
	}
}
