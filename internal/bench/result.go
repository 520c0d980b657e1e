package bench

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Result is the result of one run.
type Result struct {
	Workload string `json:"workload"`
	// Row is the table's row, if the run was for one.
	Row         string         `json:"row,omitempty"`
	At          time.Time      `json:"at"`
	TookSeconds float64        `json:"took_seconds"`
	Machine     Machine        `json:"machine"`
	Settings    map[string]any `json:"settings"`
	Figures     []Figure       `json:"figures"`
	Latencies   []*Latency     `json:"latencies,omitempty"`
	Verified    Verified       `json:"verified"`
	// Curves are the lines that package report draws.
	Curves Curves `json:"curves"`
}

// Figure is one measured number.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// Machine describes the machine of a run.
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

// Curve is one line. X and Y have the same length.
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
	if c.Retention > 0 {
		s["retention"] = c.Retention.String()
	}
	if c.NATSURL == "" {
		s["on"], s["profile"], s["warmup"] = string(c.On), string(c.Profile), max(c.Warmup, 0)
		if !c.peer() {
			s["shards"] = c.Shards
		}
	} else {
		s["on"] = "remote"
	}
	if c.Every > 0 {
		s["every"] = c.Every.String()
	}
	for name, n := range map[string]int{"daily": c.Daily, "instant": c.Instant, "keys": c.Keys} {
		if n > 0 {
			s[name] = n
		}
	}
	if c.Callback != "" {
		s["callback"] = c.Callback
	}
	for name, n := range map[string]int{"services": c.Services, "beside": c.Beside} {
		if n > 1 {
			s[name] = n
		}
	}
	if c.InProcess {
		s["in_process"] = true
	}
	if c.System != "" {
		s["system"] = string(c.System)
	}
	if c.LoadFast {
		s["load_fast"] = true
	}
	if c.Callers > 0 {
		s["callers"] = c.Callers
	}
	if c.NoSearchIndex {
		s["search_index"] = false
	}
	return s
}

func (r *Result) figure(name string, value float64, unit string) {
	r.Figures = append(r.Figures, Figure{Name: name, Value: value, Unit: unit})
}

// Label returns the name of the workload, and of the table's row if the run was for a row.
func (r *Result) Label() string {
	if r.Row == "" {
		return r.Workload
	}
	return r.Workload + " (" + r.Row + ")"
}

// value returns the value of a figure, or 0.
func (r *Result) value(name string) float64 {
	for _, f := range r.Figures {
		if f.Name == name {
			return f.Value
		}
	}
	return 0
}

// latency returns the distribution with that name, or nil.
func (r *Result) latency(name string) *Latency {
	for _, l := range r.Latencies {
		if l.Name == name {
			return l
		}
	}
	return nil
}

// printer writes text and ignores all writes after the first error.
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
	p.f("%s", r.Label())
	for _, k := range keys {
		p.f("  %s=%v", k, r.Settings[k])
	}
	p.f("\n")
	for _, f := range r.Figures {
		p.f("  %-46s %12s %s\n", f.Name, Number(f.Value), f.Unit)
	}
	if len(r.Latencies) > 0 {
		p.f("  %-46s", "in milliseconds")
		for _, q := range Percentiles {
			p.f(" %9s", PercentileName(q))
		}
		p.f("\n")
	}
	for _, l := range r.Latencies {
		p.f("  %-46s", l.Name)
		for _, q := range Percentiles {
			p.f(" %9.3f", l.At(q))
		}
		p.f("\n")
	}
	v := r.Verified
	p.f("  verified: %d timers expected, %d found, %d missing, %d duplicates, %d early, %d in a wrong state", v.Expected, v.Found, v.Missing, v.Duplicates, v.Early, v.Wrong)
	if len(v.Why) > 0 {
		p.f(" (%s)", v.Reasons())
	}
	p.f("\n")
	if v.Removed > 0 {
		p.f("  the limits of the stream had removed %d events before they were read; the subscriber received these\n", v.Removed)
	}
	if v.Unseen > 0 || v.Repeated > 0 {
		p.f("  the subscriber missed %d and saw %d more than once, which is no fault\n", v.Unseen, v.Repeated)
	}
	if r.Settings["in_process"] == true {
		p.f("  in one process: server, node and clients share it without TCP, so a deployment is slower than these figures\n")
	}
	if busy := r.value(othersFigure); busy > busyPercent {
		p.f("  the machine was busy with something else (%.0f %% of a core): these figures are not its best\n", busy)
	}
	return p.err
}

// Number formats a figure: at most three decimals, none from 1,000 on.
func Number(v float64) string {
	switch size := math.Abs(v); {
	case size >= 1000:
		return fmt.Sprintf("%.0f", v)
	case size >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// title returns a plot's title with the run's settings.
func (r *Result) title(c Config, what string) string {
	parts := []string{what}
	if c.NATSURL == "" {
		parts = append(parts, string(c.Profile)+" profile")
		if c.peer() {
			parts = append([]string{c.System.Title()}, parts...)
		}
		if c.InProcess {
			parts = append(parts, "in one process")
		}
		if c.On != OnEmbedded {
			parts = append(parts, "on a "+string(c.On))
		}
	}
	return strings.Join(parts, ", ")
}
