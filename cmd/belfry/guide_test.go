package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/buildtest"
	"github.com/belfryio/belfry/internal/doctest"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestScheduleGuide runs the commands of docs/schedules.md that need a node, in their order.
func TestScheduleGuide(t *testing.T) {
	t.Parallel()
	testGuide(t, serve(t, ""), doctest.Blocks(t, "cmd/belfry.TestScheduleGuide"), guideOptions{})
}

// TestFlowGuide runs the commands of docs/flow.md, in their order. Before the reset of a flow key, its target
// answers as the guide shows.
func TestFlowGuide(t *testing.T) {
	t.Parallel()
	blocks := doctest.Blocks(t, "cmd/belfry.TestFlowGuide")
	answer := blocks[slices.IndexFunc(blocks, func(b *doctest.Block) bool { return b.Lang == "http" })]
	target, err := http.ReadResponse(bufio.NewReader(strings.NewReader(strings.ReplaceAll(answer.Text(), "\n", "\r\n")+"\r\n")), nil)
	if err != nil {
		t.Fatalf("%s:%d: %v", answer.File, answer.Line, err)
	}
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", target.Header.Get("Retry-After"))
		w.WriteHeader(target.StatusCode)
	}))
	t.Cleanup(hook.Close)
	n := serve(t, "", "--allow-loopback")
	testGuide(t, n, blocks, guideOptions{skip: func(line string) bool {
		if key, ok := strings.CutPrefix(line, "belfry flow reset "); ok {
			add := []string{"add", "--id", "held", "--source", "/guide", "--svc", "guide", "--in", "0s", "--callback", hook.URL, "--flow", key}
			if r := n.client(t, add...); r.code != exitOK {
				t.Errorf("add: %v", r)
			}
			waittest.Until(t, "the target has asked for a pause", func() bool {
				return strings.Contains(n.client(t, "flow", "show", key).out, "429")
			})
		}
		return false
	}})
}

// TestGuides runs the commands of docs/guides, in their order, each guide with a node of its own.
func TestGuides(t *testing.T) {
	t.Parallel()
	byFile := map[string][]*doctest.Block{}
	for _, b := range doctest.Blocks(t, "cmd/belfry.TestGuides") {
		byFile[b.File] = append(byFile[b.File], b)
	}
	for file, blocks := range byFile {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			doctest.GiveTo(t, blocks)
			dir := t.TempDir()
			var args []string
			for _, b := range blocks {
				if b.Lang == "yaml" { // the settings of the guide
					args = []string{"--config", writeConfig(t, b.Text())}
				}
			}
			n := serve(t, "", args...)
			if file == "docs/guides/workers.md" {
				// examples/worker adds the timer that the guide moves; test/clients runs that program.
				if r := n.client(t, "add", "--in", "15m", "--svc", "orders", "--worker", "--id", "order-17", "--source", "/shop"); r.code != exitOK {
					t.Fatal(r)
				}
			}
			testGuide(t, n, blocks, guideOptions{replace: strings.NewReplacer("/backups", dir)})
		})
	}
}

// TestGettingStarted runs the commands of docs/guides/getting-started.md in their order, with the service of the
// guide, and opens its pages of the console.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	n, _ := startDev(t, "--frozen")
	service := startService(t)
	started := map[string]bool{"go install ./cmd/belfry": true, "belfry dev --frozen": true, "go run ./examples/order": true}
	testGuide(t, n, doctest.Blocks(t, "cmd/belfry.TestGettingStarted"), guideOptions{
		whole: true, // the clock stands still
		skip: func(line string) bool {
			skip := started[line]
			delete(started, line)
			return skip
		},
		replace: strings.NewReplacer("127.0.0.1:3000", service, "127.0.0.1:3001", tcptest.FreeAddress(t)),
	})
	if len(started) > 0 {
		t.Errorf("the guide lacks the commands %v", started)
	}
	b, err := os.ReadFile("../../docs/guides/getting-started.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := regexp.MustCompile(`http://127\.0\.0\.1:8420(/[^)>\s]*)`).FindAllStringSubmatch(string(b), -1)
	if len(pages) < 2 {
		t.Errorf("the guide has the pages %v, want two", pages)
	}
	for _, page := range pages {
		if code, body := httpGet(t, "http://"+n.http+page[1]); code != http.StatusOK || len(page[1]) > 1 && !strings.Contains(body, "order-17") {
			t.Errorf("%s: status %d", page[0], code)
		}
	}
}

// startService runs the service of the guide and returns its address.
func startService(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "order")
	if err := buildtest.Program(program, "github.com/belfryio/belfry/examples/order"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "PORT=0")
	var printed logtest.Buffer
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	var address string
	waittest.Until(t, "the service listens", func() (listening bool) {
		address, listening = printed.Line("listening on ")
		return listening
	}, printed.String)
	return strings.TrimPrefix(strings.TrimSpace(address), "listening on ")
}

// TestSearchGuide runs the commands of docs/search.md.
func TestSearchGuide(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	add := []string{"add", "--id", "order-17", "--source", "/shop", "--svc", "orders", "--in", "1h", "--callback", "https://shop.example/expired"}
	if r := n.client(t, add...); r.code != exitOK {
		t.Fatal(r)
	}
	waittest.Until(t, "the search index has the timer", func() bool {
		return strings.Contains(n.client(t, "ls", "--search", "order-17").out, "order-17")
	})
	testGuide(t, n, doctest.Blocks(t, "cmd/belfry.TestSearchGuide"), guideOptions{})
}

// guideOptions say how a guide differs from commands that run as they are. The zero value is valid.
type guideOptions struct {
	// skip is called before each command, and returns true if the test or another one runs it.
	skip func(line string) bool
	// replace replaces the addresses of targets, and folders.
	replace *strings.Replacer
	// whole compares whole lines of answers, but for numbers and the node's name, instead of their first words.
	whole bool
}

// testGuide runs the commands of blocks "sh" and "console" in their order, with sh. Of what the
// latter print it compares the first word of each line: the rest depends on the time.
func testGuide(t *testing.T, n *node, blocks []*doctest.Block, o guideOptions) {
	t.Helper()
	dir := t.TempDir()
	compared := firstWords
	if o.whole {
		compared = wholeLines
	}
	command := func(line string) (replaced string, run bool) {
		if o.skip != nil && o.skip(line) {
			return "", false
		}
		if o.replace != nil {
			line = o.replace.Replace(line)
		}
		return line, true
	}
	for _, block := range blocks {
		switch block.Lang {
		case "sh":
			for _, line := range commandLines(block.Text()) {
				line, run := command(line)
				if !run {
					continue
				}
				if r := n.shell(t, dir, line); r.code != exitOK {
					t.Errorf("%s:%d: %s: %v", block.File, block.Line, line, r)
				}
			}
		case "console":
			commands, shown := block.Commands()
			for i, line := range commands {
				if line, run := command(line); run {
					n.showsLike(t, dir, line, shown[i], compared)
				}
			}
		}
	}
}

// shows waits until a command prints lines that begin with the words of want.
func (n *node) shows(t *testing.T, dir, line, want string, env ...string) {
	t.Helper()
	n.showsLike(t, dir, line, want, firstWords, env...)
}

// showsLike waits until compared returns the same of want and of what a command prints: what an
// earlier command started may take a moment. It must succeed, unless want is an error.
func (n *node) showsLike(t *testing.T, dir, line, want string, compared func(string) []string, env ...string) {
	t.Helper()
	var r result
	waittest.Until(t, line+" prints what the guide shows", func() bool {
		r = n.shell(t, dir, line, env...)
		return (r.code == exitOK) != strings.HasPrefix(want, "belfry: ") && slices.Equal(compared(r.out+r.err), compared(want))
	}, func() string { return r.String() + "\nwant lines like\n" + want })
}

// commandLines returns the commands of a script, one for each line. A line that ends in a backslash or
// within quotes goes on in the next line.
func commandLines(script string) (all []string) {
	open := ""
	for line := range strings.Lines(script) {
		open += line
		if strings.HasSuffix(line, "\\\n") || strings.Count(open, "'")%2 == 1 {
			continue
		}
		if open = strings.TrimSpace(open); open != "" && !strings.HasPrefix(open, "#") {
			all = append(all, open)
		}
		open = ""
	}
	return all
}

// shell runs commands of a document with sh, in a folder. The program is in the path, and connects
// to the node. curl finds the node at http://localhost:8420.
func (n *node) shell(t *testing.T, dir, script string, env ...string) result {
	t.Helper()
	cmd := n.script(t, dir, script, env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// script returns the command of shell.
func (n *node) script(t *testing.T, dir, script string, env ...string) *exec.Cmd {
	t.Helper()
	if strings.Contains(script, "curl ") {
		if _, err := exec.LookPath("curl"); err != nil {
			t.Skip("curl is not installed: the requests of the document do not run")
		}
	}
	cmd := command(t, env)
	cmd.Path, cmd.Args, cmd.Dir = "/bin/sh", []string{"sh", "-euc", script}, dir
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	if n.nats != "" {
		cmd.Env = append(cmd.Env, "NATS_URL="+n.nats)
	}
	if address := strings.Trim(strings.TrimPrefix(n.http, "http://"), "/"); address != "" {
		home := t.TempDir()
		rc := "fail\nsilent\nshow-error\n"
		for _, name := range []string{"localhost", "127.0.0.1"} {
			rc += "connect-to = \"" + name + ":8420:" + address + "\"\n"
		}
		if err := os.WriteFile(filepath.Join(home, ".curlrc"), []byte(rc), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, "CURL_HOME="+home)
	}
	return cmd
}

// wholeLines returns the lines with all numbers the same, of a line of JSON its names, and no blank lines.
func wholeLines(text string) (all []string) {
	for line := range strings.Lines(text) {
		var object map[string]any
		switch line = strings.Join(strings.Fields(line), " "); {
		case line == "":
		case json.Unmarshal([]byte(line), &object) == nil:
			all = append(all, slices.Sorted(maps.Keys(object))...)
		default:
			line = regexp.MustCompile(`node-\w+`).ReplaceAllString(line, "a node")
			line = regexp.MustCompile(`\d+m?s after`).ReplaceAllString(line, "a while after")
			all = append(all, regexp.MustCompile(`\d+`).ReplaceAllString(line, "0"))
		}
	}
	return all
}

// firstWords returns the first word of each line, of a check of doctor the first two; times are
// all the same.
func firstWords(text string) (all []string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		word := timeWord.ReplaceAllString(f[0], "a time")
		if word == "OK" && len(f) > 1 {
			word += " " + f[1]
		}
		all = append(all, word)
	}
	return all
}

var timeWord = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\S+|\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d))$`)
