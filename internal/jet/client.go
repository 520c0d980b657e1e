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
	// DirectGets, if not nil, is a second connection to the same account, for direct gets. nats-server carries them out
	// inside the loop that reads the connection, so a direct get that waits for the lock of its stream delays everything
	// that the connection sends after it, to any stream (work-around 25). While this connection is down, or nothing
	// answers on it, direct gets use the first one.
	DirectGets *nats.Conn
	// MapError translates the errors that the client returns, all of which wrap one of
	// this package's sentinels; nil returns them as they are. The result must wrap its
	// argument.
	MapError func(error) error
}

// Client makes the calls of one connection, or of two; see Options.DirectGets. Safe for concurrent use.
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

// New makes a client of a connection, which stays the caller's, as does Options.DirectGets.
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

// Close answers the calls in flight and ends them. It leaves the connections open. It may
// be called twice.
func (c *Client) Close() {
	c.Writes.close()
	c.Connection.close()
}
