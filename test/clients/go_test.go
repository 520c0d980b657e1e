//go:build unix

package clients

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/buildtest"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// TestGo runs the Go programs of the guides against a node. TestGettingStarted of cmd/belfry runs examples/order, and
// examples/worker has a test of its own, too.
func TestGo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a suite takes seconds")
	}
	n := proc.New(t, proc.Options{Config: config})
	n.Start()
	n.Ready(t.Context())
	c, err := belfry.Connect(t.Context(), n.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	env := []string{"NATS_URL=" + n.URL(), "BELFRY_SECRET=" + secret, "PORT=0"}

	t.Run("http", func(t *testing.T) {
		t.Parallel()
		p := start(t, env, "http")
		url := "http://" + strings.TrimPrefix(p.line(t), "listening on ") + "/expired"
		orders(t, c, belfry.WithService("signed"), belfry.WithCallback(url))
		forged, err := http.Post(url, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, forged.Body)
		forged.Body.Close()
		if forged.StatusCode != http.StatusUnauthorized {
			t.Errorf("a callback without a signature: got %s, want 401", forged.Status)
		}
	})
	t.Run("nats", func(t *testing.T) {
		t.Parallel()
		p := start(t, env, "nats")
		if got := p.line(t); got != "serving callbacks.orders.expire" {
			t.Fatalf("got %q; %s", got, p.errors.String())
		}
		orders(t, c, belfry.WithService("nats"), belfry.WithCallback("nats:callbacks.orders.expire"))
		p.stop(t)
	})
	t.Run("worker", func(t *testing.T) {
		t.Parallel()
		p := start(t, env, "worker")
		if got := p.line(t); got != "serving orders" {
			t.Fatalf("got %q; %s", got, p.errors.String())
		}
		order := belfry.NewTimerID("/shop", "order-17")
		if _, err := c.Reschedule(t.Context(), order, belfry.After(0)); err != nil {
			t.Fatal(err)
		}
		await(t, c, order, "success", func(info belfry.Timer) bool {
			return info.State == belfry.StateSuccess && info.Outcome.Response == "order 17 expired"
		})
		if got := p.stop(t); got != "stopped\n" {
			t.Errorf("got %q at the end, want stopped", got)
		}
	})
}

// orders adds timers of three orders: the program expires the first, does not know the second, and answers "not now"
// to the third.
func orders(t *testing.T, c *belfry.Client, opts ...belfry.AddOption) {
	t.Helper()
	add := func(id, data string) belfry.TimerID {
		e := event.New()
		e.SetID(id)
		e.SetSource("/" + t.Name())
		e.SetType("order.timeout")
		if err := e.SetData(event.ApplicationJSON, []byte(data)); err != nil {
			t.Fatal(err)
		}
		// A flow key of its own: "not now" holds the others of its key.
		r, err := c.Add(t.Context(), e, append(opts, belfry.After(0), belfry.Flow(t.Name()+"/"+id))...)
		if err != nil {
			t.Fatal(err)
		}
		return r.Timer
	}
	await(t, c, add("17", `{"order":17}`), "success", func(info belfry.Timer) bool {
		return info.State == belfry.StateSuccess && info.Outcome.Response == "order 17: expired true"
	})
	await(t, c, add("18", `{"order":18}`), "an error", func(info belfry.Timer) bool {
		return info.Outcome != nil && strings.Contains(info.Outcome.Error+info.Outcome.Response, "there is no order 18") && info.MaxAttempts == schemas.DefaultMaxAttempts
	})
	// An attempt with this answer does not count towards the limit.
	await(t, c, add("19", `{"order":19}`), "not now", func(info belfry.Timer) bool {
		return info.State == belfry.StateRetrying && info.Attempts > 0 && info.MaxAttempts == schemas.DefaultMaxAttempts+info.Attempts
	})
}

func await(t *testing.T, c *belfry.Client, timer belfry.TimerID, what string, ok func(belfry.Timer) bool) {
	t.Helper()
	var info belfry.Timer
	waittest.Until(t, what, func() bool {
		var err error
		if info, err = c.Get(t.Context(), timer); err != nil {
			t.Fatal(err)
		}
		return ok(info)
	}, func() string {
		b, _ := info.MarshalJSON()
		return string(b)
	})
}

// example is a program of the folder examples that runs.
type example struct {
	cmd    *exec.Cmd
	lines  *bufio.Reader
	errors logtest.Buffer
}

// start builds and starts an example. It is killed when the test ends.
func start(t *testing.T, env []string, name string) *example {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	if err := buildtest.Program(binary, "github.com/belfryio/belfry/examples/"+name); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &example{cmd: exec.CommandContext(ctx, binary)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.errors
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Wait() // it was killed
		}
	})
	p.lines = bufio.NewReader(out)
	return p
}

// line returns the next line that the program prints, "" after the last.
func (p *example) line(t *testing.T) string {
	t.Helper()
	lines := make(chan string, 1)
	go func() {
		line, _ := p.lines.ReadString('\n')
		lines <- strings.TrimSpace(line)
	}()
	return waittest.Receive(t, "a line of the program", lines, p.errors.String)
}

// stop asks the program to end, and returns the rest of its output.
func (p *example) stop(t *testing.T) string {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(p.lines)
		rest <- string(b)
	}()
	printed := waittest.Receive(t, "the end of the program", rest, p.errors.String)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the program ended with %v: %s", err, p.errors.String())
	}
	return printed
}
