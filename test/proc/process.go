//go:build unix

package proc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program that can be stopped and started again. It is what Node and Server
// have in common.
type process struct {
	t     testing.TB
	store string // the folder of its data
	log   *os.File
	disk  *disk // of its own; nil for the machine's

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// prepare opens the log, and has the process killed when the test ends or runs out of time.
func (p *process) prepare(t testing.TB, store, log string) {
	t.Helper()
	p.t, p.store = t, store
	var err error
	if p.log, err = os.Create(log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if err := p.log.Close(); err != nil {
			t.Error(err)
		}
	})
	killLate(t, p.Kill)
}

// SmallDisk gives the process, before its first start, a disk of its own that Fill can
// fill. The error says why the machine cannot provide it.
func (p *process) SmallDisk(bytes int64) error { return p.SmallDiskAt(p.store, bytes) }

// SmallDiskAt is SmallDisk for another folder than that of the data.
func (p *process) SmallDiskAt(folder string, bytes int64) (err error) {
	p.disk, err = newDisk(p.t, folder, bytes)
	return err
}

// HasDisk reports whether the process has a disk of its own.
func (p *process) HasDisk() bool { return p.disk != nil }

// Fill fills the process's own disk completely, until Free.
func (p *process) Fill() error { return p.disk.fill() }

// Free undoes Fill.
func (p *process) Free() error { return p.disk.free() }

// Kill ends the process with SIGKILL and waits for its end.
func (p *process) Kill() { p.end(os.Kill) }

// Terminate ends the process with SIGTERM and waits for its end.
func (p *process) Terminate() { p.end(syscall.SIGTERM) }

// Pause stops the process with SIGSTOP, until Resume.
func (p *process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (p *process) Resume() { p.signal(syscall.SIGCONT) }

// LogPath is the file with the log of all starts.
func (p *process) LogPath() string { return p.log.Name() }

// start starts a program, with an environment that has only HOME, PATH and env.
func (p *process) start(bin string, args, env []string) {
	p.t.Helper()
	cmd := exec.Command(bin, args...)
	if p.disk != nil {
		cmd = p.disk.command(bin, args...)
	}
	cmd.Env = append([]string{"HOME=" + p.store, "PATH=" + os.Getenv("PATH")}, env...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmd.Start(); err != nil {
		p.t.Errorf("start: %v", err)
		return
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // the test has ended the process: "signal: killed" is expected
	}()
	p.cmd, p.exited = cmd, exited
}

// endBound bounds the time from SIGTERM until the process has ended.
const endBound = 30 * time.Second

// end sends a signal that ends the process, and waits for its end. After endBound it kills
// the process.
func (p *process) end(s os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(s) // fails only if it has ended
	late := time.AfterFunc(endBound, func() { _ = p.cmd.Process.Kill() })
	<-p.exited
	late.Stop()
	p.cmd = nil
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("signal %v: %v", s, err)
	}
}

// ErrEnded is the error of a process that has ended instead of becoming ready.
var ErrEnded = errors.New("the process ended while it started")

// await requests a URL until the answer is 200.
func (p *process) await(ctx context.Context, bound time.Duration, url string) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	last := "no answer"
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			var b [512]byte
			n, _ := resp.Body.Read(b[:]) // the start of the reason
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			last = fmt.Sprintf("%s %s", resp.Status, b[:n])
		}
		p.mu.Lock()
		exited := p.exited
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready within %s: %s", url, bound, last)
		case <-exited:
			return fmt.Errorf("%s: %w", url, ErrEnded)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// killLate calls kill shortly before the time limit of the test binary, which ends without
// running the tests' cleanup functions.
func killLate(tb testing.TB, kill func()) {
	d, ok := tb.(interface{ Deadline() (time.Time, bool) })
	if !ok {
		return
	}
	if deadline, ok := d.Deadline(); ok {
		late := time.AfterFunc(time.Until(deadline)-2*time.Second, kill)
		tb.Cleanup(func() { late.Stop() })
	}
}
