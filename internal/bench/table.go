package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/app"
)

// Table measures every figure that Belfry must reach on two cores, and compares each with its
// required value.
type Table struct {
	// Config is the base of every row, which uses its Dir, Size, On, Raw, Progress and Child.
	Config
	Profiles []app.Profile
	Repeat   int
	// Scale, above 0 and up to 1, multiplies counts and durations. A small scale is for a quick
	// test of the tool.
	Scale float64
	// Only, if not empty, names the rows to run.
	Only []string
}

// goal is the required value of a figure: at least value, or less than it if below is true.
type goal struct {
	value float64
	below bool
	unit  string
}

func atLeast(v float64, unit string) goal { return goal{value: v, unit: unit} }
func below(v float64, unit string) goal   { return goal{value: v, below: true, unit: unit} }

func (g goal) String() string {
	sign := "≥ "
	if g.below {
		sign = "< "
	}
	return strings.TrimSpace(sign + Short(g.value) + " " + g.unit)
}

func (g goal) met(v float64) bool { return g.below && v < g.value || !g.below && v >= g.value }

// row is one run of the table; a run may give several figures.
type row struct {
	name     string
	workload string
	safe     func(*Config)
	fast     func(*Config)
	goals    []rowGoal
}

type rowGoal struct {
	name       string
	safe, fast goal
	value      func(*Result) (float64, bool)
}

func byFigure(name string) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		for _, f := range r.Figures {
			if f.Name == name {
				return f.Value, true
			}
		}
		return 0, false
	}
}

func byLatency(name string, q float64) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		l := r.latency(name)
		if l == nil || l.Count() == 0 {
			return 0, false
		}
		return l.At(q), true
	}
}

// rowBound bounds the duration of one run of a row.
const rowBound = 4 * time.Minute

// adderRows returns two rows with 16 workers, each of which adds one timer at a time: without a
// pause in the first row, at a fixed rate in the second.
func adderRows(name, paced, via, title string) []row {
	adds := func(count, rate int) func(*Config) {
		return func(c *Config) { c.Via, c.Count, c.Rate = via, count, rate }
	}
	return []row{
		{name, "add", adds(40_000, 0), adds(150_000, 0), []rowGoal{
			{title + ": adds", atLeast(5000, "/s"), atLeast(20_000, "/s"), byFigure("adds acknowledged")},
			{title + ": p99", below(10, "ms"), below(5, "ms"), byLatency("answer to an add", 99)},
		}},
		{paced, "add", adds(40_000, 4000), adds(150_000, 15_000), []rowGoal{
			{"… at 4 k/s (safe), 15 k/s (fast), from the intended start: p99", below(10, "ms"), below(5, "ms"), byLatency("answer to an add, from its intended start", 99)},
		}},
	}
}

// rows returns the rows of the table in the order in which they run.
func rows() []row {
	const late = latenessAtSubscriber
	return slices.Concat([]row{
		{
			"bulk", "add", func(c *Config) { c.Via, c.Count = ViaBatch, 200_000 }, func(c *Config) { c.Count = 200_000 },
			[]rowGoal{{"bulk adds, acknowledged", atLeast(20_000, "/s"), atLeast(40_000, "/s"), byFigure("adds acknowledged")}},
		},
	}, adderRows("singles", "paced", ViaSingle, "16 single adders"), adderRows("client", "clientpaced", ViaClient, "16 callers of the Go client's Add"), []row{
		{
			"steady1k", "steady", steadyAhead(1000, 20), nil,
			[]rowGoal{
				{"steady lateness at 1 k/s, added before: p99", below(10, "ms"), below(3, "ms"), byLatency(late, 99)},
				{"steady lateness at 1 k/s, added before: p99.9", below(25, "ms"), below(10, "ms"), byLatency(late, 99.9)},
			},
		},
		{
			"adding1k", "steady", func(c *Config) { c.Rate, c.Seconds = 1000, 20 }, nil,
			[]rowGoal{
				{"… while as many are added: p99", below(10, "ms"), below(3, "ms"), byLatency(late, 99)},
				{"… while as many are added: p99.9", below(25, "ms"), below(10, "ms"), byLatency(late, 99.9)},
			},
		},
		{
			"steady10k", "steady", steadyAhead(10_000, 10), nil,
			[]rowGoal{{"steady lateness at 10 k/s, added before: p99", below(100, "ms"), below(20, "ms"), byLatency(late, 99)}},
		},
		{
			"adding10k", "steady", func(c *Config) { c.Rate, c.Seconds = 10_000, 10 }, nil,
			[]rowGoal{{"… while as many are added: p99", below(100, "ms"), below(20, "ms"), byLatency(late, 99)}},
		},
		{
			"burst", "burst", func(c *Config) { c.Via, c.Count, c.Lead = ViaBatch, 100_000, aheadLead(100_000, 10_000) }, func(c *Config) { c.Count, c.Lead = 100_000, aheadLead(100_000, 5000) },
			[]rowGoal{{"burst of 100 k at one instant: last delivered", below(8000, "ms"), below(4000, "ms"), byFigure("last, at the subscriber")}},
		},
		{
			"day", "day", func(c *Config) { c.Via, c.Rate, c.Seconds = ViaBatch, 6000, 30 }, func(c *Config) { c.Rate, c.Seconds = 11_600, 30 },
			[]rowGoal{
				{"sustained end to end at 6 k/s (safe), 11.6 k/s (fast): concluded", atLeast(6000*keptUp, "/s"), atLeast(11_600*keptUp, "/s"), byFigure("timers concluded")},
				{"… the lag stayed flat (1: yes)", atLeast(1, ""), atLeast(1, ""), byFigure(flatFigure)},
			},
		},
		{
			"dayother", "day", func(c *Config) { c.Rate, c.Seconds = 6000, 30 }, func(c *Config) { c.Via, c.Rate, c.Seconds = ViaBatch, 11_600, 30 },
			[]rowGoal{
				{"… adds published one by one (safe), in batches (fast): concluded", atLeast(6000*keptUp, "/s"), atLeast(11_600*keptUp, "/s"), byFigure("timers concluded")},
				{"… the lag stayed flat (1: yes)", atLeast(1, ""), atLeast(1, ""), byFigure(flatFigure)},
			},
		},
		{
			"http", "callback", func(c *Config) { c.Callback, c.Rate, c.Seconds = CallbackHTTP, 3000, 15 }, func(c *Config) { c.Callback, c.Rate, c.Seconds = CallbackHTTP, 5000, 15 },
			[]rowGoal{
				{"with an HTTP callback at 3 k/s (safe), 5 k/s (fast): concluded", atLeast(3000*keptUp, "/s"), atLeast(5000*keptUp, "/s"), byFigure("timers concluded")},
				{"… the lag stayed flat (1: yes)", atLeast(1, ""), atLeast(1, ""), byFigure(flatFigure)},
			},
		},
		{
			"nats", "callback", func(c *Config) { c.Callback, c.Rate, c.Seconds = CallbackNATS, 3000, 15 }, func(c *Config) { c.Callback, c.Rate, c.Seconds = CallbackNATS, 5000, 15 },
			[]rowGoal{{"with a NATS callback at 3 k/s (safe), 5 k/s (fast): concluded", atLeast(3000*keptUp, "/s"), atLeast(5000*keptUp, "/s"), byFigure("timers concluded")}},
		},
		{
			"cancel", "cancel", func(c *Config) { c.Count = 20_000 }, func(c *Config) { c.Count = 60_000 },
			[]rowGoal{{"cancels by id", atLeast(5000, "/s"), atLeast(15_000, "/s"), byFigure("cancels")}},
		},
		{
			"pending", "pending", func(c *Config) { c.Count, c.Seconds, c.LoadFast, c.Settle = 1_000_000, 8, true, -1 }, nil,
			[]rowGoal{
				{"1 M pending: restart after SIGKILL until firing", below(8, "s"), below(8, "s"), byFigure(restartFigure)},
				{"1 M pending: idle CPU above an empty server's", below(2, "% of a core"), below(2, "% of a core"), byFigure(idleFigure)},
			},
		},
	})
}

// steadyAhead configures a run with a steady rate of timers that are added before.
func steadyAhead(rate, seconds int) func(*Config) {
	return func(c *Config) {
		c.Rate, c.Seconds, c.Via, c.Ahead, c.Lead = rate, seconds, ViaBatch, true, aheadLead(rate*seconds, 10_000)
	}
}

// keptUp is the part of a rate that must finish per second for the rate to count as sustained.
// It is below 1 because the time counts until the last timer has finished, and runs are short.
const keptUp = 0.97

// Cell is the result of a row in one profile.
type Cell struct {
	Want string `json:"want"`
	Got  string `json:"got"`
	Good bool   `json:"good"`
	// Value is the median of the runs, Least and Greatest their range. All are nil without a
	// run.
	Value    *float64 `json:"value,omitempty"`
	Least    *float64 `json:"least,omitempty"`
	Greatest *float64 `json:"greatest,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// TableRow is one figure with its required value and its results.
type TableRow struct {
	Name  string `json:"name"`
	Cells []Cell `json:"cells"` // one for each profile
}

// TableResult is the finished table with the results of its runs.
type TableResult struct {
	Profiles []app.Profile `json:"profiles"`
	Rows     []TableRow    `json:"rows"`
	Results  []*Result     `json:"results"`
	Took     float64       `json:"took_seconds"`
}

// RowNames returns the names that Table.Only accepts.
func RowNames() []string {
	var out []string
	for _, r := range rows() {
		out = append(out, r.name)
	}
	return out
}

// Run measures all rows in every profile. The table has a failed row with its error, and Run
// continues with the others. It stops only if ctx ends or a setting is invalid.
func (t *Table) Run(ctx context.Context) (*TableResult, error) {
	for _, name := range t.Only {
		if !slices.Contains(RowNames(), name) {
			return nil, bad("row %.40q does not exist; there are: %s", name, strings.Join(RowNames(), " "))
		}
	}
	if t.Scale <= 0 || t.Scale > 1 {
		return nil, bad("scale is %v; it must be above 0 and up to 1", t.Scale)
	}
	for _, profile := range t.Profiles {
		if profile != app.ProfileSafe && profile != app.ProfileFast {
			return nil, bad("profile %.40q does not exist; it is safe, fast or both", string(profile))
		}
	}
	base := t.Config // report settings that are invalid for all rows before the first run
	if err := base.setDefaults(); err != nil {
		return nil, err
	}
	begun := time.Now()
	out := &TableResult{Profiles: t.Profiles}
	defer func() { out.Took = time.Since(begun).Seconds() }()
	for _, r := range rows() {
		if len(t.Only) > 0 && !slices.Contains(t.Only, r.name) {
			continue
		}
		first := len(out.Rows)
		for _, g := range r.goals {
			out.Rows = append(out.Rows, TableRow{Name: g.name})
		}
		for _, profile := range t.Profiles {
			results, err := t.runRow(ctx, r, profile)
			out.Results = append(out.Results, results...)
			for i, g := range r.goals {
				want := g.safe
				if profile == app.ProfileFast {
					want = g.fast
				}
				out.Rows[first+i].Cells = append(out.Rows[first+i].Cells, cell(want, g.value, results, err))
			}
		}
	}
	return out, context.Cause(ctx)
}

func (t *Table) runRow(ctx context.Context, r row, profile app.Profile) ([]*Result, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c := t.Config
	c.Profile = profile
	set := r.safe
	if profile == app.ProfileFast && r.fast != nil {
		set = r.fast
	}
	set(&c)
	for _, n := range []*int{&c.Count, &c.Rate, &c.Seconds} {
		if *n > 0 {
			*n = max(int(float64(*n)*t.Scale), 1)
		}
	}
	c.Lead = time.Duration(float64(c.Lead) * t.Scale)
	if t.Progress != nil {
		if _, err := fmt.Fprintf(t.Progress, "%s, %s\n", r.name, profile); err != nil {
			return nil, err
		}
	}
	w, err := Find(r.workload)
	if err != nil {
		return nil, err
	}
	bound := rowBound * time.Duration(max(t.Repeat, 1))
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the runs of the row took longer than %s", bound))
	defer cancel()
	results, err := Run(ctx, w, c, max(t.Repeat, 1))
	for _, res := range results {
		res.Row = r.name
	}
	return results, err
}

func cell(want goal, value func(*Result) (float64, bool), results []*Result, err error) Cell {
	c := Cell{Want: want.String(), Got: "no result"}
	var v []float64
	for _, r := range results {
		if x, ok := value(r); ok {
			v = append(v, x)
		}
	}
	if len(v) > 0 {
		slices.Sort(v)
		m := median(v)
		c.Value, c.Least, c.Greatest = &m, &v[0], &v[len(v)-1]
		c.Got = Short(m) + " " + want.unit
		if len(v) > 1 {
			c.Got += fmt.Sprintf(" (%s to %s)", Short(v[0]), Short(v[len(v)-1]))
		}
		c.Good = want.met(m) && err == nil
	}
	if err != nil {
		c.Error = err.Error()
		c.Got += ", failed"
	}
	c.Got = strings.TrimSpace(c.Got)
	return c
}

// Short formats a number with three digits: 11.6 k, 0.412.
func Short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3g M", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.3g k", v/1e3)
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// JSON writes the table and its runs.
func (t *TableResult) JSON(w io.Writer) error { return writeJSON(w, t) }

// Markdown writes the table. A second table has the cost of a timer in each run and, if measured,
// the cost of raw JetStream operations.
func (t *TableResult) Markdown(w io.Writer) error {
	p := &printer{w: w}
	p.f("| figure |")
	for _, profile := range t.Profiles {
		p.f(" %s: wanted | measured |", profile)
	}
	p.f("\n|---|%s\n", strings.Repeat("---|---|", len(t.Profiles)))
	for _, r := range t.Rows {
		p.f("| %s |", r.Name)
		for _, c := range r.Cells {
			got := c.Got
			if c.Good {
				got = "**" + got + "**"
			}
			p.f(" %s | %s |", c.Want, got)
		}
		p.f("\n")
	}
	printed := map[string]bool{} // several rows may have the error of one run
	for _, r := range t.Rows {
		for i, c := range r.Cells {
			if c.Error != "" && !printed[c.Error] {
				printed[c.Error] = true
				p.f("\n%s, %s: %s\n", r.Name, t.Profiles[i], c.Error)
			}
		}
	}
	t.budget(p)
	if len(t.Results) > 0 {
		m := t.Results[0].Machine
		p.f("\n%d CPUs, %s/%s, %s; %s; values that reach the goal are bold; %s; %.0f s in all.\n", m.CPUs, m.OS, m.Arch, m.Go, t.Results[0].At.Format("2006-01-02"), t.where(), t.Took)
	}
	return p.err
}

// where says in which processes the runs were.
func (t *TableResult) where() string {
	if t.Results[0].Settings["in_process"] == true {
		return "server, node and clients in one process, without TCP"
	}
	return "the node in a process of its own, clients over TCP"
}

// budget writes the table with the cost of a timer in each run.
func (t *TableResult) budget(p *printer) {
	p.f("\n| run | profile | CPU a timer, µs | messages a timer | allocations a timer | reads and writes a timer | raw publish, µs | raw create, µs | raw compare-and-set, µs | timer / raw publish | others, %% of a core |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range t.Results {
		if r.value(cpuFigure) == 0 {
			continue
		}
		p.f("| %s | %v |", r.Label(), r.Settings["profile"])
		for _, name := range []string{cpuFigure, "messages stored a timer", "allocations a timer", callsFigure, rawCPU("publish"), rawCPU("create"), rawCPU("compare-and-set"), "a timer costs, in raw publishes", othersFigure} {
			if v := r.value(name); v > 0 {
				p.f(" %s |", Short(v))
			} else {
				p.f(" |")
			}
		}
		p.f("\n")
	}
}
