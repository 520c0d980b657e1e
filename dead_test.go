package belfry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestHandleDeadLetters: an event that Handle gives up becomes a dead letter with the
// consumer's name, the reason and the number of deliveries. A replay is refused, and the dead
// letter stays.
func TestHandleDeadLetters(t *testing.T) {
	t.Parallel()
	c := connect(t)
	for _, id := range []string{"permanent", "exhausted", "later"} {
		if _, err := c.Add(t.Context(), newEvent(id), belfry.After(0), belfry.WithService("dead")); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reported atomic.Int32
	out := make(chan error, 1)
	go func() {
		out <- c.Handle(ctx, "dead", func(_ context.Context, run *belfry.Run) error {
			switch run.Event.ID() {
			case "permanent":
				return belfry.Permanent(errors.New("no such\norder"))
			case "later":
				return belfry.RetryAfter(0)
			}
			return errors.New("shop is closed")
		}, belfry.WithDurable("mine"), belfry.WithMaxDeliver(2), belfry.WithErrorHandler(func(_ *belfry.Run, err error) {
			if strings.Contains(err.Error(), "dead letter on timers.dead.dead") {
				reported.Add(1)
			}
		}))
	}()
	var dead map[string]belfry.DeadLetter
	waittest.Until(t, "3 dead letters, each reported", func() bool {
		dead = letters(t, c, "dead")
		return len(dead) == 3 && reported.Load() >= 3
	}, func() string { return fmt.Sprintf("%d reported; dead letters: %+v", reported.Load(), dead) })
	cancel()
	if err := <-out; err != nil {
		t.Error(err)
	}
	for id, want := range map[string]struct {
		code, text string
		attempts   uint32
	}{
		"permanent": {"handler_permanent", "no such order", 1},
		"exhausted": {"handler_exhausted", "delivery 2 of 2: shop is closed", 2},
		"later":     {"handler_exhausted", "delivery 2 of 2: retry after 0s", 2},
	} {
		d := dead[id]
		if d.ErrorCode != want.code || d.ErrorData != want.text || d.Attempts != want.attempts || d.Consumer != "mine" || d.Timer != belfry.NewTimerID("/shop", id) {
			t.Errorf("%s: %+v", id, d)
		}
		if err := c.Replay(t.Context(), d.Timer); schemas.CodeOf(err) != schemas.CodeBadRequest || !strings.Contains(err.Error(), "consumer mine") {
			t.Errorf("replay of %s: %v", id, err)
		}
	}
	if n, err := c.ReplayService(t.Context(), "dead"); n != 0 || schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("replay of the service: %d, %v", n, err)
	}
	if left := letters(t, c, "dead"); len(left) != 3 {
		t.Errorf("%d dead letters are left", len(left))
	}
}

// dead waits for n dead letters in the stream of a bare server.
func (b *bare) dead(n uint64) *jetstream.RawStreamMsg {
	b.t.Helper()
	s, err := b.js.Stream(b.t.Context(), schemas.StreamDead)
	if err != nil {
		b.t.Fatal(err)
	}
	var m *jetstream.RawStreamMsg
	waittest.Until(b.t, fmt.Sprintf("dead letter %d", n), func() bool {
		m, err = s.GetMsg(b.t.Context(), n)
		return err == nil
	}, func() string { return err.Error() })
	return m
}

// TestHandleDiedInLastDelivery: after a process died in the last delivery, the next one makes
// a dead letter without calling the handler.
func TestHandleDiedInLastDelivery(t *testing.T) {
	t.Parallel()
	b := newBare(t)
	b.fire("s", 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cons, err := b.js.CreateConsumer(ctx, schemas.StreamFired, jetstream.ConsumerConfig{
		Durable: "s", FilterSubject: "timers.fired.s", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 100 * time.Millisecond, MaxAckPending: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cons.Next(); err != nil { // and dies
		t.Fatal(err)
	}
	out := b.handle(ctx, "s", func(context.Context, *belfry.Run) error {
		t.Error("called")
		return nil
	}, belfry.WithMaxDeliver(1), belfry.WithErrorHandler(quiet))
	m := b.dead(1)
	if code := m.Header.Get(schemas.HeaderErrorCode); code != "handler_exhausted" || m.Header.Get(nats.MsgIdHdr) == "" {
		t.Errorf("got %v", m.Header)
	}
	b.concluded("s")
	cancel()
	if err := b.returned(out); err != nil {
		t.Error(err)
	}
}

// TestHandleMayNotDie: without permission to publish dead letters, Handle reports an error and
// the event is delivered again.
func TestHandleMayNotDie(t *testing.T) {
	t.Parallel()
	b := newBareAs(t, &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.dead.>"}}},
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	b.fire("s", 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan error, 10)
	out := b.handle(ctx, "s", func(context.Context, *belfry.Run) error { return belfry.Permanent(errors.New("no")) },
		belfry.WithErrorHandler(func(_ *belfry.Run, err error) { told <- err }))
	if err := waittest.Receive(t, "an error report", told); !strings.Contains(err.Error(), "may this user publish to timers.dead.s?") {
		t.Errorf("reported %v, want a hint at the permission", err)
	}
	cancel()
	if err := b.returned(out); err != nil {
		t.Error(err)
	}
	if i := b.info("s"); i.NumAckPending+int(i.NumPending) != 1 {
		t.Errorf("the event is gone: %+v", i)
	}
}

// TestReplayServiceEnds: a replay of a service takes the dead letters that there are at its start. Those of the runs that
// it has replayed, which fail again at once, are not part of it.
func TestReplayServiceEnds(t *testing.T) {
	t.Parallel()
	const timers = 510 // more than a request to timers.api.dead.replay replays
	c := connect(t)
	worker(t, c, "again", func(context.Context, *belfry.Run) error { return belfry.Permanent(errors.New("no such order")) }, belfry.WithErrorHandler(quiet))
	for i := range timers {
		if _, err := c.AddAsync(newEvent(fmt.Sprint(i)), belfry.After(0), belfry.ToWorker("again")); err != nil {
			t.Fatal(err)
		}
	}
	dead := 0
	waittest.Until(t, "all timers are dead", func() bool {
		dead = len(letters(t, c, "again"))
		return dead == timers
	}, func() string { return fmt.Sprintf("%d dead letters", dead) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if n, err := c.ReplayService(ctx, "again"); n != timers || err != nil {
		t.Errorf("replayed %d of %d dead letters: %v", n, timers, err)
	}
}
