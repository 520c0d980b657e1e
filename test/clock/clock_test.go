// Package clock runs the program on hosts whose wall clock is wrong or jumps, against a
// server whose clock is right.
package clock

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// bound is the time limit of the whole test.
const bound = 120 * time.Second

// shiftSource is added to package time of the program under test. Once BELFRY_TEST_AFTER
// seconds have passed, the wall clock is off by BELFRY_TEST_SHIFT seconds.
const shiftSource = `package time

import "syscall"

var testShift, testAfter, testStart = testEnv("BELFRY_TEST_SHIFT"), testEnv("BELFRY_TEST_AFTER"), runtimeNano()

func testEnv(name string) int64 {
	s, _ := syscall.Getenv(name)
	n, _ := atoi(s)
	return int64(n)
}

func testWall(sec, mono int64) int64 {
	if mono-testStart >= testAfter*1e9 {
		sec += testShift
	}
	return sec
}
`

// build builds belfry with a package time whose Now calls testWall. It changes a copy of
// the toolchain's source.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	src := filepath.Join(runtime.GOROOT(), "src", "time", "time.go") //nolint:staticcheck // the toolchain that runs this test also builds belfry
	if out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output(); err == nil {
		src = filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go")
	}
	b, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	const before = "func Now() Time {\n"
	i := strings.Index(string(b), before)
	if i < 0 {
		t.Fatal("package time has no func Now; adapt build to this version of Go")
	}
	i += len(before)
	// The first statement reads the clock.
	j := strings.Index(string(b[i:]), "()\n")
	if j < 0 || !strings.Contains(string(b[i:i+j]), "sec, nsec, mono := ") {
		t.Fatal("time.Now does not read the clock in its first statement; adapt build to this version of Go")
	}
	j += i + len("()\n")
	changed := string(b[:j]) + "\tsec = testWall(sec, mono)\n" + string(b[j:])
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		src: write("time.go", changed),
		filepath.Join(filepath.Dir(src), "zz_shift.go"): write("zz_shift.go", shiftSource),
	}})
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "belfry")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", write("overlay.json", string(overlay)), "-o", bin, "./cmd/belfry")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

func TestHostClockIsWrong(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for name, c := range map[string]struct{ shift, after string }{
		"an hour ahead":                  {"3600", "0"},
		"an hour behind":                 {"-3600", "0"},
		"jumps ahead while it runs":      {"3600", "4"},
		"falls behind while it runs":     {"-3600", "4"},
		"right, to prove the test right": {"0", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			// Do not use the test's context: the process must live until it has been
			// stopped with SIGTERM.
			ctx, cancel := context.WithTimeout(context.Background(), bound)
			t.Cleanup(cancel)
			cmd := exec.CommandContext(ctx, bin, "serve", "--nats-url", srv.URL(), "--http", "-", "--log-level", "info", "--log-format", "json")
			cmd.Env = append(os.Environ(), "BELFRY_TEST_SHIFT="+c.shift, "BELFRY_TEST_AFTER="+c.after)
			var log strings.Builder
			cmd.Stderr = &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				// After an orderly stop the last line of the log has the time of the
				// program's clock.
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Error(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Errorf("belfry serve, after SIGTERM: %v", err)
				}
				if want := c.shift != "0"; shifted(t, log.String()) != want {
					t.Errorf("the program's clock is shifted: %v, want %v", !want, want)
				}
				if t.Failed() {
					t.Log(log.String())
				}
			})
			run(ctx, t, srv)
		})
	}
}

// shifted reports whether the time in the last line of the program's log is far from this
// host's clock. It shows that the program's clock was wrong.
func shifted(t *testing.T, log string) bool {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(log), "\n")
	var line struct{ Time time.Time }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &line); err != nil {
		t.Errorf("the last line of the log is not JSON: %v in %q", err, lines[len(lines)-1])
	}
	d := time.Since(line.Time)
	return d > 30*time.Minute || d < -30*time.Minute
}

// run adds timers over some seconds and checks with the server's timestamps that none is
// early or late.
func run(ctx context.Context, t *testing.T, srv *natstest.Server) {
	t.Helper()
	c, err := belfry.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	const n = 300
	due := map[string]int64{}
	for i := 0; i < n; i++ {
		e := event.New()
		e.SetID(fmt.Sprint(i))
		e.SetSource("/clock")
		e.SetType("t")
		// Add the first hundred at once and the others after a jump, all due within 6 s.
		when := belfry.After(time.Duration(i) * 20 * time.Millisecond)
		if i%2 == 0 {
			when = belfry.At(time.Now().Add(time.Duration(i) * 20 * time.Millisecond))
		}
		r, err := c.Add(ctx, e, when)
		for err != nil && ctx.Err() == nil && i == 0 {
			r, err = c.Add(ctx, e, when) // retry until the program serves
		}
		if err != nil {
			t.Fatal(err)
		}
		due[r.Timer.MsgID(1)] = r.Due.UnixMilli()
		if i == 200 {
			waitForFired(ctx, t, srv, 100)
		}
	}
	for _, m := range waitForFired(ctx, t, srv, n) {
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		late := meta.Timestamp.Sub(time.UnixMilli(due[m.Headers().Get(jetstream.MsgIDHeader)]))
		if late < 0 {
			t.Errorf("%s fired %s early", m.Headers().Get(jetstream.MsgIDHeader), -late)
		}
		if late > bound {
			t.Errorf("%s fired %s late", m.Headers().Get(jetstream.MsgIDHeader), late)
		}
	}
}

// waitForFired reads the first n events of TIMERS_FIRED.
func waitForFired(ctx context.Context, t *testing.T, srv *natstest.Server, n int) []jetstream.Msg {
	t.Helper()
	js, err := jetstream.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.OrderedConsumer(ctx, schemas.StreamFired, jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	it, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Stop()
	var out []jetstream.Msg
	for len(out) < n {
		m, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatalf("after %d of %d events: %v", len(out), n, err)
		}
		out = append(out, m)
	}
	return out
}
