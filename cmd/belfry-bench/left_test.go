package main

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestNoProcessIsLeft: the processes that a run started end with it, also if it is interrupted or
// killed, and whether they are a node or a nats-server.
func TestNoProcessIsLeft(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the processes are found in /proc")
	}
	for name, c := range map[string]struct {
		signal syscall.Signal
		args   []string
		clean  bool // the data folders are removed
	}{
		"node, interrupted":   {syscall.SIGINT, []string{"steady", "--seconds", "600"}, true},
		"node, killed":        {syscall.SIGKILL, []string{"steady", "--seconds", "600"}, false},
		"servers and node":    {syscall.SIGKILL, []string{"steady", "--on", "server", "--seconds", "600"}, false},
		"peer, terminated":    {syscall.SIGTERM, []string{"peer", "steady", "--seconds", "600"}, true},
		"peer, killed":        {syscall.SIGKILL, []string{"peer", "steady", "--seconds", "600"}, false},
		"compare, terminated": {syscall.SIGTERM, []string{"compare", "--only", "steady1k"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := program(t.Context(), t, append(c.args, "--profile", "fast", "--warmup", "-1", "--dir", dir)...)
			progress := &logtest.Buffer{}
			cmd.Stderr = progress
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			waittest.UntilWithin(t, bound, "the measurement", func() bool { return strings.Contains(progress.String(), "fired") }, progress.String)
			started := childrenOf(t, cmd.Process.Pid)
			t.Cleanup(func() { // only if the test fails
				for pid, began := range started {
					if p, err := os.FindProcess(pid); err == nil && begun(pid) == began {
						_ = p.Kill()
					}
				}
			})
			if len(started) == 0 {
				t.Fatal("the run has no process of its own, want a node or a server")
			}
			if err := cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err == nil {
					t.Errorf("after %s: got success, want an error", c.signal)
				}
			case <-time.After(bound):
				t.Fatalf("belfry-bench did not end within %s of %s", bound, c.signal)
			}
			waittest.UntilWithin(t, bound, "the end of the processes", func() bool {
				for pid, began := range started {
					if begun(pid) == began {
						return false
					}
				}
				return true
			})
			if left, err := os.ReadDir(dir); c.clean && (err != nil || len(left) > 0) {
				t.Errorf("after %s the folder has %v (%v), want no files", c.signal, left, err)
			}
		})
	}
}

// childrenOf returns the child processes of a process, and when they began.
func childrenOf(t *testing.T, parent int) map[int]uint64 {
	t.Helper()
	all, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]uint64{}
	for _, p := range all {
		if st, err := p.Stat(); err == nil && st.PPID == parent {
			out[p.PID] = st.Starttime
		}
	}
	return out
}

// begun returns when a process began, in ticks since the boot; 0 if it has ended.
func begun(pid int) uint64 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	st, err := p.Stat()
	if err != nil || st.State == "Z" {
		return 0
	}
	return st.Starttime
}
