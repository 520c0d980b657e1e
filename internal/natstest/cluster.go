package natstest

import (
	"fmt"
	"net/url"
	"strconv"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// Cluster is three servers that replicate to each other.
type Cluster struct {
	Servers [3]*Server
	tb      testing.TB
}

// Cluster3 starts three servers with routes between them and waits until they
// have elected a leader, so that streams of three replicas can be made at once. With -short it skips the test.
func Cluster3(tb testing.TB, options ...Option) *Cluster {
	tb.Helper()
	testsize.NotShort(tb, "this test runs three servers")
	c := &Cluster{tb: tb}
	// The configuration of each server has the addresses of the others, so choose all
	// ports before starting the first server.
	ports := freePorts(tb, len(c.Servers))
	var routes []*url.URL
	for _, port := range ports {
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	for i := range c.Servers {
		s := newServer(tb, append([]Option{func(o *server.Options) {
			o.ServerName = "n" + strconv.Itoa(i+1)
			o.Cluster = server.ClusterOpts{Name: "natstest", Host: "127.0.0.1", Port: ports[i], PoolSize: -1}
			o.Routes = routes
		}}, options...)...)
		s.launch()
		c.Servers[i] = s
	}
	for _, s := range c.Servers {
		s.await()
	}
	c.WaitReady()
	return c
}

func freePorts(tb testing.TB, n int) []int {
	tb.Helper()
	var ports []int
	for range n {
		ports = append(ports, tcptest.FreePort(tb))
	}
	return ports
}

// WaitReady waits until the running servers have a leader of their metadata that
// knows them all.
func (c *Cluster) WaitReady() {
	c.tb.Helper()
	waittest.UntilWithin(c.tb, startBound, "a JetStream leader knows all running servers", func() bool {
		running, known := 0, 0
		for _, s := range c.Servers {
			if !s.Running() {
				continue
			}
			running++
			if s.JetStreamIsLeader() {
				known = len(s.JetStreamClusterPeers())
			}
		}
		return known >= running
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
	waittest.UntilWithin(c.tb, startBound, "stream "+stream+" has a leader", func() bool {
		leader = c.StreamLeader(stream)
		return leader != nil
	})
	return leader
}

// WaitNoStreamLeader waits until the stream has no leader.
func (c *Cluster) WaitNoStreamLeader(stream string) {
	c.tb.Helper()
	waittest.UntilWithin(c.tb, startBound, "stream "+stream+" has no leader", func() bool { return c.StreamLeader(stream) == nil })
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
