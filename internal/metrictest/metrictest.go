// Package metrictest reads Prometheus metrics in tests. The value of a histogram is its
// count.
package metrictest

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Series returns the value of each series of g. The key is the metric's name and the values
// of its labels, ordered by the labels' names, with slashes between them.
func Series(tb testing.TB, g prometheus.Gatherer) map[string]float64 {
	tb.Helper()
	families, err := g.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += "/" + l.GetValue()
			}
			all[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// Of returns the value of each series of one metric by the values of its labels, which have
// slashes between them.
func Of(tb testing.TB, g prometheus.Gatherer, metric string) map[string]float64 {
	tb.Helper()
	some := map[string]float64{}
	for key, v := range Series(tb, g) {
		if name, labels, _ := strings.Cut(key, "/"); name == metric {
			some[labels] = v
		}
	}
	return some
}

// Sum returns the sum of all series of a metric; 0 if there are none.
func Sum(tb testing.TB, g prometheus.Gatherer, metric string) float64 {
	tb.Helper()
	sum := 0.0
	for _, v := range Of(tb, g, metric) {
		sum += v
	}
	return sum
}
