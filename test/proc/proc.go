//go:build unix

// Package proc runs real programs for tests: belfry nodes (proc.go) and a
// cluster of nats-server (servers.go), built once a test binary, on a temporary
// folder and free ports, killed by their process ids when the test ends, however
// that ends. A Link (link.go) is a network between them that can fail.
package proc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

var (
	mu    sync.Mutex
	built string // the folder of what was built
	done  = map[string]string{}
)

// Run runs the tests of a TestMain and removes what was built for them. It
// returns the exit code.
func Run(m interface{ Run() int }) int {
	code := m.Run()
	mu.Lock()
	defer mu.Unlock()
	if built != "" {
		if err := os.RemoveAll(built); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// Build makes the program, once for the same arguments of go build, and returns
// its path.
func Build(tb testing.TB, args ...string) string {
	tb.Helper()
	return build(tb, "belfry", "github.com/belfryio/belfry/cmd/belfry", args...)
}

// LevelTag is the build tag with which a node reads the format level that its
// environment names; see LevelEnv.
const LevelTag = "belfrylevel"

// BuildLevel makes the program with LevelTag, once, and returns its path.
func BuildLevel(tb testing.TB) string {
	tb.Helper()
	return Build(tb, "-tags", LevelTag)
}

// LevelEnv is the environment of a node that reads up to a format level, if it was
// built with LevelTag.
func LevelEnv(level store.FormatLevel) []string {
	return []string{fmt.Sprintf("BELFRY_TEST_LEVEL=%d", level)}
}

func build(tb testing.TB, name, pkg string, args ...string) string {
	tb.Helper()
	mu.Lock()
	defer mu.Unlock()
	key := fmt.Sprint(pkg, args)
	if path, ok := done[key]; ok {
		return path
	}
	if built == "" {
		var err error
		if built, err = os.MkdirTemp("", "belfry-test-"); err != nil {
			tb.Fatal(err)
		}
	}
	path := filepath.Join(built, fmt.Sprintf("%s%d", name, len(done)))
	args = append(append([]string{"build", "-o", path}, args...), pkg)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		tb.Fatalf("go build: %v\n%s", err, out)
	}
	done[key] = path
	return path
}

// Options say how a Node is served. The zero value serves an embedded server.
type Options struct {
	// Bin is the program; default Build's.
	Bin string
	// Config is the text of the config file.
	Config string
	// NATSURL is a server, or a comma-separated list of a cluster's, to use instead
	// of the embedded one.
	NATSURL string
	// Data is the folder of the embedded server; default a temporary one.
	Data string
	// Env is added to an otherwise nearly empty environment.
	Env []string
}

// Node is a belfry in a process of its own.
type Node struct {
	t          testing.TB
	o          Options
	dir        string
	config     string
	nats, http string

	p    process
	log  *os.File
	disk *disk // nil for the machine's
}

// readyBound is how long a start may take until the node is ready.
const readyBound = 60 * time.Second

// New prepares a node; Start starts it. It is killed when the test ends.
func New(t testing.TB, o Options) *Node {
	t.Helper()
	if o.Bin == "" {
		o.Bin = Build(t)
	}
	dir := t.TempDir()
	n := &Node{t: t, o: o, dir: filepath.Join(dir, "data"), config: filepath.Join(dir, "belfry.yaml"), nats: FreeAddress(t), http: FreeAddress(t)}
	if o.Data != "" {
		n.dir = o.Data
	}
	if err := os.WriteFile(n.config, []byte(o.Config), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.log, err = os.Create(filepath.Join(dir, "belfry.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.Kill()
		if t.Failed() {
			n.t.Logf("end of the node's log:\n%s", n.LogTail())
		}
		if err := n.log.Close(); err != nil {
			t.Error(err)
		}
	})
	killLate(t, n.Kill)
	return n
}

// URL is the server that the node uses.
func (n *Node) URL() string {
	if n.o.NATSURL != "" {
		return n.o.NATSURL
	}
	return "nats://" + n.nats
}

// Start starts the process; it does not wait until it is ready.
func (n *Node) Start() {
	n.t.Helper()
	args := []string{"serve", "--config", n.config, "--http", n.http, "--log-format", "json"}
	if n.o.NATSURL != "" {
		args = append(args, "--nats-url", n.o.NATSURL)
	} else {
		args = append(args, "--data", n.dir, "--nats-listen", n.nats)
	}
	cmd := exec.Command(n.o.Bin, args...)
	if n.disk != nil {
		cmd = n.disk.command(n.o.Bin, args...)
	}
	cmd.Env = append([]string{"HOME=" + n.dir, "PATH=" + os.Getenv("PATH")}, n.o.Env...) // no settings of the machine's
	cmd.Stdout, cmd.Stderr = n.log, n.log
	n.p.start(n.t, cmd)
}

// SmallDisk gives the node's data folder, before the first start, a file system of its
// own that Fill can fill. The error says why this machine cannot.
func (n *Node) SmallDisk(bytes int64) (err error) {
	n.disk, err = newDisk(n.t, n.dir, bytes)
	return err
}

// Fill leaves no byte on the node's own disk, until Free.
func (n *Node) Fill() error { return n.disk.fill() }

// Free gives the room back.
func (n *Node) Free() error { return n.disk.free() }

// Readiness is the answer of /readyz: its status and its body.
func (n *Node) Readiness() (status int, body string, err error) {
	resp, err := http.Get("http://" + n.http + "/readyz")
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// Kill ends the process with SIGKILL, by its id, and waits for its end.
func (n *Node) Kill() { n.p.end(os.Kill) }

// Terminate asks the process to end in order, and waits for its end.
func (n *Node) Terminate() { n.p.end(syscall.SIGTERM) }

// Pause stops the process where it stands, until Resume.
func (n *Node) Pause() { n.p.signal(n.t, syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (n *Node) Resume() { n.p.signal(n.t, syscall.SIGCONT) }

// Ready waits until the node serves.
func (n *Node) Ready(ctx context.Context) {
	n.t.Helper()
	if err := n.WaitReady(ctx, readyBound); err != nil {
		n.t.Fatalf("%v; the node's log:\n%s", err, n.LogTail())
	}
}

// WaitReady waits until the node serves, and says why it does not.
func (n *Node) WaitReady(ctx context.Context, bound time.Duration) error {
	return n.p.await(ctx, bound, "http://"+n.http+"/readyz")
}

// Name is what the node calls itself, in the clocks of the shards that it owns.
func (n *Node) Name(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.http+"/readyz", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var ready struct{ Node string }
	return ready.Node, json.NewDecoder(resp.Body).Decode(&ready)
}

// Clock is the wall clock that the node's process sees, to the second: it is the
// Date of its answers.
func (n *Node) Clock() time.Time {
	n.t.Helper()
	resp, err := http.Get("http://" + n.http + "/healthz")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		n.t.Fatal(err)
	}
	return at
}

// Metrics reads the node's metrics.
func (n *Node) Metrics() string {
	resp, err := http.Get("http://" + n.http + "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		n.t.Fatal(err)
	}
	return b.String()
}

// LogPath is the file that the node logs to, over all its restarts.
func (n *Node) LogPath() string { return n.log.Name() }

// LogTail is the end of what the node has logged.
func (n *Node) LogTail() string {
	b, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6000):])
}
