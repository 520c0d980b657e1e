//go:build unix

package proc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// process is a program that runs, or does not, or is started again.
type process struct {
	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

func (p *process) start(tb testing.TB, cmd *exec.Cmd) {
	tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmd.Start(); err != nil {
		tb.Errorf("start: %v", err)
		return
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // its end is asked for, and "signal: killed" no news
	}()
	p.cmd, p.exited = cmd, exited
}

// endBound is how long a process may take to end in order.
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

func (p *process) signal(tb testing.TB, s os.Signal) {
	tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		tb.Errorf("signal %v: %v", s, err)
	}
}

// ErrEnded says that a process ended while it was to become ready.
var ErrEnded = errors.New("the process ended while it started")

// await asks an address over HTTP until it answers 200.
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
			n, _ := resp.Body.Read(b[:]) // what of the reason has come
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

// killLate kills before the test runs out of time: it would end without its
// clean-up.
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

// firstPort and lastPort bound the ports of servers. They are below the range for outgoing
// connections, so no connection takes the port of a server while it is down.
const firstPort, lastPort = 12_000, 30_000

var (
	portMu sync.Mutex
	given  = map[int]bool{}
)

// FreeAddress is a port of loopback that was free just now, and is given to
// nobody else in this process. It stays its owner's through restarts, so that
// clients find it again.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	portMu.Lock()
	defer portMu.Unlock()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if given[port] {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		l.Close()
		given[port] = true
		return addr
	}
	tb.Fatal("no free port")
	return ""
}
