package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// startServer runs the embedded server until the returned function is called. It
// returns when clients can connect; that takes as long as JetStream needs to read
// what is in the folder.
func startServer(ctx context.Context, o *Options) (*server.Server, func(context.Context) error, error) {
	if err := tryPort(ctx, "nats-listen", o.NATSListen); err != nil {
		return nil, nil, err
	}
	host, portText, err := net.SplitHostPort(o.NATSListen)
	if err != nil {
		return nil, nil, badConfig("nats-listen: %w", err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, nil, badConfig("nats-listen: %w", err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	if host == "" {
		host = "0.0.0.0"
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: "belfry", Host: host, Port: port, NoSigs: true, DisableJetStreamBanner: true,
		JetStream: true, StoreDir: o.Data, SyncAlways: o.Profile == ProfileSafe,
	})
	if err != nil {
		return nil, nil, badConfig("the embedded server refuses its settings: %w", err)
	}
	l := &serverLog{log: o.Log.With().Str("component", "nats-server").Logger(), fatal: make(chan string, 1)}
	srv.SetLoggerV2(l, false, false, false)
	started := make(chan struct{})
	go func() {
		defer close(started)
		srv.Start()
	}()
	stop := func(context.Context) error {
		// Not bounded: what would be cut off is the server's last write to disk.
		<-started
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil
	}
	for {
		select {
		case text := <-l.fatal:
			return nil, nil, errors.Join(serverFailure(o, text), stop(ctx))
		case <-ctx.Done():
			return nil, nil, errors.Join(fmt.Errorf("the embedded server was stopped while it started: %w", context.Cause(ctx)), stop(ctx))
		case <-started:
		}
		if srv.ReadyForConnections(100 * time.Millisecond) {
			l.explain()
			return srv, stop, nil
		}
	}
}

func serverFailure(o *Options, text string) error {
	if strings.Contains(text, "address already in use") { // taken since tryPort
		return portInUse("nats-listen", o.NATSListen, nil)
	}
	return fmt.Errorf("the embedded server on data folder %s does not start: %s", o.Data, text)
}

// tryPort finds a busy port before anything is begun.
func tryPort(ctx context.Context, name, addr string) error {
	l, err := listen(ctx, name, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

func listen(ctx context.Context, name, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, portInUse(name, addr, err)
	}
	return nil, badConfig("cannot listen on %s: %w; give another --%s", addr, err, name)
}

func portInUse(name, addr string, cause error) error {
	return errorOf(ErrInUse, cause, "address %s is in use by another process: stop it, or give another --%s HOST:PORT", addr, name)
}

// connect reaches the server: the embedded one without a socket.
func connect(o *Options, srv *server.Server, name string) (*nats.Conn, error) {
	log := o.Log.With().Str("component", "nats").Logger()
	opts := []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.Timeout(connectTimeout), nats.ReconnectBufSize(-1), nats.MaxPingsOutstanding(pingsMissed),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) {
			if !nc.IsClosed() {
				log.Warn().Err(err).Msg("connection to NATS lost; reconnecting")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info().Str("server", schemas.RedactURL(nc.ConnectedUrl())).Msg("connected to NATS again")
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			e := log.Warn().Err(err)
			if sub != nil {
				e = e.Str("subject", sub.Subject)
			}
			e.Msg("NATS reports an error")
		}),
	}
	if srv != nil {
		nc, err := nats.Connect(srv.ClientURL(), append(opts, nats.InProcessServer(srv), nats.PingInterval(pingOwn))...)
		if err != nil {
			return nil, fmt.Errorf("connect to the embedded server: %w", err)
		}
		return nc, nil
	}
	// A server that hangs is left for another of its cluster.
	opts = append(opts, nats.PingInterval(pingOther), nats.FlusherTimeout(writeBound), nats.ReconnectOnFlusherError())
	return dial(o, opts)
}

// Dial connects to the server that the options name, the embedded one being that
// of another process, to look at it: it does not reconnect, and what the server
// complains of is not logged. The caller closes the connection.
func Dial(o Options, name string) (*nats.Conn, error) {
	if o.embedded() {
		o.NATSURL = "nats://" + o.NATSListen
	}
	return dial(&o, []nats.Option{nats.Name(name), nats.NoReconnect(), nats.Timeout(connectTimeout), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})})
}

// credentials reads the files that a connection to NATSURL needs.
func (o *Options) credentials() ([]nats.Option, error) {
	var opts []nats.Option
	if o.Creds != "" {
		if _, err := os.Stat(o.Creds); err != nil {
			return nil, badConfig("creds: %w", err)
		}
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	t, err := o.TLS.Config()
	if err != nil {
		return nil, err
	}
	if t != nil {
		opts = append(opts, nats.Secure(t))
	}
	return opts, nil
}

func dial(o *Options, opts []nats.Option) (*nats.Conn, error) {
	creds, err := o.credentials()
	if err != nil {
		return nil, err
	}
	opts = append(opts, creds...)
	nc, err := nats.Connect(o.NATSURL, opts...)
	if err != nil {
		return nil, errorOf(ErrUnreachable, err, "NATS server %s cannot be reached: %v", schemas.RedactURLs(o.NATSURL), err)
	}
	return nc, nil
}

// Config reads the files; nil if none is named.
func (t TLS) Config() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, badConfig("tls-ca: %w", err)
		}
		if c.RootCAs, err = x509.SystemCertPool(); err != nil {
			c.RootCAs = x509.NewCertPool() // no system roots here: the given CA alone
		}
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, badConfig("tls-ca: %s holds no certificate in PEM form", t.CA)
		}
	}
	if t.Cert != "" || t.Key != "" {
		cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, badConfig("tls-cert and tls-key: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}
