package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/waittest"
)

// hook is a running belfry listen.
type hook struct {
	cmd      *exec.Cmd
	url      string
	out, err logtest.Buffer
}

// listening starts belfry listen, and waits until it listens.
func (n *node) listening(t *testing.T, args ...string) *hook {
	t.Helper()
	h := &hook{cmd: command(t, []string{"NATS_URL=" + n.nats}, append([]string{"listen"}, args...)...)}
	h.cmd.Stdout, h.cmd.Stderr = &h.out, &h.err
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.cmd.Process.Kill() })
	waittest.Until(t, "listen prints its callback", func() bool {
		line, found := h.err.Line("the callback is ")
		if found {
			_, after, _ := strings.Cut(line, "the callback is ")
			h.url, _, _ = strings.Cut(strings.TrimSpace(after), " ")
		}
		return found
	}, h.err.String)
	return h
}

// lines waits until n callbacks are printed as JSON.
func (h *hook) lines(t *testing.T, n int) []callbackLine {
	t.Helper()
	waittest.Until(t, "the callbacks are printed", func() bool { return strings.Count(h.out.String(), "\n") >= n }, h.out.String)
	return parseLines[callbackLine](t, h.out.String())
}

// end interrupts listen, which must end with the exit code 0 and print texts to stderr.
func (h *hook) end(t *testing.T, want ...string) {
	t.Helper()
	if err := h.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v, %s", err, h.err.String())
	}
	for _, w := range want {
		if !strings.Contains(h.err.String(), w) {
			t.Errorf("stderr lacks %q: %s", w, h.err.String())
		}
	}
}
