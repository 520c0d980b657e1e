package natstest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/testsize"
)

// childEnv makes a re-executed test binary serve. Its value is port|sync|folder: the
// port, whether to fsync every write, and the folder of the store.
const childEnv = "NATSTEST_CHILD"

// Process is a server in a process of its own.
type Process struct {
	tb         testing.TB
	dir        string
	port       int
	syncAlways bool

	cmd   *exec.Cmd
	stdin io.Closer
}

// MaybeServe turns this process into a server if RunProcess started it; then it
// never returns. TestMain calls it first.
func MaybeServe() {
	env := os.Getenv(childEnv)
	if env == "" {
		return
	}
	if err := serveChild(env); err != nil {
		fmt.Fprintln(os.Stderr, "natstest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveChild(env string) error {
	f := strings.SplitN(env, "|", 3)
	if len(f) != 3 {
		return fmt.Errorf("%s=%q is not port|sync|folder", childEnv, env)
	}
	port, err := strconv.Atoi(f[0])
	if err != nil {
		return err
	}
	o := options(f[2], nil)
	o.Port, o.SyncAlways = port, f[1] == "true"
	srv, err := server.NewServer(&o)
	if err != nil {
		return err
	}
	srv.Start()
	if !srv.ReadyForConnections(startBound) {
		return fmt.Errorf("nats-server did not start within %s", startBound)
	}
	fmt.Println("ready")
	// Standard input ends when the parent process ends, for whatever reason.
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	srv.Shutdown()
	srv.WaitForShutdown()
	return nil
}

// RunProcess starts a server in a child process: this very test binary, whose
// TestMain must call MaybeServe. It is killed when the test ends. With -short RunProcess skips the test.
func RunProcess(tb testing.TB, syncAlways bool) *Process {
	tb.Helper()
	testsize.NotShort(tb, "this test runs a server in a process of its own")
	p := &Process{tb: tb, dir: tb.TempDir(), port: tcptest.FreePort(tb), syncAlways: syncAlways}
	tb.Cleanup(p.Kill)
	p.Start()
	return p
}

// Start starts the process, again on the same folder and port after a Kill.
func (p *Process) Start() {
	p.tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		p.tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d|%v|%s", childEnv, p.port, p.syncAlways, p.dir))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.tb.Fatal(err)
	}
	p.cmd, p.stdin = cmd, stdin
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		p.tb.Fatalf("the server's process ended before it was ready: %v", err)
	}
}

// Kill ends the process with SIGKILL and waits for its end. It may be called twice.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if it has ended
	_ = p.cmd.Wait()         // "signal: killed" is what we want
	_ = p.stdin.Close()
	p.cmd = nil
}

// URL is the server's address for clients.
func (p *Process) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", p.port) }

// Connect connects over TCP, reconnecting for ever, until the test ends.
func (p *Process) Connect(options ...nats.Option) *nats.Conn {
	p.tb.Helper()
	return connect(p.tb, p.URL(), options)
}

// Signal sends a signal to the process. After SIGSTOP the server keeps its connections
// and answers nothing, until SIGCONT. Kill also ends a stopped process.
func (p *Process) Signal(sig os.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.tb.Fatalf("signal the server: %v", err)
	}
}
