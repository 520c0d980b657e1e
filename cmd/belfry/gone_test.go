//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
)

// TestStopWithServerGone: SIGTERM stops a node in time while the NATS server is dead or
// does not answer, whether the node is idle or busy. The node logs that it stopped
// without the server. That is not a failure, because nothing is lost.
func TestStopWithServerGone(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *natstest.Process){"killed": func(_ *testing.T, p *natstest.Process) { p.Kill() }, "silent": silence} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s busy=%v", name, busy), func(t *testing.T) {
				t.Parallel()
				srv := natstest.RunProcess(t, false)
				n := serveOn(t, srv.URL(), "--allow-loopback")
				if busy {
					keepBusy(t, n, srv.Connect())
				}
				end(t, srv)
				n.stop(t)
				n.logged(t, `"message":"stopped"`)
				n.logged(t, "does not answer: stopping without it")
			})
		}
	}
}

// silence stops the server's process with SIGSTOP and waits until it no longer answers.
func silence(t *testing.T, srv *natstest.Process) {
	t.Helper()
	nc := srv.Connect()
	srv.Signal(syscall.SIGSTOP)
	for nc.FlushTimeout(50*time.Millisecond) == nil { // each sends a PING
	}
}

// keepBusy adds timers that are due now and whose callbacks hang, and returns at the
// first callback.
func keepBusy(t *testing.T, n *node, nc *nats.Conn) {
	t.Helper()
	called, hold := make(chan struct{}, 1), make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case called <- struct{}{}:
		default:
		}
		<-hold
	}))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(hold) })
	for i := range 20_000 {
		e := fmt.Appendf(nil, `{"specversion":"1.0","id":"%d","source":"/busy","type":"t","timerafter":"1ms","timersvc":"busy","timercallback":%q}`, i, hook.URL)
		if err := nc.Publish("timers.add", e); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	<-called
}
