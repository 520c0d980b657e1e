package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/procfs"
)

const (
	// startBound bounds the time until a process is ready.
	startBound = 5 * time.Minute
	// stopBound bounds the stop of a process.
	stopBound = 30 * time.Second
)

// process is a child process: a nats-server or a Belfry node.
type process struct {
	what    string
	command func() *exec.Cmd
	// ready reports whether the process serves requests. A call may take long, and may return
	// false many times.
	ready func(context.Context) bool
	// endsBySignal makes stop send a signal, as an operator would, instead of ending the standard
	// input of the process. Every process ends with its standard input, so with this process,
	// however this process ends.
	endsBySignal bool
	// lost, if not nil, is called with the reason if the process ends without kill or stop.
	lost     func(error)
	expected atomic.Bool // kill or stop was called
	cmd      *exec.Cmd
	stdin    io.Closer
	exited   chan error
	out      tail
}

// launch starts the process without waiting until it is ready.
func (p *process) launch() error {
	cmd := p.command()
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	in, err := cmd.StdinPipe() // ends when this process dies, so that the child does not outlive it
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.what, err)
	}
	p.expected.Store(false)
	exited := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		if p.lost != nil && !p.expected.Load() {
			p.lost(fmt.Errorf("%s ended during the run (%w): %s", p.what, errors.Join(err, errors.New("exit")), p.out.String()))
		}
		exited <- err
	}()
	p.cmd, p.stdin, p.exited = cmd, in, exited
	return nil
}

// await waits until the process is ready.
func (p *process) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("%s was not ready after %s", p.what, startBound))
	defer cancel()
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for !p.ready(ctx) {
		select {
		case err := <-p.exited:
			p.cmd = nil
			return fmt.Errorf("%s ended while it started (%w): %s", p.what, errors.Join(err, errors.New("exit")), p.out.String())
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
	return nil
}

// kill sends SIGKILL and waits until the process has ended. It may be called twice.
func (p *process) kill() error {
	if p.cmd == nil {
		return nil
	}
	p.expected.Store(true)
	err := p.cmd.Process.Kill()
	<-p.exited // the error "signal: killed" is expected
	p.cmd = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil // ended by itself, which await or lost reports
	}
	return err
}

// stop asks the process to end and waits. After stopBound it kills the process.
func (p *process) stop() error {
	if p.cmd == nil {
		return nil
	}
	p.expected.Store(true)
	var err error
	if p.endsBySignal {
		err = p.cmd.Process.Signal(syscall.SIGTERM)
	} else {
		err = p.stdin.Close()
	}
	t := time.NewTimer(stopBound)
	defer t.Stop()
	select {
	case <-p.exited:
		p.cmd = nil
		return err
	case <-t.C:
		return errors.Join(fmt.Errorf("%s did not stop within %s", p.what, stopBound), p.kill())
	}
}

// used is the usage of a process since its start.
type used struct{ cpuSeconds, rssMB float64 }

// usage reads the usage from /proc, and fails on a system without it.
func (p *process) usage() (used, error) {
	if p.cmd == nil {
		return used{}, fmt.Errorf("%s does not run", p.what)
	}
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return used{}, fmt.Errorf("the usage of %s is not known: %w", p.what, err)
	}
	st, err := proc.Stat()
	if err != nil {
		return used{}, fmt.Errorf("the usage of %s is not known: %w", p.what, err)
	}
	return used{cpuSeconds: st.CPUTime(), rssMB: float64(st.ResidentMemory()) / 1e6}, nil
}

// answers reports whether an HTTP server answers 200.
func answers(url string) func(context.Context) bool {
	return func(ctx context.Context) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false // not yet
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
}

// serves reports whether JetStream at url can make a stream with this number of replicas.
func serves(url string, replicas int) func(context.Context) bool {
	return asks(url, func(ctx context.Context, js jetstream.JetStream) bool {
		if replicas <= 1 {
			_, err := js.AccountInfo(ctx)
			return err == nil
		}
		if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "BENCH_READY", Subjects: []string{"bench.ready"}, Replicas: replicas}); err != nil {
			return false
		}
		return js.DeleteStream(ctx, "BENCH_READY") == nil
	})
}

// hasStream reports whether the server at url has a stream.
func hasStream(url, name string) func(context.Context) bool {
	return asks(url, func(ctx context.Context, js jetstream.JetStream) bool {
		_, err := js.Stream(ctx, name)
		return err == nil
	})
}

// asks reports the answer of ask on a new connection to url; false if there is none yet.
func asks(url string, ask func(context.Context, jetstream.JetStream) bool) func(context.Context) bool {
	return func(ctx context.Context) bool {
		nc, err := nats.Connect(url, nats.NoReconnect(), nats.Timeout(time.Second))
		if err != nil {
			return false // not yet
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return ask(ctx, js)
	}
}

// diskBytes returns the size of all files in the folders.
func diskBytes(dirs ...string) (int64, error) {
	var n int64
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile by the server
			}
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil {
				n += info.Size()
			}
			return err
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// tail is a writer that keeps the last bytes written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > tailBytes {
		t.b = append([]byte(nil), t.b[len(t.b)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
