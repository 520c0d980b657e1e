package main

import (
	"bufio"
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/doctest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestScheduleGuide runs the commands of docs/schedules.md that need a node, in their order.
func TestScheduleGuide(t *testing.T) {
	t.Parallel()
	testGuide(t, serve(t, ""), doctest.Blocks(t, "cmd/belfry.TestScheduleGuide"), nil)
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
	testGuide(t, n, blocks, func(line string) {
		if key, ok := strings.CutPrefix(line, "belfry flow reset "); ok {
			add := []string{"add", "--id", "held", "--source", "/guide", "--svc", "guide", "--in", "0s", "--callback", hook.URL, "--flow", key}
			if r := n.client(t, add...); r.code != exitOK {
				t.Errorf("add: %v", r)
			}
			waittest.Until(t, "the target has asked for a pause", func() bool {
				return strings.Contains(n.client(t, "flow", "show", key).out, "429")
			})
		}
	})
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
			testGuide(t, serve(t, ""), blocks, nil)
		})
	}
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
	testGuide(t, n, doctest.Blocks(t, "cmd/belfry.TestSearchGuide"), nil)
}

// testGuide runs the commands of blocks "sh" and "console" in their order, with sh. Of what the
// latter print it compares the first word of each line: the rest depends on the time. before, if
// not nil, is called before each command.
func testGuide(t *testing.T, n *node, blocks []*doctest.Block, before func(line string)) {
	t.Helper()
	dir := t.TempDir()
	for _, block := range blocks {
		switch block.Lang {
		case "sh":
			for _, line := range commandLines(block.Text()) {
				if before != nil {
					before(line)
				}
				if r := n.shell(t, dir, line); r.code != exitOK {
					t.Errorf("%s:%d: %s: %v", block.File, block.Line, line, r)
				}
			}
		case "console":
			commands, shown := block.Commands()
			for i, line := range commands {
				if before != nil {
					before(line)
				}
				n.shows(t, dir, line, shown[i])
			}
		}
	}
}

// shows waits until a command prints lines that begin with the words of want: what an earlier
// command started may take a moment. It must succeed, unless want is an error.
func (n *node) shows(t *testing.T, dir, line, want string, env ...string) {
	t.Helper()
	var r result
	waittest.Until(t, line+" prints what the guide shows", func() bool {
		r = n.shell(t, dir, line, env...)
		return (r.code == exitOK) != strings.HasPrefix(want, "belfry: ") && slices.Equal(firstWords(r.out+r.err), firstWords(want))
	}, func() string { return r.String() + "\nwant lines like\n" + want })
}

// commandLines returns the commands of a script: its lines, where one that ends in a backslash or
// within quotes goes on in the next.
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

var timeWord = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\S+|\d\d:\d\d:\d\d\.\d+)$`)
