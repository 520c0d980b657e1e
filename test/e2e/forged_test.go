//go:build unix

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestForgedMessages sends messages to the inboxes on which a node receives adds and
// events. The node must acknowledge only messages that its consumers deliver:
// acknowledging a forged message would publish to a subject of the attacker's choice. A forged
// add of a schedule is not stored, and the event of a schedule's run that is sent again is not
// called back again.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	pulls := make(chan *nats.Msg, 4096)
	settled := make(chan *nats.Msg, 4096)
	for subject, to := range map[string]chan *nats.Msg{"$JS.API.CONSUMER.MSG.NEXT.>": pulls, "elsewhere.>": settled} {
		if _, err := c.nc.ChanSubscribe(subject, to); err != nil {
			t.Fatal(err)
		}
	}
	callee := newCallee(t, nil)
	called := 0
	call := func() {
		t.Helper()
		id := fmt.Sprintf("call-%d", called)
		called++
		c.publish(structured(attrs{"id": id, "timersvc": "forged", "timerafter": "10ms", "timercallback": callee.url}, `{}`))
		c.until(id, schemas.StateSuccess)
	}
	call() // the service's consumers exist and have pulls
	c.publish(structured(attrs{"id": "schedule", "timersvc": "forged", "timerevery": "1s", "timerlimit": "1", "timercallback": callee.url}, `{}`))
	c.until("schedule", schemas.StateCompleted)
	c.untilRun("schedule", 1, schemas.StateSuccess)
	run := c.firedEvents("forged", 0)
	last := run[len(run)-1]
	if last.id != "schedule" || len(callee.of("schedule")) != 1 {
		t.Fatalf("the last event is %+v, and the schedule was called %d times", last, len(callee.of("schedule")))
	}
	// forge returns what an attacker would like a node to take from a stream.
	forge := func(stream string, n int) *nats.Msg {
		m := &nats.Msg{Header: nats.Header{schemas.HeaderClaim: {"forged"}}, Data: []byte("forged")}
		switch {
		case stream == schemas.StreamAdd:
			m = structured(attrs{"id": "forged", "timersvc": "forged", "timerevery": "1s"}, `{}`)
		case stream == schemas.StreamFired && n%2 == 1:
			m = &nats.Msg{Header: last.headers, Data: last.raw}
		}
		return m
	}
	seen := map[string]bool{}
	count := 0
	waittest.Until(t, "forged messages for functions", func() bool {
		select {
		case m := <-pulls:
			if m.Reply == "" || seen[m.Reply] {
				return false
			}
			stream := strings.Split(m.Subject, ".")[5]
			seen[m.Reply] = true
			if stream == schemas.StreamFired {
				count++
			}
			seen[stream] = stream != schemas.StreamFired || count > 1
			forged := forge(stream, count)
			forged.Subject, forged.Reply = m.Reply, "elsewhere.x"
			if err := c.nc.PublishMsg(forged); err != nil {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Millisecond):
			call() // pulls are renewed
		}
		return seen[schemas.StreamFired]
	}, func() string { return fmt.Sprint(seen) })
	call()
	if err := c.nc.FlushTimeout(bound); err != nil {
		t.Fatal(err)
	}
	for len(settled) > 0 {
		// The server itself answers a message to an inbox that nobody listens to any more.
		if m := <-settled; m.Header.Get("Status") != "503" {
			t.Errorf("a node published %q to %s", m.Data, m.Subject)
		}
	}
	if n := len(callee.of("schedule")); n != 1 {
		t.Errorf("the run of the schedule was called %d times", n)
	}
	var i schemas.TimerInfo
	if err := c.call("get", schemas.TimerRef{ID: "forged", Source: "/e2e"}, &i); schemas.CodeOf(err) != schemas.CodeNotFound {
		t.Errorf("the forged schedule is %+v, %v", i, err)
	}
}
