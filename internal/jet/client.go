package jet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Conn is a connection to NATS.
type Conn = nats.Conn

// Header holds the headers of a message.
type Header = nats.Header

// Msg is a message as a stream holds it.
type Msg = jetstream.RawStreamMsg

// Options configure a Client.
type Options struct {
	// Timeout bounds each call.
	Timeout time.Duration
	// Window bounds the calls in flight; further calls wait.
	Window int
	// MapError translates the errors that the client returns, all of which wrap one of
	// this package's sentinels; nil returns them as they are. The result must wrap its
	// argument.
	MapError func(error) error
}

// Client makes the calls of one connection. Safe for concurrent use.
type Client struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	timeout time.Duration
	window  int
	mapErr  errorMapper
	pub     *publisher
	batches *committer // nil: every write goes by itself

	life       context.Context // ends with Close
	end        context.CancelFunc
	background sync.WaitGroup
}

// New makes a client of a connection, which stays the caller's.
func New(nc *nats.Conn, o Options) (*Client, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(o.Timeout))
	if err != nil {
		return nil, fmt.Errorf("jet: %w", err)
	}
	c := &Client{nc: nc, js: js, timeout: o.Timeout, window: o.Window, mapErr: errorMapper{o.MapError}}
	if c.pub, err = newPublisher(nc, o.Window, o.Timeout, c.mapErr); err != nil {
		return nil, err
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// CommitInBatches makes WriteAsync gather writes from now on; see committer. The server
// must have atomic batches; see ServerInfo. It must be called before the first write.
func (c *Client) CommitInBatches() { c.batches = newCommitter(c.pub, c.window) }

// InBatches reports whether WriteAsync gathers writes.
func (c *Client) InBatches() bool { return c.batches != nil }

// Close answers the calls in flight and ends them. It leaves the connection open. It may
// be called twice.
func (c *Client) Close() {
	if c.batches != nil {
		c.batches.close()
	}
	c.end()
	c.background.Wait()
	c.pub.close()
}

// JetStream returns the JetStream context, for tests and tools that inspect streams.
func (c *Client) JetStream() jetstream.JetStream { return c.js }

// Conn returns the connection.
func (c *Client) Conn() *nats.Conn { return c.nc }

// Timeout returns the bound of each call.
func (c *Client) Timeout() time.Duration { return c.timeout }

// Down reports whether the connection is down, as far as the client has noticed.
func (c *Client) Down() bool { return c.pub.down.Load() }

// WaitConnected waits until the connection is up, at once if it is. Errors: ErrUnavailable
// if the connection is closed for good, ctx.Err().
func (c *Client) WaitConnected(ctx context.Context) error {
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
// is down.
func (c *Client) OnBreak(f func()) (forget func(), ok bool) { return c.pub.onBreak(f) }

// Error maps an error of nats.go or of this package; op says what was tried.
func (c *Client) Error(op string, err error) error { return c.mapErr.wrap(op, err) }

// ClosedError is the error of a call that is made after Close.
func (c *Client) ClosedError(op string) error { return c.mapErr.wrap(op, nats.ErrConnectionClosed) }

// call requests what changes nothing from JetStream's API and decodes the answer. The
// request is hedged.
func (c *Client) call(ctx context.Context, op, subject string, body []byte, into any) error {
	return c.ask(ctx, op, into, func(ctx context.Context) (*nats.Msg, error) {
		return hedge(ctx, func(ctx context.Context, _ func()) (*nats.Msg, error) {
			return c.nc.RequestWithContext(ctx, subject, body)
		})
	})
}

// change requests a change from JetStream's API, once: a second request would be
// answered with the effect of the first.
func (c *Client) change(ctx context.Context, op, subject string, body []byte) error {
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

func (c *Client) ask(ctx context.Context, op string, into any, send func(context.Context) (*nats.Msg, error)) error {
	ctx, release, err := c.Bind(ctx, op)
	if err != nil {
		return err
	}
	defer release()
	resp, err := send(ctx)
	if err != nil {
		return c.CtxError(ctx, op, err)
	}
	if err := json.Unmarshal(resp.Data, into); err != nil {
		return c.mapErr.wrap(op, err)
	}
	return nil
}

// Bind bounds a call by the client's time-out and by the connection: when that breaks,
// the answer is lost and there is nothing to wait for. Errors of the call go through
// CtxError.
func (c *Client) Bind(ctx context.Context, op string) (bound context.Context, release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, c.mapErr.wrap(op, err)
	}
	ctx, cancelTimeout := context.WithTimeout(ctx, c.timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	forget, ok := c.pub.onBreak(func() { cancel(nats.ErrDisconnected) })
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

// CtxError maps an error of a call with a context of Bind.
func (c *Client) CtxError(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, nats.ErrDisconnected) {
		return c.mapErr.wrap(op, cause)
	}
	return c.mapErr.wrap(op, err)
}
