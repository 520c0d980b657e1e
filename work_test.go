package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// worker runs Work until stop is called, which returns what Work returned.
func worker(t *testing.T, c *belfry.Client, service string, h belfry.Handler, opts ...belfry.WorkOption) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan error, 1)
	go func() { out <- c.Work(ctx, service, h, opts...) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return waittest.Receive(t, "Work returns", out)
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Work: %v", err)
		}
	})
	return stop
}

// addWork adds a timer that is due now, for the workers of a service.
func addWork(t *testing.T, c *belfry.Client, service, id string, opts ...belfry.AddOption) belfry.TimerID {
	t.Helper()
	opts = append([]belfry.AddOption{belfry.After(0), belfry.ToWorker(service), belfry.WithBackoff(20*time.Millisecond, time.Second)}, opts...)
	r, err := c.Add(t.Context(), newEvent(id), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r.Timer
}

// until waits until a timer meets a condition.
func until(t *testing.T, c *belfry.Client, id belfry.TimerID, what string, ok func(belfry.Timer) bool) belfry.Timer {
	t.Helper()
	var got belfry.Timer
	waittest.Until(t, "the timer is "+what, func() bool {
		var err error
		got, err = c.Get(t.Context(), id)
		return err == nil && ok(got)
	}, func() string { return fmt.Sprintf("%+v, outcome %+v", got, got.Outcome) })
	return got
}

func untilState(t *testing.T, c *belfry.Client, id belfry.TimerID, s belfry.State) belfry.Timer {
	t.Helper()
	return until(t, c, id, s.String(), func(x belfry.Timer) bool { return x.State == s })
}

func quiet(*belfry.Run, error) {}

func letters(t *testing.T, c *belfry.Client, service string) map[string]belfry.DeadLetter {
	t.Helper()
	out := map[string]belfry.DeadLetter{}
	for d, err := range c.DeadLetters(t.Context(), service) {
		if err != nil {
			t.Fatal(err)
		}
		out[d.ID] = d
	}
	return out
}

type order struct{ Order int }

// TestWork: Get and the dead letters have the outcome of each kind of handler result.
func TestWork(t *testing.T) {
	t.Parallel()
	c := connect(t)
	var calls sync.Map
	attempt := func(run *belfry.Run) uint32 {
		n, _ := calls.LoadOrStore(run.Event.ID(), new(atomic.Uint32))
		return n.(*atomic.Uint32).Add(1)
	}
	worker(t, c, "w", func(_ context.Context, run *belfry.Run) error {
		n := attempt(run)
		if run.Attempt != n || run.Service != "w" || run.Key() != run.Timer.MsgID(1) || run.Late() < 0 {
			t.Errorf("%s, call %d: %+v", run.Event.ID(), n, run)
		}
		switch run.Event.ID() {
		case "fails":
			return errors.New("shop is closed")
		case "panics":
			if n == 1 {
				panic("oh")
			}
		case "permanent":
			if n == 1 {
				return belfry.Permanent(errors.New("no such order: ütf\n8"))
			}
		case "later":
			if n <= 3 {
				return belfry.RetryAfter(time.Millisecond)
			}
		case "json":
			return belfry.HandleJSON(func(_ context.Context, _ *belfry.Run, o order) error {
				t.Errorf("called with %+v", o)
				return nil
			})(t.Context(), run)
		}
		run.SetResult("sent " + run.Event.ID())
		return nil
	}, belfry.WithErrorHandler(quiet))
	ids := map[string]belfry.TimerID{}
	for _, id := range []string{"fine", "fails", "panics", "permanent", "later", "json"} {
		ids[id] = addWork(t, c, "w", id, belfry.WithMaxAttempts(2))
	}
	for id, want := range map[string]struct {
		state    belfry.State
		attempts uint32
		text     string
	}{
		"fine":      {belfry.StateSuccess, 1, "sent fine"},
		"fails":     {belfry.StateFail, 2, "shop is closed"},
		"panics":    {belfry.StateSuccess, 2, "sent panics"},
		"permanent": {belfry.StateFail, 1, "no such order: ütf 8"},
		"later":     {belfry.StateSuccess, 4, "sent later"}, // of 5: three were given back
		"json":      {belfry.StateFail, 1, "cannot decode the event's data as JSON of belfry_test.order"},
	} {
		got := untilState(t, c, ids[id], want.state)
		text := ""
		if got.Outcome != nil {
			text = got.Outcome.Error + got.Outcome.Response
		}
		if got.Attempts != want.attempts || !strings.HasPrefix(text, want.text) {
			t.Errorf("%s: %d attempts, %q; want %d, %q", id, got.Attempts, text, want.attempts, want.text)
		}
	}
	dead := letters(t, c, "w")
	if len(dead) != 3 || dead["fails"].ErrorCode != "handler_error" || dead["fails"].Attempts != 2 || dead["permanent"].ErrorCode != "handler_permanent" || dead["json"].ErrorCode != "handler_permanent" {
		t.Errorf("dead letters: %+v", dead)
	}
	if err := c.Replay(t.Context(), ids["permanent"]); err != nil {
		t.Fatal(err)
	}
	if got := untilState(t, c, ids["permanent"], belfry.StateSuccess); got.Attempts != 2 {
		t.Errorf("replayed: %+v", got)
	}
}

func TestHandleJSON(t *testing.T) {
	t.Parallel()
	c := connect(t)
	got := make(chan order, 2)
	h := belfry.HandleJSON(func(_ context.Context, _ *belfry.Run, o order) error { got <- o; return nil })
	worker(t, c, "j", h)
	e := newEvent("1")
	if err := e.SetData("application/json", order{17}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Add(t.Context(), e, belfry.After(0), belfry.ToWorker("j")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan error, 1)
	go func() { out <- c.Handle(ctx, "j", h) }()
	for range 2 { // by Work and by Handle
		if o := waittest.Receive(t, "a call of the handler", got); o.Order != 17 {
			t.Errorf("order %d, want 17", o.Order)
		}
	}
	cancel()
	if err := <-out; err != nil {
		t.Error(err)
	}
}

// TestWorkLong: signs of life extend timertimeout, and WithHandlerTimeout ends the handler.
func TestWorkLong(t *testing.T) {
	t.Parallel()
	c := connect(t)
	var stuck atomic.Int32
	worker(t, c, "long", func(ctx context.Context, run *belfry.Run) error {
		switch run.Event.ID() {
		case "long":
			work := time.NewTimer(schemas.MinWorkSilence + time.Second) // the work
			defer work.Stop()
			<-work.C
			return nil
		default:
			stuck.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}
	}, belfry.WithHandlerTimeout(15*time.Second), belfry.WithErrorHandler(quiet))
	long := addWork(t, c, "long", "long", belfry.WithMaxAttempts(1), belfry.WithAttemptTimeout(50*time.Millisecond))
	endless := addWork(t, c, "long", "endless", belfry.WithMaxAttempts(1), belfry.WithAttemptTimeout(50*time.Millisecond))
	if got := untilState(t, c, long, belfry.StateSuccess); got.Attempts != 1 {
		t.Errorf("%d attempts", got.Attempts)
	}
	if got := untilState(t, c, endless, belfry.StateFail); got.Attempts != 1 || !strings.Contains(got.Outcome.Error, "the handler timeout is over") || stuck.Load() != 1 {
		t.Errorf("%+v %+v, called %d times", got, got.Outcome, stuck.Load())
	}
}

// TestWorkBusy: with more timers than WithConcurrency, waiting uses no attempts.
func TestWorkBusy(t *testing.T) {
	t.Parallel()
	c := connect(t)
	var running, most atomic.Int32
	h := func(context.Context, *belfry.Run) error {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		work := time.NewTimer(20 * time.Millisecond) // the work
		defer work.Stop()
		<-work.C
		return nil
	}
	worker(t, c, "busy", h, belfry.WithConcurrency(2))
	var ids []belfry.TimerID
	for i := range 100 {
		ids = append(ids, addWork(t, c, "busy", fmt.Sprint(i), belfry.WithMaxAttempts(1)))
	}
	for _, id := range ids {
		if got := untilState(t, c, id, belfry.StateSuccess); got.Attempts != 1 {
			t.Errorf("%d attempts of %d", got.Attempts, got.MaxAttempts)
		}
	}
	if most.Load() > 2 {
		t.Errorf("%d handlers ran at once", most.Load())
	}
}

// TestNoWorker: without a worker a timer waits and uses no attempts, which Get shows. A worker
// that starts later handles it.
func TestNoWorker(t *testing.T) {
	t.Parallel()
	c := connect(t)
	id := addWork(t, c, "none", "1", belfry.WithMaxAttempts(1))
	waits := until(t, c, id, "waiting for the third time", func(x belfry.Timer) bool { return x.State == belfry.StateRetrying && x.Attempts >= 3 })
	if waits.Outcome == nil || !strings.Contains(waits.Outcome.Error, "no worker") {
		t.Errorf("outcome %+v", waits.Outcome)
	}
	worker(t, c, "none", nothing)
	untilState(t, c, id, belfry.StateSuccess)
}

// TestDefaultLog: without WithErrorHandler, failures of Work and Handle are logged.
func TestDefaultLog(t *testing.T) { // not parallel: slog's default is global
	before := slog.Default()
	defer slog.SetDefault(before)
	var log logtest.Buffer
	slog.SetDefault(slog.New(slog.NewJSONHandler(&log, nil)))
	logged := func(what ...string) {
		t.Helper()
		for _, w := range what {
			waittest.Until(t, fmt.Sprintf("the log has %q", w), func() bool { return log.Count(w) > 0 }, log.String)
		}
	}
	c := connect(t)
	worker(t, c, "log", func(_ context.Context, run *belfry.Run) error {
		if run.Event.ID() == "panic" {
			panic("oh dear")
		}
		return belfry.Permanent(errors.New("never ever"))
	})
	addWork(t, c, "log", "panic", belfry.WithMaxAttempts(1))
	addWork(t, c, "log", "gone")
	logged("oh dear", "work_test.go", "never ever", `"service":"log"`)
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan error, 1)
	go func() {
		out <- c.Handle(ctx, "log", func(context.Context, *belfry.Run) error { return belfry.Permanent(errors.New("handled badly")) })
	}()
	logged("handled badly")
	cancel()
	if err := <-out; err != nil {
		t.Error(err)
	}
}

// TestWorkGoexit: a handler that ends its goroutine, as t.FailNow does, is a failed attempt.
func TestWorkGoexit(t *testing.T) {
	t.Parallel()
	c := connect(t)
	worker(t, c, "exits", func(context.Context, *belfry.Run) error {
		runtime.Goexit()
		return nil
	}, belfry.WithConcurrency(1), belfry.WithHandlerTimeout(5*time.Second), belfry.WithErrorHandler(quiet))
	for _, id := range []string{"first", "second"} {
		got := untilState(t, c, addWork(t, c, "exits", id, belfry.WithMaxAttempts(1)), belfry.StateFail)
		if !strings.Contains(got.Outcome.Error, "ended its goroutine") {
			t.Errorf("%s: %+v", id, got.Outcome)
		}
	}
}
