package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestWorkStops: a stopped worker finishes running handlers and hands back waiting requests.
// Another worker handles these in their first attempt.
func TestWorkStops(t *testing.T) {
	t.Parallel()
	c := connect(t)
	begun, finish := make(chan string, 10), make(chan struct{})
	stop := worker(t, c, "stops", func(_ context.Context, run *belfry.Run) error {
		if run.Event.ID() == "first" {
			return nil
		}
		begun <- run.Event.ID()
		<-finish
		return nil
	}, belfry.WithConcurrency(1))
	// Until the worker is connected, a delivery counts in Attempts, though it uses no attempt.
	untilState(t, c, addWork(t, c, "stops", "first"), belfry.StateSuccess)
	var ids []belfry.TimerID
	for i := range 5 {
		ids = append(ids, addWork(t, c, "stops", fmt.Sprint(i), belfry.WithMaxAttempts(1)))
	}
	<-begun
	var second, probes atomic.Int32
	stopped := make(chan error, 1)
	worker(t, c, "stops", func(_ context.Context, run *belfry.Run) error {
		if strings.HasPrefix(run.Event.ID(), "probe") {
			probes.Add(1)
		} else {
			second.Add(1)
		}
		return nil
	})
	// If the first worker stopped before the second is connected, a request would find no worker.
	waittest.Until(t, "the second worker is connected", func() bool {
		addWork(t, c, "stops", fmt.Sprint("probe", time.Now().UnixNano()))
		return probes.Load() > 0
	})
	go func() { stopped <- stop() }()
	waittest.Until(t, "the second worker has served 4 timers", func() bool { return second.Load() >= 4 })
	close(finish)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		if got := untilState(t, c, id, belfry.StateSuccess); got.Attempts != 1 {
			t.Errorf("%d attempts", got.Attempts)
		}
	}
	if len(begun) != 0 {
		t.Errorf("the stopped worker began %d more", len(begun))
	}
}

// TestWorkHandsBack: another worker handles a run that did not finish within WithStopGrace, in
// the same attempt. Work returns an error if a handler ignores its context.
func TestWorkHandsBack(t *testing.T) {
	t.Parallel()
	c := connect(t)
	for _, obeys := range []bool{true, false} {
		service := fmt.Sprint("back-", obeys)
		begun, finish := make(chan struct{}, 1), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := make(chan error, 1)
		go func() {
			out <- c.Work(ctx, service, func(ctx context.Context, _ *belfry.Run) error {
				begun <- struct{}{}
				if obeys {
					<-ctx.Done()
					return ctx.Err()
				}
				<-finish
				return nil
			}, belfry.WithStopGrace(0), belfry.WithErrorHandler(quiet))
		}()
		id := addWork(t, c, service, service, belfry.WithMaxAttempts(1))
		<-begun
		worker(t, c, service, func(_ context.Context, run *belfry.Run) error {
			if run.Attempt != 1 {
				t.Errorf("attempt %d", run.Attempt)
			}
			return nil
		})
		cancel()
		if err := waittest.Receive(t, "Work returns", out); obeys != (err == nil) {
			t.Errorf("obeys %v: %v", obeys, err)
		}
		if got := untilState(t, c, id, belfry.StateSuccess); got.Attempts != 1 {
			t.Errorf("%d attempts", got.Attempts)
		}
		close(finish)
	}
}

// workerVariable is the environment variable that makes TestMain run a worker.
const workerVariable = "BELFRY_TEST_WORKER"

// workForever is a worker process. Its handler prints a line and never returns.
func workForever(url string) {
	c, err := belfry.Connect(context.Background(), url)
	if err != nil {
		panic(err)
	}
	panic(c.Work(context.Background(), "killed", func(context.Context, *belfry.Run) error {
		fmt.Println("begun")
		select {}
	}))
}

// TestWorkKilled: when the process of a running handler is killed, the attempt fails, and
// another worker gets the next one.
func TestWorkKilled(t *testing.T) {
	t.Parallel()
	c := connect(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerVariable+"="+c.Conn().ConnectedUrl())
	cmd.Stderr = os.Stderr
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // "signal: killed"
	})
	defer killed()
	id := addWork(t, c, "killed", "1", belfry.WithMaxAttempts(100), belfry.WithAttemptTimeout(time.Second))
	var b [5]byte
	if _, err := said.Read(b[:]); err != nil || string(b[:]) != "begun" {
		t.Fatalf("%q %v", b, err)
	}
	before, err := c.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	killed()
	var attempts atomic.Uint32
	worker(t, c, "killed", func(_ context.Context, run *belfry.Run) error {
		attempts.Store(run.Attempt)
		return nil
	})
	got := untilState(t, c, id, belfry.StateSuccess)
	if got.Attempts <= before.Attempts+1 || attempts.Load() != got.Attempts {
		t.Errorf("%d attempts, %d before; the handler had attempt %d", got.Attempts, before.Attempts, attempts.Load())
	}
}

// TestWorkClosed: a closed connection ends Work with an error.
func TestWorkClosed(t *testing.T) {
	t.Parallel()
	c, err := belfry.Connect(t.Context(), natstest.Run(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan error, 1)
	go func() { out <- c.Work(t.Context(), "s", nothing) }()
	waittest.Until(t, "Work has subscribed", func() bool { return c.Conn().NumSubscriptions() > 0 })
	c.Close()
	if err := waittest.Receive(t, "Work returns", out); !errors.Is(err, belfry.ErrUnavailable) || !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Work returned %v, want that the connection is closed", err)
	}
}
