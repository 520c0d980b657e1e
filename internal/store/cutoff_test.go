package store

import (
	"net"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// cutRoutes are the routes of a cluster of three servers. Those of a server that is cut off lose all bytes.
type cutRoutes struct {
	ports [3]atomic.Int64 // of the servers' own routes
	cut   [3]atomic.Bool
}

// option makes the servers of natstest.Cluster3, n1 to n3, connect through the routes.
func (c *cutRoutes) option(t *testing.T) natstest.Option {
	var addrs [3][3]string
	for i := range 3 {
		for j := range 3 {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			addrs[i][j] = l.Addr().String()
			go c.accept(l, i, j)
		}
	}
	return func(o *server.Options) {
		i := int(o.ServerName[1] - '1')
		c.ports[i].Store(int64(o.Cluster.Port))
		o.Cluster.NoAdvertise, o.Routes = true, nil
		for j := range 3 {
			if j != i {
				o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: addrs[i][j]})
			}
		}
	}
}

func (c *cutRoutes) accept(l net.Listener, i, j int) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.FormatInt(c.ports[j].Load(), 10)))
		if err != nil {
			from.Close()
			continue
		}
		go c.forward(to, from, i, j)
		go c.forward(from, to, i, j)
	}
}

func (c *cutRoutes) forward(to, from net.Conn, i, j int) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if c.cut[i].Load() || c.cut[j].Load() {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// TestCutOffLeader: the server that leads the buckets of limits and calendars is cut off from the others. A node that is connected
// to it soon makes no decision by its copies, although that server still answers as the leader.
func TestCutOffLeader(t *testing.T) {
	t.Parallel()
	testsize.NotRace(t, "it compares with the election timeouts of nats-server")
	var routes cutRoutes
	c := natstest.Cluster3(t, routes.option(t))
	cfg := Config{Node: "n1", Geometry: schemas.DefaultGeometry(), Replicas: 3}
	cfg.Geometry.Shards = 1
	open := func(s *natstest.Server, node string) *Store {
		cfg.Node = node
		st, err := Open(t.Context(), s.Connect(), cfg, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(st.Close)
		return st
	}
	open(c.Servers[0], "n1")
	leader := c.WaitStreamLeader(flowsStream)
	s := open(leader, "n2")
	fresh := func() bool {
		_, ok := s.FlowsNow()
		return ok
	}
	waittest.Until(t, "the copy of the limits is fresh", fresh)
	i := int(leader.Name()[1] - '1')
	routes.cut[i].Store(true)
	// The server answers as the leader for another 10 to 20 s. Others can be elected after 4 s.
	waittest.UntilWithin(t, 9*time.Second, "the copy of the limits is not fresh", func() bool { return !fresh() })
	routes.cut[i].Store(false)
	waittest.Until(t, "the copy of the limits is fresh again", fresh)
}
