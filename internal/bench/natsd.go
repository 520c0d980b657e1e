package bench

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/belfryio/belfry/internal/freeport"
)

// serverSpec has the settings of a nats-server process.
type serverSpec struct {
	Name       string `json:"name"`
	Data       string `json:"data"`
	Listen     string `json:"listen"`
	SyncAlways bool   `json:"sync_always"`
	// Cluster is the address on which the server listens for the servers of Routes; empty for a
	// single server.
	Cluster string   `json:"cluster,omitempty"`
	Routes  []string `json:"routes,omitempty"`
}

// runServer runs a nats-server with JetStream until ctx ends, with the settings of a node's
// embedded server. Like the program nats-server it uses Go's default for garbage collections.
func runServer(ctx context.Context, spec serverSpec) error {
	return withServer(spec, func(*server.Server) error {
		<-ctx.Done()
		return nil
	})
}

// withServer calls f with the server of a spec, and then shuts it down.
func withServer(spec serverSpec, f func(*server.Server) error) error {
	host, port, err := hostPort(spec.Listen)
	if err != nil {
		return err
	}
	o := &server.Options{
		ServerName: spec.Name, Host: host, Port: port, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: spec.Data, SyncAlways: spec.SyncAlways,
	}
	if spec.Cluster != "" {
		if o.Cluster.Host, o.Cluster.Port, err = hostPort(spec.Cluster); err != nil {
			return err
		}
		o.Cluster.Name = "bench"
		for _, r := range spec.Routes {
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", Host: r})
		}
	}
	srv, err := server.NewServer(o)
	if err != nil {
		return err
	}
	srv.Start()
	if !srv.ReadyForConnections(startBound) {
		err = fmt.Errorf("nats-server was not ready after %s", startBound)
	} else {
		err = f(srv)
	}
	srv.Shutdown()
	srv.WaitForShutdown()
	return err
}

func hostPort(addr string) (string, int, error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.Atoi(text)
	return host, port, err
}

// freeAddrs returns different free addresses on loopback.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		port, err := freeport.Pick()
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, freeport.Address(port))
	}
	return addrs, nil
}
