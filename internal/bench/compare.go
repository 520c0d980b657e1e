package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/belfryio/belfry/internal/app"
)

// Contender is a system that takes part in a comparison.
type Contender struct {
	// Name is the title of its column; default the title of System.
	Name   string
	System System
	// Child runs its processes, as Config.Child does; nil for that of the comparison. A contender
	// of an earlier version of Belfry has the belfry-bench of that version.
	Child func(spec string) *exec.Cmd
}

// Comparison measures several systems with the same workloads, in turns, on this machine. Each run
// has new processes and folders. In each turn another system begins, so that a machine whose speed
// drifts favours none.
type Comparison struct {
	// Config is the base of every run, which uses its Dir, Size, Warmup, NoSearchIndex, Progress and
	// Child.
	Config
	// Contenders are the systems; at least one.
	Contenders []Contender
	Profiles   []app.Profile
	// Repeat is the number of turns; the table has median, minimum and maximum.
	Repeat int
	// Scale, above 0 and up to 1, multiplies counts and durations, but no rates.
	Scale float64
	// Only, if not empty, names the rows to run.
	Only []string
	// Each, if not nil, is called with the result so far after each row, so that an interrupted
	// comparison leaves the rows that it has measured.
	Each func(*ComparisonResult) error
}

// compareRow is one workload of a comparison. Each run gives all its figures.
type compareRow struct {
	name, workload string
	// safe and fast configure the run in a profile; nil if the row is not measured there.
	safe, fast func(*Config)
	// belfry marks rows that other systems have no counterpart for.
	belfry  bool
	figures []compareFigure
}

type compareFigure struct {
	// name may contain {count}, {rate} and {seconds} of the run.
	name, unit string
	// lower reports that a lower value is better.
	lower bool
	value func(*Result) (float64, bool)
}

// compareBound bounds one run.
const compareBound = 10 * time.Minute

// comparePace is the adds per second with which the timers of burst and steady10k are expected to
// be stored. A run whose system is slower begins again with a longer lead.
const comparePace = 5000

// compareRows returns the rows in the order in which they run.
func compareRows() []compareRow {
	add := func(via string, count int) func(*Config) {
		return func(c *Config) { c.Via, c.Count = via, count }
	}
	answers := byLatency("answer to an add", 99)
	acknowledged := byFigure("adds acknowledged")
	late := func(q float64) func(*Result) (float64, bool) { return byLatency(latenessAtSubscriber, q) }
	burst := []compareFigure{
		{"{count} at one instant: first", "ms", true, byFigure("first, at the subscriber")},
		{"… last", "ms", true, byFigure("last, at the subscriber")},
	}
	cancels := func(callers int) compareRow {
		run := func(via string, count int) func(*Config) {
			return func(c *Config) { c.Via, c.Count, c.Callers = via, count, callers }
		}
		return compareRow{
			fmt.Sprintf("cancel%d", callers), "cancel", run(ViaBatch, 15_000), run(ViaPublish, 60_000), false,
			[]compareFigure{{fmt.Sprintf("cancels, %d callers", callers), "/s", false, byFigure("cancels")}},
		}
	}
	return []compareRow{
		{"bulk", "add", add(ViaPublish, 40_000), add(ViaPublish, 200_000), false, []compareFigure{
			{"adds in bulk, acknowledged", "/s", false, acknowledged},
			{"… stored and able to fire", "/s", false, byFigure("timers stored")},
			{"… CPU of the system an add", "µs", true, byFigure(apartFigure)},
		}},
		{"singles", "singles", add(ViaSingle, 15_000), add(ViaSingle, 60_000), false, []compareFigure{
			{"16 single adders: adds", "/s", false, acknowledged},
			{"… p99 of an answer", "ms", true, answers},
		}},
		{"client", "singles", add(ViaClient, 15_000), add(ViaClient, 60_000), true, []compareFigure{
			{"16 callers of the Go client's Add: adds", "/s", false, acknowledged},
			{"… p99 of an answer", "ms", true, answers},
		}},
		{"clientasync", "add", add(ViaClientAsync, 60_000), add(ViaClientAsync, 200_000), true, []compareFigure{
			{"Go client's AddAsync, 2 callers: adds", "/s", false, acknowledged},
		}},
		{"clientbatch", "add", add(ViaClientBatch, 60_000), add(ViaClientBatch, 200_000), true, []compareFigure{
			{"Go client's AddBatch, 2 callers with 500 each: adds", "/s", false, acknowledged},
		}},
		{"steady1k", "steady", rated(1000, 20), rated(1000, 20), false, []compareFigure{
			{"lateness at {rate}/s, while as many are added: p50", "ms", true, late(50)},
			{"… p99", "ms", true, late(99)},
			{"… p99.9", "ms", true, late(99.9)},
		}},
		{"steady10k", "steady", nil, func(c *Config) { c.Rate, c.Seconds, c.Ahead = 10_000, 10, true }, false, []compareFigure{
			{"lateness at {rate}/s, added before: p50", "ms", true, late(50)},
			{"… p99", "ms", true, late(99)},
		}},
		{"burst", "burst", add(ViaBatch, 100_000), add(ViaPublish, 100_000), false, burst},
		cancels(16),
		cancels(64),
		{"day", "day", nil, rated(11_600, 30), true, []compareFigure{
			{"end to end at {rate}/s for {seconds} s: concluded", "/s", false, byFigure("timers concluded")},
			{"… CPU of the system a timer", "µs", true, byFigure(apartFigure)},
			{"… the lag stayed flat (1: yes)", "", false, byFigure(flatFigure)},
		}},
		{"pending", "pending", nil, func(c *Config) { c.Count, c.Seconds = 1_000_000, 8 }, false, []compareFigure{
			{"{count} pending: memory a timer, {settle} after filling", "B", true, byFigure(filledFigure)},
			{"… after a restart", "B", true, byFigure(restartedFigure)},
			{"… restart after SIGKILL until firing", "s", true, byFigure(restartFigure)},
			{"… idle CPU above an empty server's", "% of a core", true, byFigure(idleFigure)},
		}},
	}
}

// rated configures a rate of timers for a period.
func rated(rate, seconds int) func(*Config) {
	return func(c *Config) { c.Rate, c.Seconds = rate, seconds }
}

// CompareRowNames returns the names that Comparison.Only accepts.
func CompareRowNames() []string {
	var out []string
	for _, r := range compareRows() {
		out = append(out, r.name)
	}
	return out
}

// ComparisonResult is a comparison with its runs.
type ComparisonResult struct {
	Contenders []string `json:"contenders"`
	// Bounds names the contenders that are never marked as the best: the floor.
	Bounds  []string       `json:"bounds,omitempty"`
	Tables  []CompareTable `json:"tables"`
	Runs    []CompareRun   `json:"runs"`
	Machine Machine        `json:"machine"`
	At      time.Time      `json:"at"`
	Took    float64        `json:"took_seconds"`
	Repeat  int            `json:"repeat"`
	Scale   float64        `json:"scale"`
	Size    int            `json:"size"`
	// SearchIndex reports that Belfry ran its search index.
	SearchIndex bool `json:"search_index"`
	// Commit is the commit of this program, "" if unknown. NATSServer is the version of the server
	// library, on which all systems run.
	Commit     string `json:"commit,omitempty"`
	NATSServer string `json:"nats_server"`
}

// CompareTable has the figures of one profile.
type CompareTable struct {
	Profile app.Profile      `json:"profile"`
	Figures []CompareFigures `json:"figures"`
}

// CompareFigures is one figure of all contenders.
type CompareFigures struct {
	Name  string `json:"name"`
	Unit  string `json:"unit"`
	Lower bool   `json:"lower_is_better"`
	// Cells has the spread of each contender; nil for one without a result.
	Cells []*Spread `json:"cells"`
	// Others is the greatest CPU that other processes used in one of the runs, in percent of a core.
	Others float64 `json:"others"`
}

// CompareRun is one run of a contender.
type CompareRun struct {
	Row       string      `json:"row"`
	Profile   app.Profile `json:"profile"`
	Contender string      `json:"contender"`
	Turn      int         `json:"turn"` // from 1
	Error     string      `json:"error,omitempty"`
	Result    *Result     `json:"result,omitempty"` // nil for a run that failed before its end
}

// Run measures all rows in every profile. A failed run is in the result with its error, and Run
// continues with the others. It returns an error, beside the result, if ctx ends or a run was not
// sound, and without a result if a setting is invalid.
func (c *Comparison) Run(ctx context.Context) (*ComparisonResult, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	begun := time.Now()
	out := &ComparisonResult{
		Machine: machine(), At: begun.UTC().Truncate(time.Second), Repeat: c.Repeat, Scale: c.Scale, Size: cmp.Or(c.Size, DefaultSize),
		SearchIndex: !c.NoSearchIndex, Commit: commit(), NATSServer: server.VERSION,
	}
	for _, k := range c.Contenders {
		name := cmp.Or(k.Name, k.System.Title())
		out.Contenders = append(out.Contenders, name)
		if k.System == Floor {
			out.Bounds = append(out.Bounds, name)
		}
	}
	all := c.plan()
	var failed error
	for _, profile := range c.Profiles {
		out.Tables = append(out.Tables, CompareTable{Profile: profile})
		table := &out.Tables[len(out.Tables)-1]
		for _, row := range compareRows() {
			set := row.in(profile)
			if set == nil || len(c.Only) > 0 && !slices.Contains(c.Only, row.name) || ctx.Err() != nil {
				continue
			}
			config := c.configure(set, profile)
			runs, err := c.turns(ctx, row, config, out, all)
			failed = errors.Join(failed, err)
			table.Figures = append(table.Figures, figuresOf(row, config, out.Contenders, runs)...)
			out.Took = time.Since(begun).Seconds()
			if c.Each != nil {
				if err := c.Each(out); err != nil {
					return out, err
				}
			}
		}
	}
	return out, errors.Join(context.Cause(ctx), failed)
}

func (r compareRow) in(profile app.Profile) func(*Config) {
	if profile == app.ProfileFast {
		return r.fast
	}
	return r.safe
}

// measures reports whether a row measures a system.
func (r compareRow) measures(system System) bool {
	return measures(r.workload, system) && (!r.belfry || system == "" || system == Belfry)
}

func (c *Comparison) check() error {
	for _, name := range c.Only {
		if !slices.Contains(CompareRowNames(), name) {
			return bad("row %.40q does not exist; there are: %s", name, strings.Join(CompareRowNames(), " "))
		}
	}
	for _, profile := range c.Profiles {
		if profile != app.ProfileSafe && profile != app.ProfileFast {
			return bad("profile %.40q does not exist; it is safe, fast or both", string(profile))
		}
	}
	switch {
	case c.Scale <= 0 || c.Scale > 1:
		return bad("scale is %v; it must be above 0 and up to 1", c.Scale)
	case c.Repeat < 1:
		return bad("repeat is %d; it must be 1 or more", c.Repeat)
	case len(c.Contenders) == 0:
		return bad("a comparison needs a system")
	}
	for _, k := range c.Contenders { // report settings that are invalid for all rows before the first run
		base := c.Config
		base.System, base.InProcess = k.System, false
		if err := base.setDefaults(); err != nil {
			return err
		}
	}
	return nil
}

// plan returns the number of runs.
func (c *Comparison) plan() int {
	n := 0
	for _, profile := range c.Profiles {
		for _, row := range compareRows() {
			if row.in(profile) == nil || len(c.Only) > 0 && !slices.Contains(c.Only, row.name) {
				continue
			}
			for _, k := range c.Contenders {
				if row.measures(k.System) {
					n += c.Repeat
				}
			}
		}
	}
	return n
}

// configure returns the settings of a row's runs.
func (c *Comparison) configure(set func(*Config), profile app.Profile) Config {
	config := c.Config
	config.Profile, config.InProcess = profile, false
	set(&config)
	for _, n := range []*int{&config.Count, &config.Seconds} {
		if *n > 0 {
			*n = max(int(float64(*n)*c.Scale), 1)
		}
	}
	config.Lead = 0
	config.Settle = max(time.Duration(float64(defaultSettle)*c.Scale).Round(time.Second), time.Second)
	return config
}

// turns runs a row for all contenders, Repeat times, and returns the runs by contender.
func (c *Comparison) turns(ctx context.Context, row compareRow, config Config, out *ComparisonResult, all int) ([][]CompareRun, error) {
	w, err := Find(row.workload)
	if err != nil {
		return nil, err
	}
	runs := make([][]CompareRun, len(c.Contenders))
	var failed error
	for turn := range c.Repeat {
		for i := range c.Contenders {
			i = (i + turn) % len(c.Contenders)
			k := c.Contenders[i]
			if !row.measures(k.System) || ctx.Err() != nil {
				continue
			}
			run := CompareRun{Row: row.name, Profile: config.Profile, Contender: out.Contenders[i], Turn: turn + 1}
			if c.Progress != nil {
				if _, err := fmt.Fprintf(c.Progress, "run %d of %d, %.0f s gone: %s, %s, %s, turn %d\n", len(out.Runs)+1, all, time.Since(out.At).Seconds(), row.name, run.Profile, run.Contender, run.Turn); err != nil {
					return runs, err
				}
			}
			if run.Result, err = c.one(ctx, w, k, config); err != nil {
				run.Error = err.Error()
				failed = errors.Join(failed, fmt.Errorf("%s, %s, %s: %w", row.name, run.Profile, run.Contender, err))
			}
			runs[i], out.Runs = append(runs[i], run), append(out.Runs, run)
		}
	}
	return runs, failed
}

// one measures a contender once.
func (c *Comparison) one(ctx context.Context, w Workload, k Contender, config Config) (*Result, error) {
	config.System = k.System
	if k.Child != nil {
		config.Child = k.Child
	}
	count := config.Count
	if config.Ahead {
		count = config.Rate * config.Seconds
	}
	if config.Ahead || w.Name() == (burstWorkload{}).Name() {
		config.Lead = aheadLead(count, comparePace)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, compareBound, fmt.Errorf("the run took longer than %s", compareBound))
	defer cancel()
	results, err := Run(ctx, w, config, 1)
	if len(results) == 0 {
		return nil, err
	}
	r := results[0]
	r.Curves = Curves{}
	return r, err
}

// figuresOf returns the figures of a row. The runs are by contender. A run that was not sound
// counts for nothing.
func figuresOf(row compareRow, config Config, contenders []string, runs [][]CompareRun) []CompareFigures {
	fill := strings.NewReplacer("{count}", Short(float64(config.Count)), "{rate}", Short(float64(config.Rate)),
		"{seconds}", fmt.Sprint(config.Seconds), "{settle}", fmt.Sprintf("%.0f s", config.Settle.Seconds()))
	var out []CompareFigures
	for _, f := range row.figures {
		figure := CompareFigures{Name: fill.Replace(f.name), Unit: f.unit, Lower: f.lower, Cells: make([]*Spread, len(contenders))}
		for i := range runs {
			var v []float64
			for _, run := range runs[i] {
				if run.Result == nil || run.Error != "" {
					continue
				}
				if x, ok := f.value(run.Result); ok {
					v = append(v, x)
					figure.Others = max(figure.Others, run.Result.value(loadFigure), run.Result.value(othersFigure))
				}
			}
			if len(v) > 0 {
				slices.Sort(v)
				figure.Cells[i] = &Spread{Name: contenders[i], Unit: f.unit, Median: median(v), Least: v[0], Greatest: v[len(v)-1]}
			}
		}
		out = append(out, figure)
	}
	return out
}

// commit returns the commit of which this program was built, with + if files were changed.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var hash, changed string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			hash = s.Value[:min(len(s.Value), 7)]
		case "vcs.modified":
			if s.Value == "true" {
				changed = "+"
			}
		}
	}
	return hash + changed
}

// JSON writes the comparison and its runs.
func (r *ComparisonResult) JSON(w io.Writer) error { return writeJSON(w, r) }

// Markdown writes a table for each profile, the account of the timers, and a table of the runs
// with the load of others.
func (r *ComparisonResult) Markdown(w io.Writer) error {
	p := &printer{w: w}
	for _, t := range r.Tables {
		if len(t.Figures) == 0 {
			continue // interrupted before its first row
		}
		p.f("| %s | %s | others, %% of a core |\n|---|%s\n", t.Profile, strings.Join(r.Contenders, " | "), strings.Repeat("---|", len(r.Contenders)+1))
		for _, f := range t.Figures {
			p.f("| %s |", f.Name)
			best := f.best(r.Bounds)
			for i, cell := range f.Cells {
				text := cell.text()
				if i == best {
					text = "**" + text + "**"
				}
				p.f(" %s |", text)
			}
			others := ""
			if slices.ContainsFunc(f.Cells, func(s *Spread) bool { return s != nil }) {
				others = Short(f.Others)
			}
			p.f(" %s |\n", others)
		}
		p.f("\n")
	}
	r.conditions(p)
	r.accounts(p)
	p.f("| run | profile | system | turn | took, s | others while it was measured, %% of a core | others in the whole run |\n|---|---|---|---|---|---|---|\n")
	for _, run := range r.Runs {
		p.f("| %s | %s | %s | %d |", run.Row, run.Profile, run.Contender, run.Turn)
		if run.Result == nil {
			p.f(" failed | | |\n")
			continue
		}
		p.f(" %.0f | %s | %s |\n", run.Result.TookSeconds, measured(run.Result, othersFigure), measured(run.Result, loadFigure))
	}
	return p.err
}

// measured formats a figure; "" if the result lacks it.
func measured(r *Result, name string) string {
	if v, ok := byFigure(name)(r); ok {
		return Short(v)
	}
	return ""
}

// best returns the index of the best median, ignoring bounds; -1 if fewer than two remain.
func (f CompareFigures) best(bounds []string) int {
	best, cells := -1, 0
	for i, c := range f.Cells {
		if c == nil || slices.Contains(bounds, c.Name) {
			continue
		}
		cells++
		if best < 0 || f.Lower && c.Median < f.Cells[best].Median || !f.Lower && c.Median > f.Cells[best].Median {
			best = i
		}
	}
	if cells < 2 {
		return -1
	}
	return best
}

// text formats the median, with the range if it has one.
func (s *Spread) text() string {
	if s == nil {
		return "–"
	}
	text := strings.TrimSpace(Short(s.Median) + " " + s.Unit)
	if s.Least != s.Greatest {
		text += fmt.Sprintf(" (%s to %s)", Short(s.Least), Short(s.Greatest))
	}
	return text
}

// conditions writes how the systems were measured.
func (r *ComparisonResult) conditions(p *printer) {
	p.f("Each system in a process of its own, clients in another, over TCP on the same machine. ")
	turns, scale, index := "One run each", "", "with"
	if r.Repeat > 1 {
		turns = fmt.Sprintf("Median (minimum to maximum) of %d runs in turns", r.Repeat)
	}
	if r.Scale != 1 {
		scale = fmt.Sprintf(" Counts and durations are a fraction of %g of the full comparison.", r.Scale)
	}
	if !r.SearchIndex {
		index = "without"
	}
	p.f("%s; the best is bold.%s %d bytes of data; Belfry %s its search index. %s\n\n", turns, scale, r.Size, index, r.disturbed())
	of := ""
	if r.Commit != "" {
		of = "Commit " + r.Commit + ", "
	}
	p.f("%s%s; %d CPUs, %s/%s, %s, nats-server %s; %.0f s in all.\n\n", of, r.At.Format("2006-01-02"), r.Machine.CPUs, r.Machine.OS, r.Machine.Arch, r.Machine.Go, r.NATSServer, r.Took)
}

// disturbed says whether other processes used the machine during the runs.
func (r *ComparisonResult) disturbed() string {
	var results []*Result
	for _, run := range r.Runs {
		if run.Result != nil {
			results = append(results, run.Result)
		}
	}
	return disturbed(results)
}

// accounts writes how many timers of each contender were accounted for, and the failed runs.
func (r *ComparisonResult) accounts(p *printer) {
	for _, name := range r.Contenders {
		var v Verified
		for _, run := range r.Runs {
			if run.Contender == name && run.Result != nil {
				v.add(run.Result.Verified)
			}
		}
		p.f("%s: %d timers, %d missing, %d twice, %d early, %d in a wrong state.\n", name, v.Expected, v.Missing, v.Duplicates, v.Early, v.Wrong)
	}
	p.f("\n")
	for _, run := range r.Runs {
		if run.Error != "" {
			p.f("Failed: %s, %s, %s, turn %d: %s\n\n", run.Row, run.Profile, run.Contender, run.Turn, run.Error)
		}
	}
}
