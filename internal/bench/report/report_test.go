package report

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/bench"
)

func result() *bench.Result {
	return &bench.Result{
		Workload: "steady", Settings: map[string]any{"profile": "fast"},
		Figures:  []bench.Figure{{Name: "timers due", Value: 1000, Unit: "1/s"}},
		Verified: bench.Verified{Expected: 2, Found: 1, Missing: 1, Why: map[string]int{"never stored": 1}},
		Curves: bench.Curves{Title: "<lateness> & co", X: bench.AxisPercentiles, Y: "milliseconds", LogY: true, Lines: []bench.Curve{
			{Name: "a", X: []float64{1, 2, 10, 100}, Y: []float64{0.5, 1, 2, 9}}, {Name: "too short", X: []float64{1}, Y: []float64{1}},
		}},
	}
}

func TestPlot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a.svg", "a.png"} {
		path := filepath.Join(dir, name)
		if err := Plot(path, []*bench.Result{result(), result()}); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() < 1000 {
			t.Errorf("plot %s: got %v (%v), want a file of 1,000 bytes or more", name, info, err)
		}
	}
	if err := CheckPlot("a.pdf"); err == nil {
		t.Error("CheckPlot of a PDF file: got no error, want one")
	}
}

// page checks that a page has its pictures, and needs no other file.
func page(t *testing.T, text string, pictures int, want ...string) {
	t.Helper()
	if n := strings.Count(text, "<svg"); n != pictures || strings.Contains(text, "<?xml") || strings.Contains(text, "ZgotmplZ") || strings.Contains(text, "src=") {
		t.Errorf("got a page with %d pictures, want %d, and no reference to another file", n, pictures)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("got a page without %q", w)
		}
	}
}

func TestHTML(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := HTML(&b, []*bench.Result{result(), result()}); err != nil {
		t.Fatal(err)
	}
	page(t, b.String(), 1, "of 2 runs", "1 never stored", `class="bad"`)
	b.Reset()
	other := result()
	other.Row = "row"
	if err := Table(&b, &bench.TableResult{Profiles: []app.Profile{"fast"}, Results: []*bench.Result{result(), other}}); err != nil {
		t.Fatal(err)
	}
	page(t, b.String(), 2, "steady (row)")
}

func TestCurves(t *testing.T) {
	t.Parallel()
	value := func(v float64) *float64 { return &v }
	r := &bench.GrowthResult{Scale: 1, Curves: []bench.GrowthCurve{
		{Name: "pending", Title: "timers pending", X: "timers", Series: []bench.GrowthSeries{{Profile: "fast", X: []float64{10, 100}, Costs: []bench.GrowthCost{
			{Name: "memory", Unit: "MB", Values: []*float64{value(1), value(10)}, Exponents: []*float64{value(1)}},
			{Name: "idle CPU", Unit: "%", Values: []*float64{value(-1), nil}, Exponents: []*float64{nil}},
		}}}},
		{Name: "empty", Title: "an interrupted run"},
	}}
	var b bytes.Buffer
	if err := Curves(&b, r); err != nil {
		t.Fatal(err)
	}
	page(t, b.String(), 2, "fast: by timers")
	dir := t.TempDir()
	if err := CurvePlots(dir, r); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"curve-pending.svg", "curve-empty.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("plot %s: got %v (%v), want a file with content", name, info, err)
		}
	}
}
