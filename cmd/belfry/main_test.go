package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
)

// binary is the program, built once for all tests of this package.
var binary string

func TestMain(m *testing.M) {
	natstest.MaybeServe()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	// As while somebody tries Belfry on this machine: the default addresses are
	// taken, by that node or by us, so no test may depend on them.
	for _, addr := range []string{app.DefaultNATSListen, app.DefaultHTTP} {
		if l, err := net.Listen("tcp", addr); err == nil {
			defer l.Close()
		}
	}
	dir, err := os.MkdirTemp("", "belfry-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "belfry")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// bound is how long anything may take: far longer than it does.
const bound = 60 * time.Second

// command is the program with a nearly empty environment, so that nothing of the
// tester's own settings reaches it.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append([]string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}, env...)
	return cmd
}

type result struct {
	out, err string
	code     int
}

func belfryEnv(t *testing.T, env []string, stdin string, args ...string) result {
	t.Helper()
	cmd := command(t, env, args...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("belfry %s: %v", strings.Join(args, " "), err)
	}
	return result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

func belfryRun(t *testing.T, args ...string) result {
	t.Helper()
	return belfryEnv(t, nil, "", args...)
}

// oneLine checks what a failed command says.
func (r result) oneLine(t *testing.T, code int, want ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d; stderr %q", r.code, code, r.err)
	}
	if r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.HasPrefix(r.err, "belfry: ") && !strings.HasPrefix(r.err, "{") {
		t.Errorf("want one line on stderr and nothing on stdout; got stdout %q, stderr %q", r.out, r.err)
	}
	for _, w := range want {
		if !strings.Contains(r.err, w) {
			t.Errorf("stderr %q lacks %q", r.err, w)
		}
	}
}

// node is a running belfry serve.
type node struct {
	cmd        *exec.Cmd
	data       string
	nats, http string
	log        *logBuffer
	done       chan struct{} // closed when the process has ended
}

// serve starts a node with a server of its own on free ports.
func serve(t *testing.T, data string, args ...string) *node {
	t.Helper()
	if data == "" {
		data = filepath.Join(t.TempDir(), "data")
	}
	return launch(t, data, append([]string{"--data", data, "--nats-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", "2"}, args...))
}

// launch starts a node and waits until it says that it runs.
func launch(t *testing.T, data string, args []string) *node {
	t.Helper()
	n := &node{cmd: command(t, nil, append([]string{"serve"}, args...)...), data: data, done: make(chan struct{})}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	n.cmd.Stderr = w
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	n.log = readLog(r)
	go func() {
		defer close(n.done)
		n.cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(func() {
		n.cmd.Process.Kill()
		<-n.done
		<-n.log.end
		r.Close()
	})
	line, ok := n.log.wait("belfry is running")
	if !ok {
		t.Fatalf("serve does not run: %s", n.log.text())
	}
	var announced struct{ NATS, HTTP string }
	if err := json.Unmarshal([]byte(line), &announced); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	n.nats, n.http = announced.NATS, announced.HTTP
	return n
}

// stop sends SIGTERM and waits for the end.
func (n *node) stop(t *testing.T) {
	t.Helper()
	begun := time.Now()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.done:
	case <-time.After(bound):
		t.Fatalf("not stopped within %s of SIGTERM: %s", bound, n.log.text())
	}
	if code := n.cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM: %s", code, n.log.text())
	}
	t.Logf("stopped %s after SIGTERM", time.Since(begun).Round(time.Millisecond))
}

// client runs a command against the node.
func (n *node) client(t *testing.T, args ...string) result {
	t.Helper()
	return belfryEnv(t, []string{"NATS_URL=" + n.nats}, "", args...)
}

// ok runs a command that must succeed and reads its JSON lines.
func ok[T any](t *testing.T, n *node, args ...string) []T {
	t.Helper()
	r := n.client(t, append(args, "-o", "json")...)
	if r.code != exitOK || r.err != "" {
		t.Fatalf("belfry %s: exit code %d, %s", strings.Join(args, " "), r.code, r.err)
	}
	return parseLines[T](t, r.out)
}

func parseLines[T any](t *testing.T, text string) []T {
	t.Helper()
	var out []T
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, v)
	}
	return out
}

// logBuffer keeps the lines of a process and lets one wait for one.
type logBuffer struct {
	end   chan struct{}
	state chan logState // holds one
}

type logState struct {
	lines   []string
	changed chan struct{}
}

func readLog(r io.Reader) *logBuffer {
	b := &logBuffer{end: make(chan struct{}), state: make(chan logState, 1)}
	b.state <- logState{changed: make(chan struct{})}
	go func() {
		defer close(b.end)
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			st := <-b.state
			close(st.changed)
			b.state <- logState{append(st.lines, s.Text()), make(chan struct{})}
		}
	}()
	return b
}

func (b *logBuffer) wait(part string) (string, bool) {
	deadline := time.After(bound)
	for {
		st := <-b.state
		b.state <- st
		for _, l := range st.lines {
			if strings.Contains(l, part) {
				return l, true
			}
		}
		select {
		case <-st.changed:
		case <-b.end:
			return "", false
		case <-deadline:
			return "", false
		}
	}
}

func (b *logBuffer) text() string {
	st := <-b.state
	b.state <- st
	return strings.Join(st.lines, "\n")
}

func httpGet(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// serveOn starts a node on a server.
func serveOn(t *testing.T, url string, args ...string) *node {
	t.Helper()
	return launch(t, "", append([]string{"--nats-url", url, "--http", "127.0.0.1:0", "--shards", "2"}, args...))
}
