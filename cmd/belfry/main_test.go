package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
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
	"github.com/belfryio/belfry/internal/buildtest"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// binary is the program, built once for all tests of this package.
var binary string

func TestMain(m *testing.M) {
	natstest.MaybeServe()
	waittest.Parallel(6)
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	// Occupy the default addresses, as if another Belfry ran on this machine. No test may
	// depend on them.
	for _, addr := range []string{app.DefaultNATSListen, app.DefaultHTTP} {
		if l, err := net.Listen("tcp", addr); err == nil {
			defer l.Close()
		}
	}
	flag.Parse() // for -short
	dir, err := os.MkdirTemp("", "belfry-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "belfry")
	if testing.Short() || testsize.Race {
		return m.Run() // command skips the tests that run the program
	}
	if err := buildtest.Program(binary, "github.com/belfryio/belfry/cmd/belfry"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// bound is the time limit of a wait in a test. No wait takes that long on a busy machine.
const bound = waittest.Bound

// command returns the program with a nearly empty environment, so that settings of the
// developer have no effect. With -short and under the race detector it skips the test.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	testsize.NotShort(t, "this test runs the program")
	testsize.NotRace(t, "the race detector does not see the program, which is another process")
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

func (r result) String() string {
	return fmt.Sprintf("exit code %d, stdout %q, stderr %q", r.code, r.out, r.err)
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

// oneLine checks the single line that a failed command prints.
func (r result) oneLine(t *testing.T, code int, want ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("got exit code %d, want %d; stderr %q", r.code, code, r.err)
	}
	if r.out != "" || strings.Count(r.err, "\n") != 1 || !strings.HasPrefix(r.err, "belfry: ") && !strings.HasPrefix(r.err, "{") {
		t.Errorf("got stdout %q, stderr %q, want nothing on stdout and one line on stderr", r.out, r.err)
	}
	for _, w := range want {
		if !strings.Contains(r.err, w) {
			t.Errorf("got stderr %q, want %q in it", r.err, w)
		}
	}
}

// node is a running belfry serve.
type node struct {
	cmd        *exec.Cmd
	data       string
	nats, http string
	log        logtest.Buffer // standard error
	done       chan struct{}  // closed when the process has ended
}

// serve starts a node with an embedded server on free ports.
func serve(t *testing.T, data string, args ...string) *node {
	t.Helper()
	if data == "" {
		data = filepath.Join(t.TempDir(), "data")
	}
	return launch(t, data, append([]string{"--data", data, "--nats-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", "2"}, args...))
}

// launch starts a node and waits until it logs that it runs.
func launch(t *testing.T, data string, args []string) *node {
	t.Helper()
	n := begin(t, args)
	n.data = data
	line := n.logged(t, "belfry is running")
	var announced struct{ NATS, HTTP string }
	if err := json.Unmarshal([]byte(line), &announced); err != nil {
		t.Fatalf("cannot decode the log line %s: %v", line, err)
	}
	n.nats, n.http = announced.NATS, announced.HTTP
	return n
}

// begin starts a node and does not wait for it.
func begin(t *testing.T, args []string) *node {
	t.Helper()
	n := &node{cmd: command(t, nil, append([]string{"serve"}, args...)...), done: make(chan struct{})}
	n.cmd.Stderr = &n.log
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(n.done)
		n.cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(func() {
		n.cmd.Process.Kill()
		<-n.done
	})
	return n
}

// stop sends SIGTERM and waits until the process has ended.
func (n *node) stop(t *testing.T) {
	t.Helper()
	begun := time.Now()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waittest.Receive(t, "the end of the process after SIGTERM", n.done, n.log.String)
	if code := n.cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("after SIGTERM: got exit code %d, want 0; log: %s", code, n.log.String())
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
		t.Fatalf("belfry %s: got %v, want exit code 0 and nothing on stderr", strings.Join(args, " "), r)
	}
	return parseLines[T](t, r.out)
}

func parseLines[T any](t *testing.T, text string) []T {
	t.Helper()
	var out []T
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("got the output line %s, want JSON: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

// logged waits for a log line that has part, and returns it.
func (n *node) logged(t *testing.T, part string) string {
	t.Helper()
	line, found := "", false
	waittest.Until(t, fmt.Sprintf("the log has %q", part), func() bool {
		select {
		case <-n.done: // the log is complete
			if line, found = n.log.Line(part); !found {
				t.Fatalf("the process has ended and has not logged %q: %s", part, n.log.String())
			}
			return true
		default:
			line, found = n.log.Line(part)
			return found
		}
	}, n.log.String)
	return line
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

// serveOn starts a node that uses a server.
func serveOn(t *testing.T, url string, args ...string) *node {
	t.Helper()
	return launch(t, "", append([]string{"--nats-url", url, "--http", "127.0.0.1:0", "--shards", "2"}, args...))
}
