package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/internal/doctest"
	"github.com/belfryio/belfry/internal/waittest"
)

const (
	alertsFile     = "deploy/prometheus/alerts.yaml"
	alertsTestFile = "deploy/prometheus/alerts_test.yaml"
	dashboardFile  = "deploy/grafana/belfry.json"
)

// alertRule is an alert in the file of rules.
type alertRule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) []alertRule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []alertRule
		}
	}
	readYAML(t, alertsFile, &file)
	var all []alertRule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 20 {
		t.Fatalf("%s has %d alerts, want at least 20", alertsFile, len(all))
	}
	return all
}

// target is a query of a panel.
type target struct{ Expr, LegendFormat string }

// panel is a panel of the dashboard.
type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []target
}

func dashboard(t *testing.T) (panels []panel, variables string) {
	t.Helper()
	var d struct {
		Title      string
		Panels     []panel
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	for _, v := range d.Templating.List {
		variables += v.Definition + "\n"
	}
	return d.Panels, variables
}

// TestDashboard: each panel is of a type that Grafana has without plugins, has a query, and lies
// on no other one.
func TestDashboard(t *testing.T) {
	t.Parallel()
	panels, _ := dashboard(t)
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 || p.GridPos.H == 0 {
			t.Errorf("panel %q does not fit into the grid: %+v", p.Title, p.GridPos)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panel %q lies on panel %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		switch p.Type {
		case "row":
		case "stat", "timeseries":
			if len(p.Targets) == 0 || p.Description == "" {
				t.Errorf("panel %q has no query or no description", p.Title)
			}
		default:
			t.Errorf("panel %q has the type %s", p.Title, p.Type)
		}
	}
	if len(panels) < 20 {
		t.Errorf("the dashboard has only %d panels", len(panels))
	}
}

// query is a PromQL expression and where it stands.
type query struct{ where, expr string }

// queries returns the expressions of the alerts and of the dashboard.
func queries(t *testing.T) []query {
	t.Helper()
	var all []query
	for _, a := range alerts(t) {
		all = append(all, query{"alert " + a.Alert, a.Expr})
	}
	panels, variables := dashboard(t)
	for _, p := range panels {
		for _, q := range p.Targets {
			all = append(all, query{"panel " + p.Title, q.Expr})
		}
	}
	for v := range strings.Lines(variables) {
		all = append(all, query{"a variable of the dashboard", v})
	}
	return all
}

var (
	metricPattern  = regexp.MustCompile(`\b((?:belfry|process|go)_[a-z_]+[a-z])(?:\{([^}]*)\})?`)
	labelPattern   = regexp.MustCompile(`([a-z_]+) *(?:=~|!~|!=|=) *"([^"]*)"`)
	byPattern      = regexp.MustCompile(`\bby \(([^)]*)\)`)
	docPattern     = regexp.MustCompile("`(belfry_[a-z_]*[a-z])(?:\\{([a-z,]+)\\})?`")
	seriesPattern  = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})?$`)
	scrapedLabels  = []string{"job", "instance"} // Prometheus adds them
	seriesSuffixes = []string{"_bucket", "_sum", "_count"}
)

// TestMetricsExist: a node exports each metric that an alert, a test of the alerts or the dashboard
// names, and the metric has the labels that they select by.
func TestMetricsExist(t *testing.T) {
	t.Parallel()
	a := startNode(t)
	reg := a.Registry()
	documented := documentedLabels(t)
	compareLabels(t, reg, documented)
	known := func(where, name string) string {
		base := name
		if !registered(reg, base) {
			for _, suffix := range seriesSuffixes {
				base = strings.TrimSuffix(base, suffix)
			}
		}
		if !registered(reg, base) {
			t.Errorf("%s: a node does not export %s", where, name)
		}
		return base
	}
	used := map[string]bool{}
	for _, q := range queries(t) {
		labels := append([]string{"le"}, scrapedLabels...)
		for _, m := range metricPattern.FindAllStringSubmatch(q.expr, -1) {
			base := known(q.where, m[1])
			used[base] = true
			labels = append(labels, documented[base]...)
			for _, l := range labelPattern.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(append(documented[base], scrapedLabels...), l[1]) {
					t.Errorf("%s: %s has no label %s", q.where, base, l[1])
				}
			}
		}
		for _, m := range byPattern.FindAllStringSubmatch(q.expr, -1) {
			for label := range strings.SplitSeq(m[1], ", ") {
				if !slices.Contains(labels, label) {
					t.Errorf("%s: no metric has the label %s: %s", q.where, label, q.expr)
				}
			}
		}
	}
	if len(used) < 40 {
		t.Errorf("alerts and dashboard use only %d metrics", len(used))
	}
	for _, test := range alertTests(t) {
		for _, s := range test.InputSeries {
			m := seriesPattern.FindStringSubmatch(s.Series)
			if m == nil {
				t.Errorf("test of %s: the series %s cannot be read", test.Name, s.Series)
				continue
			}
			if m[1] != "up" { // Prometheus's own
				known("test of "+test.Name, m[1])
			}
		}
	}
}

// registered reports whether a registry has a metric, which need not have series yet: then it
// refuses another one of this name with another help text.
func registered(reg *prometheus.Registry, name string) bool {
	other := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "a help text that no metric has"})
	if err := reg.Register(other); err != nil {
		return true
	}
	reg.Unregister(other)
	return false
}

// documentedLabels returns the labels of each metric in docs/operations.md.
func documentedLabels(t *testing.T) map[string][]string {
	t.Helper()
	labels := map[string][]string{}
	for line := range strings.Lines(read(t, "docs/operations.md")) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for _, m := range docPattern.FindAllStringSubmatch(first, -1) {
			if strings.HasPrefix(line, "| `belfry_") {
				labels[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' })
			}
		}
	}
	return labels
}

// compareLabels compares the labels of the metrics that have series with the documentation.
func compareLabels(t *testing.T, reg *prometheus.Registry, documented map[string][]string) {
	t.Helper()
	waittest.Until(t, "the node owns its shards and has read the streams", func() bool {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, f := range families {
			if name := f.GetName(); name == "belfry_pending_timers" || name == "belfry_stream_bytes" {
				found++
			}
		}
		return found == 2
	})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		want, ok := documented[f.GetName()]
		if !ok || len(f.GetMetric()) == 0 {
			continue
		}
		var got []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			got = append(got, l.GetName())
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the labels %v, docs/operations.md says %v", f.GetName(), got, want)
		}
	}
}

// TestLabelValuesExist: each value of a label that an alert selects by is a word in the code.
func TestLabelValuesExist(t *testing.T) {
	t.Parallel()
	words := map[string][]string{} // where a word is needed
	for _, a := range alerts(t) {
		for _, m := range metricPattern.FindAllStringSubmatch(a.Expr, -1) {
			for _, l := range labelPattern.FindAllStringSubmatch(m[2], -1) {
				for word := range strings.SplitSeq(l[2], "|") {
					words[word] = append(words[word], a.Alert)
				}
			}
		}
	}
	if len(words) < 8 {
		t.Fatalf("the alerts select only by %v", words)
	}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for word := range words {
			if strings.Contains(string(b), `"`+word+`"`) {
				delete(words, word)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for word, where := range words {
		t.Errorf("%v: no code has the word %q", where, word)
	}
}

// alertTest is a unit test of an alert.
type alertTest struct {
	Name        string
	Interval    string
	InputSeries []struct{ Series, Values string } `yaml:"input_series"`
	Expect      []struct {
		Expr    string
		At      string `yaml:"eval_time"`
		Samples []struct {
			Labels string
			Value  float64
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

func alertTests(t *testing.T) []alertTest {
	t.Helper()
	var file struct {
		RuleFiles []string `yaml:"rule_files"`
		Interval  string   `yaml:"evaluation_interval"`
		Tests     []alertTest
	}
	readYAML(t, alertsTestFile, &file)
	return file.Tests
}

// TestEveryAlertIsTested: each alert has a unit test in which it is quiet, and then fires.
func TestEveryAlertIsTested(t *testing.T) {
	t.Parallel()
	tested := map[string]bool{}
	for _, test := range alertTests(t) {
		quiet, fires := false, false
		for _, e := range test.Expect {
			if !strings.Contains(e.Expr, `alertname="`+test.Name+`"`) {
				t.Errorf("the test of %s looks for another alert: %s", test.Name, e.Expr)
			}
			quiet = quiet || len(e.Samples) == 0
			fires = fires || len(e.Samples) > 0
		}
		tested[test.Name] = quiet && fires
	}
	for _, a := range alerts(t) {
		if !tested[a.Alert] {
			t.Errorf("alert %s has no unit test in which it is quiet and then fires", a.Alert)
		}
		delete(tested, a.Alert)
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("alert %s lacks a severity, a summary or a description", a.Alert)
		}
	}
	for name := range tested {
		t.Errorf("there is a unit test of alert %s, which does not exist", name)
	}
}

// unseen are the rows of the failure table that no metric shows, by their first words, with the
// reason.
var unseen = map[string]string{
	"an event of a service is stored while its consumers are removed": "it has no symptom: the publisher creates the consumers again",
	"a host's clock is wrong":   "it has no effect: time is the JetStream leader's",
	"the leader's clock is set": "timers follow it; monitor the servers' clocks by their time service",
}

// TestEveryFailureHasAnAlert: each row of the failure table in docs/operations.md is named by an
// alert, or is in unseen.
func TestEveryFailureHasAnAlert(t *testing.T) {
	t.Parallel()
	_, section, found := strings.Cut(read(t, "docs/operations.md"), "\n## What happens when a part fails\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !found || !end {
		t.Fatal("docs/operations.md has no failure table")
	}
	var rows []string
	for line := range strings.Lines(section) {
		if row, ok := strings.CutPrefix(line, "| "); ok && !strings.HasPrefix(row, "failure |") {
			first, _, _ := strings.Cut(row, " | ")
			rows = append(rows, first)
		}
	}
	seen := map[string]string{}
	name := func(by, words string) {
		t.Helper()
		n := 0
		for _, row := range rows {
			if row == words || strings.HasPrefix(row, words) && len(words) > 12 {
				seen[row] = by
				n++
			}
		}
		if n == 0 {
			t.Errorf("%s names the failure %q, which docs/operations.md does not have", by, words)
		}
	}
	for _, a := range alerts(t) {
		for line := range strings.Lines(a.Annotations["failures"]) {
			name("alert "+a.Alert, strings.TrimSpace(line))
		}
	}
	for words := range unseen {
		for row, by := range seen {
			if strings.HasPrefix(row, words) {
				t.Errorf("%s shows %q, which is in the list of those without a metric", by, row)
			}
		}
		name("the list of those without a metric", words)
	}
	for _, row := range rows {
		if seen[row] == "" {
			t.Errorf("no alert names this failure: %s", row)
		}
	}
}

// TestPromtool: Prometheus accepts the rules and the queries of the dashboard, and the unit tests of
// the alerts pass.
func TestPromtool(t *testing.T) {
	t.Parallel()
	need(t, "promtool", "that Prometheus accepts the rules and the queries of the dashboard, and the unit tests of the alerts (Debian: apt-get install prometheus)")
	rules, err := filepath.Abs(filepath.Join(root, alertsFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range doctest.Blocks(t, "test/deploy.TestPromtool") {
		if block.Lang == "yaml" { // of Prometheus; the rules are in a folder of the reader
			path := filepath.Join(t.TempDir(), "prometheus.yml")
			text := strings.ReplaceAll(block.Text(), "/etc/prometheus/belfry-alerts.yaml", rules)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s", run(t, ".", "promtool", "check", "config", path))
			continue
		}
		for line := range strings.Lines(block.Text()) {
			t.Logf("%s", run(t, ".", "promtool", strings.Fields(line)[1:]...))
		}
	}

	// The queries of the dashboard as rules, with values for Grafana's variables.
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var queries []rule
	panels, _ := dashboard(t)
	for _, p := range panels {
		for i, q := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "1m", "$job", "belfry", "$instance", ".*").Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("panel %q: no value for a variable in %s", p.Title, q.Expr)
			}
			queries = append(queries, rule{fmt.Sprintf("panel:%d:%d", p.ID, i), expr})
		}
	}
	b, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": queries}}})
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err = errors.Join(err, os.WriteFile(path, b, 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", run(t, ".", "promtool", "check", "rules", path))
}
