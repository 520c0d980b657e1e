package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Result is what one run measured.
type Result struct {
	Workload    string         `json:"workload"`
	At          time.Time      `json:"at"`
	TookSeconds float64        `json:"took_seconds"`
	Machine     Machine        `json:"machine"`
	Settings    map[string]any `json:"settings"`
	Figures     []Figure       `json:"figures"`
	Latencies   []*Latency     `json:"latencies,omitempty"`
	Verified    Verified       `json:"verified"`
	// Curves are drawn by Plot.
	Curves Curves `json:"curves"`
}

// Figure is one number.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// Machine says what it was measured on.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
	Go   string `json:"go"`
}

// Curves are lines over a common axis.
type Curves struct {
	Title string  `json:"title"`
	X     string  `json:"x"`
	Y     string  `json:"y"`
	LogY  bool    `json:"log_y,omitempty"`
	Lines []Curve `json:"lines"`
}

// Curve is one line: X and Y are of the same length.
type Curve struct {
	Name string    `json:"name"`
	X    []float64 `json:"x"`
	Y    []float64 `json:"y"`
}

func (c *Curve) add(x, y float64) { c.X, c.Y = append(c.X, x), append(c.Y, y) }

func machine() Machine {
	return Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()}
}

func settings(c Config) map[string]any {
	s := map[string]any{"size": c.Size, "workers": c.Workers, "via": c.Via}
	for name, n := range map[string]int{"rate": c.Rate, "seconds": c.Seconds, "count": c.Count} {
		if n > 0 {
			s[name] = n
		}
	}
	if c.Lead > 0 {
		s["lead"] = c.Lead.String()
	}
	if c.NATSURL == "" {
		s["server"], s["profile"], s["shards"] = "embedded", string(c.Profile), c.Shards
	} else {
		s["server"] = "remote"
	}
	return s
}

func (r *Result) figure(name string, value float64, unit string) {
	r.Figures = append(r.Figures, Figure{Name: name, Value: value, Unit: unit})
}

// printer writes until the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) f(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// Text writes a summary for people.
func (r *Result) Text(w io.Writer) error {
	p := &printer{w: w}
	var keys []string
	for k := range r.Settings {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	p.f("%s", r.Workload)
	for _, k := range keys {
		p.f("  %s=%v", k, r.Settings[k])
	}
	p.f("\n")
	for _, f := range r.Figures {
		p.f("  %-38s %12s %s\n", f.Name, number(f.Value), f.Unit)
	}
	if len(r.Latencies) > 0 {
		p.f("  %-38s", "in milliseconds")
		for _, q := range percentiles {
			p.f(" %9s", percentileName(q))
		}
		p.f("\n")
	}
	for _, l := range r.Latencies {
		p.f("  %-38s", l.Name)
		for _, q := range percentiles {
			p.f(" %9.3f", l.At(q))
		}
		p.f("\n")
	}
	v := r.Verified
	p.f("  verified: %d timers expected, %d found, %d missing, %d duplicates, %d early, %d in a wrong state", v.Expected, v.Found, v.Missing, v.Duplicates, v.Early, v.Wrong)
	if len(v.Why) > 0 {
		p.f(" (%s)", v.reasons())
	}
	p.f("\n")
	if v.Unseen > 0 || v.Repeated > 0 {
		p.f("  the subscriber missed %d and saw %d more than once, which is no fault\n", v.Unseen, v.Repeated)
	}
	return p.err
}

func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// Summary writes the median, least and greatest of each figure of several runs.
func Summary(w io.Writer, results []*Result) error {
	p := &printer{w: w}
	if len(results) < 2 {
		return nil
	}
	values := map[string][]float64{}
	var names []string
	take := func(name string, v float64) {
		if values[name] == nil {
			names = append(names, name)
		}
		values[name] = append(values[name], v)
	}
	for _, r := range results {
		for _, f := range r.Figures {
			take(f.Name+" ("+f.Unit+")", f.Value)
		}
		for _, l := range r.Latencies {
			for _, q := range percentiles {
				take(l.Name+" "+percentileName(q)+" (ms)", l.At(q))
			}
		}
	}
	p.f("%-56s %12s %12s %12s\n", fmt.Sprintf("of %d runs", len(results)), "median", "least", "greatest")
	for _, name := range names {
		v := values[name]
		slices.Sort(v)
		p.f("  %-54s %12s %12s %12s\n", name, number(v[len(v)/2]), number(v[0]), number(v[len(v)-1]))
	}
	return p.err
}

// JSON writes the results as one document.
func JSON(w io.Writer, results []*Result) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{"results": results})
}

// title makes a plot's title of the run's settings.
func (r *Result) title(c Config, what string) string {
	parts := []string{what}
	if c.NATSURL == "" {
		parts = append(parts, string(c.Profile)+" profile")
	}
	return strings.Join(parts, ", ")
}
