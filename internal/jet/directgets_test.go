package jet

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// newTwo returns a client with a connection for direct gets, and that connection.
func newTwo(t *testing.T) (*Client, *nats.Conn) {
	t.Helper()
	s := natstest.Run(t)
	gets := s.Connect(nats.NoReconnect())
	c, err := New(s.Connect(), Options{Timeout: time.Minute, Window: 16, DirectGets: gets})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s.*"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	return c, gets
}

// TestDirectGets: direct gets go through their own connection, and everything else through the first one. While the
// connection for direct gets is down, they go through the first one.
func TestDirectGets(t *testing.T) {
	t.Parallel()
	c, gets := newTwo(t)
	ctx := t.Context()
	calls := []struct {
		name   string
		direct bool
		call   func() error
	}{
		{"write", false, func() error {
			written := make(chan error, 1)
			c.WriteAsync("S", "write", "s.a", nil, nil, func(_ Ack, err error) { written <- err })
			return <-written
		}},
		{"direct get", true, func() error {
			_, err := c.Direct(ctx, "S", Get{Seq: 1, Batch: 1})
			return err
		}},
		{"peek", true, func() error {
			peeked := make(chan Peeked, 1)
			c.PeekAsync("peek", "S", "s.a", func(p Peeked) { peeked <- p })
			_, err := (<-peeked).Msg()
			return err
		}},
		{"read", false, func() error {
			_, err := c.Last(ctx, "S", "s.a")
			return err
		}},
		{"delete", false, func() error {
			deleted := make(chan error, 1)
			c.DeleteMsgAsync("delete", "S", 9, func(err error) { deleted <- err })
			<-deleted // there is no such message
			return nil
		}},
	}
	for _, up := range []bool{true, false} {
		for _, tt := range calls {
			first, second := c.Conn().Stats().OutMsgs, gets.Stats().OutMsgs
			if err := tt.call(); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			first, second = c.Conn().Stats().OutMsgs-first, gets.Stats().OutMsgs-second
			if throughSecond := tt.direct && up; (first == 0) != throughSecond || (second > 0) != throughSecond {
				t.Errorf("%s: %d messages through the first connection, %d through that for direct gets, which is up: %t", tt.name, first, second, up)
			}
		}
		gets.Close()
	}
}

// TestDirectGetsBreak: when the connection for direct gets breaks, the direct gets in flight fail at once. Messages in
// flight do not fail.
func TestDirectGetsBreak(t *testing.T) {
	t.Parallel()
	c, gets := newTwo(t)
	silent, err := c.Conn().SubscribeSync("silent")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	message, got := make(chan error, 1), make(chan error, 1)
	c.pub.send("message", "silent", nil, nil, func(_ Ack, err error) { message <- err })
	c.pub.get("get", "silent", nil, func(*nats.Msg) { got <- nil }, func(_ Ack, err error) { got <- err })
	bound, release, err := c.bindTo(t.Context(), c.pub.getting(), "get")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	var asked *nats.Msg
	for range 2 {
		m, err := silent.NextMsg(30 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(m.Reply, c.pub.prefix) {
			asked = m
		}
	}
	gets.Close()
	if err := <-got; !errors.Is(err, ErrUnavailable) {
		t.Errorf("direct get: %v", err)
	}
	<-bound.Done()
	waittest.Until(t, "direct gets go through the first connection", func() bool { return c.pub.getting() == &c.pub.line })
	if c.Down() || len(message) != 0 {
		t.Fatal("the message failed, too")
	}
	if err := asked.Respond([]byte(`{"stream":"S","seq":1}`)); err != nil {
		t.Fatal(err)
	}
	if err := <-message; err != nil {
		t.Error(err)
	}
}

// TestDirectGetsUnanswered: while nothing answers direct gets on their own connection, they use the first one, and try the
// other one again later.
func TestDirectGetsUnanswered(t *testing.T) {
	t.Parallel()
	c, _ := newTwo(t)
	l := c.pub.gets
	ago := func(d time.Duration) { l.silent.Store(int64(time.Since(c.pub.start) - d)) }
	check := func(step string, want *line) {
		t.Helper()
		if c.pub.getting() != want {
			t.Errorf("%s: the wrong connection", step)
		}
	}
	c.pub.start = c.pub.start.Add(-time.Hour) // so that no time is before it
	check("at first", l)
	ago(getPatience / 2)
	check("without an answer for a moment", l)
	ago(2 * getPatience)
	check("without an answer for long", &c.pub.line)
	ago(2 * getAgain)
	check("after a pause", l)
	ago(2 * getPatience)
	if _, err := c.Direct(t.Context(), "S", Get{Seq: 1, Batch: 1}); err != nil {
		t.Fatal(err)
	}
	check("after an answer on the first connection", &c.pub.line)
	l.answered()
	check("after an answer", l)
	if _, err := c.Direct(t.Context(), "S", Get{Seq: 1, Batch: 1}); err != nil {
		t.Fatal(err)
	}
	if silent := l.silent.Load(); silent != 0 {
		t.Errorf("the answer was not noted: silent since %s", time.Duration(silent))
	}
}
