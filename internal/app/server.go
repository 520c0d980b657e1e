package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/schemas"
)

// tryPort returns the error of listen: ErrInUse if another process uses the port of addr.
func tryPort(ctx context.Context, name, addr string) error {
	l, err := listen(ctx, name, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

// listen opens a port. Errors: ErrInUse. If the host does not have the address yet, or cannot resolve the name, the
// error has no code, because a restart may help. Any other error has schemas.CodeConfig.
func listen(ctx context.Context, name, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	var lookup *net.DNSError
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, portInUse(name, addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.As(err, &lookup):
		return nil, fmt.Errorf("cannot listen on %s yet: %w; give another --%s, or wait until this host has the address", addr, err, name)
	}
	return nil, badConfig("cannot listen on %s: %w; give another --%s", addr, err, name)
}

func portInUse(name, addr string, cause error) error {
	return errorOf(ErrInUse, cause, "address %s is in use by another process: stop it, or give another --%s HOST:PORT", addr, name)
}

// connect connects to the server, without a socket if the server is embedded. A lost connection is reconnected
// without limit, also while the server refuses the login.
func connect(o *Options, own *embedded, name string, more ...nats.Option) (*nats.Conn, error) {
	log := o.Log.With().Str("component", "nats").Str("connection", name).Logger()
	var reported throttle.Keyed // a refused login is reported at each try
	opts := []nats.Option{
		nats.Name(name), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.ReconnectWait(100 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
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
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			if !reported.Allow(err.Error()+" "+subject, time.Now()) {
				return
			}
			e := log.Warn().Err(err)
			if sub != nil {
				e = e.Str("subject", subject)
			}
			e.Msg("NATS reports an error")
		}),
	}
	opts = append(opts, more...)
	if own != nil {
		nc, err := nats.Connect(inProcessURL, append(opts, own.options()...)...)
		if err != nil {
			return nil, fmt.Errorf("connect to the embedded server: %w", err)
		}
		return nc, nil
	}
	// If the server hangs, reconnect to another server of its cluster.
	opts = append(opts, nats.PingInterval(pingOther), nats.FlusherTimeout(writeBound), nats.ReconnectOnFlusherError())
	return dial(o, opts)
}

// failWhenClosed makes the node fail when its connection is closed for good, so that the process is started again.
// nats.go closes a connection after an error of the server that it does not know.
func failWhenClosed(fail func(error)) nats.Option {
	return nats.ClosedHandler(func(nc *nats.Conn) {
		err := nc.LastError() // nil if the connection broke while the error arrived
		if err == nil {
			err = nats.ErrConnectionClosed
		}
		fail(errorOf(ErrUnreachable, err, "the connection %q to NATS has ended: %v", nc.Opts.Name, err))
	})
}

// Dial connects a tool to the server in the options; an embedded server is then that of
// another process. The connection does not reconnect and logs no errors. The caller closes
// it.
func Dial(o Options, name string) (*nats.Conn, error) {
	var own []nats.Option
	if o.embedded() {
		o.NATSURL = "nats://" + dialable(o.NATSListen)
		user, password, t, err := o.ownCredentials()
		if err != nil {
			return nil, err
		}
		if user != "" && o.User == "" {
			own = append(own, nats.UserInfo(user, password))
		}
		if t != nil {
			own = append(own, nats.Secure(t))
		}
	}
	return dial(&o, append(own, nats.Name(name), nats.NoReconnect(), nats.Timeout(connectTimeout), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})))
}

// EmbeddedOnLoopback reports whether nc is connected to the embedded server of a node that listens on
// loopback addresses alone, as far as the server says so: by its name, and by the address in the INFO
// message of a second connection. It is false for a connection with TLS, on which a second connection that
// ends early would make the server log an error.
func EmbeddedOnLoopback(ctx context.Context, nc *nats.Conn) bool {
	if nc.ConnectedServerName() != embeddedName || nc.TLSRequired() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", nc.ConnectedAddr())
	if err != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	defer c.Close() //nolint:errcheck // nothing was written
	line, err := bufio.NewReader(io.LimitReader(c, maxInfoBytes)).ReadString('\n')
	if err != nil {
		return false
	}
	var info nats.ServerInfo
	text, found := strings.CutPrefix(line, "INFO ")
	return found && json.Unmarshal([]byte(text), &info) == nil && OnLoopback(net.JoinHostPort(info.Host, "0"))
}

// maxInfoBytes bounds the INFO message of a server, which names the other servers of its cluster.
const maxInfoBytes = 64 << 10

// CheckCreds returns an error unless a file is a NATS credentials file: it has the seed of a user. Without this
// check the user would see the error of a decoder, after the connection has failed.
func CheckCreds(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	key, err := nkeys.ParseDecoratedUserNKey(text)
	if err != nil {
		return fmt.Errorf("%s is not a NATS credentials file: it has no seed of a user; give the file that nsc or the administrator made for this user (%w)", file, err)
	}
	key.Wipe()
	return nil
}

// CheckFiles returns an error of schemas.CodeConfig for a certificate, key or credentials file that cannot be read or used.
func (o Options) CheckFiles() error {
	_, err := o.readFiles()
	return err
}

// readFiles is CheckFiles, and returns the TLS configuration of the HTTP port; nil for none.
func (o *Options) readFiles() (httpTLS *tls.Config, err error) {
	if _, err := o.credentials(); err != nil {
		return nil, err
	}
	if _, err := o.NATSTLS.config("nats-tls"); err != nil {
		return nil, err
	}
	return o.HTTPTLS.config("http-tls")
}

// checkURL returns an error for a nats-url, a list separated by commas, that is malformed. The error has no password.
func checkURL(urls string) error {
	for part := range strings.SplitSeq(urls, ",") {
		part = strings.TrimSpace(part)
		if !strings.Contains(part, "://") {
			part = "nats://" + part
		}
		u, err := url.Parse(part)
		var cause *url.Error
		switch {
		case errors.As(err, &cause):
			return badConfig("nats-url is not a list of addresses such as nats://host:4222: %w", cause.Err)
		case err != nil:
			return badConfig("nats-url is not a list of addresses such as nats://host:4222: %w", err)
		case u.Hostname() == "":
			return badConfig("nats-url %.80q has an address without a host; an address is such as nats://host:4222", schemas.RedactURLs(urls))
		case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme):
			return badConfig("nats-url has an address with scheme %.40q; it must be nats, tls, ws or wss", u.Scheme)
		}
		if u.Port() != "" {
			if _, err := net.LookupPort("tcp", u.Port()); err != nil {
				return badConfig("nats-url has port %.40q; it must be a number from 1 to 65535", u.Port())
			}
		}
	}
	return nil
}

// credentials reads the files that a connection to NATSURL needs.
func (o *Options) credentials() ([]nats.Option, error) {
	var opts []nats.Option
	if o.Creds != "" {
		if err := CheckCreds(o.Creds); err != nil {
			return nil, badConfig("creds: %w", err)
		}
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	if o.User != "" {
		opts = append(opts, nats.UserInfo(o.User, o.Password))
	}
	if o.Token != "" {
		opts = append(opts, nats.Token(o.Token))
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
	switch {
	case RefusesLogin(err):
		return nil, errorOf(ErrUnreachable, err, "NATS server %s refuses the login: %v; check creds, user and password-file, token-file, or the user in nats-url", schemas.RedactURLs(o.NATSURL), err)
	case err != nil:
		return nil, errorOf(ErrUnreachable, err, "NATS server %s cannot be reached: %v", schemas.RedactURLs(o.NATSURL), err)
	}
	return nc, nil
}

// RefusesLogin reports whether a server was reached and refused the user of the connection.
func RefusesLogin(err error) bool {
	return slices.ContainsFunc([]error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired}, func(refusal error) bool { return errors.Is(err, refusal) })
}

// Config reads the files. It returns nil if t names no files.
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
			c.RootCAs = x509.NewCertPool() // the system has no roots: trust only the given CA
		}
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, badConfig("tls-ca: %s has no certificate in PEM form", t.CA)
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
