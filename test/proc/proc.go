// Package proc runs the real belfry program for tests: built once a test binary,
// on a temporary folder and free ports, killed by its process id when the test
// ends, however that ends.
package proc

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
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
	mu.Lock()
	defer mu.Unlock()
	key := fmt.Sprint(args)
	if path, ok := done[key]; ok {
		return path
	}
	if built == "" {
		var err error
		if built, err = os.MkdirTemp("", "belfry-test-"); err != nil {
			tb.Fatal(err)
		}
	}
	path := filepath.Join(built, fmt.Sprintf("belfry%d", len(done)))
	args = append(append([]string{"build", "-o", path}, args...), "github.com/belfryio/belfry/cmd/belfry")
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
	// NATSURL is a server to use instead of the embedded one.
	NATSURL string
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

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	log    *os.File
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
	n := &Node{t: t, o: o, dir: filepath.Join(dir, "data"), config: filepath.Join(dir, "belfry.yaml"), nats: freeAddress(t), http: freeAddress(t)}
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
	// A test that runs out of time ends without its clean-up.
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if deadline, ok := d.Deadline(); ok {
			late := time.AfterFunc(time.Until(deadline)-2*time.Second, n.Kill)
			t.Cleanup(func() { late.Stop() })
		}
	}
	return n
}

// freeAddress is a port that was free just now. It stays the node's through its
// restarts, so that clients find it again.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
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
	n.mu.Lock()
	defer n.mu.Unlock()
	args := []string{"serve", "--config", n.config, "--http", n.http, "--log-format", "json"}
	if n.o.NATSURL != "" {
		args = append(args, "--nats-url", n.o.NATSURL)
	} else {
		args = append(args, "--data", n.dir, "--nats-listen", n.nats)
	}
	cmd := exec.Command(n.o.Bin, args...)
	cmd.Env = append([]string{"HOME=" + n.dir, "PATH=" + os.Getenv("PATH")}, n.o.Env...) // no settings of the machine's
	cmd.Stdout, cmd.Stderr = n.log, n.log
	if err := cmd.Start(); err != nil {
		n.t.Errorf("start: %v", err)
		return
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // its end is asked for, and "signal: killed" no news
	}()
	n.cmd, n.exited = cmd, exited
}

// Kill ends the process with SIGKILL, by its id, and waits for its end.
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill() // fails only if it has ended
	<-n.exited
	n.cmd = nil
}

// Ready waits until the node serves.
func (n *Node) Ready(ctx context.Context) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.http+"/readyz", nil)
		if err != nil {
			n.t.Fatal(err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		n.mu.Lock()
		exited := n.exited
		n.mu.Unlock()
		select {
		case <-ctx.Done():
			n.t.Fatalf("the node was not ready within %s", readyBound)
		case <-exited:
			n.t.Fatalf("the node ended while it started; its log:\n%s", n.LogTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
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

// LogTail is the end of what the node has logged.
func (n *Node) LogTail() string {
	b, err := os.ReadFile(n.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-6000):])
}
