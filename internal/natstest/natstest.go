// Package natstest runs real NATS servers for tests, with JetStream on file
// storage in a temporary folder and a free port: one embedded server (Run),
// three that replicate (Cluster3), or one in a process of its own that can be
// killed with SIGKILL (RunProcess).
//
// Everything ends with the test. A restarted server keeps its port and its
// folder, so that clients find it again.
package natstest

import (
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/tcptest"
)

// startBound bounds the start of a server and the first election of a cluster.
const startBound = 90 * time.Second

// callBound bounds a call of the client that JetStream returns. It is shorter than waittest.Bound, so that a wait which
// repeats a call survives a call to a server that was killed.
const callBound = time.Minute

// Server is one embedded server.
type Server struct {
	*server.Server
	opts server.Options
	tb   testing.TB
	log  *errorLog
	// now is Server again, for connections that background goroutines make.
	now atomic.Pointer[server.Server]
}

// Option changes the server's options before it starts.
type Option func(*server.Options)

// SyncAlways makes the server fsync every write: the safe profile.
func SyncAlways(o *server.Options) { o.SyncAlways = true }

// MaxStore bounds JetStream's file storage, in bytes.
func MaxStore(n int64) Option { return func(o *server.Options) { o.JetStreamMaxStore = n } }

// NoJetStream starts the server without JetStream.
func NoJetStream(o *server.Options) { o.JetStream = false }

func options(dir string, options []Option) server.Options {
	o := server.Options{
		Host: "127.0.0.1", NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: dir, JetStreamMaxStore: 4 << 30, JetStreamMaxMemory: 64 << 20,
	}
	for _, f := range options {
		f(&o)
	}
	return o
}

// Run starts a server that lives until the test ends.
func Run(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	s := newServer(tb, options...)
	s.launch()
	s.await()
	return s
}

func newServer(tb testing.TB, opts ...Option) *Server {
	s := &Server{opts: options(tb.TempDir(), opts), tb: tb}
	s.opts.Port = tcptest.FreePort(tb)
	tb.Cleanup(s.Stop)
	return s
}

func (s *Server) launch() {
	s.tb.Helper()
	o := s.opts
	srv, err := server.NewServer(&o)
	if err != nil {
		s.tb.Fatalf("nats-server: %v", err)
	}
	s.log = &errorLog{}
	srv.SetLoggerV2(s.log, false, false, false)
	srv.Start()
	s.Server = srv
	s.now.Store(srv)
}

func (s *Server) await() {
	s.tb.Helper()
	if !s.ReadyForConnections(startBound) {
		s.tb.Fatalf("nats-server did not start within %s; its errors: %q", startBound, s.log.all())
	}
}

// Stop shuts the server down and waits for its end. It may be called twice.
func (s *Server) Stop() {
	if s.Server == nil {
		return
	}
	s.Shutdown()
	s.WaitForShutdown()
}

// Start starts a stopped server again on the same store and port.
func (s *Server) Start() {
	s.tb.Helper()
	s.launch()
	s.await()
}

// Restart shuts the server down and starts it again.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	s.Start()
}

// Undo calls f and then undoes what f did to the messages of a stream: the stream has its messages as before the call, and its
// consumers are as f left them, as after a server has lost the last writes of a stream. It restarts the server before the
// call and after it.
func (s *Server) Undo(stream string, f func()) {
	s.tb.Helper()
	folder := filepath.Join(s.StoreDir(), "jetstream", server.DEFAULT_GLOBAL_ACCOUNT, "streams", stream, "msgs")
	before := filepath.Join(s.tb.TempDir(), "msgs")
	check := func(err error) {
		s.tb.Helper()
		if err != nil {
			s.tb.Fatal(err)
		}
	}
	s.Stop()
	check(os.CopyFS(before, os.DirFS(folder)))
	s.Start()
	f()
	s.Stop()
	check(os.RemoveAll(folder))
	check(os.CopyFS(folder, os.DirFS(before)))
	s.Start()
}

// URL is the server's address for clients.
func (s *Server) URL() string { return s.ClientURL() }

// StoreDir is the folder that the server was given.
func (s *Server) StoreDir() string { return s.opts.StoreDir }

// Connect connects over TCP, reconnecting for ever, until the test ends.
func (s *Server) Connect(options ...nats.Option) *nats.Conn {
	s.tb.Helper()
	return connect(s.tb, s.URL(), options)
}

// InProcess connects without a socket, until the test ends. The connection comes
// back after a Restart, too.
func (s *Server) InProcess(options ...nats.Option) *nats.Conn {
	s.tb.Helper()
	return s.Connect(append([]nats.Option{nats.InProcessServer(inProcess{s})}, options...)...)
}

// inProcess connects to the server that runs now, which a restart replaces.
type inProcess struct{ s *Server }

func (p inProcess) InProcessConn() (net.Conn, error) { return p.s.now.Load().InProcessConn() }

// JetStream returns the JetStream context of a connection. A call without a deadline has a minute, because the disk of a
// busy machine may stand still for longer than the 5 s that jetstream.New allows.
func JetStream(tb testing.TB, nc *nats.Conn) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(callBound))
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

func connect(tb testing.TB, url string, options []nats.Option) *nats.Conn {
	tb.Helper()
	options = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0)}, options...)
	nc, err := nats.Connect(url, options...)
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	tb.Cleanup(nc.Close)
	return nc
}
