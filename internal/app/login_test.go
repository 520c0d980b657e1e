package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestRefusedLogins: a node goes on after a server has refused its login many times, and logs few lines about them.
func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	var l natstest.Logins
	s := natstest.Run(t, l.Option)
	var log logtest.Buffer
	o := options(t)
	o.Data, o.NATSURL, o.Log = "", s.URL(), zerolog.New(&log)
	a := start(t, o)
	l.Refuse("belfry")
	s.Restart()
	waittest.Until(t, "both connections are refused five times", func() bool { return l.Refused(2, 5) || a.nc.IsClosed() }, log.String)
	if r := a.Ready(); r.Ready {
		t.Errorf("a node that its server refuses: got %+v, want not ready", r)
	}
	l.Allow()
	waittest.Until(t, "the node is ready again, or its connection closed", func() bool { return a.Ready().Ready || a.nc.IsClosed() }, log.String)
	if a.nc.IsClosed() || a.directGets.IsClosed() {
		t.Errorf("after refused logins a connection has ended: %s", log.String())
	}
	if n := log.Count(nats.ErrAuthorization.Error()); n == 0 || n > 4 {
		t.Errorf("got %d lines about refused logins, want one or two for each connection: %s", n, log.String())
	}
}

// TestConnectionEnds: an error of the server that closes a connection for good ends the node.
func TestConnectionEnds(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	o := options(t)
	o.Data, o.NATSURL = "", s.URL()
	a := start(t, o)
	failed := make(chan error, 1)
	go func() { failed <- a.Wait(t.Context()) }()
	var err error
	// The server closes the connection with unread data, so its reason may not arrive. The node then connects again.
	waittest.Until(t, "the node fails", func() bool {
		_ = a.nc.Publish(longSubject(), nil) // fails after the end
		select {
		case err = <-failed:
			return true
		case <-time.After(time.Second):
			return false
		}
	})
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "has ended: nats: ") {
		t.Errorf("the node whose connection was closed: got error %v, want ErrUnreachable with the reason", err)
	}
}

// longSubject returns a subject that is longer than a line of the protocol may be.
func longSubject() string { return strings.Repeat("a", 2*server.MAX_CONTROL_LINE_SIZE) }
