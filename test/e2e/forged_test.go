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
// acknowledging a forged message would publish to a subject of the attacker's choice.
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
	seen := map[string]bool{}
	waittest.Until(t, "forged messages for functions", func() bool {
		select {
		case m := <-pulls:
			if m.Reply == "" || seen[m.Reply] {
				return false
			}
			seen[m.Reply] = true
			seen[strings.Split(m.Subject, ".")[5]] = true
			forged := &nats.Msg{Subject: m.Reply, Reply: "elsewhere.x", Header: nats.Header{schemas.HeaderClaim: {"forged"}}, Data: []byte("forged")}
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
	select {
	case m := <-settled:
		t.Errorf("a node published %q to %s", m.Data, m.Subject)
	default:
	}
}
