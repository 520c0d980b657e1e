package jet

import (
	"time"

	"github.com/nats-io/nats.go"
)

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
//
// It only joins its parts, each of which has the calls for one concern. They share one
// Connection. A caller that needs one part should ask for that part.
type Client struct {
	*Connection
	*Writes
	*Reads
	*StreamAdmin
	*ConsumerAdmin
	*Readers
	*Copies
}

// New makes a client of a connection, which stays the caller's.
func New(nc *nats.Conn, o Options) (*Client, error) {
	conn, err := newConnection(nc, o)
	if err != nil {
		return nil, err
	}
	reads, streams := &Reads{conn}, &StreamAdmin{conn}
	return &Client{
		Connection: conn, Writes: &Writes{conn: conn, window: o.Window, reads: reads}, Reads: reads,
		StreamAdmin: streams, ConsumerAdmin: &ConsumerAdmin{conn}, Readers: &Readers{conn, streams}, Copies: &Copies{conn, streams},
	}, nil
}

// Close answers the calls in flight and ends them. It leaves the connection open. It may
// be called twice.
func (c *Client) Close() {
	c.Writes.close()
	c.Connection.close()
}
