package bench

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/app"
)

// GrowthResult has the measured curves and the results of their runs.
type GrowthResult struct {
	At       time.Time     `json:"at"`
	Machine  Machine       `json:"machine"`
	Profiles []app.Profile `json:"profiles"`
	Scale    float64       `json:"scale"`
	Seconds  int           `json:"seconds"`
	Curves   []GrowthCurve `json:"curves"`
	// Remarks describes the costs that grew faster than allowed.
	Remarks []string `json:"remarks"`
	// Errors has the errors of points that were not measured or whose run was not sound.
	Errors  []string  `json:"errors"`
	Results []*Result `json:"results"`
	Took    float64   `json:"took_seconds"`
	defs    []growing // of Curves
}

// GrowthCurve has the costs as functions of one quantity, such as the number of shards.
type GrowthCurve struct {
	Name   string         `json:"name"`
	Title  string         `json:"title"`
	X      string         `json:"x"`
	Series []GrowthSeries `json:"series"`
}

// GrowthSeries is a curve in one profile and one variant of the measurement.
type GrowthSeries struct {
	Profile app.Profile  `json:"profile"`
	Variant string       `json:"variant,omitempty"`
	X       []float64    `json:"x"`
	Costs   []GrowthCost `json:"costs"`
}

// GrowthCost is one cost, such as CPU per timer, at each point of a curve.
type GrowthCost struct {
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Values has one value for each point, nil for none.
	Values []*float64 `json:"values"`
	// Exponents are the powers of x with which the cost grows from each point to the next, and
	// Overall that from the first to the last point; nil if a value is not positive.
	Exponents []*float64 `json:"exponents"`
	Overall   *float64   `json:"overall"`
	// Most is the greatest allowed power.
	Most  float64 `json:"most"`
	floor float64
}

// grownSlack is the factor by which a cost may exceed its allowed growth before it is reported.
// Equal runs differ by up to a half.
const grownSlack = 1.5

// Label returns the profile, and the variant if there are several.
func (s *GrowthSeries) Label() string {
	if s.Variant == "" {
		return string(s.Profile)
	}
	return string(s.Profile) + ", " + s.Variant
}

func (r *GrowthResult) nameOf(p point) string {
	c := &r.Curves[p.curve]
	return fmt.Sprintf("%s %s, %s", c.Name, Short(float64(p.x)), c.Series[p.series].Label())
}

// take fills in a point.
func (r *GrowthResult) take(p point, results []*Result) {
	r.Results = append(r.Results, results...)
	s := &r.Curves[p.curve].Series[p.series]
	for i, c := range r.defs[p.curve].costs {
		for n, x := range s.X {
			if int(x) != p.x {
				continue
			}
			for _, res := range results {
				if c.workload != "" && c.workload != res.Workload {
					continue
				}
				if v, ok := c.value(res); ok {
					s.Costs[i].Values[n] = &v
				}
			}
		}
	}
}

// grow computes the exponents, removes costs without values, and reports costs that grow faster
// than allowed.
func (r *GrowthResult) grow() {
	for i := range r.Curves {
		c := &r.Curves[i]
		for k := range c.Series {
			s := &c.Series[k]
			var costs []GrowthCost
			for _, cost := range s.Costs {
				if !cost.measured() {
					continue
				}
				first, last := -1, -1
				for n := range s.X {
					if n > 0 {
						cost.Exponents = append(cost.Exponents, cost.exponent(s.X, n-1, n))
						r.remark(c, s, &cost, n-1, n)
					}
					if cost.Values[n] != nil {
						if first < 0 {
							first = n
						}
						last = n
					}
				}
				cost.Overall = cost.exponent(s.X, first, last)
				if last-first > 1 {
					r.remark(c, s, &cost, first, last)
				}
				costs = append(costs, cost)
			}
			s.Costs = costs
		}
	}
}

func (c *GrowthCost) measured() bool {
	for _, v := range c.Values {
		if v != nil {
			return true
		}
	}
	return false
}

// exponent returns the power of x with which the cost grows from one point to another.
func (c *GrowthCost) exponent(x []float64, from, to int) *float64 {
	a, b := c.Values[from], c.Values[to]
	if from == to || a == nil || b == nil || *a <= 0 || *b <= 0 {
		return nil
	}
	e := math.Log(*b / *a) / math.Log(x[to]/x[from])
	return &e
}

// remark returns a text about a cost that grew more than allowed from one point to another.
func (r *GrowthResult) remark(curve *GrowthCurve, s *GrowthSeries, c *GrowthCost, from, to int) {
	e := c.exponent(s.X, from, to)
	if e == nil || *c.Values[to] < c.floor {
		return
	}
	// A value below the floor counts as the floor, because growth up to it does not matter.
	grown := *c.Values[to] / max(*c.Values[from], c.floor)
	if allowed := math.Pow(s.X[to]/s.X[from], c.Most) * grownSlack; grown > allowed {
		r.Remarks = append(r.Remarks, fmt.Sprintf("%s (%s), %s: from %s to %s %s it grows from %s to %s %s: with power %.2f of x, of at most %g",
			curve.Name, s.Label(), c.Name, Short(s.X[from]), Short(s.X[to]), curve.X, Short(*c.Values[from]), Short(*c.Values[to]), c.Unit, *e, c.Most))
	}
}

// JSON writes the curves and their runs.
func (r *GrowthResult) JSON(w io.Writer) error { return writeJSON(w, r) }

// Cells returns the cells of a cost's row: the value of each point with the exponent from the
// previous point, and the exponent from the first to the last point.
func (c *GrowthCost) Cells() []string {
	var out []string
	for n, v := range c.Values {
		cell := ""
		if v != nil {
			cell = Short(*v)
		}
		if n > 0 && c.Exponents[n-1] != nil {
			cell += fmt.Sprintf(" (%+.2f)", *c.Exponents[n-1])
		}
		out = append(out, cell)
	}
	overall := ""
	if c.Overall != nil {
		overall = fmt.Sprintf("%+.2f", *c.Overall)
	}
	return append(out, overall, fmt.Sprintf("%g", c.Most))
}

// Heads returns the column headers for Cells.
func (s *GrowthSeries) Heads() []string {
	var out []string
	for _, x := range s.X {
		out = append(out, Short(x))
	}
	return append(out, "power, first to last", "allowed")
}

// Markdown writes a table for each series.
func (r *GrowthResult) Markdown(w io.Writer) error {
	p := &printer{w: w}
	for i := range r.Curves {
		c := &r.Curves[i]
		p.f("### %s\n\n", c.Title)
		for k := range c.Series {
			s := &c.Series[k]
			heads := s.Heads()
			p.f("| %s: by %s | %s |\n|---|%s\n", s.Label(), c.X, strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
			for n := range s.Costs {
				cost := &s.Costs[n]
				p.f("| %s, %s | %s |\n", cost.Name, cost.Unit, strings.Join(cost.Cells(), " | "))
			}
			p.f("\n")
		}
	}
	p.f("In brackets: the power of x with which the cost has grown since the previous point (0: no growth, 1: in proportion to x).\n\n")
	if len(r.Remarks) == 0 {
		p.f("No cost exceeds its allowed growth by more than a half.\n")
	}
	for _, text := range r.Remarks {
		p.f("- Grows faster than allowed: %s.\n", text)
	}
	for _, text := range r.Errors {
		p.f("- Failed: %s\n", text)
	}
	scale := ""
	if r.Scale != 1 {
		scale = fmt.Sprintf(" at a scale of %g,", r.Scale)
	}
	p.f("\n%d CPUs, %s/%s, %s; %s;%s %.0f s in all. %s\n", r.Machine.CPUs, r.Machine.OS, r.Machine.Arch, r.Machine.Go, r.At.Format("2006-01-02"), scale, r.Took, r.Disturbed())
	return p.err
}

// Disturbed returns a text about the CPU that other processes used during the runs.
func (r *GrowthResult) Disturbed() string { return disturbed(r.Results) }

// disturbed returns a text about the CPU that other processes used during runs.
func disturbed(results []*Result) string {
	most, busy := 0.0, 0
	for _, res := range results {
		v := max(res.value(othersFigure), res.value(withPending+othersFigure), res.value(loadFigure))
		if most = max(most, v); v > busyPercent {
			busy++
		}
	}
	if busy == 0 {
		return "The machine did nothing else."
	}
	return fmt.Sprintf("In %d of %d runs the machine was busy with something else (up to %.0f %% of a core): these figures are not its best.", busy, len(results), most)
}
