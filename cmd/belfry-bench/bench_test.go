package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/internal/buildtest"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/doctest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// binary is the program, built once for all tests of this package.
var binary string

func TestMain(m *testing.M) {
	waittest.Parallel(4)
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	flag.Parse() // for -short
	if testing.Short() {
		return m.Run() // program skips the tests that run the program
	}
	dir, err := os.MkdirTemp("", "belfry-bench-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "belfry-bench")
	if err := buildtest.Program(binary, "github.com/belfryio/belfry/cmd/belfry-bench"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// bound is far longer than any run here takes.
const bound = 2 * time.Minute

// program returns the command of the program. With -short it skips the test.
func program(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	testsize.NotShort(t, "this test runs the program")
	return exec.CommandContext(ctx, binary, args...)
}

type result struct {
	out, err string
	code     int
}

func runTool(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cmd := program(ctx, t, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("belfry-bench %s: %v", strings.Join(args, " "), err)
	}
	return result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// benchDoc has the fields of --json that are checked here.
type benchDoc struct {
	Results []struct {
		Workload string
		Verified struct{ Expected, Found, Missing int }
		Settings map[string]any
	}
	Summary []any
}

// TestBench runs workloads on a nats-server process and on a node in a process of its
// own, both of which are belfry-bench itself, and reads the files that they wrote.
func TestBench(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"add", "--on", "server", "--count", "300", "--warmup", "20", "--repeat", "2"},
		{"pending", "--on", "server", "--count", "299", "--seconds", "1", "--settle", "1s"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			data := filepath.Join(dir, "data")
			if err := os.Mkdir(data, 0o700); err != nil {
				t.Fatal(err)
			}
			doc, page := filepath.Join(dir, "bench.json"), filepath.Join(dir, "bench.html")
			r := runTool(t, append(args, "--profile", "fast", "--dir", data, "--json", doc, "--html", page)...)
			if r.code != 0 || !strings.Contains(r.out, "verified: 300 timers expected, 300 found") {
				t.Fatalf("belfry-bench %s: got exit code %d, want 0 and 300 timers\n%s\n%s", args[0], r.code, r.out, r.err)
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
				t.Errorf("belfry-bench %s wrote %s, want the result of 300 timers on a nats-server, and a summary of several runs", args[0], text)
			}
			if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "<svg") {
				t.Errorf("belfry-bench %s wrote a report of %d bytes (%v), want a picture in it", args[0], len(html), err)
			}
			if left, err := os.ReadDir(data); err != nil || len(left) > 0 {
				t.Errorf("after the run the folder has %v (%v), want no files", left, err)
			}
		})
	}
}

func TestBenchTable(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	r := runTool(t, "table", "--profile", "fast", "--only", "bulk", "--scale", "0.001", "--warmup", "20", "--raw", "50", "--out", out)
	if r.code != 0 || !strings.Contains(r.out, "| bulk adds, acknowledged | ≥ 40 k /s |") {
		t.Fatalf("belfry-bench table: got exit code %d, want 0 and the row of bulk adds\n%s\n%s", r.code, r.out, r.err)
	}
	for _, name := range []string{"table.json", "table.md", "table.html"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("file %s: got %v (%v), want a file with content", name, info, err)
		}
	}
}

// TestBenchPeer runs a workload on the peer, and one without a process of its own, and checks that
// the results say so.
func TestBenchPeer(t *testing.T) {
	t.Parallel()
	r := runTool(t, "peer", "singles", "--profile", "fast", "--count", "200", "--warmup", "20", "--dir", t.TempDir())
	if r.code != 0 || !strings.Contains(r.out, "verified: 200 timers expected, 200 found") || !strings.Contains(r.out, "system=nats-schedules") {
		t.Errorf("belfry-bench peer singles: got exit code %d, want 0 and 200 timers of the peer\n%s\n%s", r.code, r.out, r.err)
	}
	r = runTool(t, "singles", "--in-process", "--search-index=false", "--profile", "fast", "--count", "200", "--warmup", "20", "--dir", t.TempDir())
	if r.code != 0 || !strings.Contains(r.out, "in one process: server, node and clients share it") {
		t.Errorf("belfry-bench singles --in-process: got exit code %d, want 0 and the mark\n%s\n%s", r.code, r.out, r.err)
	}
}

func TestBenchCompare(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	r := runTool(t, "compare", "--quick", "--scale", "0.003", "--warmup", "20", "--profile", "fast", "--only", "cancel16", "--before", binary, "--floor", "--out", out, "--dir", t.TempDir())
	if r.code != 0 || !strings.Contains(r.out, "| fast | Belfry | NATS schedules | Belfry before | Floor | others") || !strings.Contains(r.out, "| cancel16 | fast | Belfry before | 1 |") || !strings.Contains(r.out, "| cancel16 | fast | Floor | 1 |") {
		t.Fatalf("belfry-bench compare: got exit code %d, want 0 and one turn of four systems\n%s\n%s", r.code, r.out, r.err)
	}
	md, err := os.ReadFile(filepath.Join(out, "compare.md"))
	if err != nil || string(md) != r.out {
		t.Errorf("compare.md: got (%v)\n%s\nwant the printed table\n%s", err, md, r.out)
	}
	text, err := os.ReadFile(filepath.Join(out, "compare.json"))
	if err != nil || !json.Valid(text) {
		t.Errorf("compare.json: got (%v) %s, want JSON", err, text)
	}
}

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want string
		args []string
	}{
		{"does not exist", []string{"add", "--on", "moon"}},
		{"via", []string{"add", "--via", "pigeon"}},
		{"callback", []string{"day", "--callback", "smoke"}},
		{"profile", []string{"table", "--profile", "slow"}},
		{"row", []string{"table", "--only", "nothing"}},
		{"curve", []string{"curves", "--only", "nothing"}},
		{"services", []string{"steady", "--services", "-3"}},
		{"scale", []string{"table", "--scale", "7"}},
		{"must end in", []string{"add", "--plot", "x.pdf"}},
		{"row", []string{"compare", "--only", "nothing"}},
		{"in-process", []string{"add", "--cpuprofile", "cpu"}},
		{"unknown flag", []string{"peer", "add", "--nats-url", "nats://127.0.0.1:1"}},
		{"via", []string{"peer", "add", "--via", "client"}},
		{"unknown flag", []string{"floor", "add", "--on", "cluster"}},
		{"unknown command", []string{"floor", "day"}},
	} {
		r := runTool(t, c.args...)
		if r.code != cmdline.ExitUsage || r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, c.want) {
			t.Errorf("belfry-bench %v: got %+v, want exit code %d and one line with %q", c.args, r, cmdline.ExitUsage, c.want)
		}
	}
}

func TestBenchCurves(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "five nodes and servers; TestCurves of internal/bench measures a curve")
	out := filepath.Join(t.TempDir(), "out")
	r := runTool(t, "curves", "--profile", "fast", "--only", "replicas", "--scale", "0.1", "--warmup", "20", "--out", out)
	if r.code != 0 || !strings.Contains(r.out, "| fast: by replicas | 1 | 3 |") {
		t.Fatalf("belfry-bench curves: got exit code %d, want 0 and the curve of replicas\n%s\n%s", r.code, r.out, r.err)
	}
	for _, name := range []string{"curves.json", "curves.md", "curves.html", "curve-replicas.svg"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("file %s: got %v (%v), want a file with content", name, info, err)
		}
	}
}

// TestReferenceHasEveryFlag: docs/reference.md has every command and flag of this program.
func TestReferenceHasEveryFlag(t *testing.T) {
	t.Parallel()
	ref := doctest.Sections(t, "../../docs/reference.md")
	common := ref["Flags for the connection"]
	doctest.Flags(t, (&tool{}).rootCommand(), ref, func(cmd *cobra.Command, f *pflag.Flag) (doctest.Place, bool) {
		if system := cmd.Parent().Name(); (system == "peer" || system == "floor") && f.Name != "output" { // the flags of the same workload of Belfry
			return doctest.Place{Title: "belfry-bench", Text: ref["belfry-bench"], Key: "--" + f.Name}, true
		}
		return doctest.Place{Title: "Flags for the connection", Text: common, Key: "--output"}, f.Name == "output"
	})
}
