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

// Add is a message of timers.add that was delivered to one router. It is
// delivered again, to any, unless Ack, Nak or Working is heard of it within
// RouterAckWait.
type Add struct {
	Header nats.Header
	Data   []byte
	// Seq is its sequence in TIMERS_ADD, Deliveries how often it was delivered.
	Seq, Deliveries uint64
	// Stored is when the stream stored it, by its leader's clock.
	Stored time.Time

	nc    *nats.Conn
	reply string
}

// Ack removes it from the stream.
func (a *Add) Ack() error { return a.nc.Publish(a.reply, []byte("+ACK")) }

// Working says that it is being worked on: RouterAckWait begins anew.
func (a *Add) Working() error { return a.nc.Publish(a.reply, []byte("+WPI")) }

// Nak has it delivered again after a pause.
func (a *Add) Nak(after time.Duration) error {
	return a.nc.Publish(a.reply, fmt.Appendf(nil, `-NAK {"delay":%d}`, after))
}

// Bounds of an AddReader.
const (
	// addsMost is how many adds a reader holds and has asked for. It is written well
	// within the consumer's ack wait, also when each write is synced.
	addsMost = 1024
	// addsSpare is room for what the server tells beside them: the end of a request,
	// and heartbeats, once a second while a request waits, of which there are four at
	// most.
	addsSpare = 256
	// addsBytes bounds each request, so that large events do not fill memory.
	addsBytes = 32 << 20
	// addsPace is how long after a group the next one comes, unless many wait: nobody
	// waits for adds of the stream, and in groups of two or three each costs half as
	// much again. It is what a timer that is due at once may be late by, and that only
	// while adds come faster than this.
	addsPace   = 2 * time.Millisecond
	addsExpiry = 30 * time.Second
	restBound  = time.Second
)

// AddReader reads the adds that are delivered to one router. It is for one
// goroutine.
//
// It asks for more when half of what it may hold was read, so that each add has its
// place while the caller does something else. The client's iterator does much the
// same, but takes an add without data and with a header named Status for the
// server's word: that add came again and again, and ended the reading.
//
// What is left to come may be less than is noted: where a request is lost with the
// consumer's leader, or holds precisely the bytes that it may, its end is not told.
// If less than half is, more is asked for sooner; else no request is open at last,
// no heartbeat is heard, and the reader ends.
type AddReader struct {
	nc      *nats.Conn
	sub     *nats.Subscription
	inbox   string
	arrived chan *nats.Msg
	broken  chan struct{} // closed when the connection breaks
	forget  func()
	timer   *time.Timer
	bytes   int64
	expiry  time.Duration // of a request
	asked   int           // for, by the last request
	left    int           // asked for, and not read yet
	last    time.Time     // when the last group was read
}

// ReadAdds makes sure of the routers' consumer of TIMERS_ADD, which they share,
// and begins to read it.
func (s *Store) ReadAdds(ctx context.Context) (*AddReader, error) {
	const op = "read " + schemas.StreamAdd
	r := &AddReader{
		nc: s.nc, inbox: s.nc.NewInbox(), arrived: make(chan *nats.Msg, addsMost+addsSpare), broken: make(chan struct{}),
		timer: time.NewTimer(time.Hour),
		// A message that is larger than what is asked for would never be delivered.
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

// Next waits for adds and returns those that there are, at most so many, in the
// stream's order. An error says that nothing more is heard of the consumer, or
// that ctx has ended. The caller ends this reader then, with Rest, and makes
// another.
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

// ask asks for more, if it is time.
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

// wait waits for what comes next.
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

// read appends an add, or takes note of what the server says.
func (r *AddReader) read(adds []*Add, m *nats.Msg) ([]*Add, error) {
	if m.Reply != "" { // what is delivered can be acknowledged, whatever its headers say
		r.left = max(r.left-1, 0)
		if a := r.add(m); a != nil {
			adds = append(adds, a)
		}
		return adds, nil
	}
	const tooLarge = "Message Size Exceeds MaxBytes"
	switch status, why := m.Header.Get("Status"), m.Header.Get("Description"); {
	case status == "100": // a heartbeat
	case status == "409" && strings.EqualFold(why, "Batch Completed"): // each of it was, or will be, counted
	case status == "408", status == "409" && strings.EqualFold(why, tooLarge):
		// A request that ends before all of it came.
		n, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		if err != nil {
			return adds, fmt.Errorf("%w: %s %s: %w", errAddsEnd, status, why, err)
		}
		if status == "409" && n == r.asked {
			return adds, fmt.Errorf("the next add is larger than the %d bytes that are asked for", r.bytes)
		}
		r.left = max(r.left-n, 0)
	default:
		return adds, fmt.Errorf("%w: %s", errAddsEnd, strings.TrimSpace(status+" "+why))
	}
	return adds, nil
}

// add returns nil for a message that is not of this consumer: only somebody who guesses
// the inbox publishes one. Its reply subject is not acknowledged, since that would be a
// publish to a subject of the sender's choice.
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

// Rest ends the reader and returns what has come to it before: nobody else is given
// that until RouterAckWait has passed, nor what the server has on its way.
func (r *AddReader) Rest() []*Add {
	defer r.forget()
	defer r.timer.Stop()
	// The subscription ends on the server only; once that has answered, no more comes.
	if r.sub.Drain() == nil && r.nc.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), restBound)
		defer cancel()
		_ = r.nc.FlushWithContext(ctx) // else what has come is all there is
	}
	defer func() { _ = r.sub.Unsubscribe() }() // fails if it has ended by itself
	var adds []*Add
	for {
		select {
		case m := <-r.arrived:
			adds, _ = r.read(adds, m) // what the server says does not matter any more
		default:
			return adds
		}
	}
}
