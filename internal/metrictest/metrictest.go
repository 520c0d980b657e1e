// Package metrictest reads Prometheus metrics in tests: those of a registry, and those of a
// process, which serves them as text.
package metrictest

import (
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Series returns the value of each series of g. The key is the metric's name and the values
// of its labels, ordered by the labels' names, with slashes between them. The value of a
// histogram is its count.
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
	return of(Series(tb, g), metric)
}

// Sum returns the sum of all series of a metric; 0 if there are none.
func Sum(tb testing.TB, g prometheus.Gatherer, metric string) float64 {
	tb.Helper()
	return sum(Of(tb, g, metric))
}

// TextSeries is Series for metrics in the Prometheus text format. A histogram has the series
// NAME_count, NAME_sum and NAME_bucket.
func TextSeries(tb testing.TB, text string) map[string]float64 {
	tb.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[end+1:], 64)
		if end < 0 || err != nil {
			tb.Fatalf("the metric %q has no value: %v", line, err)
		}
		name, labels, _ := strings.Cut(line[:end], "{")
		for {
			_, rest, found := strings.Cut(labels, "=")
			if !found {
				break
			}
			quoted, err := strconv.QuotedPrefix(rest)
			if err != nil {
				tb.Fatalf("the labels of %q: %v", line, err)
			}
			value, err := strconv.Unquote(quoted)
			if err != nil {
				tb.Fatalf("the labels of %q: %v", line, err)
			}
			name, labels = name+"/"+value, rest[len(quoted):]
		}
		all[name] = v
	}
	return all
}

// TextOf is Of for metrics in the Prometheus text format.
func TextOf(tb testing.TB, text, metric string) map[string]float64 {
	tb.Helper()
	return of(TextSeries(tb, text), metric)
}

// TextSum is Sum for metrics in the Prometheus text format.
func TextSum(tb testing.TB, text, metric string) float64 {
	tb.Helper()
	return sum(TextOf(tb, text, metric))
}

func of(all map[string]float64, metric string) map[string]float64 {
	some := map[string]float64{}
	for key, v := range all {
		if name, labels, _ := strings.Cut(key, "/"); name == metric {
			some[labels] = v
		}
	}
	return some
}

func sum(series map[string]float64) float64 {
	sum := 0.0
	for _, v := range series {
		sum += v
	}
	return sum
}
