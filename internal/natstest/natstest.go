// Package natstest runs real NATS servers for tests: embedded, with JetStream on
// file storage in a temporary folder and a random port.
package natstest

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// startBound is how long a server may take to start.
const startBound = 20 * time.Second

// Server is one embedded server.
type Server struct {
	*server.Server
	opts server.Options
	tb   testing.TB
}

// Option changes the server's options before it starts.
type Option func(*server.Options)

// SyncAlways makes the server fsync every write: the safe profile.
func SyncAlways(o *server.Options) { o.SyncAlways = true }

// Run starts a server that lives until the test ends.
func Run(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	o := server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: tb.TempDir(), JetStreamMaxStore: 4 << 30, JetStreamMaxMemory: 64 << 20,
	}
	for _, f := range options {
		f(&o)
	}
	s := &Server{opts: o, tb: tb}
	s.start()
	tb.Cleanup(s.Stop)
	return s
}

func (s *Server) start() {
	s.tb.Helper()
	o := s.opts
	srv, err := server.NewServer(&o)
	if err != nil {
		s.tb.Fatalf("nats-server: %v", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(startBound) {
		s.tb.Fatal("nats-server did not start")
	}
	if s.opts.Port == server.RANDOM_PORT && !s.opts.DontListen {
		// A restart comes back on the same port, so that clients find it.
		_, port, err := net.SplitHostPort(srv.Addr().String())
		if err != nil {
			s.tb.Fatal(err)
		}
		if s.opts.Port, err = strconv.Atoi(port); err != nil {
			s.tb.Fatal(err)
		}
	}
	s.Server = srv
}

// Stop shuts the server down and waits for its end. It may be called twice.
func (s *Server) Stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

// Restart shuts the server down and starts it again on the same store and port.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	s.start()
}

// URL is the server's address for clients.
func (s *Server) URL() string { return s.ClientURL() }

// Connect connects over TCP, reconnecting for ever, until the test ends.
func (s *Server) Connect(options ...nats.Option) *nats.Conn {
	s.tb.Helper()
	options = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0)}, options...)
	nc, err := nats.Connect(s.URL(), options...)
	if err != nil {
		s.tb.Fatalf("connect: %v", err)
	}
	s.tb.Cleanup(nc.Close)
	return nc
}

// InProcess connects without a socket, until the test ends.
func (s *Server) InProcess(options ...nats.Option) *nats.Conn {
	s.tb.Helper()
	return s.Connect(append([]nats.Option{nats.InProcessServer(s.Server)}, options...)...)
}
