package natstest

import (
	"fmt"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Cluster is three servers that replicate to each other.
type Cluster struct {
	Servers [3]*Server
	tb      testing.TB
}

// Cluster3 starts three servers with routes between them and waits until they
// have elected a leader, so that streams of three replicas can be made at once.
func Cluster3(tb testing.TB, options ...Option) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb}
	var routes []*url.URL
	// The servers pick their route ports themselves, so that no port can be taken
	// by another test in between: each is given the routes of those before it, and
	// gossip does the rest.
	for i := range c.Servers {
		var later []Option
		later = append(later, func(o *server.Options) {
			o.ServerName = "n" + strconv.Itoa(i+1)
			o.Cluster = server.ClusterOpts{Name: "natstest", Host: "127.0.0.1", Port: server.RANDOM_PORT, PoolSize: -1}
			o.Routes = append([]*url.URL(nil), routes...)
		})
		s := newServer(tb, append(later, options...)...)
		s.launch()
		s.opts.Cluster.Port = s.ClusterAddr().Port
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: fmt.Sprintf("127.0.0.1:%d", s.opts.Cluster.Port)})
		c.Servers[i] = s
	}
	for _, s := range c.Servers {
		s.await()
		// A restart finds the others whatever order they come back in.
		s.opts.Routes = routes
	}
	c.WaitReady()
	return c
}

// WaitReady waits until the running servers have a leader of their metadata.
func (c *Cluster) WaitReady() {
	c.tb.Helper()
	waitFor(c.tb, "a JetStream leader", func() bool {
		for _, s := range c.Servers {
			if s.Running() && s.JetStreamIsLeader() {
				return true
			}
		}
		return false
	})
}

// StreamLeader is the server that leads a stream of the default account, or nil
// while there is none.
func (c *Cluster) StreamLeader(stream string) *Server {
	for _, s := range c.Servers {
		if s.Running() && s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return s
		}
	}
	return nil
}

// WaitStreamLeader waits for a leader of the stream.
func (c *Cluster) WaitStreamLeader(stream string) *Server {
	c.tb.Helper()
	var leader *Server
	waitFor(c.tb, "a leader of "+stream, func() bool {
		leader = c.StreamLeader(stream)
		return leader != nil
	})
	return leader
}

// Connect connects to all servers, reconnecting for ever, until the test ends.
func (c *Cluster) Connect(options ...nats.Option) *nats.Conn {
	c.tb.Helper()
	urls := ""
	for i, s := range c.Servers {
		if i > 0 {
			urls += ","
		}
		urls += s.URL()
	}
	return connect(c.tb, urls, options)
}

// waitFor polls: a server gives no notice of an election.
func waitFor(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.NewTimer(startBound)
	defer deadline.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			tb.Fatalf("natstest: no %s within %s", what, startBound)
		case <-poll.C:
		}
	}
}
