package belfry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// Defaults and bounds of Work.
const (
	DefaultHandlerTimeout = 15 * time.Minute
	MinHandlerTimeout     = 10 * time.Millisecond
	// MaxHandlerTimeout leaves time for the answer before schemas.MaxWork ends.
	MaxHandlerTimeout = schemas.MaxWork - time.Minute
	DefaultStopGrace  = 30 * time.Second
)

const (
	// workQueueWait bounds how long a request waits for a free place before this worker
	// answers "busy". Belfry then asks again, and may reach another worker. It must stay
	// far below schemas.MinWorkSilence, after which Belfry considers a worker dead.
	workQueueWait = 500 * time.Millisecond
	// workQueueMin is the minimum number of requests that may wait at once; more may
	// wait if Concurrency is higher. A node has 64 under way per service by default.
	workQueueMin = 64
	// workAnswer bounds how long a handler may run after its context ended, before the
	// worker answers in its place.
	workAnswer = time.Second
	// maxReplies bounds the requests of one run that are answered together.
	maxReplies = 4
)

// Causes of the end of a handler's context.
var (
	errWorkStops   = errors.New("belfry: the worker is stopping")
	errWorkTimeout = errors.New("belfry: HandlerTimeout is over")
	errWorkLost    = errors.New("belfry: the connection was lost for so long that Belfry has started another attempt")
)

type workOption func(*workConfig)

func (o workOption) work(c *workConfig) { o(c) }

type workConfig struct {
	common
	timeout, grace time.Duration
}

// HandlerTimeout bounds one call of a handler, 10 ms to 11 h 59 min; default 15 min.
// The handler's context ends then. If the handler does not return within another second,
// its attempt fails, and it counts towards Concurrency until it returns.
func HandlerTimeout(d time.Duration) WorkOption {
	return workOption(func(c *workConfig) { c.timeout = d })
}

// StopGrace bounds how long running handlers may continue after Work's context has ended:
// 0 or more; default 30 s. Then their contexts end, and Work hands back their runs.
func StopGrace(d time.Duration) WorkOption {
	return workOption(func(c *workConfig) { c.grace = d })
}

// ToWorker makes Belfry call the workers of a service when the timer is due. It sets the
// service and the callback nats:timers.work.<service>. See [Client.Work].
func ToWorker(service string) AddOption {
	return func(e *event.Event) {
		e.SetExtension(schemas.AttrService, service)
		e.SetExtension(schemas.AttrCallback, schemas.WorkCallback(service))
	}
}

// Work serves the timers of a service that were added with [ToWorker] until ctx
// ends. For each run Belfry sends a request to one of the processes that call Work for
// the service, and records what its handler returns: Get shows the attempts and the
// outcome. Work is the recommended way to handle timers in Go.
//
// The event's timermaxattempts and timerbackoff are the retry policy. A handler may
// run for longer than timertimeout, up to [HandlerTimeout]: meanwhile Work sends
// signs of life. When they stop for timertimeout (2 s at least), as after a crash,
// Belfry counts a failed attempt and requests another worker.
//
// A handler's context has the values of ctx. It ends after HandlerTimeout, after
// StopGrace, and when the connection was lost for so long that Belfry requested another
// worker.
//
// While no worker runs, or all are busy, timers wait and use no attempts. Belfry tries
// again after growing pauses of up to 5 minutes; after 7 days tries count as attempts. A
// worker that runs [Concurrency] handlers keeps a further request for half a second and
// then answers "busy"; Belfry asks again.
//
// When ctx ends, Work takes no more requests, waits up to [StopGrace] for running
// handlers and returns nil. It hands back unfinished runs: another worker gets them at
// once, and no attempt is used.
//
// Work returns an error if it cannot start, if the connection is closed, and if handlers
// ignore the end of their context at the stop. It waits for a lost connection. It needs
// permission to subscribe to timers.work.<service> and to reply (allow_responses, with as
// many replies as signs of life).
func (c *Client) Work(ctx context.Context, service string, h Handler, opts ...WorkOption) error {
	cfg := workConfig{common: common{concurrency: DefaultConcurrency}, timeout: DefaultHandlerTimeout, grace: DefaultStopGrace}
	for _, o := range opts {
		o.work(&cfg)
	}
	if err := cfg.check(service, h); err != nil {
		return err
	}
	if over(ctx) {
		return nil
	}
	w := newWork(ctx, c.nc, service, h, cfg)
	defer w.cancel(nil)
	closed := c.nc.StatusChanged(nats.CLOSED)
	defer c.nc.RemoveStatusListener(closed)
	if err := w.subscribe(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return w.stop()
	case <-closed:
		w.cancel(errWorkLost)
		return errors.Join(schemas.Errorf(schemas.CodeUnavailable, "workers of %s: %w", service, nats.ErrConnectionClosed), w.wait(workAnswer))
	}
}

func (c *workConfig) check(service string, h Handler) error {
	switch {
	case c.timeout < MinHandlerTimeout || c.timeout > MaxHandlerTimeout:
		return badRequest("HandlerTimeout is %s; it must be %s to %s", c.timeout, MinHandlerTimeout, MaxHandlerTimeout)
	case c.grace < 0:
		return badRequest("StopGrace is %s; it must be 0 or more", c.grace)
	}
	return c.common.check(service, h)
}

// work is one call of Work.
type work struct {
	nc      *nats.Conn
	service string
	cfg     workConfig
	handler Handler

	// base is the parent of the handlers' contexts; cancel ends them.
	base   context.Context
	cancel context.CancelCauseFunc
	// stopping is closed when no more requests are taken.
	stopping chan struct{}
	sub      *nats.Subscription
	drained  chan struct{}

	places  chan struct{} // one for each handler that runs
	waiting chan struct{} // one for each request that waits for a place
	calls   sync.WaitGroup
	// ignoring counts handlers that still run although the worker has answered for them.
	ignoring atomic.Int32

	mu      sync.Mutex
	running map[string]*attempt // by idempotency key
}

// attempt is one running handler. It has several requests if another Belfry node took
// over meanwhile and requested the same run.
type attempt struct {
	mu      sync.Mutex
	replies []string
}

func newWork(ctx context.Context, nc *nats.Conn, service string, h Handler, cfg workConfig) *work {
	w := &work{
		nc: nc, service: service, cfg: cfg, handler: h, stopping: make(chan struct{}), drained: make(chan struct{}),
		places: make(chan struct{}, cfg.concurrency), waiting: make(chan struct{}, max(workQueueMin, cfg.concurrency)),
		running: map[string]*attempt{},
	}
	w.base, w.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return w
}

// subscribe starts to take requests. A refused subscription is an error. Without a
// connection nats.go subscribes when it reconnects.
func (w *work) subscribe(ctx context.Context) error {
	subject := schemas.SubjectWork(w.service)
	failed := func(err error) error {
		return schemas.Errorf(schemas.CodeUnavailable, "cannot subscribe to %s: %w", subject, err)
	}
	var err error
	if w.sub, err = w.nc.QueueSubscribe(subject, schemas.QueueWorkers, w.take); err != nil {
		return failed(err)
	}
	w.sub.SetClosedHandler(func(string) { close(w.drained) })
	ctx, cancel := bounded(ctx)
	defer cancel()
	if !w.nc.IsConnected() {
		return nil
	}
	if err := w.nc.FlushWithContext(ctx); err == nil {
		// The server answers the subscription before the flush.
		if err := w.nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`) {
			_ = w.sub.Unsubscribe()
			return failed(err)
		}
	}
	return nil
}

// stop takes no more requests and then waits for the handlers.
func (w *work) stop() error {
	close(w.stopping)
	if err := w.sub.Drain(); err == nil { // take still answers requests that have arrived
		t := time.NewTimer(drainWait)
		defer t.Stop()
		select {
		case <-w.drained:
		case <-t.C:
		}
	}
	err := w.wait(w.cfg.grace)
	if w.nc.IsConnected() {
		// Send the last answers before the program may exit. Without them Belfry considers
		// this worker dead.
		_ = w.nc.FlushTimeout(drainWait)
	}
	return err
}

// wait waits for the handlers, then ends their contexts.
func (w *work) wait(grace time.Duration) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.calls.Wait()
	}()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		w.cancel(errWorkStops)
		<-done // bounded by workAnswer
	}
	if n := w.ignoring.Load(); n > 0 {
		return schemas.Errorf(schemas.CodeUnavailable, "%d handlers of service %s ignore the end of their context; Work handed their runs back, so they may run twice", n, w.service)
	}
	return nil
}

// take is called with each request, one at a time.
func (w *work) take(m *nats.Msg) {
	if !schemas.IsInbox(m.Reply) {
		// The request is not from Belfry. NATS checks no permission on a reply subject, so
		// an answer would publish to a subject that the sender chose.
		w.cfg.report(nil, w.service, fmt.Errorf("ignored a request on %s: its reply subject %.100q is not an inbox", m.Subject, m.Reply))
		return
	}
	select {
	case <-w.stopping:
		w.respond(m.Reply, schemas.WorkStopping, nil, "")
		return
	default:
	}
	if w.join(m) {
		return
	}
	select {
	case w.waiting <- struct{}{}:
		w.calls.Go(func() { w.serve(m) })
	default:
		w.respond(m.Reply, schemas.WorkBusy, nil, "")
	}
}

// join adds the request to the handler that already serves its run.
func (w *work) join(m *nats.Msg) bool {
	w.mu.Lock()
	a := w.running[m.Header.Get(nats.MsgIdHdr)]
	w.mu.Unlock()
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.replies == nil {
		return false // answered
	}
	a.replies = append(a.replies, m.Reply)
	if len(a.replies) > maxReplies {
		a.replies = a.replies[1:]
	}
	w.respond(m.Reply, schemas.WorkWorking, nil, "")
	return true
}

// serve waits for a place and runs the handler.
func (w *work) serve(m *nats.Msg) {
	t := time.NewTimer(workQueueWait)
	defer t.Stop()
	refusal := ""
	select {
	case w.places <- struct{}{}:
	case <-t.C:
		refusal = schemas.WorkBusy
	case <-w.stopping:
		refusal = schemas.WorkStopping
	}
	<-w.waiting
	if refusal != "" {
		w.respond(m.Reply, refusal, nil, "")
		return
	}
	run, err := newRun(m.Header, m.Data)
	if err != nil {
		<-w.places
		err = fmt.Errorf("a request on %s is not a fired event: %w", m.Subject, err)
		w.respond(m.Reply, schemas.WorkPermanent, nil, err.Error())
		w.cfg.report(nil, w.service, err)
		return
	}
	w.attempt(run, m)
}

// attempt runs the handler and answers with signs of life, then with the outcome.
func (w *work) attempt(run *Run, m *nats.Msg) {
	a := &attempt{replies: []string{m.Reply}}
	key := m.Header.Get(nats.MsgIdHdr)
	w.enter(key, a)
	ctx, cancel := context.WithCancelCause(w.base)
	defer cancel(nil)
	ctx, stopTimer := context.WithTimeoutCause(ctx, w.cfg.timeout, errWorkTimeout)
	defer stopTimer()
	returned := make(chan error, 1)
	go func() {
		defer func() { <-w.places }()
		returned <- call(ctx, w.handler, run)
	}()
	silence := silenceOf(m)
	tick := time.NewTicker(silence / 3)
	defer tick.Stop()
	heard := time.Now()
	var late <-chan time.Time
	ended := ctx.Done()
	for {
		select {
		case err := <-returned:
			w.leave(key, a)
			w.conclude(ctx, run, a, err)
			return
		case <-tick.C:
			if w.nc.IsConnected() {
				heard = time.Now()
			} else if time.Since(heard) > silence {
				cancel(errWorkLost)
			}
			w.answer(a, schemas.WorkWorking, nil, "")
		case <-ended:
			ended = nil
			t := time.NewTimer(workAnswer)
			defer t.Stop()
			late = t.C
		case <-late:
			w.leave(key, a)
			w.ignoring.Add(1)
			go func() {
				<-returned //nolint:errcheck // the run has been concluded already
				w.ignoring.Add(-1)
			}()
			w.conclude(ctx, run, a, fmt.Errorf("the handler ignores the end of its context and still runs: %w", context.Cause(ctx)))
			return
		}
	}
}

// silenceOf returns the longest time between two replies that Belfry allows.
func silenceOf(m *nats.Msg) time.Duration {
	ms, err := strconv.ParseUint(m.Header.Get(schemas.HeaderWorkSilence), 10, 31)
	if err != nil {
		return schemas.DefaultTimeout
	}
	return max(time.Duration(ms)*time.Millisecond, schemas.MinWorkSilence)
}

func (w *work) enter(key string, a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key != "" {
		w.running[key] = a
	}
}

func (w *work) leave(key string, a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[key] == a {
		delete(w.running, key)
	}
}

// conclude answers with the handler's outcome and reports failures.
func (w *work) conclude(ctx context.Context, run *Run, a *attempt, err error) {
	var later *RetryLaterError
	var permanent *permanentError
	switch {
	case err == nil:
		w.answer(a, schemas.WorkDone, nil, run.result)
		return
	case errors.As(err, &later):
		w.answer(a, schemas.WorkLater, nats.Header{schemas.HeaderRetryAfterMs: {strconv.FormatInt(max(later.After, 0).Milliseconds(), 10)}}, "")
		return
	case errors.Is(err, ErrRetryLater):
		w.answer(a, schemas.WorkLater, nil, "")
		return
	case errors.As(err, &permanent):
		w.answer(a, schemas.WorkPermanent, nil, err.Error())
	case errors.Is(context.Cause(ctx), errWorkStops):
		w.answer(a, schemas.WorkStopping, nil, "") // not the handler's failure
	default:
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
		w.answer(a, schemas.WorkFailed, nil, err.Error())
	}
	w.cfg.report(run, w.service, err)
}

// answer replies to all requests for the run. After any word except "working" it forgets
// them.
func (w *work) answer(a *attempt, word string, hdr nats.Header, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, reply := range a.replies {
		w.respond(reply, word, hdr, text)
	}
	if word != schemas.WorkWorking {
		a.replies = nil
	}
}

// maxWorkText bounds the data of an answer in bytes. Belfry stores less.
const maxWorkText = 4 << 10

func (w *work) respond(reply, word string, hdr nats.Header, text string) {
	if hdr == nil {
		hdr = nats.Header{}
	}
	hdr[schemas.HeaderWork] = []string{word}
	err := w.nc.PublishMsg(&nats.Msg{Subject: reply, Header: hdr, Data: []byte(text[:min(len(text), maxWorkText)])})
	if err != nil && word != schemas.WorkWorking {
		w.cfg.report(nil, w.service, fmt.Errorf("the answer %q was not sent, so another attempt follows: %w", word, err))
	}
}
