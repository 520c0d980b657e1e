package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// startDev runs belfry dev and returns the process, with the addresses that it prints, and the end
// of its output.
func startDev(t *testing.T, args ...string) (n *node, ended <-chan struct{}) {
	t.Helper()
	n = &node{cmd: command(t, []string{"TMPDIR=" + t.TempDir()}, append([]string{"dev", "--nats-listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, args...)...), done: make(chan struct{})}
	n.cmd.Stderr = &n.log
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var printed logtest.Buffer
	read := make(chan struct{})
	go func() {
		defer close(n.done)
		for s := bufio.NewScanner(out); s.Scan(); {
			printed.Write(append(s.Bytes(), '\n'))
		}
		close(read)
		n.cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(func() {
		n.cmd.Process.Kill()
		<-n.done
	})
	waittest.Until(t, "belfry dev runs", func() bool { return strings.Contains(printed.String(), "Ctrl-C") })
	text := printed.String()
	n.nats = regexp.MustCompile(`nats://\S+`).FindString(text)
	n.http = regexp.MustCompile(`http://(\S+)/`).FindStringSubmatch(text)[1]
	n.data = regexp.MustCompile(`data\s+(\S+)`).FindStringSubmatch(text)[1]
	return n, read
}

// TestDev: belfry dev runs a node whose clock belfry clock moves, and removes its folder.
func TestDev(t *testing.T) {
	t.Parallel()
	n, _ := startDev(t, "--frozen")
	type clock struct {
		Now, Next    string
		Frozen       bool
		Steps, Fired int
		Endless      []string
		Pending      int
	}
	before := ok[clock](t, n, "clock")[0]
	ok[map[string]any](t, n, "add", "--in", "30d", "--svc", "orders", "--id", "a")
	ok[map[string]any](t, n, "add", "--at", "2030-03-28T02:30:00Z", "--svc", "orders", "--id", "b")
	moved := ok[clock](t, n, "clock", "advance", "30d")[0]
	if !before.Frozen || moved.Fired != 1 || moved.Steps != 1 || moved.Pending != 1 || moved.Now[:10] <= before.Now[:10] {
		t.Errorf("got %+v after 30 days, before %+v; want one event and one timer ahead", moved, before)
	}
	var st statusJSON
	waittest.Until(t, "status has no problems, and shows the clock", func() bool {
		st = ok[statusJSON](t, n, "status")[0]
		return len(st.Problems) == 0 && schemas.FormatTime(st.Clock.UnixMilli()) == moved.Now
	}, func() string { return fmt.Sprintf("problems %q, clock %s, want %s", st.Problems, st.Clock, moved.Now) })
	if r := n.client(t, "doctor"); r.code != exitOK || strings.Contains(r.out, "dedup window") {
		t.Errorf("doctor: %v, want no finding about the streams of a development store", r)
	}
	if r := n.client(t, "get", "a"); r.code != exitOK || !strings.Contains(r.out, "success") {
		t.Errorf("get: %v, want state success", r)
	}
	if got := ok[clock](t, n, "clock", "to", "2030-03-28T02:29:59Z")[0]; got.Fired != 0 || got.Now != "2030-03-28T02:29:59.000Z" {
		t.Errorf("got %+v a second before the due time", got)
	}
	n.client(t, "clock", "to", "2029-01-01T00:00:00Z").oneLine(t, exitRefused, "moves only forward")
	if got := ok[clock](t, n, "clock", "run-until-idle")[0]; got.Fired != 1 || got.Pending != 0 {
		t.Errorf("got %+v, want one event and none ahead", got)
	}
	ok[map[string]any](t, n, "add", "--every", "1h", "--svc", "orders", "--id", "s")
	n.client(t, "clock", "run-until-idle", "--max", "3").oneLine(t, exitRefused, "schedules without an end", "3 events have fired")
	if r := n.client(t, "clock", "run-until-idle", "--until", "2030-03-28T12:00"); r.code != exitOK || !strings.Contains(r.out, "due times passed") {
		t.Errorf("run-until-idle --until: %v", r)
	}
	tomorrow := ok[clock](t, n, "clock", "run-until-idle", "--until", "in 15m")[0]
	if !strings.HasPrefix(tomorrow.Now, "2030-03-28T") {
		t.Errorf("run-until-idle --until \"in 15m\" shows %s, want 15 minutes after the time of the moved clock", tomorrow.Now)
	}
	if got := ok[clock](t, n, "clock", "to", "in 20d")[0]; !strings.HasPrefix(got.Now, "2030-04-1") {
		t.Errorf("clock to \"in 20d\" shows %s, want 20 days after the time of the moved clock", got.Now)
	}
	n.endDev(t, syscall.SIGTERM)
}

// endDev ends belfry dev with a signal, and checks that its folder is gone.
func (n *node) endDev(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := n.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	waittest.Receive(t, "the end of the process after "+sig.String(), n.done, n.log.String)
	if code := n.cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("after %s: got exit code %d, want 0: %s", sig, code, n.log.String())
	}
	if out, err := exec.Command("ls", n.data).CombinedOutput(); err == nil {
		t.Errorf("after %s the folder is still there: %s", sig, out)
	}
}

// TestDevTerminalCloses: a terminal that closes, which sends SIGHUP, ends belfry dev like Ctrl-C.
func TestDevTerminalCloses(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGHUP) { // as under nohup; processes that the test starts would ignore it, too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
		t.Cleanup(func() { signal.Ignore(syscall.SIGHUP) })
	}
	n, _ := startDev(t)
	n.endDev(t, syscall.SIGHUP)
}

// TestClockOfServe: the clock of belfry serve cannot be moved.
func TestClockOfServe(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	n.client(t, "clock", "advance", "1h").oneLine(t, exitUnreachable, `only "belfry dev"`)
}
