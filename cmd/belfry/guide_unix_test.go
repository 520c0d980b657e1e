//go:build unix

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/internal/doctest"
	"github.com/belfryio/belfry/internal/freeport"
	"github.com/belfryio/belfry/internal/waittest"
)

// background runs commands of a document until the test ends, in a process group of their own.
// The log of the result is all that they print.
func (n *node) background(t *testing.T, dir, script string, env ...string) *node {
	t.Helper()
	b := &node{cmd: n.script(t, dir, script, env...), done: make(chan struct{})}
	b.cmd.Stdout, b.cmd.Stderr = &b.log, &b.log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.done)
		b.cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(b.kill)
	return b
}

// kill ends the process group at once.
func (n *node) kill() {
	select {
	case <-n.done:
	default:
		syscall.Kill(-n.cmd.Process.Pid, syscall.SIGKILL)
		<-n.done
	}
}

// serveLine runs a command of a document that starts a node, with addresses that env may set, by
// default free ones, and a data folder of its own unless the command names one.
func serveLine(t *testing.T, dir, script string, env ...string) *node {
	t.Helper()
	env = append([]string{"BELFRY_NATS_LISTEN=127.0.0.1:0", "BELFRY_HTTP=127.0.0.1:0", "BELFRY_LOG_FORMAT=json"}, env...)
	n := (&node{}).background(t, dir, script, env...)
	var announced struct{ NATS, HTTP string }
	line := n.logged(t, "belfry is running")
	if err := json.Unmarshal([]byte(line), &announced); err != nil {
		t.Fatalf("cannot decode the log line %s: %v", line, err)
	}
	n.nats, n.http = announced.NATS, announced.HTTP
	return n
}

// TestReadme runs the commands of README.md in their order, with the shell, in a folder that has the
// program. TestMain builds it, as go run and go build of the page do.
func TestReadme(t *testing.T) {
	t.Parallel()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	env := []string{"BELFRY_NATS_LISTEN=" + freeport.Address(port), "BELFRY_DATA=" + filepath.Join(dir, "data")}
	var n, tail *node
	var serveCommand string
	for _, block := range doctest.Blocks(t, "cmd/belfry.TestReadme") {
		text := block.Text()
		switch first := block.First(); {
		case strings.HasPrefix(first, "go run ./cmd/belfry serve "):
			lines := commandLines(text)
			if len(lines) != 2 || !strings.HasPrefix(lines[1], "go test ./... ") {
				t.Errorf("%s:%d: want serve, and the command that runs this test", block.File, block.Line)
			}
			serveLine(t, dir, strings.TrimPrefix(lines[0], "go run ./cmd/"), env...).kill()
		case strings.HasPrefix(first, "go build "):
			lines := commandLines(text)
			if lines[0] != "go build -o belfry ./cmd/belfry" {
				t.Errorf("%s:%d: TestMain has built the program, but not with %s", block.File, block.Line, lines[0])
			}
			if err := os.Symlink(binary, filepath.Join(dir, "belfry")); err != nil {
				t.Fatal(err)
			}
			serveCommand = lines[1]
			n = serveLine(t, dir, serveCommand, env...)
		case strings.HasPrefix(first, "./belfry tail "):
			tail = n.background(t, dir, text)
			tail.logged(t, "FIRED")
		case strings.HasPrefix(first, "FIRED") && strings.Contains(text, "order-20"): // late
			want := strings.Fields(strings.Split(text, "\n")[1])
			line := tail.logged(t, want[4])
			if f := strings.Fields(line); len(f) < len(want) || !strings.HasPrefix(f[1], "+") {
				t.Errorf("tail shows %q, want a line like %q", line, want)
			}
		case strings.HasPrefix(first, "FIRED"):
			waittest.Until(t, "tail shows the event", func() bool {
				return slices.Equal(firstWords(tail.log.String()), firstWords(text))
			}, tail.log.String)
		case strings.HasPrefix(first, "nats req "):
			testRequest(t, n, block, text)
		case strings.Contains(first, "order-20"): // the server is killed before the timer is due
			if r := n.shell(t, dir, text); r.code != exitOK {
				t.Fatalf("%s: %v", text, r)
			}
			n.kill()
			n = serveLine(t, dir, serveCommand, env...)
		case first == "$ ./belfry doctor": // it looks at the server of the settings
			commands, shown := block.Commands()
			(&node{}).shows(t, dir, commands[0], shown[0], env...)
		case block.Lang == "sh":
			if r := n.shell(t, dir, text); r.code != exitOK {
				t.Errorf("%s: %v", text, r)
			}
		default:
			commands, shown := block.Commands()
			for i, command := range commands {
				if shown[i] = strings.TrimSpace(shown[i]); shown[i] != "" {
					n.shows(t, dir, command, shown[i])
				} else if r := n.shell(t, dir, command); r.code != exitOK {
					t.Errorf("%s: %v", command, r)
				}
			}
		}
	}
}

// testRequest sends the request of the command nats req SUBJECT 'PAYLOAD', and wants an answer
// without an error.
func testRequest(t *testing.T, n *node, block *doctest.Block, text string) {
	t.Helper()
	m := regexp.MustCompile(`(?s)^nats req (\S+) '(.*)'\n$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%s:%d: want nats req SUBJECT 'PAYLOAD'", block.File, block.Line)
	}
	nc, err := nats.Connect(n.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	answer, err := nc.Request(m[1], []byte(m[2]), bound)
	if err != nil || answer.Header.Get("Nats-Service-Error") != "" || !strings.Contains(string(answer.Data), `"timer"`) {
		t.Errorf("%s:%d: got %+v, %v", block.File, block.Line, answer, err)
	}
}

// TestDevGuide runs the commands of docs/dev.md. The callback goes to a server of the test.
func TestDevGuide(t *testing.T) {
	t.Parallel()
	called := make(chan string, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r.URL.Path }))
	t.Cleanup(hook.Close)
	target := strings.TrimPrefix(hook.URL, "http://")
	dir := t.TempDir()
	var n *node
	for _, block := range doctest.Blocks(t, "cmd/belfry.TestDevGuide") {
		text := strings.ReplaceAll(block.Text(), "127.0.0.1:3000", target)
		switch {
		case strings.HasPrefix(text, "belfry dev"):
			n, _ = startDev(t, strings.Fields(text)[2:]...)
		case strings.HasPrefix(text, "belfry listen :3000 "):
			port, err := freeport.Pick()
			if err != nil {
				t.Fatal(err)
			}
			target = freeport.Address(port)
			n.background(t, dir, strings.Replace(text, ":3000", target, 1)).logged(t, "listening")
		case block.Lang == "console":
			commands, shown := block.Commands()
			for i, command := range commands {
				n.shows(t, dir, command, shown[i])
			}
		case strings.Contains(text, "/remind"):
			r := n.shell(t, dir, text)
			if r.code != exitOK || !strings.Contains(r.out, "success") {
				t.Errorf("%s%v, want the state success", text, r)
			}
			if path := waittest.Receive(t, "the callback", called); path != "/remind" {
				t.Errorf("got a callback to %s", path)
			}
		default:
			if r := n.shell(t, dir, text); r.code != exitOK {
				t.Errorf("%s%v", text, r)
			}
		}
	}
}

// TestTracingGuide runs the commands of docs/tracing.md with a receiver and a target of the test.
func TestTracingGuide(t *testing.T) {
	t.Parallel()
	spans, called := make(chan string, 1000), make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case spans <- r.URL.Path:
		default:
		}
	}))
	t.Cleanup(collector.Close)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r.Header.Get("traceparent") }))
	t.Cleanup(hook.Close)
	places := strings.NewReplacer("http://localhost:4318", collector.URL, "http://localhost:8080", hook.URL)
	var n *node
	for _, block := range doctest.Blocks(t, "cmd/belfry.TestTracingGuide") {
		text := places.Replace(block.Text())
		if strings.Contains(text, "belfry serve") {
			n = serveLine(t, t.TempDir(), text)
			n.logged(t, "tracing is on")
			continue
		}
		if r := n.shell(t, t.TempDir(), text); r.code != exitOK {
			t.Errorf("%s%v", text, r)
		}
	}
	if header := waittest.Receive(t, "the callback", called, n.log.String); header == "" {
		t.Error("the callback has no traceparent")
	}
	if path := waittest.Receive(t, "a request of the node to the collector", spans); path != "/v1/traces" {
		t.Errorf("the node sent spans to %s", path)
	}
}

// TestOperationsGuide runs the commands of docs/operations.md about the embedded server and about
// backups, in folders of the test instead of /etc, /var/lib and /backups.
func TestOperationsGuide(t *testing.T) {
	t.Parallel()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	places := strings.NewReplacer("/etc/belfry", dir+"/etc", "/var/lib/", dir+"/", "/backups/", dir+"/", "10.0.0.5:4222", freeport.Address(port))
	authority := certtest.New(t)
	cert, key := authority.Issue("belfry")
	ca, err := os.ReadFile(authority.File())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"etc/cert.pem": cert, "etc/key.pem": key, "ca.pem": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed: the commands of docs/operations.md do not run")
	}
	n := serve(t, "") // what is backed up
	for _, block := range doctest.Blocks(t, "cmd/belfry.TestOperationsGuide") {
		text := places.Replace(block.Text())
		before, command, starts := strings.Cut(text, "belfry serve ")
		if !starts {
			if r := n.shell(t, dir, text); r.code != exitOK {
				t.Errorf("%s%v", text, r)
			}
			continue
		}
		if before != "" {
			if r := n.shell(t, dir, before); r.code != exitOK {
				t.Errorf("%s%v", before, r)
			}
		}
		lines := commandLines("belfry serve " + command)
		restored := serveLine(t, dir, lines[0])
		for _, line := range lines[1:] {
			if r := restored.shell(t, dir, line); r.code != exitOK {
				t.Errorf("%s: %v", line, r)
			}
		}
		// For the command that connects as a user, from another machine.
		if password, err := os.ReadFile(filepath.Join(dir, "etc", "admin.password")); err == nil {
			if err := os.WriteFile(filepath.Join(dir, "admin.password"), password, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestMovingGuide runs the commands of docs/moving.md, in their order and in a folder of their own, and applies
// the file of docs/schedules.md.
func TestMovingGuide(t *testing.T) {
	t.Parallel()
	blocks := doctest.Blocks(t, "cmd/belfry.TestMovingGuide")
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	places := strings.NewReplacer(":8090", ":"+strings.TrimPrefix(freeport.Address(port), "127.0.0.1:"))
	n := serve(t, "")
	dir := t.TempDir()
	run := func(line string) {
		t.Helper()
		if r := n.shell(t, dir, line); r.code != exitOK {
			t.Errorf("%s: %v", line, r)
		}
	}
	run("belfry add --in 1h --id a --source /guide --svc orders")
	run("belfry add --every 1h --id b --source /guide")
	run("belfry calendar put de-holidays --date 2027-12-25")
	run("belfry add --every 10m --jitter 30s --overlap queue --exclude de-holidays --svc jobs --source /ops --id sync --group ops")
	run("belfry add --every 1h --svc jobs --source /ops --id old-report --group ops")
	for _, b := range doctest.In(blocks, "docs/schedules.md") {
		if b.Lang == "yaml" {
			if err := os.WriteFile(filepath.Join(dir, "schedules.yaml"), []byte(b.Text()), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		commands, shown := b.Commands()
		if r := n.shell(t, dir, commands[0]); r.code != exitNotFound || !slices.Equal(firstWords(r.out+r.err), firstWords(shown[0])) {
			t.Errorf("%s: %v, want exit code %d and lines like\n%s", commands[0], r, exitNotFound, shown[0])
		}
		run(strings.TrimSuffix(commands[0], " --dry-run"))
		run(commands[0])
	}
	var listen *node
	for _, b := range doctest.In(blocks, "docs/moving.md") {
		text := places.Replace(b.Text())
		switch {
		case strings.HasPrefix(text, "belfry serve"):
			n = serveLine(t, t.TempDir(), text)
		case strings.HasPrefix(text, "belfry listen "):
			listen = n.background(t, dir, text)
			listen.logged(t, "listening")
		case b.Lang == "console":
			waittest.Until(t, "listen prints the callback", func() bool {
				got, want := firstWords(listen.log.String()), firstWords(text)
				return len(got) >= len(want) && slices.Equal(got[len(got)-len(want):], want)
			}, listen.log.String)
		default:
			for _, line := range commandLines(text) {
				run(line)
			}
		}
	}
}
