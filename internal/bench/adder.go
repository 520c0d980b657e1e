package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

const (
	// window bounds the unacknowledged adds of one worker.
	window = 2048
	// addTimeout bounds the wait for one answer.
	addTimeout = 30 * time.Second
)

// source is the source of all events of this package, so that the ids alone identify the timers
// of a run.
const source = "/belfry/bench"

// Adder adds timers with several concurrent workers.
type Adder struct {
	env     *Env
	prefix  string // of ids: unique for the run
	mark    []byte // prefix
	service string
	// names are the services over which the timers are spread, if there are several.
	names []string
	// callback is the timercallback of the timers, or "".
	callback string
	// flowKey returns the timerflow of timer n; nil for timers without.
	flowKey func(n int) string
	// recur makes schedules of the timers; nil for one-shot timers.
	recur *recurring
	pad   string
	conns []*nats.Conn
	done  atomic.Int64
}

// NewAdder opens the workers' connections. The timers have ids that no other run uses, and fire
// for the service.
func (e *Env) NewAdder(service string) (*Adder, error) {
	prefix := strconv.FormatInt(time.Now().UnixNano(), 36) + "-"
	a := &Adder{env: e, prefix: prefix, mark: []byte(prefix), service: service, pad: strings.Repeat("x", max(e.Size-2, 0)), flowKey: e.flowKey}
	for n := range e.Workers {
		nc, err := e.Connect(fmt.Sprintf("belfry bench adder %d", n))
		if err != nil {
			return nil, err
		}
		a.conns = append(a.conns, nc)
	}
	return a, nil
}

// ID returns the CloudEvent id of timer n.
func (a *Adder) ID(n int) string { return a.prefix + strconv.Itoa(n) }

// Timer returns the timer id of timer n.
func (a *Adder) Timer(n int) schemas.TimerID { return schemas.NewTimerID(source, a.ID(n)) }

// number returns the number of the timer whose id is in a text: an event, a record's event id,
// or a header. For schedules the text is an event, and the number is that of the run; see
// recurring.
func (a *Adder) number(text []byte) (int, bool) {
	i := bytes.Index(text, a.mark)
	if i < 0 {
		return 0, false
	}
	n, digits := 0, 0
	for _, c := range text[i+len(a.mark):] {
		if c < '0' || c > '9' || digits > 9 {
			break
		}
		n = n*10 + int(c-'0')
		digits++
	}
	if a.recur != nil && digits > 0 {
		return a.recur.number(n, text)
	}
	return n, digits > 0
}

// runs returns the number of runs of each timer.
func (a *Adder) runs() int {
	if a.recur == nil {
		return 1
	}
	return a.recur.runs
}

// Done returns the number of adds acknowledged so far.
func (a *Adder) Done() int { return int(a.done.Load()) }

func (a *Adder) message(subject string, n int, dueMs int64) *nats.Msg {
	body := make([]byte, 0, 256+len(a.pad))
	body = append(body, `{"specversion":"1.0","id":"`...)
	body = append(body, a.ID(n)...)
	body = append(body, `","source":"`+source+`","type":"belfry.bench","timersvc":"`...)
	body = append(body, a.serviceOf(n)...)
	if a.callback != "" {
		body = append(body, `","timercallback":"`...)
		body = append(body, a.callback...)
	}
	if a.flowKey != nil {
		body = append(body, `","timerflow":"`...)
		body = append(body, a.flowKey(n)...)
	}
	if a.recur != nil {
		body = a.recur.attributes(body, dueMs)
	} else {
		body = append(body, `","timerat":"`...)
		body = append(body, schemas.FormatTime(dueMs)...)
	}
	body = append(body, `","data":"`...)
	body = append(body, a.pad...)
	return &nats.Msg{Subject: subject, Data: append(body, `"}`...)}
}

// Add adds the timers 0 to count-1 and returns when every add was acknowledged. due returns the
// due time of timer n in Unix milliseconds. pace, if not nil, returns the earliest time at which
// timer n is added: its intended start. answered, if not nil, receives the duration of
// each single add. With a pace the duration counts from the intended start, so that a slow
// answer counts for every add that it delays.
func (a *Adder) Add(ctx context.Context, count int, due func(n int) int64, pace func(n int) time.Time, answered func(time.Duration)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for _, nc := range a.conns {
		wg.Go(func() {
			take := func() (int, bool) {
				n := int(next.Add(1)) - 1
				if n >= count || ctx.Err() != nil {
					return 0, false
				}
				return n, pace == nil || waitUntil(ctx, pace(n))
			}
			var err error
			switch a.env.Via {
			case ViaPublish:
				err = a.publish(ctx, nc, take, due)
			case ViaBatch:
				err = a.batches(ctx, nc, take, due)
			case ViaHTTPBatch:
				err = a.httpBatches(ctx, take, due)
			case ViaClientAsync:
				err = a.clientAsync(ctx, nc, take, due)
			case ViaClientBatch:
				err = a.clientBatches(ctx, nc, take, due)
			case ViaHTTP:
				err = a.httpSingles(ctx, take, due, pace, answered)
			default:
				err = a.singles(ctx, nc, take, due, pace, answered)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// publish publishes with up to window unacknowledged adds.
func (a *Adder) publish(ctx context.Context, nc *nats.Conn, take func() (int, bool), due func(int) int64) error {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(addTimeout))
	if err != nil {
		return err
	}
	sut := a.env.sut()
	return a.inFlight(ctx, take, func(n int) (func() error, error) {
		f, err := js.PublishMsgAsync(sut.add(a, n, due(n)), jetstream.WithStallWait(addTimeout))
		return func() error {
			select {
			case <-f.Ok():
				return nil
			case err := <-f.Err():
				return err
			case <-ctx.Done(): // the connection may be closed, and then no answer comes
				return context.Cause(ctx)
			}
		}, err
	})
}

// inFlight adds timers with up to window unacknowledged adds. send starts an add and returns a
// function that waits for its acknowledgement, at most until ctx ends. It returns when no wait is left.
func (a *Adder) inFlight(ctx context.Context, take func() (int, bool), send func(n int) (wait func() error, err error)) (err error) {
	// Acknowledgements come in the order of the adds, so a queue of the window's size holds the
	// waits.
	waits := make(chan func() error, window)
	failed := make(chan error, 1)
	sending, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(failed)
		for wait := range waits {
			if err := wait(); err != nil {
				failed <- fmt.Errorf("an add was not acknowledged: %w", err)
				stop()
				for range waits { // drain, so that the sender can end
				}
				return
			}
			a.done.Add(1)
		}
	}()
	for {
		n, ok := take()
		if !ok || sending.Err() != nil {
			break
		}
		w, serr := send(n)
		if serr != nil {
			err = fmt.Errorf("an add was not published: %w", serr)
			break
		}
		waits <- w
	}
	close(waits)
	return errors.Join(err, <-failed)
}

// batchSize is the batch size of the Go client's AddBatch.
const batchSize = 500

// batches adds timers in atomic batches, one at a time.
func (a *Adder) batches(ctx context.Context, nc *nats.Conn, take func() (int, bool), due func(int) int64) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for numbers := gather(take); len(numbers) > 0; numbers = gather(take) {
		msgs := make([]*nats.Msg, 0, len(numbers))
		for _, n := range numbers {
			m := a.env.sut().add(a, n, due(n))
			if m.Header == nil {
				m.Header = nats.Header{}
			}
			msgs = append(msgs, m)
		}
		bctx, cancel := context.WithTimeout(ctx, addTimeout)
		_, err := jetstreamext.PublishMsgBatch(bctx, js, msgs)
		cancel()
		if err != nil {
			return fmt.Errorf("a batch of adds was not acknowledged: %w", err)
		}
		a.done.Add(int64(len(msgs)))
	}
	return nil
}

// waitUntil waits for a time, or returns false when ctx ends first.
func waitUntil(ctx context.Context, at time.Time) bool { return pause.For(ctx, time.Until(at)) }
