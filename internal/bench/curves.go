package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/app"
)

// Growth measures how cost grows with pending timers, shards, services, the size of events, and
// replicas. Each point of a curve is one run or several, each with new folders and with the
// node in a separate process.
type Growth struct {
	// Config is the base of every run, which uses its Dir, Warmup, Progress and Child. Seconds
	// is the duration of each measurement; 0 means DefaultGrowthSeconds.
	Config
	Profiles []app.Profile
	// Scale, above 0 and up to 1, multiplies counts, rates and durations. A small scale is for a
	// quick test of the tool.
	Scale float64
	// Only lists the curves to measure; empty for all.
	Only []string
	// MaxPending is the greatest number of pending timers; default
	// DefaultMaxPending, up to ten million.
	MaxPending int
}

// Defaults of Growth.
const (
	DefaultGrowthSeconds = 5
	DefaultMaxPending    = 1_000_000
	// DefaultGrowthWarmup is less than DefaultWarmup, because there are many runs.
	DefaultGrowthWarmup = 500
)

// growing is the plan of a curve: the quantity that grows, the runs at each point, and the costs
// to compute.
type growing struct {
	name, title, x string
	points         []int
	// fixed is true if the points do not depend on the scale.
	fixed    bool
	variants []growVariant
	runs     []growRun
	costs    []growCost
}

// growVariant is one way in which the points are measured: a line of the plots.
type growVariant struct {
	name   string
	points []int // if empty, the points of the curve
	set    func(*Config)
}

// growRun is one run of a point.
type growRun struct {
	workload string
	set      func(c *Config, x int)
}

// growCost is a figure of a point.
type growCost struct {
	name, unit string
	// workload is the workload whose result has the figure, or "" for any.
	workload string
	value    func(*Result) (float64, bool)
	// most is the greatest allowed power of x: 0 for a cost that must not grow with x, 1 for a
	// cost that may grow in proportion to x.
	most float64
	// floor is the value, in the cost's unit, up to which growth does not matter.
	floor float64
}

// growthCurves are all curves.
func growthCurves(maxPending int) []growing {
	const late = latenessAtSubscriber
	cpu := []growCost{
		{"CPU a timer, clients included", "µs", "", byFigure(cpuFigure), 0, 0},
		{"CPU a timer, of server and node", "µs", "", byFigure(apartFigure), 0, 0},
	}
	lateness := []growCost{
		{"lateness p50", "ms", "", byLatency(late, 50), 0, 5},
		{"lateness p99", "ms", "", byLatency(late, 99), 0, 20},
	}
	rate := func(n int) func(*Config, int) { return func(c *Config, _ int) { c.Rate = n } }
	var pending []int
	for _, n := range []int{10_000, 100_000, 1_000_000, 3_000_000, 10_000_000} {
		if n <= maxPending {
			pending = append(pending, n)
		}
	}
	return []growing{
		{
			name: "pending", title: "timers that wait", x: "timers pending", points: pending,
			runs: []growRun{{"pending", func(c *Config, x int) { c.Count, c.Beside, c.LoadFast = x, 500, true }}},
			costs: []growCost{
				{"memory (RSS)", "MB", "", byFigure("memory, pending"), 1, 0},
				{"live heap", "MB", "", byFigure("heap of the node, pending"), 1, 0},
				{"disk a pending timer", "B", "", diskEach, 0, 0},
				{"restart until ready", "s", "", byFigure("restart after a kill, until ready"), 1, 0},
				{"restart until firing", "s", "", byFigure(restartFigure), 1, 0},
				{"idle CPU above empty", "% of a core", "", byFigure(idleFigure), 0, 2},
				{"500/s beside them: CPU a timer, of server and node", "µs", "", byFigure(withPending + apartFigure), 0, 0},
				{"500/s beside them: lateness p50", "ms", "", byLatency(withPending+late, 50), 0, 5},
				{"500/s beside them: lateness p99", "ms", "", byLatency(withPending+late, 99), 0, 20},
			},
		},
		{
			name: "shards", title: "shards on one server", x: "shards", points: []int{1, 2, 4, 8, 16}, fixed: true,
			runs: []growRun{
				{"steady", func(c *Config, x int) { c.Shards, c.Rate = x, 1000 }},
				{"burst", func(c *Config, x int) { c.Shards, c.Count, c.Via, c.Lead = x, 20_000, ViaBatch, 5*time.Second }},
			},
			costs: append(ofWorkload("steady", cpu, lateness), growCost{"burst: last", "ms", "burst", byFigure("last, at the subscriber"), 0, 0}),
		},
		{
			name: "services", title: "services, at 1,000 timers a second", x: "services", points: []int{1, 10, 100, 1000},
			variants: []growVariant{{name: "no callback"}, {name: "NATS callback", set: func(c *Config) { c.Callback = CallbackNATS }}},
			runs:     []growRun{{"callback", func(c *Config, x int) { c.Services, c.Rate, c.Idle = x, 1000, true }}},
			costs: slices.Concat(cpu, lateness, []growCost{
				{"callback's lateness p99", "ms", "", byLatency("lateness of the callback", 99), 0, 20},
				{"memory (RSS)", "MB", "", byFigure("memory, " + idleAfter), 1, 0},
				{"live heap", "MB", "", byFigure("heap of the node, " + idleAfter), 1, 0},
				{"idle CPU", "% of a core", "", byFigure("idle CPU, " + idleAfter), 1, 2},
				{"CPU to begin a service", "µs", "", byFigure(beginFigure), 0, 0},
			}),
		},
		{
			name: "payload", title: "size of an event's data", x: "bytes of data", fixed: true,
			variants: []growVariant{
				{name: "1,000/s", points: []int{100, 400, 4096}, set: func(c *Config) { c.Rate = 1000 }},
				// 100/s is the rate that a disk can take of the largest events. A timer costs more
				// at a lower rate, because fewer timers share the fixed costs, so points of
				// different rates do not compare. Hence the second variant.
				{name: "100/s", points: []int{4096, 65536}, set: func(c *Config) { c.Rate = 100 }},
			},
			runs: []growRun{{"steady", func(c *Config, x int) { c.Size = x }}},
			costs: slices.Concat(cpu, lateness, []growCost{
				{"disk a timer", "B", "", byFigure(diskFigure), 1, 0},
			}),
		},
		{
			name: "replicas", title: "replicas, at 500 timers a second", x: "replicas", points: []int{1, replicas}, fixed: true,
			runs: []growRun{{"steady", func(c *Config, x int) {
				c.On = OnServer
				if x > 1 {
					c.On = OnCluster
				}
				rate(500)(c, x)
			}}},
			costs: slices.Concat(grownTo(1, cpu), grownTo(1, lateness)),
		},
	}
}

func diskEach(r *Result) (float64, bool) {
	disk, ok := byFigure("disk, pending")(r)
	count, known := r.Settings["count"].(int)
	return disk * 1e6 / float64(count), ok && known
}

// ofWorkload returns the costs with the workload whose result has them. A point with several
// workloads needs it.
func ofWorkload(name string, costs ...[]growCost) []growCost {
	out := slices.Concat(costs...)
	for i := range out {
		out[i].workload = name
	}
	return out
}

// grownTo returns the costs with another greatest power of x.
func grownTo(most float64, costs []growCost) []growCost {
	out := slices.Clone(costs)
	for i := range out {
		out[i].most = most
	}
	return out
}

// CurveNames returns the names that Growth.Only accepts.
func CurveNames() []string {
	var out []string
	for _, g := range growthCurves(0) {
		out = append(out, g.name)
	}
	return out
}

// point is one point of the plan.
type point struct {
	curve   int
	profile app.Profile
	variant growVariant
	series  int // the index in GrowthCurve.Series
	x       int
	runs    []plannedRun
}

type plannedRun struct {
	workload Workload
	config   Config
}

// plan returns all points, and the curves without values.
func (g *Growth) plan() (*GrowthResult, []point, error) {
	for _, name := range g.Only {
		if !slices.Contains(CurveNames(), name) {
			return nil, nil, bad("curve %.40q does not exist; there are: %s", name, strings.Join(CurveNames(), " "))
		}
	}
	if g.Scale <= 0 || g.Scale > 1 {
		return nil, nil, bad("scale is %v; it must be above 0 and up to 1", g.Scale)
	}
	if g.MaxPending < 0 || g.MaxPending > 10_000_000 {
		return nil, nil, bad("max-pending is %d; it must be 1 to 10,000,000", g.MaxPending)
	}
	g.MaxPending = cmp.Or(g.MaxPending, DefaultMaxPending)
	g.Seconds = cmp.Or(g.Seconds, DefaultGrowthSeconds)
	out := &GrowthResult{Profiles: g.Profiles, Scale: g.Scale, Seconds: g.Seconds}
	var points []point
	for _, def := range growthCurves(g.MaxPending) {
		if len(g.Only) > 0 && !slices.Contains(g.Only, def.name) {
			continue
		}
		curve := GrowthCurve{Name: def.name, Title: def.title, X: def.x}
		variants := def.variants
		if len(variants) == 0 {
			variants = []growVariant{{}}
		}
		for _, profile := range g.Profiles {
			if profile != app.ProfileSafe && profile != app.ProfileFast {
				return nil, nil, bad("profile %.40q does not exist; it is safe, fast or both", string(profile))
			}
			for _, v := range variants {
				series := GrowthSeries{Profile: profile, Variant: v.name}
				for _, x := range g.xs(def, v) {
					p := point{curve: len(out.Curves), profile: profile, variant: v, series: len(curve.Series), x: x}
					if err := g.planRuns(&p, def); err != nil {
						return nil, nil, err
					}
					points = append(points, p)
					series.X = append(series.X, float64(x))
				}
				for _, c := range def.costs {
					series.Costs = append(series.Costs, GrowthCost{Name: c.name, Unit: c.unit, Most: c.most, floor: c.floor, Values: make([]*float64, len(series.X))})
				}
				curve.Series = append(curve.Series, series)
			}
		}
		out.Curves = append(out.Curves, curve)
		out.defs = append(out.defs, def)
	}
	return out, points, nil
}

// xs returns the points of a variant, scaled unless they are fixed.
func (g *Growth) xs(def growing, v growVariant) []int {
	points := def.points
	if len(v.points) > 0 {
		points = v.points
	}
	if def.fixed {
		return points
	}
	var out []int
	for _, x := range points {
		out = append(out, g.scaled(x))
	}
	return slices.Compact(out)
}

func (g *Growth) scaled(n int) int { return max(int(math.Round(float64(n)*g.Scale)), min(n, 1)) }

func (g *Growth) planRuns(p *point, def growing) error {
	for _, run := range def.runs {
		c := g.Config
		c.Profile, c.Raw, c.Settle = p.profile, 0, -1
		if p.variant.set != nil {
			p.variant.set(&c)
		}
		run.set(&c, p.x)
		c.Rate, c.Beside, c.Seconds = g.scaled(c.Rate), g.scaled(c.Beside), g.scaled(g.Seconds)
		name := run.workload
		switch {
		case name == "callback" && c.Callback == "":
			name = "steady"
		case name == "burst":
			c.Count = g.scaled(c.Count)
		}
		w, err := Find(name)
		if err != nil {
			return err
		}
		check := c
		w.Defaults(&check)
		if err := check.setDefaults(); err != nil {
			return err
		}
		p.runs = append(p.runs, plannedRun{w, c})
	}
	return nil
}

// guess returns the approximate duration of a run on two idle cores, in seconds.
func (r plannedRun) guess() float64 {
	c := r.config
	switch r.workload.Name() {
	case "pending": // two idle measurements with a pause before each, and up to four starts
		return 20 + 5*float64(c.Seconds) + float64(c.Count)/20_000
	case "burst":
		return 7 + c.Lead.Seconds() + float64(c.Count)/10_000
	}
	t := 8 + float64(c.Seconds) + float64(c.Services)/100
	if c.Idle {
		t += 2 * float64(c.Seconds)
	}
	return t
}

// Run measures all curves. After a failed point it continues with the others, and returns the
// errors at the end. It stops only if ctx ends or a setting is invalid.
func (g *Growth) Run(ctx context.Context) (*GrowthResult, error) {
	out, points, err := g.plan()
	if err != nil {
		return nil, err
	}
	var all, done float64
	for _, p := range points {
		for _, r := range p.runs {
			all += r.guess()
		}
	}
	begun := time.Now()
	var failed error
	for n, p := range points {
		if ctx.Err() != nil {
			break
		}
		took := time.Since(begun).Seconds()
		left := all - done
		if done > 0 {
			left *= took / done
		}
		if err := g.tell("point %d of %d: %s; %.0f s gone, some %.0f s left\n", n+1, len(points), out.nameOf(p), took, left); err != nil {
			return nil, err
		}
		var results []*Result
		for _, r := range p.runs {
			res, err := g.runOne(ctx, r)
			done += r.guess()
			for _, one := range res {
				one.Row, one.Curves = out.nameOf(p), Curves{}
			}
			results = append(results, res...)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", out.nameOf(p), err))
				out.Errors = append(out.Errors, fmt.Sprintf("%s: %v", out.nameOf(p), err))
				if err := g.tell("%s\n", out.Errors[len(out.Errors)-1]); err != nil {
					return nil, err
				}
			}
		}
		out.take(p, results)
	}
	out.grow()
	out.Took, out.Machine, out.At = time.Since(begun).Seconds(), machine(), begun.UTC().Truncate(time.Second)
	return out, errors.Join(context.Cause(ctx), failed)
}

func (g *Growth) tell(format string, args ...any) error {
	if g.Progress == nil {
		return nil
	}
	_, err := fmt.Fprintf(g.Progress, format, args...)
	return err
}

func (g *Growth) runOne(ctx context.Context, r plannedRun) ([]*Result, error) {
	bound := rowBound + time.Duration(r.config.Count)*time.Millisecond/2
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the run took longer than %s", bound))
	defer cancel()
	return Run(ctx, r.workload, r.config, 1)
}
