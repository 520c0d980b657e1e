//go:build unix

// Package proc runs real programs for tests: belfry nodes (proc.go) and nats-server, alone or
// as a cluster (servers.go). Each program is built once for all packages (buildtest), runs on a temporary
// folder and free ports, and is killed by its process ID when the test ends, also when the
// test runs out of time. A Link (link.go) is a network between them that can fail.
package proc

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/buildtest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/testsize"
)

var (
	mu    sync.Mutex
	built string // the folder of the programs
	done  = map[string]string{}
)

// Run runs the tests of a TestMain, removes the programs, and returns the exit code.
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

// Build builds belfry, once for each list of arguments of go build, and returns its path. With -short it
// skips the test.
func Build(tb testing.TB, args ...string) string {
	tb.Helper()
	return build(tb, "belfry", "github.com/belfryio/belfry/cmd/belfry", args...)
}

// LevelTag is the build tag of a node that reads the format level in LevelEnv.
const LevelTag = "belfrylevel"

// BuildLevel builds belfry with LevelTag, once, and returns its path.
func BuildLevel(tb testing.TB) string {
	tb.Helper()
	return Build(tb, "-tags", LevelTag)
}

// LevelEnv is the environment of a node that reads up to a format level, if LevelTag was set
// when it was built.
func LevelEnv(level store.FormatLevel) []string {
	return []string{fmt.Sprintf("BELFRY_TEST_LEVEL=%d", level)}
}

func build(tb testing.TB, name, pkg string, args ...string) string {
	tb.Helper()
	testsize.NotShort(tb, "this test runs programs")
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
	if err := buildtest.Program(path, pkg, args...); err != nil {
		tb.Fatal(err)
	}
	done[key] = path
	return path
}

// Options of a Node. The zero value runs an embedded server.
type Options struct {
	// Bin is the program; the default is Build's.
	Bin string
	// Config is the text of the config file; "" for no settings.
	Config string
	// NATSURL is a server, or a comma-separated list of a cluster's, to use instead
	// of the embedded one.
	NATSURL string
	// Data is the folder of the embedded server; default a temporary one.
	Data string
	// Env is added to an otherwise nearly empty environment.
	Env []string
}

// Node is a belfry process.
type Node struct {
	process
	o          Options
	config     string
	nats, http string
}

// readyBound bounds the time from the start until the node is ready.
const readyBound = 60 * time.Second

// New prepares a node; Start starts it. It is killed when the test ends.
func New(t testing.TB, o Options) *Node {
	t.Helper()
	if o.Bin == "" {
		o.Bin = Build(t)
	}
	dir := t.TempDir()
	n := &Node{o: o, config: filepath.Join(dir, "belfry.yaml"), nats: tcptest.FreeAddress(t), http: tcptest.FreeAddress(t)}
	data := o.Data
	if data == "" {
		data = filepath.Join(dir, "data")
	}
	if err := os.WriteFile(n.config, []byte(cmp.Or(o.Config, "{}\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	n.prepare(t, data, filepath.Join(dir, "belfry.log"))
	t.Cleanup(func() { // before the log is closed
		if t.Failed() {
			n.Kill()
			t.Logf("end of the node's log:\n%s", n.LogTail())
		}
	})
	return n
}

// URL is the server that the node uses.
func (n *Node) URL() string {
	if n.o.NATSURL != "" {
		return n.o.NATSURL
	}
	return "nats://" + n.nats
}

// Address is the node's HTTP address.
func (n *Node) Address() string { return n.http }

// HTTP is the URL of the node's HTTP API.
func (n *Node) HTTP() string { return "http://" + n.http }

// Start starts the process; it does not wait until it is ready.
func (n *Node) Start() {
	n.t.Helper()
	args := []string{"serve", "--config", n.config, "--http", n.http, "--log-format", "json"}
	if n.o.NATSURL != "" {
		args = append(args, "--nats-url", n.o.NATSURL)
	} else {
		args = append(args, "--data", n.store, "--nats-listen", n.nats)
	}
	n.start(n.o.Bin, args, n.o.Env)
}

// get returns an answer of the node and its body.
func (n *Node) get(ctx context.Context, path string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.http+path, nil)
	if err != nil {
		return nil, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

// Readiness returns the status and the body of /readyz.
func (n *Node) Readiness() (status int, body string, err error) {
	resp, body, err := n.get(context.Background(), "/readyz")
	if err != nil {
		return 0, "", err
	}
	return resp.StatusCode, body, nil
}

// Ready waits until the node serves.
func (n *Node) Ready(ctx context.Context) {
	n.t.Helper()
	if err := n.WaitReady(ctx, readyBound); err != nil {
		n.t.Fatalf("%v; the node's log:\n%s", err, n.LogTail())
	}
}

// WaitReady waits until the node serves. The error has the reason why it does not.
func (n *Node) WaitReady(ctx context.Context, bound time.Duration) error {
	return n.await(ctx, bound, "http://"+n.http+"/readyz")
}

// Name returns the node's name, which the clocks of its shards have.
func (n *Node) Name(ctx context.Context) (string, error) {
	_, body, err := n.get(ctx, "/readyz")
	if err != nil {
		return "", err
	}
	var ready struct{ Node string }
	return ready.Node, json.Unmarshal([]byte(body), &ready)
}

// Clock returns the wall clock of the node's process, to the second: the Date of an answer.
func (n *Node) Clock() time.Time {
	n.t.Helper()
	resp, _, err := n.get(context.Background(), "/healthz")
	if err != nil {
		n.t.Fatal(err)
	}
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		n.t.Fatal(err)
	}
	return at
}

// Metrics returns the node's metrics.
func (n *Node) Metrics() string {
	n.t.Helper()
	_, body, err := n.get(context.Background(), "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	return body
}

// LogTail returns the end of the node's log.
func (n *Node) LogTail() string {
	b, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6000):])
}
