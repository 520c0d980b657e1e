package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// benchDoc is what bench writes with --json, as far as it is looked at here.
type benchDoc struct {
	Results []struct {
		Workload string
		Verified struct{ Expected, Found, Missing int }
		Settings map[string]any
	}
	Summary []any
}

// TestBench runs a workload on a nats-server process and a whole node of its own
// process, which are this very program, and reads what it has written.
func TestBench(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"add", "--on", "server", "--count", "300", "--warmup", "20", "--repeat", "2"},
		{"pending", "--on", "server", "--count", "299", "--seconds", "1"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			data := filepath.Join(dir, "data")
			if err := os.Mkdir(data, 0o700); err != nil {
				t.Fatal(err)
			}
			doc, page := filepath.Join(dir, "bench.json"), filepath.Join(dir, "bench.html")
			r := belfryRun(t, append([]string{"bench"}, append(args, "--profile", "fast", "--dir", data, "--json", doc, "--html", page)...)...)
			if r.code != 0 || !strings.Contains(r.out, "verified: 300 timers expected, 300 found") {
				t.Fatalf("exit code %d\n%s\n%s", r.code, r.out, r.err)
			}
			var d benchDoc
			text, err := os.ReadFile(doc)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &d); err != nil {
				t.Fatal(err)
			}
			if len(d.Results) == 0 || d.Results[0].Workload != args[0] || d.Results[0].Verified.Found != 300 || d.Results[0].Settings["on"] != "server" || (len(d.Results) == 2) != (len(d.Summary) > 0) {
				t.Errorf("%s", text)
			}
			if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "<svg") {
				t.Errorf("%d bytes of report: %v", len(html), err)
			}
			if left, err := os.ReadDir(data); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
		})
	}
}

func TestBenchTable(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	r := belfryRun(t, "bench", "table", "--profile", "fast", "--only", "bulk", "--scale", "0.001", "--warmup", "20", "--raw", "50", "--out", out)
	if r.code != 0 || !strings.Contains(r.out, "| bulk adds, acknowledged | ≥ 40 k /s |") {
		t.Fatalf("exit code %d\n%s\n%s", r.code, r.out, r.err)
	}
	for _, name := range []string{"table.json", "table.md", "table.html"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want string
		args []string
	}{
		{"there is no", []string{"add", "--on", "moon"}},
		{"via", []string{"add", "--via", "pigeon"}},
		{"callback", []string{"day", "--callback", "smoke"}},
		{"profile", []string{"table", "--profile", "slow"}},
		{"row", []string{"table", "--only", "nothing"}},
		{"curve", []string{"curves", "--only", "nothing"}},
		{"services", []string{"steady", "--services", "-3"}},
		{"scale", []string{"table", "--scale", "7"}},
		{"must end in", []string{"add", "--plot", "x.pdf"}},
	} {
		belfryRun(t, append([]string{"bench"}, c.args...)...).oneLine(t, exitUsage, c.want)
	}
}

func TestBenchCurves(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	r := belfryRun(t, "bench", "curves", "--profile", "fast", "--only", "replicas", "--scale", "0.1", "--warmup", "20", "--out", out)
	if r.code != 0 || !strings.Contains(r.out, "| fast: by replicas | 1 | 3 |") {
		t.Fatalf("exit code %d\n%s\n%s", r.code, r.out, r.err)
	}
	for _, name := range []string{"curves.json", "curves.md", "curves.html", "curve-replicas.svg"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}
