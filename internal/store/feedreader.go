package store

import (
	"context"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
)

// Errors of FeedReader.Next.
var (
	// ErrRequestEnded: a request ended before all of its messages came. The reader goes on.
	ErrRequestEnded = jet.ErrRequestEnded
	// ErrConsumerDeleted: the consumer was deleted, usually because the feed rests. It comes
	// with schemas.ErrUnavailable.
	ErrConsumerDeleted = jet.ErrNoConsumer
)

const (
	// feedExpiry is how long the server keeps a request of a FeedReader open.
	feedExpiry = 30 * time.Second
	// feedHeartbeat is the interval at which the server must give a sign of life while a
	// request is open. If two are missing, a FeedReader reports its consumer as lost.
	feedHeartbeat = 5 * time.Second
)

// FeedOptions configure a FeedReader and the consumer that all nodes share. A consumer with
// another AckWait or MaxAckPending is changed.
type FeedOptions struct {
	// Floor is the sequence after which a new consumer starts. A floor beyond the end of the
	// stream is ignored: it comes from an earlier stream of the name.
	Floor uint64
	// AckWait is the time after which the server delivers an unsettled event again.
	AckWait time.Duration
	// MaxAckPending bounds the unsettled events of the feed, over all nodes.
	MaxAckPending int
	// Most bounds the events that this reader has requested and not returned yet; 1 or more.
	Most int
}

// FeedReader reads the events of one feed that its consumer delivers to this process. It is
// for one goroutine; only Request and Requested may be called by others.
type FeedReader struct {
	r       *jet.Reader
	created time.Time // of the consumer
}

// ReadFeed creates the durable consumer of a feed if it does not exist, and starts to read
// it. Errors: schemas.ErrUnavailable.
func (c *FeedConsumers) ReadFeed(ctx context.Context, f Feed, o FeedOptions) (*FeedReader, error) {
	stream, subject := serviceStream(f.Service, f.Kind)
	want := jet.Durable{Stream: stream, Name: serviceConsumerPrefix + f.Service, Filter: subject, AckWait: o.AckWait, MaxAckPending: o.MaxAckPending}
	if f.Kind == KindFired && o.Floor > 0 { // a work queue starts at its first message
		info, err := c.jet.Stream(ctx, stream)
		if err != nil {
			return nil, err
		}
		if o.Floor <= info.State.LastSeq {
			want.AfterSeq = o.Floor
		}
	}
	created, err := c.jet.FindDurable(ctx, want)
	if err != nil {
		return nil, err
	}
	r, err := c.jet.Read(jet.ReaderOptions{Stream: stream, Consumer: want.Name, Pace: jet.Demand, Most: o.Most, Expiry: feedExpiry, Heartbeat: feedHeartbeat})
	if err != nil {
		return nil, err
	}
	return &FeedReader{r: r, created: created}, nil
}

// Request asks for n more events. The requests that have not been answered yet must not
// exceed FeedOptions.Most. Errors: schemas.ErrUnavailable.
func (r *FeedReader) Request(n int) error { return r.r.Request(n) }

// Requested returns how many events are requested and not returned yet.
func (r *FeedReader) Requested() int { return r.r.Requested() }

// Next waits for the next event. Errors: ErrRequestEnded, ErrConsumerDeleted,
// schemas.ErrUnavailable if the consumer is lost in another way, ctx.Err(). After an error
// other than ErrRequestEnded the caller calls Close.
func (r *FeedReader) Next(ctx context.Context) (*Delivery, error) {
	d, err := r.r.Next(ctx)
	if err != nil {
		return nil, err
	}
	return r.delivery(d), nil
}

// Close ends the reader and returns the events that have arrived and were not returned. The
// server would redeliver them only after AckWait.
func (r *FeedReader) Close() []*Delivery {
	var out []*Delivery
	for _, d := range r.r.Drain() {
		out = append(out, r.delivery(d))
	}
	return out
}

func (r *FeedReader) delivery(d *jet.Delivery) *Delivery {
	return &Delivery{
		Header: d.Header, Data: d.Data, Seq: d.Sequence, Deliveries: d.Deliveries, Stored: d.Time,
		BeforeConsumer: d.Time.Before(r.created), d: d,
	}
}

// Delivery is one delivery of an event of TIMERS_FIRED or TIMERS_RETRY to this process.
// Unless it is settled (Ack, AckConfirmed, Nak, Term), or kept alive by InProgress, the
// server delivers the event again after FeedOptions.AckWait, to any node. After it is
// settled all of these methods do nothing. They are safe for concurrent use.
type Delivery struct {
	// Header and Data are the event as it was published; see schemas.ParseFired.
	Header map[string][]string
	Data   []byte
	// Seq is the sequence in the stream; Deliveries counts the deliveries of the event, this
	// one included.
	Seq, Deliveries uint64
	// Stored is the time at which the stream stored the event, by its leader's clock.
	Stored time.Time
	// BeforeConsumer says that the event is older than the consumer. An earlier consumer may
	// have delivered it, and its timer may be done.
	BeforeConsumer bool

	d *jet.Delivery
}

// Get returns the first value of a header, or "".
func (d *Delivery) Get(name string) string { return firstValue(d.Header, name) }

// Ack says that the event is done.
func (d *Delivery) Ack() error { return d.d.Ack() }

// AckConfirmed is Ack, and waits until the server has processed it.
func (d *Delivery) AckConfirmed(ctx context.Context) error { return d.d.AckConfirmed(ctx) }

// Nak requests a redelivery after a delay; 0 for at once.
func (d *Delivery) Nak(after time.Duration) error { return d.d.Nak(after) }

// InProgress restarts AckWait.
func (d *Delivery) InProgress() error { return d.d.Working() }

// Term says that the event must not be delivered again. The server reports the reason in an
// advisory.
func (d *Delivery) Term(reason string) error { return d.d.Term(reason) }

// UserHeader returns a copy of the headers without the server's own.
func (d *Delivery) UserHeader() map[string][]string {
	out := map[string][]string{}
	for name, values := range d.Header {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			out[name] = values
		}
	}
	return out
}

// WaitConnected waits until the connection to NATS is up. Errors:
// schemas.ErrUnavailable if the connection is closed for good, ctx.Err().
func (c *FeedConsumers) WaitConnected(ctx context.Context) error { return c.jet.WaitConnected(ctx) }
