package jet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Conn is a connection to NATS.
type Conn = nats.Conn

// Header holds the headers of a message.
type Header = nats.Header

// Msg is a message as a stream holds it.
type Msg struct {
	Subject  string
	Sequence uint64
	Header   Header
	Data     []byte
	// Time is when the stream's leader stored the message.
	Time time.Time
}

// Connection is the base that the parts of a Client share: the state of the connection, the
// bound of each call, and the translation of errors.
//
// When the connection breaks, calls in flight fail at once with ErrUnavailable, and calls
// made while it is down fail before anything is sent. If there is a connection for direct gets, these fail when
// that breaks, and later ones go through the other connection until it is up again.
type Connection struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	timeout time.Duration
	mapErr  errorMapper
	pub     *publisher
	// own has the streams of KeepWrites.
	own map[string]*ownWrites

	background *Background // until close
}

func newConnection(nc *nats.Conn, o Options) (*Connection, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(o.Timeout))
	if err != nil {
		return nil, fmt.Errorf("jet: %w", err)
	}
	c := &Connection{nc: nc, js: js, timeout: o.Timeout, mapErr: errorMapper{o.MapError}, own: map[string]*ownWrites{}}
	if c.pub, err = newPublisher(nc, o.DirectGets, o.Window, o.Timeout, c.mapErr); err != nil {
		return nil, err
	}
	c.background = NewBackground(context.Background())
	return c, nil
}

// close ends the calls in flight.
func (c *Connection) close() {
	c.background.Stop()
	c.pub.close()
}

// JetStream returns the JetStream context, for tests and tools that inspect streams.
func (c *Connection) JetStream() jetstream.JetStream { return c.js }

// Conn returns the connection.
func (c *Connection) Conn() *nats.Conn { return c.nc }

// Timeout returns the bound of each call.
func (c *Connection) Timeout() time.Duration { return c.timeout }

// Down reports whether the connection is down, as far as the client has noticed.
func (c *Connection) Down() bool { return c.pub.down.Load() }

// WaitConnected waits until the connection is up, at once if it is. Errors: ErrUnavailable
// if the connection is closed for good, ctx.Err().
func (c *Connection) WaitConnected(ctx context.Context) error {
	if c.nc.IsConnected() {
		return nil
	}
	status := c.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer c.nc.RemoveStatusListener(status)
	for !c.nc.IsConnected() {
		if c.nc.IsClosed() {
			return c.ClosedError("wait for the connection")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-status:
		}
	}
	return nil
}

// OnBreak has f called, on another goroutine and at most once, when the connection
// breaks; forget cancels that. It returns false, and does not keep f, if the connection
// is down; f may have been called then.
func (c *Connection) OnBreak(f func()) (forget func(), ok bool) { return c.pub.onBreak(&c.pub.line, f) }

// Error maps an error of nats.go or of this package; op says what was tried.
func (c *Connection) Error(op string, err error) error { return c.mapErr.wrap(op, err) }

// ClosedError is the error of a call that is made after Close.
func (c *Connection) ClosedError(op string) error { return c.mapErr.wrap(op, nats.ErrConnectionClosed) }

// DownError is the error of a call that is made while the connection is down.
func (c *Connection) DownError(op string) error { return c.mapErr.wrap(op, nats.ErrDisconnected) }

// call requests what changes nothing from JetStream's API and decodes the answer. The
// request is hedged.
func (c *Connection) call(ctx context.Context, op, subject string, body []byte, into any) error {
	return c.ask(ctx, op, into, func(ctx context.Context) (*nats.Msg, error) {
		return hedge(ctx, func(ctx context.Context, _ func()) (*nats.Msg, error) {
			return c.nc.RequestWithContext(ctx, subject, body)
		})
	})
}

// change requests a change from JetStream's API, once: a second request would be
// answered with the effect of the first.
func (c *Connection) change(ctx context.Context, op, subject string, body []byte) error {
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	err := c.ask(ctx, op, &r, func(ctx context.Context) (*nats.Msg, error) {
		return c.nc.RequestWithContext(ctx, subject, body)
	})
	if err == nil && r.Error != nil {
		err = c.mapErr.wrap(op, r.Error)
	}
	return err
}

func (c *Connection) ask(ctx context.Context, op string, into any, send func(context.Context) (*nats.Msg, error)) error {
	ctx, release, err := c.bind(ctx, op)
	if err != nil {
		return err
	}
	defer release()
	resp, err := send(ctx)
	if err != nil {
		return c.ctxError(ctx, op, err)
	}
	if err := json.Unmarshal(resp.Data, into); err != nil {
		return c.mapErr.wrap(op, err)
	}
	return nil
}

// bind bounds a call by the client's time-out and by the connection: when that breaks,
// the answer is lost and there is nothing to wait for. Errors of the call go through
// ctxError.
func (c *Connection) bind(ctx context.Context, op string) (bound context.Context, release func(), err error) {
	return c.bindTo(ctx, &c.pub.line, op)
}

// bindTo is bind for one of the connections.
func (c *Connection) bindTo(ctx context.Context, l *line, op string) (bound context.Context, release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, c.mapErr.wrap(op, err)
	}
	ctx, cancelTimeout := context.WithTimeout(ctx, c.timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	forget, ok := c.pub.onBreak(l, func() { cancel(nats.ErrDisconnected) })
	release = func() {
		forget()
		cancel(nil)
		cancelTimeout()
	}
	if !ok {
		release()
		return nil, nil, c.mapErr.wrap(op, nats.ErrDisconnected)
	}
	return ctx, release, nil
}

// ctxError maps an error of a call with a context of bind.
func (c *Connection) ctxError(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, nats.ErrDisconnected) {
		return c.mapErr.wrap(op, cause)
	}
	return c.mapErr.wrap(op, err)
}

// Server describes the connected server.
type Server struct {
	// Major and Minor are its version; 0 if it does not say.
	Major, Minor int
	Version      string
	// URL may hold credentials.
	URL string
	// LimitedConsumers says that the account limits the number of consumers.
	LimitedConsumers bool
}

// AtomicBatches reports whether the server has atomic batches, which came with 2.12.
func (s *Server) AtomicBatches() bool { return s.Major > 2 || s.Minor >= 12 }

// Older reports whether the server is older than a version.
func (s *Server) Older(major, minor int) bool {
	return s.Major > 0 && (s.Major < major || s.Major == major && s.Minor < minor)
}

// Server asks the server for the account. Errors: ErrDisabled without JetStream;
// ErrUnavailable.
func (c *Connection) Server(ctx context.Context) (Server, error) {
	s := Server{Version: c.nc.ConnectedServerVersion(), URL: c.nc.ConnectedUrl()}
	if n, err := fmt.Sscanf(s.Version, "%d.%d", &s.Major, &s.Minor); n != 2 || err != nil {
		s.Major, s.Minor = 0, 0
	}
	info, err := hedge(ctx, func(ctx context.Context, _ func()) (*jetstream.AccountInfo, error) { return c.js.AccountInfo(ctx) })
	switch {
	case err == nil:
		s.LimitedConsumers = info.Limits.MaxConsumers > 0 || len(info.Tiers) > 0
		return s, nil
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return s, c.mapErr.errorf(ErrDisabled, "nats-server runs without JetStream; start it with -js, or with a jetstream block in its config")
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return s, c.mapErr.errorf(ErrDisabled, "JetStream is not enabled for this account")
	}
	return s, c.mapErr.wrap("read the account's JetStream information", err)
}

// MaxPayload returns the server's max_payload in bytes; 0 if it is unknown.
func (c *Connection) MaxPayload() int64 { return c.nc.MaxPayload() }

func (c *Connection) findStream(ctx context.Context, name string) (jetstream.Stream, error) {
	return hedge(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return c.js.Stream(ctx, name)
	})
}

// ephemeral creates a consumer for one reader. It chooses the name, so that a hedged
// request finds the consumer that an unanswered one has created.
func (c *Connection) ephemeral(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	cfg.Name = nuid.Next()
	return hedge(ctx, func(ctx context.Context, _ func()) (jetstream.Consumer, error) {
		return c.js.CreateConsumer(ctx, stream, cfg)
	})
}

func (c *Connection) streamError(op string, err error) error {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return c.mapErr.wrap(op, err)
	}
	switch {
	case api.ErrorCode == codeStreamNameInUse:
		return c.mapErr.errorf(ErrExists, "%s: %w", op, err)
	case api.ErrorCode == codeResources, api.ErrorCode == codeStorageExceeded,
		api.ErrorCode == codeNoPeers && strings.Contains(api.Description, "insufficient storage"):
		return c.mapErr.errorf(ErrFull, "%s: %w", op, err)
	case api.ErrorCode == codeMaxStreams:
		return c.mapErr.errorf(ErrRefused, "%s: the account may have no more streams (%w): raise its limit (max_streams in nats-server's config, streams in a JWT)", op, err)
	case api.Code != 503 && api.ErrorCode != codeNoPeers:
		// The answer will be the same the next time, unlike that of a cluster which is not
		// whole.
		return c.mapErr.errorf(ErrRefused, "%s: %w", op, err)
	}
	return c.mapErr.wrap(op, err)
}
