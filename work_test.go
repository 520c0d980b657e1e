package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
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

// TestWorkStops: a stopped worker finishes running handlers and hands back waiting requests.
// Another worker handles these in their first attempt.
func TestWorkStops(t *testing.T) {
	t.Parallel()
	c := connect(t)
	begun, finish := make(chan string, 10), make(chan struct{})
	stop := worker(t, c, "stops", func(_ context.Context, run *belfry.Run) error {
		begun <- run.Event.ID()
		<-finish
		return nil
	}, belfry.WithConcurrency(1))
	var ids []belfry.TimerID
	for i := range 5 {
		ids = append(ids, addWork(t, c, "stops", fmt.Sprint(i), belfry.WithMaxAttempts(1)))
	}
	<-begun
	var second atomic.Int32
	stopped := make(chan error, 1)
	worker(t, c, "stops", func(context.Context, *belfry.Run) error { second.Add(1); return nil })
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

// TestWorkAcrossAccounts: a worker in another account than Belfry, with a service export of
// response type stream and the least permissions.
func TestWorkAcrossAccounts(t *testing.T) {
	t.Parallel()
	conf := t.TempDir() + "/nats.conf"
	if err := os.WriteFile(conf, []byte(`
listen: "127.0.0.1:-1"
jetstream { store_dir: "`+t.TempDir()+`" }
accounts {
  BELFRY {
    jetstream: enabled
    users: [ { user: belfry, password: x } ]
    exports: [ { service: "timers.api.>", response_type: stream } ]
    imports: [ { service: { account: ORDERS, subject: "timers.work.orders" } } ]
  }
  ORDERS {
    users: [ { user: orders, password: x, permissions: {
      publish: ["timers.api.>"], subscribe: ["_INBOX.>", "timers.work.orders"], allow_responses: { max: 10000, ttl: "13h" } } } ]
    exports: [ { service: "timers.work.orders", response_type: stream } ]
    imports: [ { service: { account: BELFRY, subject: "timers.api.>" } } ]
  }
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	srv := natstest.Run(t, func(o *server.Options) {
		opts.NoLog, opts.NoSigs = true, true
		*o = *opts
	})
	node, err := app.New(app.Options{NATSURL: strings.Replace(srv.ClientURL(), "//", "//belfry:x@", 1), HTTP: app.NoHTTP, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Stop(context.Background()) })
	violation := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Error(err) })
	c, err := belfry.Connect(t.Context(), srv.ClientURL(), nats.UserInfo("orders", "x"), violation)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	// Belfry notices across accounts that no worker runs.
	early := addWork(t, c, "orders", "early", belfry.WithMaxAttempts(1))
	until(t, c, early, "waiting", func(x belfry.Timer) bool {
		return x.State == belfry.StateRetrying && x.Outcome != nil && strings.Contains(x.Outcome.Error, "no worker")
	})
	worker(t, c, "orders", func(_ context.Context, run *belfry.Run) error {
		if run.Event.ID() == "long" {
			work := time.NewTimer(schemas.MinWorkSilence + time.Second) // the work
			defer work.Stop()
			<-work.C
		}
		run.SetResult("thanks")
		return nil
	})
	long := addWork(t, c, "orders", "long", belfry.WithMaxAttempts(1), belfry.WithAttemptTimeout(time.Second))
	untilState(t, c, early, belfry.StateSuccess)
	if got := untilState(t, c, long, belfry.StateSuccess); got.Attempts != 1 || got.Outcome.Response != "thanks" {
		t.Errorf("got %+v, %+v", got, got.Outcome)
	}
}

// TestWorkRefuses: Work returns an error at the start for bad options and permissions.
func TestWorkRefuses(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "other", Password: "x", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}}}}}
	})
	c, err := belfry.New(srv.Connect(nats.UserInfo("other", "x"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Work(t.Context(), "orders", nothing); !errors.Is(err, belfry.ErrUnavailable) || !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("without permission: %v", err)
	}
	for name, err := range map[string]error{
		"no handler":  c.Work(t.Context(), "s", nil),
		"service":     c.Work(t.Context(), "a.b", nothing),
		"concurrency": c.Work(t.Context(), "s", nothing, belfry.WithConcurrency(0)),
		"time-out":    c.Work(t.Context(), "s", nothing, belfry.WithHandlerTimeout(24*time.Hour)),
		"grace":       c.Work(t.Context(), "s", nothing, belfry.WithStopGrace(-1)),
	} {
		if schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Work(ended, "s", nothing); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestWorkJoins: a second request for a run whose handler is running, as from another node,
// does not start a second handler. Both requests are answered.
func TestWorkJoins(t *testing.T) {
	t.Parallel()
	c, err := belfry.New(natstest.Run(t).Connect())
	if err != nil {
		t.Fatal(err)
	}
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	worker(t, c, "s", func(_ context.Context, run *belfry.Run) error {
		begun <- struct{}{}
		<-finish
		run.SetResult("once")
		return nil
	})
	_, data, err := schemas.EncodeEvent(newEvent("1"), schemas.ModeStructured)
	if err != nil {
		t.Fatal(err)
	}
	hdr, data := schemas.Body{Mode: schemas.ModeStructured, Data: data}.Message(schemas.Fired{ScheduledMs: 1, FiredMs: 2, Run: 1, Attempt: 1})
	hdr[nats.MsgIdHdr] = []string{"key.1"}
	nc := c.Conn()
	waittest.Until(t, "Work has subscribed", func() bool { return nc.NumSubscriptions() > 0 })
	request := func() *nats.Subscription {
		t.Helper()
		sub, err := nc.SubscribeSync(nc.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishMsg(&nats.Msg{Subject: "timers.work.s", Reply: sub.Subject, Header: hdr, Data: data}); err != nil {
			t.Fatal(err)
		}
		return sub
	}
	first := request()
	<-begun
	second := request()
	m, err := second.NextMsg(bound)
	if err != nil || m.Header.Get(schemas.HeaderWork) != schemas.WorkWorking {
		t.Fatalf("got %+v, %v", m, err)
	}
	close(finish)
	for _, sub := range []*nats.Subscription{first, second} {
		for word := schemas.WorkWorking; word == schemas.WorkWorking; {
			m, err := sub.NextMsg(bound)
			if err != nil {
				t.Fatal(err)
			}
			if word = m.Header.Get(schemas.HeaderWork); word != schemas.WorkWorking && (word != schemas.WorkDone || string(m.Data) != "once") {
				t.Errorf("%s %q", word, m.Data)
			}
		}
	}
	if len(begun) != 0 {
		t.Error("the handler ran twice")
	}
}

// TestWorkForeign: Work ignores a request whose reply subject is empty or not an inbox, and
// refuses a request that is not a fired event.
func TestWorkForeign(t *testing.T) {
	t.Parallel()
	c, err := belfry.New(natstest.Run(t).Connect())
	if err != nil {
		t.Fatal(err)
	}
	nc := c.Conn()
	stolen, err := nc.SubscribeSync("$KV.clock.>")
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 10)
	worker(t, c, "s", func(context.Context, *belfry.Run) error {
		t.Error("called")
		return nil
	}, belfry.WithErrorHandler(func(_ *belfry.Run, err error) { told <- err }))
	var m *nats.Msg
	waittest.Until(t, "Work answers", func() bool {
		if m, err = nc.Request("timers.work.s", []byte("hello"), bound); err != nil && !errors.Is(err, nats.ErrNoResponders) {
			t.Fatal(err)
		}
		return err == nil
	})
	if m.Header.Get(schemas.HeaderWork) != schemas.WorkPermanent || !strings.Contains((<-told).Error(), "not a fired event") {
		t.Errorf("%v %q", m.Header, m.Data)
	}
	for _, reply := range []string{"$KV.clock.clock.0", ""} {
		if err := nc.PublishMsg(&nats.Msg{Subject: "timers.work.s", Reply: reply, Data: []byte("hello")}); err != nil {
			t.Fatal(err)
		}
		if err := <-told; !strings.Contains(err.Error(), "is not an inbox") {
			t.Errorf("got error %v", err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := stolen.Pending(); n != 0 {
		t.Error("it was answered")
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
