//go:build unix

package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a real nats-server in a process of its own, one of a cluster.
type Server struct {
	// Name is n1, n2, …: the server's own.
	Name string

	t                      testing.TB
	bin, dir, config       string
	client, route, monitor string
	p                      process
	log                    *os.File
	disk                   *disk // nil for the machine's
}

// BuildServer makes the nats-server of go.mod's version, once, and returns its path.
func BuildServer(tb testing.TB) string {
	tb.Helper()
	return build(tb, "nats-server", "github.com/nats-io/nats-server/v2")
}

// NewServers prepares a cluster of n servers, or one by itself; Start starts each.
// They are killed when the test ends.
func NewServers(t testing.TB, n int) []*Server {
	t.Helper()
	bin := BuildServer(t)
	servers := make([]*Server, n)
	var routes []string
	for i := range servers {
		s := &Server{Name: fmt.Sprintf("n%d", i+1), t: t, bin: bin, dir: t.TempDir(), client: FreeAddress(t), route: FreeAddress(t), monitor: FreeAddress(t)}
		servers[i] = s
		routes = append(routes, fmt.Sprintf("%q", "nats-route://"+s.route))
	}
	for _, s := range servers {
		cluster := ""
		if n > 1 {
			cluster = fmt.Sprintf(clusterConfig, s.route, strings.Join(routes, ", "))
		}
		s.prepare(cluster)
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
// deploy/cluster/nats.conf, so that the servers detect one that hangs.
const clusterConfig = `cluster { name: chaos, listen: %q, no_advertise: true, ping_interval: "2s", ping_max: 2, routes: [%s] }`

func (s *Server) prepare(cluster string) {
	s.t.Helper()
	s.config = filepath.Join(s.dir, "nats.conf")
	text := fmt.Sprintf(serverConfig, s.Name, s.client, s.monitor, s.store(), cluster)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	var err error
	if s.log, err = os.Create(filepath.Join(s.dir, "nats.log")); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		s.Kill()
		if err := s.log.Close(); err != nil {
			s.t.Error(err)
		}
	})
	killLate(s.t, s.Kill)
}

// Start starts the process; it does not wait until it is ready.
func (s *Server) Start() {
	s.t.Helper()
	cmd := exec.Command(s.bin, "-c", s.config)
	if s.disk != nil {
		cmd = s.disk.command(s.bin, "-c", s.config)
	}
	cmd.Env = []string{"HOME=" + s.dir, "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	s.p.start(s.t, cmd)
}

// SmallDisk gives the server, before its first start, a disk of its own that Fill
// can fill. The error says why this machine cannot.
func (s *Server) SmallDisk(bytes int64) (err error) {
	s.disk, err = newDisk(s.t, s.store(), bytes)
	return err
}

// HasDisk tells whether the disk is the server's own.
func (s *Server) HasDisk() bool { return s.disk != nil }

// Fill leaves no byte on the server's own disk, until Free.
func (s *Server) Fill() error { return s.disk.fill() }

// Free gives the room back.
func (s *Server) Free() error { return s.disk.free() }

func (s *Server) store() string { return filepath.Join(s.dir, "store") }

// Kill ends the process with SIGKILL, and waits for its end.
func (s *Server) Kill() { s.p.end(os.Kill) }

// Terminate asks the process to end in order, and waits for its end.
func (s *Server) Terminate() { s.p.end(syscall.SIGTERM) }

// Pause stops the process where it stands, until Resume.
func (s *Server) Pause() { s.p.signal(s.t, syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume() { s.p.signal(s.t, syscall.SIGCONT) }

// WaitHealthy waits until the server says that its JetStream is up to date.
func (s *Server) WaitHealthy(ctx context.Context, bound time.Duration) error {
	return s.p.await(ctx, bound, "http://"+s.monitor+"/healthz")
}

// URL is the server's address for clients.
func (s *Server) URL() string { return "nats://" + s.client }

// Address is HOST:PORT for clients.
func (s *Server) Address() string { return s.client }

// LogPath is the file that the server logs to, over all its restarts.
func (s *Server) LogPath() string { return s.log.Name() }
