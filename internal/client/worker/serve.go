package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

const (
	// permitWait bounds how long a request waits for a permit before this worker answers
	// "busy". Belfry then asks again, and may reach another worker. It must stay far below
	// schemas.MinWorkSilence, after which Belfry considers a worker dead.
	permitWait = 500 * time.Millisecond
	// minWaiting is how many requests may wait for a permit at once; with a higher
	// Concurrency, that many. By default a node calls a service 64 times at once.
	minWaiting = 64
	// answerWait bounds how long a handler may run after its context ended, before the
	// worker answers in its place.
	answerWait = time.Second
	// maxReplies bounds the requests for one run that are answered together.
	maxReplies = 4
	// maxAnswerBytes bounds the text of an answer. Belfry stores less.
	maxAnswerBytes = 4 << 10
)

// Causes of the end of a handler's context.
var (
	errStopping = errors.New("belfry: the worker is stopping")
	errTimeout  = errors.New("belfry: the handler timeout is over")
	errLost     = errors.New("belfry: the connection was lost for so long that Belfry has started another attempt")
)

// errGoexit is the outcome of a handler that did not return.
var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, which t.FailNow calls)")

// ServeConfig configures Serve.
type ServeConfig struct {
	Config
	// Timeout bounds one call of the handler.
	Timeout time.Duration
	// StopGrace bounds how long running handlers may continue after the stop.
	StopGrace time.Duration
}

// Serve answers the requests to the workers of a service until ctx ends, and then waits for
// the running handlers. Errors are of schemas.CodeUnavailable: the subscription was refused,
// the connection was closed, or handlers ignored the end of their context.
func Serve(ctx context.Context, nc *nats.Conn, cfg ServeConfig) error {
	s := newServer(ctx, nc, cfg)
	defer s.cancel(nil)
	closed := nc.StatusChanged(nats.CLOSED)
	defer nc.RemoveStatusListener(closed)
	if err := s.subscribe(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return s.stop()
	case <-closed:
		s.cancel(errLost)
		return errors.Join(schemas.Errorf(schemas.CodeUnavailable, "workers of %s: %w", cfg.Service, nats.ErrConnectionClosed), s.wait(answerWait))
	}
}

// server is one call of Serve.
type server struct {
	nc  *nats.Conn
	cfg ServeConfig

	// base is the parent of the handlers' contexts; cancel ends them.
	base   context.Context
	cancel context.CancelCauseFunc
	// stopping is closed when no more requests are taken.
	stopping chan struct{}
	sub      *nats.Subscription
	drained  chan struct{}

	permits chan struct{} // one entry for each running handler
	waiting chan struct{} // one entry for each request that waits for a permit
	calls   sync.WaitGroup
	// overdue counts the handlers that still run although the worker has answered for them.
	overdue atomic.Int32

	mu      sync.Mutex
	running map[string]*call // by idempotency key
}

// call is one running handler. It has several requests if another Belfry node took over
// meanwhile and requested the same run.
type call struct {
	mu      sync.Mutex
	replies []string // reply subjects of the requests; nil once answered
}

func newServer(ctx context.Context, nc *nats.Conn, cfg ServeConfig) *server {
	s := &server{
		nc: nc, cfg: cfg, stopping: make(chan struct{}), drained: make(chan struct{}),
		permits: make(chan struct{}, cfg.Concurrency), waiting: make(chan struct{}, max(minWaiting, cfg.Concurrency)),
		running: map[string]*call{},
	}
	s.base, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return s
}

// subscribe starts to take requests. It returns an error if the server refuses the
// subscription. Without a connection nats.go subscribes when it reconnects.
func (s *server) subscribe(ctx context.Context) error {
	subject := schemas.SubjectWork(s.cfg.Service)
	failed := func(err error) error {
		return schemas.Errorf(schemas.CodeUnavailable, "cannot subscribe to %s: %w", subject, err)
	}
	var err error
	if s.sub, err = s.nc.QueueSubscribe(subject, schemas.QueueWorkers, s.take); err != nil {
		return failed(err)
	}
	s.sub.SetClosedHandler(func(string) { close(s.drained) })
	ctx, cancel := bounded(ctx)
	defer cancel()
	if !s.nc.IsConnected() {
		return nil
	}
	if err := s.nc.FlushWithContext(ctx); err == nil {
		// The server answers the subscription before the flush.
		if err := s.nc.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`) {
			_ = s.sub.Unsubscribe()
			return failed(err)
		}
	}
	return nil
}

// stop takes no more requests and waits for the running handlers.
func (s *server) stop() error {
	close(s.stopping)
	if err := s.sub.Drain(); err == nil { // take still answers requests that have arrived
		t := time.NewTimer(drainWait)
		defer t.Stop()
		select {
		case <-s.drained:
		case <-t.C:
		}
	}
	err := s.wait(s.cfg.StopGrace)
	if s.nc.IsConnected() {
		// Send the last answers before the program may exit. Without them Belfry considers
		// this worker dead.
		_ = s.nc.FlushTimeout(drainWait)
	}
	return err
}

// wait waits up to grace for the handlers, then ends their contexts.
func (s *server) wait(grace time.Duration) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.calls.Wait()
	}()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.cancel(errStopping)
		<-done // bounded by answerWait
	}
	if n := s.overdue.Load(); n > 0 {
		return schemas.Errorf(schemas.CodeUnavailable, "%d handlers of service %s ignore the end of their context; Work handed their runs back, so they may run twice", n, s.cfg.Service)
	}
	return nil
}

// take receives the requests, one at a time.
func (s *server) take(m *nats.Msg) {
	if !schemas.IsInbox(m.Reply) {
		// The request is not from Belfry. NATS checks no permission on a reply subject, so
		// an answer would publish to a subject that the sender chose.
		s.cfg.Report(nil, fmt.Errorf("ignored a request on %s: its reply subject %.100q is not an inbox", m.Subject, m.Reply))
		return
	}
	select {
	case <-s.stopping:
		s.respond(m.Reply, schemas.WorkStopping, nil, "")
		return
	default:
	}
	if s.join(m) {
		return
	}
	select {
	case s.waiting <- struct{}{}:
		s.calls.Go(func() { s.serve(m) })
	default:
		s.respond(m.Reply, schemas.WorkBusy, nil, "")
	}
}

// join adds the request to the running handler of the same run. It returns false if there
// is none.
func (s *server) join(m *nats.Msg) bool {
	s.mu.Lock()
	c := s.running[m.Header.Get(nats.MsgIdHdr)]
	s.mu.Unlock()
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.replies == nil {
		return false
	}
	c.replies = append(c.replies, m.Reply)
	if len(c.replies) > maxReplies {
		c.replies = c.replies[1:]
	}
	s.respond(m.Reply, schemas.WorkWorking, nil, "")
	return true
}

// serve waits for a permit and runs the handler.
func (s *server) serve(m *nats.Msg) {
	t := time.NewTimer(permitWait)
	defer t.Stop()
	refusal := ""
	select {
	case s.permits <- struct{}{}:
	case <-t.C:
		refusal = schemas.WorkBusy
	case <-s.stopping:
		refusal = schemas.WorkStopping
	}
	<-s.waiting
	if refusal != "" {
		s.respond(m.Reply, refusal, nil, "")
		return
	}
	run, err := decode(m.Header, m.Data)
	if err != nil {
		<-s.permits
		err = notFired("request", m.Subject, err)
		s.respond(m.Reply, schemas.WorkPermanent, nil, err.Error())
		s.cfg.Report(nil, err)
		return
	}
	// The message id is the run's. The event alone does not tell whose timer it is, if the
	// worker's account is a tenant.
	if id, err := schemas.ParseRunID(m.Header.Get(nats.MsgIdHdr)); err == nil && id.Run == run.Fired.Run {
		run.Timer = id.Timer
	}
	s.call(run, m)
}

// call runs the handler. It answers with signs of life, and then with the outcome.
func (s *server) call(run *Run, m *nats.Msg) {
	c := &call{replies: []string{m.Reply}}
	key := m.Header.Get(nats.MsgIdHdr)
	s.enter(key, c)
	ctx, cancel := context.WithCancelCause(s.base)
	defer cancel(nil)
	ctx, stopTimer := context.WithTimeoutCause(ctx, s.cfg.Timeout, errTimeout)
	defer stopTimer()
	returned := make(chan Outcome, 1)
	go func() {
		defer func() { <-s.permits }()
		o := Outcome{Verdict: Failed, Err: errGoexit}
		defer func() { returned <- o }()
		o = s.cfg.Call(ctx, run)
	}()
	silence := silenceOf(m)
	signs := time.NewTicker(silence / 3)
	defer signs.Stop()
	connected := time.Now()
	var late <-chan time.Time
	ended := ctx.Done()
	for {
		select {
		case o := <-returned:
			s.leave(key, c)
			s.finish(ctx, run, c, o)
			return
		case <-signs.C:
			if s.nc.IsConnected() {
				connected = time.Now()
			} else if time.Since(connected) > silence {
				cancel(errLost)
			}
			s.answer(c, schemas.WorkWorking, nil, "")
		case <-ended:
			ended = nil
			t := time.NewTimer(answerWait)
			defer t.Stop()
			late = t.C
		case <-late:
			s.leave(key, c)
			s.overdue.Add(1)
			go func() {
				<-returned // the worker has answered already
				s.overdue.Add(-1)
			}()
			s.finish(ctx, run, c, Outcome{Verdict: Failed, Err: fmt.Errorf("the handler ignores the end of its context and still runs: %w", context.Cause(ctx))})
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

func (s *server) enter(key string, c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key != "" {
		s.running[key] = c
	}
}

func (s *server) leave(key string, c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[key] == c {
		delete(s.running, key)
	}
}

// finish answers with the outcome and reports failures.
func (s *server) finish(ctx context.Context, run *Run, c *call, o Outcome) {
	err := o.Err
	switch {
	case o.Verdict == Done:
		s.answer(c, schemas.WorkDone, nil, o.Result)
		return
	case o.Verdict == Later:
		var hdr nats.Header
		if o.After >= 0 {
			hdr = nats.Header{schemas.HeaderRetryAfterMs: {strconv.FormatInt(o.After.Milliseconds(), 10)}}
		}
		s.answer(c, schemas.WorkLater, hdr, "")
		return
	case o.Verdict == Permanent:
		s.answer(c, schemas.WorkPermanent, nil, err.Error())
	case errors.Is(context.Cause(ctx), errStopping):
		s.answer(c, schemas.WorkStopping, nil, "") // not the handler's failure
	default:
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
		s.answer(c, schemas.WorkFailed, nil, err.Error())
	}
	s.cfg.Report(run, err)
}

// answer replies to all requests for the run. Every word except "working" is the last.
func (s *server) answer(c *call, word string, hdr nats.Header, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, reply := range c.replies {
		s.respond(reply, word, hdr, text)
	}
	if word != schemas.WorkWorking {
		c.replies = nil
	}
}

func (s *server) respond(reply, word string, hdr nats.Header, text string) {
	if hdr == nil {
		hdr = nats.Header{}
	}
	hdr[schemas.HeaderWork] = []string{word}
	err := s.nc.PublishMsg(&nats.Msg{Subject: reply, Header: hdr, Data: []byte(text[:min(len(text), maxAnswerBytes)])})
	if err != nil && word != schemas.WorkWorking {
		s.cfg.Report(nil, fmt.Errorf("the answer %q was not sent, so another attempt follows: %w", word, err))
	}
}
