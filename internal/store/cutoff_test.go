//go:build unix

package store_test

import (
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// cutRoutes are the routes of a cluster of three servers. Nothing passes those of a server that is cut off.
type cutRoutes struct{ links []routeLink }

// routeLink is a route, by the host and port of the servers at its ends.
type routeLink struct {
	*proc.Link
	from, to string
}

// option makes the servers of natstest.Cluster3 connect through the routes.
func (c *cutRoutes) option(t *testing.T) natstest.Option {
	return func(o *server.Options) {
		all := o.Routes
		o.Cluster.NoAdvertise, o.Routes = true, nil
		// A server tells others the address at which it accepts routes. A route that another one makes there would
		// not be cut.
		o.Cluster.Advertise = noAddress
		for _, r := range all {
			if own := routesOf(o); r.Host != own {
				l := routeLink{proc.NewLink(t, r.Host), own, r.Host}
				c.links = append(c.links, l)
				o.Routes = append(o.Routes, &url.URL{Scheme: r.Scheme, Host: l.Address()})
			}
		}
	}
}

// noAddress is an address at which nobody accepts connections.
const noAddress = "127.0.0.1:1"

// routesOf returns the address on which a server accepts routes.
func routesOf(o *server.Options) string {
	return net.JoinHostPort(o.Cluster.Host, strconv.Itoa(o.Cluster.Port))
}

// of calls fn for each route of a server.
func (c *cutRoutes) of(s *natstest.Server, fn func(*proc.Link)) {
	at := s.ClusterAddr().String()
	for _, l := range c.links {
		if l.from == at || l.to == at {
			fn(l.Link)
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
	cfg := store.Config{Node: "n1", Geometry: schemas.DefaultGeometry(), Replicas: 3}
	cfg.Geometry.Shards = 1
	open := func(s *natstest.Server, node string) *store.Store {
		cfg.Node = node
		st, err := store.Open(t.Context(), s.Connect(), cfg, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(st.Close)
		return st
	}
	open(c.Servers[0], "n1")
	leader := c.WaitStreamLeader("KV_" + schemas.BucketFlows)
	s := open(leader, "n2")
	fresh := func() bool {
		_, ok := s.FlowsNow()
		return ok
	}
	waittest.Until(t, "the copy of the limits is fresh", fresh)
	routes.of(leader, (*proc.Link).Hold)
	// The server answers as the leader for another 10 to 20 s. Others can be elected after 4 s.
	waittest.UntilWithin(t, 9*time.Second, "the copy of the limits is not fresh", func() bool { return !fresh() })
	routes.of(leader, (*proc.Link).Heal)
	waittest.Until(t, "the copy of the limits is fresh again", fresh)
}
