package jet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Pace says when a Reader requests messages.
type Pace int

// The paces.
const (
	// Rounds requests all messages that there are, and waits for the first one if there
	// are none. The next round begins when the last one has ended, RoundPace after its
	// beginning at the earliest, unless it was full. A message that is replaced between two
	// rounds is never sent. Nothing is sent while the reader is away.
	Rounds Pace = iota
	// Refill requests more whenever half of Most has been read, so that there is always
	// a request open.
	Refill
	// Demand requests nothing by itself; see Reader.Request.
	Demand
)

const (
	// roundPace is the default of ReaderOptions.RoundPace, and so the most
	// that it delays a message. Reading what came in 2 ms costs the server and the client
	// one wake-up instead of one for each message.
	roundPace = 2 * time.Millisecond
	// statusSpare is room in the buffer for the server's status messages: ends of
	// requests, and a heartbeat every ReaderOptions.Heartbeat while a request is open.
	statusSpare = 256
	// silentBeats is how many heartbeats may be missing before the consumer counts as
	// lost, in halves.
	silentHalfBeats = 5
	// drainWithin bounds Reader.Drain.
	drainWithin = time.Second
)

// Headers of the server's status messages.
const (
	headerStatus       = "Status"
	headerDescription  = "Description"
	headerLastConsumer = "Nats-Last-Consumer"
	headerLeft         = "Nats-Pending-Messages"
)

// ErrRequestEnded says that a request of a Demand reader ended before all of its messages
// came. The reader goes on: the caller may request again.
var ErrRequestEnded = errors.New("a request ended before all of its messages came")

// ErrReaderLost says that a Reader has lost its consumer: the consumer was deleted, its
// leader changed, the connection broke, or no heartbeat came. The caller closes the Reader
// and makes another. It comes with ErrUnavailable.
var ErrReaderLost = errors.New("the consumer is lost")

// ReaderOptions configure a Reader.
type ReaderOptions struct {
	Stream, Consumer string
	Pace             Pace
	// Most bounds the messages that are requested and not read yet. Each has its place in
	// the reader's buffer, so that none is dropped however long the caller is away.
	Most int
	// RoundPace is the least time between the beginnings of two rounds; 0 for 2 ms. Rounds only.
	RoundPace time.Duration
	// MaxBytes bounds the bytes of each request; 0 for no bound. It must hold the largest
	// message.
	MaxBytes int64
	// Expiry is how long the server keeps a request open, Heartbeat how often it sends a
	// heartbeat meanwhile.
	Expiry, Heartbeat time.Duration
	// Exclusive says that the consumer has no other reader and started with this one: a
	// gap in its sequence is a lost message, and ends the reader.
	Exclusive bool
}

// Reader reads the messages that a consumer delivers to one process, in the consumer's
// order. It is for one goroutine; only Request and Requested may be called by others.
//
// nats.go's iterators are not used. Messages() keeps one request open all the time, so
// that a busy stream wakes the server and the client for each message, and takes a message
// without data and with a header named Status for the server's word (such an add came
// again and again, and ended the reading). The ordered consumer recreates itself by a
// request of ten seconds, which neither its Stop nor a broken connection ends.
type Reader struct {
	c       *Readers
	o       ReaderOptions
	subject string // of requests
	from    string // "<stream>.<consumer>."; see parseAckReply
	most    []byte // the request for Most messages, which Rounds sends every roundPace
	inbox   string
	sub     *nats.Subscription
	arrived chan *nats.Msg
	broken  chan struct{} // closed when the connection breaks
	forget  func()
	timer   *time.Timer
	wake    chan struct{} // a request was sent while Next waited

	begun time.Time // of the round
	rest  bool      // the round took all messages that there were
	got   uint64    // messages that came

	mu    sync.Mutex
	open  int // requested and not delivered yet
	asked int // by the last request
}

// Readers reads the messages of consumers as they are stored.
//
// Read reads an existing consumer and ends with ErrReaderLost when the consumer is lost.
// Follow makes consumers of its own and continues after any failure, without a gap or a
// repetition. Watch makes one, and ends when it is lost.
type Readers struct {
	conn    *Connection
	streams *StreamAdmin
}

// Read makes a reader of a consumer that exists.
func (c *Readers) Read(o ReaderOptions) (*Reader, error) {
	op := "read " + o.Stream
	r := &Reader{
		c: c, o: o, subject: "$JS.API.CONSUMER.MSG.NEXT." + o.Stream + "." + o.Consumer, from: o.Stream + "." + o.Consumer + ".", most: o.pullRequest(o.Most), inbox: c.conn.nc.NewInbox(),
		arrived: make(chan *nats.Msg, o.Most+statusSpare), broken: make(chan struct{}), timer: time.NewTimer(time.Hour), wake: make(chan struct{}, 1),
	}
	var ok bool
	if r.forget, ok = c.conn.OnBreak(func() { close(r.broken) }); !ok {
		return nil, c.conn.mapErr.wrap(op, nats.ErrDisconnected)
	}
	var err error
	if r.sub, err = c.conn.nc.ChanSubscribe(r.inbox, r.arrived); err != nil {
		r.forget()
		return nil, c.conn.mapErr.wrap(op, err)
	}
	return r, nil
}

// Close ends the reader. Messages that came and were not read are delivered again after
// the consumer's AckWait; see Drain.
func (r *Reader) Close() {
	r.forget()
	r.timer.Stop()
	_ = r.sub.Unsubscribe() // fails only with the connection
}

// Drain closes the reader and returns the messages that came before: the server gives
// them to nobody else until the consumer's AckWait has passed.
func (r *Reader) Drain() []*Delivery {
	defer r.Close()
	// Drain ends the subscription on the server; once the server has answered the flush, no
	// more messages come.
	if r.sub.Drain() == nil && r.c.conn.nc.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), drainWithin)
		defer cancel()
		_ = r.c.conn.nc.FlushWithContext(ctx) // on an error, use the messages that have arrived
	}
	var out []*Delivery
	for {
		select {
		case m := <-r.arrived:
			if d, err := r.accept(m); err == nil && d != nil {
				out = append(out, d)
			}
		default:
			return out
		}
	}
}

// Request asks for n more messages; for Demand. Requests may overlap.
func (r *Reader) Request(n int) error {
	if err := r.request(n); err != nil {
		return err
	}
	signal(r.wake)
	return nil
}

// Requested returns how many messages are requested and not delivered yet. It may be too
// high where a request is lost with the consumer's leader, until Next returns
// ErrReaderLost.
func (r *Reader) Requested() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// Waiting returns how many messages and status messages have come and are not read.
func (r *Reader) Waiting() int { return len(r.arrived) }

// Next waits for the next message. Errors: ErrReaderLost, ErrRequestEnded for Demand,
// ErrTooLarge if MaxBytes is less than the next message, ctx.Err().
func (r *Reader) Next(ctx context.Context) (*Delivery, error) {
	for {
		if err := r.refill(ctx); err != nil {
			return nil, err
		}
		m, err := r.wait(ctx)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue // there is a new request to watch
		}
		if d, err := r.accept(m); err != nil || d != nil {
			return d, err
		}
	}
}

// TryNext returns the next message if one has come, or nil.
func (r *Reader) TryNext() (*Delivery, error) {
	for {
		select {
		case m := <-r.arrived:
			if d, err := r.accept(m); err != nil || d != nil {
				return d, err
			}
		default:
			return nil, nil
		}
	}
}

// refill requests messages if it is time to.
func (r *Reader) refill(ctx context.Context) error {
	switch r.mu.Lock(); r.o.Pace {
	case Rounds:
		open := r.open
		r.mu.Unlock()
		if open > 0 {
			return nil
		}
		if pause := cmp.Or(r.o.RoundPace, roundPace) - time.Since(r.begun); r.rest && pause > 0 {
			r.timer.Reset(pause)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-r.timer.C:
			}
		}
		r.begun, r.rest = time.Now(), false
		return r.request(r.o.Most)
	case Refill:
		n := r.o.Most - r.open
		r.mu.Unlock()
		if n < r.o.Most/2 {
			return nil
		}
		return r.request(n)
	}
	r.mu.Unlock()
	return nil
}

// request sends a pull request.
func (r *Reader) request(n int) error {
	r.mu.Lock()
	r.open += n
	r.asked = n
	r.mu.Unlock()
	req := r.most
	if n != r.o.Most {
		req = r.o.pullRequest(n)
	}
	if err := r.c.conn.nc.PublishRequest(r.subject, r.inbox, req); err != nil {
		return r.lost("%w", err)
	}
	return nil
}

// pullRequest returns the body of a pull request for n messages.
func (o *ReaderOptions) pullRequest(n int) []byte {
	req := fmt.Appendf(make([]byte, 0, 112), `{"batch":%d,"expires":%d,"idle_heartbeat":%d`, n, o.Expiry, o.Heartbeat)
	if o.MaxBytes > 0 {
		req = fmt.Appendf(req, `,"max_bytes":%d`, o.MaxBytes)
	}
	if o.Pace == Rounds {
		req = append(req, `,"no_wait":true`...)
	}
	return append(req, '}')
}

func (r *Reader) lost(format string, args ...any) error {
	return r.c.conn.mapErr.errorf(ErrUnavailable, "read %s: %w: %w", r.o.Stream, ErrReaderLost, fmt.Errorf(format, args...))
}

// wait waits for the next message. It returns nil if a request was sent while none was
// open.
func (r *Reader) wait(ctx context.Context) (*nats.Msg, error) {
	select {
	case m := <-r.arrived:
		return m, nil
	default:
	}
	silence := r.timer.C
	if r.Requested() > 0 {
		r.timer.Reset(r.o.Heartbeat * silentHalfBeats / 2)
	} else {
		silence = nil // the server sends no heartbeat without a request
	}
	select {
	case m := <-r.arrived:
		return m, nil
	case <-r.wake:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.broken:
		return nil, r.lost("%w", nats.ErrDisconnected)
	case <-silence:
		return nil, r.lost("no heartbeat for %s", r.o.Heartbeat*silentHalfBeats/2)
	}
}

// accept returns a message, or nil for a status message.
func (r *Reader) accept(m *nats.Msg) (*Delivery, error) {
	if m.Reply == "" {
		return nil, r.status(m)
	}
	// A message whatever its headers say: it has a subject to acknowledge it on.
	meta, ok := parseAckReply(m.Reply, r.from)
	if !ok {
		// Another client has guessed the inbox and published to it. Do not acknowledge it:
		// that would be a publish to a subject of the sender's choice.
		return nil, nil
	}
	r.mu.Lock()
	r.open = max(r.open-1, 0)
	r.mu.Unlock()
	if r.got++; r.o.Exclusive && meta.consumerSeq != r.got {
		return nil, r.lost("message %d of the consumer came, want %d", meta.consumerSeq, r.got)
	}
	return &Delivery{
		Msg:        Msg{Subject: m.Subject, Sequence: meta.sequence, Header: m.Header, Data: m.Data, Time: meta.time},
		Deliveries: meta.deliveries, nc: r.c.conn.nc, reply: m.Reply,
	}, nil
}

// status takes note of the server's status message.
func (r *Reader) status(m *nats.Msg) error {
	const tooLarge = "Message Size Exceeds MaxBytes"
	r.mu.Lock()
	defer r.mu.Unlock()
	switch status, why := m.Header.Get(headerStatus), m.Header.Get(headerDescription); {
	case status == "100": // a heartbeat, with the number of messages that the consumer sent
		if last, err := strconv.ParseUint(m.Header.Get(headerLastConsumer), 10, 64); r.o.Exclusive && err == nil && last > r.got {
			return r.lost("the client dropped messages: %d came, %d were sent", r.got, last)
		}
	case status == "409" && strings.EqualFold(why, "Batch Completed"):
		// Its messages are counted as they come; it may overtake the last ones (work-around 15).
	case r.o.Pace == Rounds && (status == "404" || status == "408"): // no more messages, or none came
		r.open, r.rest = 0, true
	case status == "408", status == "409" && strings.EqualFold(why, tooLarge):
		// A request ended before all of its messages came.
		n, err := strconv.Atoi(m.Header.Get(headerLeft))
		if err != nil {
			return r.lost("%s %s: %w", status, why, err)
		}
		if status == "409" && n == r.asked {
			return r.c.conn.mapErr.errorf(ErrTooLarge, "read %s: the next message is larger than the %d bytes of a request", r.o.Stream, r.o.MaxBytes)
		}
		r.open = max(r.open-n, 0)
		if r.o.Pace == Demand {
			return ErrRequestEnded
		}
	case status == "409" && strings.EqualFold(why, "Consumer Deleted"):
		return r.lost("%w", ErrNoConsumer)
	default:
		return r.lost("%s", strings.TrimSpace(status+" "+why))
	}
	return nil
}

// Delivery is a message that a consumer delivered to this process. Unless Ack, Nak, Term
// or Working is called within the consumer's AckWait, the server delivers it again, to any
// process.
//
// The methods are safe for concurrent use. The first of Ack, AckConfirmed, Nak and Term
// that is sent settles the delivery; every later call does nothing. A Working after a Nak
// would otherwise put off the redelivery.
type Delivery struct {
	Msg
	// Deliveries counts the deliveries of the message, this one included.
	Deliveries uint64

	nc      *nats.Conn
	reply   string
	mu      sync.Mutex
	settled bool
}

var ackBody = []byte("+ACK")

// Ack says that the message is done: a work queue removes it.
func (d *Delivery) Ack() error { return d.settle(ackBody) }

// AckConfirmed is Ack, and waits until the server has processed it.
func (d *Delivery) AckConfirmed(ctx context.Context) error {
	d.mu.Lock()
	settled := d.settled
	d.settled = true
	d.mu.Unlock()
	if settled {
		return nil
	}
	_, err := d.nc.RequestWithContext(ctx, d.reply, ackBody)
	return err
}

// Working restarts AckWait.
func (d *Delivery) Working() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settled {
		return nil
	}
	return d.nc.Publish(d.reply, []byte("+WPI"))
}

// Nak requests a redelivery after a delay.
func (d *Delivery) Nak(after time.Duration) error {
	return d.settle(fmt.Appendf(nil, `-NAK {"delay":%d}`, after))
}

// Term says that the message must not be delivered again.
func (d *Delivery) Term(reason string) error { return d.settle(append([]byte("+TERM "), reason...)) }

func (d *Delivery) settle(body []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settled {
		return nil
	}
	if err := d.nc.Publish(d.reply, body); err != nil {
		return err
	}
	d.settled = true
	return nil
}
