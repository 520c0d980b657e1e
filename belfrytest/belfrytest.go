// Package belfrytest runs Belfry in a test of your program, with a clock that the test moves: a
// reminder that is due in 30 days fires in about a second.
//
//	func TestReminder(t *testing.T) {
//		b := belfrytest.New(t)
//		// Start your program with b.Client(), or with b.URL() and b.HTTPURL().
//		b.Advance(30 * 24 * time.Hour)
//		// The reminder has fired, and its callback has a result.
//	}
//
// New starts one node with an embedded NATS server in a folder of the test. The node stops when
// the test ends. Each test has its own, so tests can run in parallel.
//
// The clock stands still until the test moves it; with Running it also runs between moves. A move
// passes the due times in order. At each it waits until every callback has a result, or waits for a
// later attempt. The time-outs of callbacks and the ages of streams follow real time; see docs/dev.md.
//
// The package contains the server. Import it only in tests.
package belfrytest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
)

// startBound and stopBound bound the start and the stop of a node, moveBound one call that moves its
// clock.
const (
	startBound = 2 * time.Minute
	stopBound  = time.Minute
	moveBound  = 5 * time.Minute
)

// Belfry is a node in a test. Call its methods in the goroutine of the test. All except RunUntilIdle
// end the test with t.Fatalf on an error.
type Belfry struct {
	t      testing.TB
	app    *app.App
	client *belfry.Client
}

// Option changes a node; see [New].
type Option interface{ apply(*app.Options) }

type option func(*app.Options)

func (f option) apply(o *app.Options) { f(o) }

// Running lets the clock run between moves. Without it the clock stands still, and timers that
// are due later fire only in a move.
func Running() Option { return option(func(o *app.Options) { o.Frozen = false }) }

// Retention sets the time for which the record of a finished timer stays, by the movable clock: at
// least 1 s; default 1 h.
func Retention(d time.Duration) Option { return option(func(o *app.Options) { o.Retention = d }) }

// New starts a node, which stops when the test and its subtests have ended. HTTP callbacks may connect
// to this host. The node writes warnings and errors to the test's log.
func New(t testing.TB, opts ...Option) *Belfry {
	t.Helper()
	dir, err := os.MkdirTemp("", "belfrytest-")
	if err != nil {
		t.Fatalf("belfrytest: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("belfrytest: %v", err)
		}
	})
	o := app.Options{
		Data: dir, NATSListen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Profile: app.ProfileFast,
		AllowLoopback: true, Development: true, Frozen: true,
		Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
	}
	for _, opt := range opts {
		opt.apply(&o)
	}
	b := &Belfry{t: t}
	if b.app, err = app.New(o); err != nil {
		t.Fatalf("belfrytest: %v", err)
	}
	t.Cleanup(b.stop)
	ctx, cancel := context.WithTimeout(context.Background(), startBound)
	defer cancel()
	if err := b.app.Start(ctx); err != nil {
		t.Fatalf("belfrytest: start: %v", err)
	}
	if b.client, err = belfry.Connect(ctx, b.URL()); err != nil {
		t.Fatalf("belfrytest: %v", err)
	}
	return b
}

func (b *Belfry) stop() {
	if b.client != nil {
		b.client.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopBound)
	defer cancel()
	if err := b.app.Stop(ctx); err != nil {
		b.t.Errorf("belfrytest: stop: %v", err)
	}
}

// Client returns a client of the node. It is closed when the test ends.
func (b *Belfry) Client() *belfry.Client { return b.client }

// URL returns the address of the node's NATS server, such as nats://127.0.0.1:41234.
func (b *Belfry) URL() string { return b.app.NATSURL() }

// HTTPURL returns the address of the node's HTTP API and console, such as http://127.0.0.1:41235.
func (b *Belfry) HTTPURL() string { return "http://" + b.app.HTTPAddr() }

// Now returns the time of the clock, in UTC and whole milliseconds.
func (b *Belfry) Now() time.Time {
	b.t.Helper()
	ctx, cancel := b.bound()
	defer cancel()
	c, err := b.client.Clock(ctx)
	if err != nil {
		b.t.Fatalf("belfrytest: %v", err)
	}
	return c.Now
}

// Advance moves the clock ahead by d, as [belfry.Client.AdvanceClock] does, and returns the number
// of events that fired.
func (b *Belfry) Advance(d time.Duration) (fired int) {
	b.t.Helper()
	ctx, cancel := b.bound()
	defer cancel()
	c, err := b.client.AdvanceClock(ctx, d)
	return b.moved(c, fmt.Sprintf("advance the clock by %s", d), err)
}

// To moves the clock to a time that is not in its past, and returns the number of events that fired.
func (b *Belfry) To(at time.Time) (fired int) {
	b.t.Helper()
	ctx, cancel := b.bound()
	defer cancel()
	c, err := b.client.MoveClock(ctx, at)
	return b.moved(c, fmt.Sprintf("move the clock to %s", at), err)
}

func (b *Belfry) bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), moveBound)
}

func (b *Belfry) moved(c belfry.Clock, what string, err error) (fired int) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("belfrytest: %s: %v", what, err)
	}
	return c.Fired
}

// ErrNeverIdle means that timers were left after the maximum number of due times of RunUntilIdle.
var ErrNeverIdle = errors.New("the clock is never idle")

// RunUntilIdle moves the clock from one due time to the next, until no timer is due in the future,
// and returns the number of events that fired. It passes at most 1,000 due times, or the number of
// [belfry.ClockMax]. If timers are left then, for example of a schedule without an end, its error is
// ErrNeverIdle. With [belfry.ClockUntil] it stops at a time, without an error. Other errors are those
// of [belfry.Client.RunClockUntilIdle].
func (b *Belfry) RunUntilIdle(ctx context.Context, opts ...belfry.ClockOption) (fired int, err error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, moveBound)
		defer cancel()
	}
	c, err := b.client.RunClockUntilIdle(ctx, opts...)
	if errors.Is(err, belfry.ErrBadRequest) && (c.Stopped || c.More) {
		err = fmt.Errorf("%w: %w", ErrNeverIdle, err)
	}
	return c.Fired, err
}
