package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/waittest"
)

// TestScheduleGuide runs the commands of docs/schedules.md that need a node, in their order.
func TestScheduleGuide(t *testing.T) {
	t.Parallel()
	// TestScheduleExamples runs its previews.
	testGuide(t, serve(t, ""), "schedules.md", 9, 3, func(line string) bool { return strings.HasPrefix(line, "preview ") })
}

// TestFlowGuide runs the commands of docs/flow.md, in their order. Before the reset of a flow key, its target
// asks for a pause.
func TestFlowGuide(t *testing.T) {
	t.Parallel()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(hook.Close)
	n := serve(t, "", "--allow-loopback")
	testGuide(t, n, "flow.md", 10, 2, func(line string) bool {
		if key, ok := strings.CutPrefix(line, "flow reset "); ok {
			add := []string{"add", "--id", "held", "--source", "/guide", "--svc", "guide", "--in", "0s", "--callback", hook.URL, "--flow", key}
			if r := n.client(t, add...); r.code != exitOK {
				t.Errorf("add: %v", r)
			}
			waittest.Until(t, "the target has asked for a pause", func() bool {
				return strings.Contains(n.client(t, "flow", "show", key).out, "503")
			})
		}
		return false
	})
}

// TestGuides runs the commands of docs/guides, in their order, each guide with a node of its own.
func TestGuides(t *testing.T) {
	t.Parallel()
	for _, g := range []struct {
		file              string
		commands, answers int
	}{{"recipes.md", 20, 0}, {"troubleshooting.md", 6, 1}, {"coming-from.md", 2, 0}} {
		t.Run(g.file, func(t *testing.T) {
			t.Parallel()
			testGuide(t, serve(t, ""), "guides/"+g.file, g.commands, g.answers, func(string) bool { return false })
		})
	}
}

// testGuide runs the commands of a guide's blocks "sh" and "console" in their order; there must
// be at least as many of each. Of what the latter print it compares the first word of each line:
// the rest depends on the time. before is called before each command, and returns true for one of a
// block "console" that another test runs.
func testGuide(t *testing.T, n *node, file string, commands, answers int, before func(line string) (skip bool)) {
	t.Helper()
	b, err := os.ReadFile("../../docs/" + file)
	if err != nil {
		t.Fatal(err)
	}
	words := func(line string) (args []string) {
		for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
			args = append(args, strings.Trim(w, `'"`))
		}
		return args
	}
	ran, shown := 0, 0
	for _, block := range regexp.MustCompile("(?s)```(sh|console)\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
		if block[1] == "sh" {
			for line := range strings.Lines(block[2]) {
				ran++
				before(strings.TrimSpace(strings.TrimPrefix(line, "belfry ")))
				if r := n.client(t, words(strings.TrimPrefix(line, "belfry "))...); r.code != exitOK {
					t.Errorf("%s: exit code %d, want 0: %s", strings.TrimSpace(line), r.code, r.err)
				}
			}
			continue
		}
		for _, part := range strings.Split("\n"+block[2], "\n$ belfry ")[1:] {
			line, want, _ := strings.Cut(part, "\n")
			if before(line) {
				continue
			}
			shown++
			// What a command started may take a moment.
			var got string
			waittest.Until(t, "belfry "+line+" prints what the guide shows", func() bool {
				r := n.client(t, words(line)...)
				got = r.out + r.err
				return r.code == exitOK && slices.Equal(firstWords(got), firstWords(want))
			}, func() string { return "got\n" + got + "\nwant lines like\n" + want })
		}
	}
	if ran < commands || shown < answers {
		t.Errorf("docs/%s has %d commands and %d answers, want at least %d and %d", file, ran, shown, commands, answers)
	}
}

// firstWords returns the first word of each line; times are all the same.
func firstWords(text string) (all []string) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 {
			all = append(all, timeWord.ReplaceAllString(f[0], "a time"))
		}
	}
	return all
}

var timeWord = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+$`)

// TestMovingGuide runs the commands of docs/moving.md, in their order and in a folder of their own, and applies
// the file of docs/schedules.md.
func TestMovingGuide(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	dir := t.TempDir()
	run := func(line string) result {
		t.Helper()
		cmd := command(t, []string{"NATS_URL=" + n.nats}, strings.Fields(line)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return result{out: string(out), code: cmd.ProcessState.ExitCode()}
	}
	for _, line := range []string{"add --in 1h --id a --source /guide --svc orders", "add --every 1h --id b --source /guide", "calendar put de-holidays --date 2027-12-25"} {
		if r := run(line); r.code != exitOK {
			t.Fatal(r)
		}
	}
	read := func(file, kind string) (blocks []string) {
		t.Helper()
		b, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?s)```"+kind+"\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
			blocks = append(blocks, block[1])
		}
		return blocks
	}
	commands := 0
	for _, block := range read("moving.md", "sh") {
		for line := range strings.Lines(block) {
			commands++
			if r := run(strings.TrimPrefix(strings.TrimSpace(line), "belfry ")); r.code != exitOK {
				t.Errorf("%s: %v", line, r)
			}
		}
	}
	if commands < 6 {
		t.Errorf("docs/moving.md has %d commands, want at least 6", commands)
	}
	files := read("schedules.md", "yaml")
	if len(files) != 1 {
		t.Fatalf("docs/schedules.md has %d files, want one", len(files))
	}
	if err := os.WriteFile(filepath.Join(dir, "schedules.yaml"), []byte(files[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	const apply = "apply -f schedules.yaml --group ops --prune"
	for _, x := range []struct {
		line string
		code int
	}{{apply + " --dry-run", exitNotFound}, {apply, exitOK}, {apply + " --dry-run", exitOK}} {
		if r := run(x.line); r.code != x.code {
			t.Errorf("%s: %v, want exit code %d", x.line, r, x.code)
		}
	}
}
