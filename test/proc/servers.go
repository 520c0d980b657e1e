//go:build unix

package proc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/tcptest"
)

// Server is a nats-server process, alone or of a cluster.
type Server struct {
	// Name is the server's name: n1, n2, …
	Name string

	process
	bin, config            string
	client, route, monitor string
}

// BuildServer builds nats-server in the version of go.mod, once, and returns its path.
func BuildServer(tb testing.TB) string {
	tb.Helper()
	return build(tb, "nats-server", "github.com/nats-io/nats-server/v2")
}

// NewServers prepares a cluster of n servers, or a single server; Start starts each. They
// are killed when the test ends.
func NewServers(t testing.TB, n int) []*Server {
	t.Helper()
	bin := BuildServer(t)
	servers := make([]*Server, n)
	var routes []string
	for i := range servers {
		s := &Server{Name: fmt.Sprintf("n%d", i+1), bin: bin, client: tcptest.FreeAddress(t), route: tcptest.FreeAddress(t), monitor: tcptest.FreeAddress(t)}
		servers[i] = s
		routes = append(routes, fmt.Sprintf("%q", "nats-route://"+s.route))
	}
	for _, s := range servers {
		cluster := ""
		if n > 1 {
			cluster = fmt.Sprintf(clusterConfig, s.route, strings.Join(routes, ", "))
		}
		s.configure(t, cluster)
	}
	return servers
}

const serverConfig = `
server_name: %s
listen: %q
http: %q
jetstream { store_dir: %q, max_file_store: 16GB, max_memory_store: 64MB }
%s
`

// clusterConfig disables the advertisement of the other servers, because a client that is
// connected through a Link could then bypass it. The ping interval is the same as in
// deploy/cluster/nats.conf, so that the servers detect a server that hangs.
const clusterConfig = `cluster { name: chaos, listen: %q, no_advertise: true, ping_interval: "2s", ping_max: 2, routes: [%s] }`

func (s *Server) configure(t testing.TB, cluster string) {
	t.Helper()
	dir := t.TempDir()
	s.prepare(t, filepath.Join(dir, "store"), filepath.Join(dir, "nats.log"))
	s.config = filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf(serverConfig, s.Name, s.client, s.monitor, s.store, cluster)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Start starts the process; it does not wait until it is ready.
func (s *Server) Start() {
	s.t.Helper()
	s.start(s.bin, []string{"-c", s.config}, nil)
}

// WaitHealthy waits until the server reports that its JetStream is up to date.
func (s *Server) WaitHealthy(ctx context.Context, bound time.Duration) error {
	return s.await(ctx, bound, "http://"+s.monitor+"/healthz")
}

// URL is the server's address for clients.
func (s *Server) URL() string { return "nats://" + s.client }

// Address is HOST:PORT for clients.
func (s *Server) Address() string { return s.client }
