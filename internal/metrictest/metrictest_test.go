package metrictest_test

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/metrictest"
)

const text = `# HELP a_total What a counts.
# TYPE a_total counter
a_total{kind="x",why="a \"b\", c=d"} 3
a_total{kind="y",why=""} 4.5
# TYPE b gauge
b -1
big 1.5e+09
h_bucket{le="+Inf"} 7
h_count 7
`

func TestText(t *testing.T) {
	t.Parallel()
	want := map[string]float64{`a_total/x/a "b", c=d`: 3, "a_total/y/": 4.5, "b": -1, "big": 1.5e9, "h_bucket/+Inf": 7, "h_count": 7}
	if got := metrictest.TextSeries(t, text); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := metrictest.TextOf(t, text, "a_total"); len(got) != 2 || got["y/"] != 4.5 {
		t.Errorf("a_total: %v", got)
	}
	if got := metrictest.TextSum(t, text, "a_total"); got != 7.5 {
		t.Errorf("the sum is %v", got)
	}
	if got := metrictest.TextSum(t, text, "a"); got != 0 {
		t.Errorf("the sum of no series is %v", got)
	}
}

// TestRegistry: the keys of a registry are those of its text.
func TestRegistry(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "a_total"}, []string{"why", "kind"})
	reg.MustRegister(c)
	c.WithLabelValues(`a "b", c=d`, "x").Add(3)
	if got := metrictest.Series(t, reg); len(got) != 1 || got[`a_total/x/a "b", c=d`] != 3 {
		t.Errorf("got %v", got)
	}
	if got := metrictest.Sum(t, reg, "a_total"); got != 3 {
		t.Errorf("the sum is %v", got)
	}
}
