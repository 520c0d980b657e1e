package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// startBound is how long a server may take until it is ready.
const startBound = 5 * time.Minute

// process is a Belfry in a process of its own.
type process struct {
	serve      func(data, nats, http string) *exec.Cmd
	dir        string
	nats, http string
	cmd        *exec.Cmd
	exited     chan error
	out        tail
}

// newProcess chooses two ports; the process is killed with the Env.
func (e *Env) newProcess(dir string) (*process, error) {
	p := &process{serve: e.Serve, dir: dir}
	for _, addr := range []*string{&p.nats, &p.http} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*addr = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	e.onClose(p.kill)
	return p, nil
}

func (p *process) natsURL() string { return "nats://" + p.nats }

// start starts it and returns how long it took until it was ready.
func (p *process) start(ctx context.Context) (time.Duration, error) {
	p.cmd = p.serve(p.dir, p.nats, p.http)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	begun := time.Now()
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return 0, err
	}
	cmd, exited := p.cmd, make(chan error, 1)
	p.exited = exited
	go func() { exited <- cmd.Wait() }()
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("the server was not ready after %s", startBound))
	defer cancel()
	for {
		if resp, err := p.get(ctx, "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return time.Since(begun), nil
			}
		}
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case err := <-p.exited:
			t.Stop()
			p.cmd = nil
			return 0, fmt.Errorf("the server ended while it started (%w): %s", errors.Join(err, errors.New("exit")), p.out.String())
		case <-ctx.Done():
			t.Stop()
			return 0, context.Cause(ctx)
		case <-t.C:
		}
	}
}

// kill ends it with SIGKILL and waits for its end. It may be called twice.
func (p *process) kill() error {
	if p.cmd == nil {
		return nil
	}
	err := p.cmd.Process.Kill()
	<-p.exited // "signal: killed" is what we want
	p.cmd = nil
	return err
}

func (p *process) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.http+path, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// used is what a process has used until now.
type used struct{ cpuSeconds, rssMB float64 }

// usage asks the process's own metrics.
func (p *process) usage(ctx context.Context) (used, error) {
	resp, err := p.get(ctx, "/metrics")
	if err != nil {
		return used{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return used{}, err
	}
	var u used
	var found int
	s := bufio.NewScanner(bytes.NewReader(body))
	for s.Scan() {
		name, value, ok := strings.Cut(s.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			continue
		}
		switch name {
		case "process_cpu_seconds_total":
			u.cpuSeconds = v
			found++
		case "process_resident_memory_bytes":
			u.rssMB = v / 1e6
			found++
		}
	}
	if found != 2 {
		return u, errors.New("the server's metrics do not tell its CPU time and memory on this system")
	}
	return u, nil
}

// diskBytes is the size of all files in a folder.
func diskBytes(dir string) (int64, error) {
	var n int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server removed it since
		}
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// tail keeps the end of what is written to it.
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
