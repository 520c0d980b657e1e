package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Add is a message of timers.add, delivered to one router. The server redelivers it to any
// router unless Done, Retry or Working is called within RouterAckWait.
type Add struct {
	Header nats.Header
	Data   []byte
	// Seq is the sequence in TIMERS_ADD; Deliveries counts deliveries, this one included.
	Seq, Deliveries uint64
	// Stored is the time at which the stream stored the add, by its leader's clock.
	Stored time.Time

	inbox *Inbox
	nc    *nats.Conn
	reply string
}

// Done removes the add from the stream, at once or together with others; see bulkAcker.
func (a *Add) Done() { a.inbox.acker.ack(a) }

// Working restarts RouterAckWait. If the message is lost, the add is redelivered, which the
// router recognises as a duplicate.
func (a *Add) Working() { _ = a.nc.Publish(a.reply, []byte("+WPI")) }

// Retry requests a redelivery after a pause. If the request is lost, the redelivery comes
// after RouterAckWait.
func (a *Add) Retry(after time.Duration) {
	_ = a.nc.Publish(a.reply, fmt.Appendf(nil, `-NAK {"delay":%d}`, after))
}

func (a *Add) ack() error { return a.nc.Publish(a.reply, []byte("+ACK")) }

// Bounds of an AddReader.
const (
	// addsMost bounds the adds that a reader has requested and not returned yet. Routers
	// write that many well within RouterAckWait, also if every write is synced.
	addsMost = 1024
	// addsSpare is buffer space for the server's status messages: the end of a request,
	// and heartbeats, one a second while a request waits; there are at most four.
	addsSpare = 256
	// addsBytes bounds the bytes of each request.
	addsBytes = 32 << 20
	// addsPace is the least time between two groups, unless many adds wait. Nobody waits
	// for an add of the stream, and in groups of two or three an add costs half as much
	// again. It adds to the lateness of timers that are due at once.
	addsPace   = 2 * time.Millisecond
	addsExpiry = 30 * time.Second
	// restBound bounds the flush in Rest.
	restBound = time.Second
)

// AddReader reads the adds that are delivered to one router. It is for one goroutine.
//
// It requests more adds once half of addsMost were read, so that every add has a place in
// the buffer while the caller is busy. The iterator of nats.go does much the same, but
// takes an add without data and with a header named Status for a status message of the
// server; that add would be redelivered again and again, and end the reading each time.
//
// The number of adds still to come may be counted too high: the server does not report the
// end of a request that is lost with the consumer's leader, or that holds exactly the bytes
// it may. If the error is below half of addsMost, the reader requests more a little later
// than it could. Otherwise no request is left in the end, heartbeats stop, and the reader
// fails.
type AddReader struct {
	nc      *nats.Conn
	sub     *nats.Subscription
	inbox   string
	arrived chan *nats.Msg
	broken  chan struct{} // closed when the connection breaks
	forget  func()        // ends the watch that closes broken
	timer   *time.Timer
	bytes   int64         // requested at most, per request
	expiry  time.Duration // of a request
	asked   int           // adds requested by the last request
	left    int           // adds requested and not read yet
	last    time.Time     // when the last group was read
}

// ReadAdds creates the consumer of TIMERS_ADD that all routers share, if necessary, and
// starts to read it. Errors: schemas.ErrUnavailable.
func (s *Store) ReadAdds(ctx context.Context) (*AddReader, error) {
	const op = "read " + schemas.StreamAdd
	r := &AddReader{
		nc: s.nc, inbox: s.nc.NewInbox(), arrived: make(chan *nats.Msg, addsMost+addsSpare), broken: make(chan struct{}),
		timer: time.NewTimer(time.Hour),
		// The server never delivers a message larger than the bytes requested.
		bytes: max(addsBytes, 2*s.nc.MaxPayload()), expiry: addsExpiry,
	}
	var ok bool
	if r.forget, ok = s.pub.onBreak(func() { close(r.broken) }); !ok {
		return nil, mapError(op, nats.ErrDisconnected)
	}
	_, err := s.consumer(ctx, schemas.StreamAdd, jetstream.ConsumerConfig{
		Durable: RouterConsumer, FilterSubject: schemas.SubjectAdd, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: RouterAckWait, MaxAckPending: RouterMaxAckPending, MaxDeliver: -1,
	})
	if err == nil {
		if r.sub, err = s.nc.ChanSubscribe(r.inbox, r.arrived); err != nil {
			err = mapError(op, err)
		}
	}
	if err != nil {
		r.forget()
		return nil, err
	}
	return r, nil
}

var errAddsEnd = errors.New("the consumer of adds is lost")

// Next waits for adds and returns 1 to most of them, in the stream's order. After an error
// (the consumer is lost, or ctx has ended) the caller ends this reader with Rest.
func (r *AddReader) Next(ctx context.Context, most int) ([]*Add, error) {
	var adds []*Add
	for len(adds) == 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := r.ask(); err != nil {
			return nil, err
		}
		m, err := r.wait(ctx)
		if err != nil {
			return nil, err
		}
		if adds, err = r.read(adds, m); err != nil {
			return nil, err
		}
	}
	if rest := addsPace - time.Since(r.last); rest > 0 && len(r.arrived) < most/2 {
		r.timer.Reset(rest)
		select {
		case <-r.timer.C:
		case <-ctx.Done():
		}
	}
	r.last = time.Now()
	for len(adds) < most {
		select {
		case m := <-r.arrived:
			var err error
			if adds, err = r.read(adds, m); err != nil {
				return adds, err
			}
		default:
			return adds, nil
		}
	}
	return adds, nil
}

// ask requests more adds, if half of them were read.
func (r *AddReader) ask() error {
	n := addsMost - r.left
	if n < addsMost/2 {
		return nil
	}
	req := fmt.Appendf(nil, `{"batch":%d,"expires":%d,"idle_heartbeat":%d,"max_bytes":%d}`, n, r.expiry, tailHeartbeat, r.bytes)
	if err := r.nc.PublishRequest(nextSubject(schemas.StreamAdd, RouterConsumer), r.inbox, req); err != nil {
		return fmt.Errorf("%w: %w", errAddsEnd, err)
	}
	r.asked = n
	r.left += n
	return nil
}

// wait waits for the next message.
func (r *AddReader) wait(ctx context.Context) (*nats.Msg, error) {
	r.timer.Reset(tailSilence)
	select {
	case m := <-r.arrived:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.broken:
		return nil, fmt.Errorf("%w: %w", errAddsEnd, nats.ErrDisconnected)
	case <-r.timer.C:
		return nil, fmt.Errorf("%w: %w", errAddsEnd, errNoHeartbeat)
	}
}

// read appends an add, or handles a status message of the server.
func (r *AddReader) read(adds []*Add, m *nats.Msg) ([]*Add, error) {
	if m.Reply != "" { // only a delivered message has a reply subject, whatever its headers are
		r.left = max(r.left-1, 0)
		if a := r.add(m); a != nil {
			adds = append(adds, a)
		}
		return adds, nil
	}
	const tooLarge = "Message Size Exceeds MaxBytes"
	switch status, why := m.Header.Get("Status"), m.Header.Get("Description"); {
	case status == "100": // a heartbeat
	case status == "409" && strings.EqualFold(why, "Batch Completed"): // all adds of the request are counted by themselves
	case status == "408", status == "409" && strings.EqualFold(why, tooLarge):
		// The request ended early; n adds of it do not come.
		n, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		if err != nil {
			return adds, fmt.Errorf("%w: %s %s: %w", errAddsEnd, status, why, err)
		}
		if status == "409" && n == r.asked {
			return adds, fmt.Errorf("the next add is larger than the %d bytes requested", r.bytes)
		}
		r.left = max(r.left-n, 0)
	default:
		return adds, fmt.Errorf("%w: %s", errAddsEnd, strings.TrimSpace(status+" "+why))
	}
	return adds, nil
}

// add returns nil for a message that is not from this consumer. Only a client that guesses
// the inbox can publish one. It is not acknowledged, because that would be a publish to a
// subject of that client's choice.
func (r *AddReader) add(m *nats.Msg) *Add {
	meta, err := m.Metadata()
	if err != nil || meta.Stream != schemas.StreamAdd || meta.Consumer != RouterConsumer {
		return nil
	}
	return &Add{
		Header: m.Header, Data: m.Data, Seq: meta.Sequence.Stream, Deliveries: meta.NumDelivered, Stored: meta.Timestamp,
		nc: r.nc, reply: m.Reply,
	}
}

// Rest ends the reader and returns the adds that have arrived. The server gives these, and
// those on their way, to no other router before RouterAckWait has passed.
func (r *AddReader) Rest() []*Add {
	defer r.forget()
	defer r.timer.Stop()
	// Drain ends the subscription on the server; after the flush no message arrives.
	if r.sub.Drain() == nil && r.nc.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), restBound)
		defer cancel()
		_ = r.nc.FlushWithContext(ctx) // on an error, only the adds that have arrived are returned
	}
	defer func() { _ = r.sub.Unsubscribe() }() // fails if the subscription has ended
	var adds []*Add
	for {
		select {
		case m := <-r.arrived:
			adds, _ = r.read(adds, m) // errors of the consumer no longer matter
		default:
			return adds
		}
	}
}
