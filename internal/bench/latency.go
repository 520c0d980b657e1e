package bench

import (
	"encoding/json"
	"fmt"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Latency is a distribution of durations from 1 µs to 1 h, with three significant digits.
type Latency struct {
	Name string
	h    *hdr.Histogram
}

const longest = time.Hour

func newLatency(name string) *Latency {
	return &Latency{Name: name, h: hdr.New(1, longest.Microseconds(), 3)}
}

// latencyOf returns the distribution of the times from due to at. at has Unix nanoseconds, 0 for
// timers that were not seen.
func latencyOf(name string, dueMs, at []int64) *Latency {
	l := newLatency(name)
	for n, due := range dueMs {
		if at[n] != 0 {
			l.add(time.Duration(at[n] - due*int64(time.Millisecond)))
		}
	}
	return l
}

// add records a duration. A value out of range counts as the nearest value in the range.
func (l *Latency) add(d time.Duration) {
	// The histogram accepts every value in the range.
	_ = l.h.RecordValue(min(max(d, 0), longest).Microseconds())
}

// At returns a percentile in milliseconds.
func (l *Latency) At(percentile float64) float64 {
	if percentile >= 100 {
		return float64(l.h.Max()) / 1000
	}
	return float64(l.h.ValueAtQuantile(percentile)) / 1000
}

// Count returns the number of durations.
func (l *Latency) Count() int { return int(l.h.TotalCount()) }

// Percentiles are the percentiles that reports contain.
var Percentiles = []float64{50, 90, 99, 99.9, 100}

// PercentileName returns the name of a percentile: p99.9, or max for 100.
func PercentileName(p float64) string {
	if p == 100 {
		return "max"
	}
	return fmt.Sprintf("p%g", p)
}

// MarshalJSON writes the percentiles in milliseconds.
func (l *Latency) MarshalJSON() ([]byte, error) {
	m := map[string]any{"name": l.Name, "unit": "ms", "count": l.h.TotalCount(), "mean": l.h.Mean() / 1000}
	for _, p := range Percentiles {
		m[PercentileName(p)] = l.At(p)
	}
	return json.Marshal(m)
}

// curve returns the distribution by percentile q, with x = 1/(1-q).
func (l *Latency) curve() Curve {
	c := Curve{Name: l.Name}
	for _, b := range l.h.CumulativeDistribution() {
		if b.Quantile < 100 && b.ValueAt > 0 {
			c.add(1/(1-b.Quantile/100), float64(b.ValueAt)/1000)
		}
	}
	return c
}

// AxisPercentiles is the label of an axis of percentiles, whose values are 1/(1-q).
const AxisPercentiles = "percentile"

// latencyCurves adds the distributions as the lines of one plot.
func (r *Result) latencyCurves(title string) {
	r.Curves = Curves{Title: title, X: AxisPercentiles, Y: "milliseconds", LogY: true}
	for _, l := range r.Latencies {
		r.Curves.Lines = append(r.Curves.Lines, l.curve())
	}
}
