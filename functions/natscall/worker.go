package natscall

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Pauses between requests while all workers are busy. A worker holds a request for half a
// second before it answers "busy", so a worker that becomes free gets one soon.
const (
	busyPauseFirst = 10 * time.Millisecond
	busyPauseMax   = time.Second
	// busyMax bounds how long one delivery waits for a free worker, from its first request or from the
	// end of a handler that was stopped. After that the result is recorded, and another delivery gets the permit.
	busyMax = time.Minute
)

// errSilent is the error if the worker sent nothing for longer than the time-out.
var errSilent = errors.New("silent")

// work sends the event to the workers of a service until a worker takes it, and waits for
// that worker's answer. ctx bounds the whole, r.Timeout the time between two messages of the
// worker.
func (i *Invoker) work(ctx context.Context, r callback.Request, m *nats.Msg) callback.Outcome {
	silence := max(r.Timeout, schemas.MinWorkSilence)
	m.Header[schemas.HeaderWorkSilence] = []string{strconv.FormatInt(silence.Milliseconds(), 10)}
	begun, rest := time.Now(), busyPauseFirst
	for {
		reply, worked, err := i.workers.ask(ctx, m, silence)
		if err != nil {
			return workFailure(ctx, r, m.Subject, silence, err)
		}
		if worked {
			begun = time.Now()
		}
		switch word := reply.Header.Get(schemas.HeaderWork); word {
		case schemas.WorkBusy, schemas.WorkStopping:
			if time.Since(begun) > i.busyMax {
				out := callback.Retry(callback.ReasonWorkerBusy, fmt.Sprintf("no worker on %s was free for %s; no attempt was used", m.Subject, i.busyMax))
				out.NotNow, out.Unattempted = true, true
				return out
			}
			if word == schemas.WorkBusy {
				rest = min(2*rest, busyPauseMax)
			}
			if !pause.For(ctx, rest/2+rand.N(rest/2)) {
				return workFailure(ctx, r, m.Subject, silence, ctx.Err())
			}
		default:
			return workOutcome(reply, word, m.Subject, r.NowMs)
		}
	}
}

// workOutcome turns a worker's answer into an outcome.
func workOutcome(m *nats.Msg, word, subject string, nowMs int64) callback.Outcome {
	text := string(m.Data)
	switch word {
	case schemas.WorkDone:
		return callback.Outcome{Success: true, Response: callback.Excerpt(m.Data)}
	case schemas.WorkPermanent:
		return callback.Permanent(callback.ReasonHandlerPermanent, text)
	case schemas.WorkLater:
		out := callback.Retry(callback.ReasonRetryLater, "the worker's handler asked for a later attempt")
		out.NotNow = true
		if ms, err := strconv.ParseInt(m.Header.Get(schemas.HeaderRetryAfterMs), 10, 64); err == nil && ms > 0 {
			out.RetryAfter = callback.MaxRetryAfter
			if ms < callback.MaxRetryAfter.Milliseconds() {
				out.RetryAfter = time.Duration(ms) * time.Millisecond
			}
		}
		return out
	case schemas.WorkFailed:
		return callback.Retry(callback.ReasonHandler, text)
	}
	return outcomeOf(m, subject, nowMs)
}

// workFailure turns the error of a request without an answer into an outcome.
func workFailure(ctx context.Context, r callback.Request, subject string, silence time.Duration, err error) callback.Outcome {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		out := callback.Retry(callback.ReasonNoResponders, fmt.Sprintf("no worker is connected to %s; no attempt was used", subject))
		out.NotNow, out.Unattempted = true, true
		return out
	case errors.Is(err, errSilent):
		return callback.Retry(callback.ReasonTimeout, fmt.Sprintf("the worker on %s was silent for %s: it died or lost its connection", subject, silence))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return callback.Retry(callback.ReasonTimeout, fmt.Sprintf("the worker on %s did not finish within %s, the longest that a handler may take", subject, schemas.MaxWork))
	}
	return failure(ctx, r, subject, err)
}

// workers receives the replies of workers: several to one request, which nats.go's Request
// does not support. The first request makes the subscription.
type workers struct {
	nc *nats.Conn

	mu    sync.Mutex
	sub   *nats.Subscription
	inbox string // the subscription's subject, without its last token
	last  uint64 // the last token
	calls map[string]*workCall
}

// workCall is a request without an answer yet. Its channels have room for one message.
type workCall struct {
	inbox  string
	alive  chan struct{}
	answer chan *nats.Msg
}

// ask makes one request and returns the answer. worked is true if a handler ran: the worker has sent progress
// messages. Errors: nats.ErrNoResponders, errSilent, ctx's, and those of the publish.
func (w *workers) ask(ctx context.Context, m *nats.Msg, silence time.Duration) (answer *nats.Msg, worked bool, err error) {
	c, err := w.open()
	if err != nil {
		return nil, false, err
	}
	defer w.forget(c)
	if err := w.nc.PublishMsg(&nats.Msg{Subject: m.Subject, Reply: c.inbox, Header: m.Header, Data: m.Data}); err != nil {
		return nil, false, err
	}
	t := time.NewTimer(silence)
	defer t.Stop()
	for {
		select {
		case m := <-c.answer:
			if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
				return nil, worked, nats.ErrNoResponders
			}
			return m, worked || len(c.alive) > 0, nil
		case <-c.alive:
			worked = true
			t.Reset(silence)
		case <-t.C:
			return nil, worked, errSilent
		case <-ctx.Done():
			return nil, worked, ctx.Err()
		}
	}
}

func (w *workers) open() (*workCall, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub == nil {
		inbox := w.nc.NewInbox()
		sub, err := w.nc.Subscribe(inbox+".*", w.route)
		if err != nil {
			return nil, err
		}
		w.sub, w.inbox, w.calls = sub, inbox+".", map[string]*workCall{}
	}
	w.last++
	c := &workCall{inbox: w.inbox + strconv.FormatUint(w.last, 36), alive: make(chan struct{}, 1), answer: make(chan *nats.Msg, 1)}
	w.calls[c.inbox] = c
	return c, nil
}

func (w *workers) forget(c *workCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, c.inbox)
}

// route passes a reply to its request. It never blocks: a second answer is dropped.
func (w *workers) route(m *nats.Msg) {
	w.mu.Lock()
	c := w.calls[m.Subject]
	w.mu.Unlock()
	switch {
	case c == nil:
	case m.Header.Get(schemas.HeaderWork) == schemas.WorkWorking:
		select {
		case c.alive <- struct{}{}:
		default:
		}
	default:
		select {
		case c.answer <- m:
		default:
		}
	}
}

// close ends the subscription. Requests under way end with their contexts.
func (w *workers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sub != nil {
		_ = w.sub.Unsubscribe() // fails only on a connection that is closed
	}
}
