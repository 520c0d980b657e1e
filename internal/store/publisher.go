package store

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// publisher sends messages to JetStream and hands each acknowledgement to a
// callback: one inbox, a bounded window, one deadline for all. nats.go's
// PublishMsgAsync does the same at more CPU a message, and fails when its window
// is full, where this one waits.
type publisher struct {
	nc      *nats.Conn
	prefix  string
	sub     *nats.Subscription
	timeout time.Duration
	window  chan struct{}
	stop    chan struct{}
	stopped sync.WaitGroup

	mu     sync.Mutex
	calls  map[uint64]call
	order  []deadline // by time, because the timeout is one
	last   uint64
	closed bool
}

type call struct {
	op   string
	done func(ack, error)
}

type deadline struct {
	id uint64
	at time.Time
}

// ack is JetStream's acknowledgement of one message.
type ack struct {
	Seq       uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
	Error     *jetstream.APIError `json:"error"`
}

func newPublisher(nc *nats.Conn, window int, timeout time.Duration) (*publisher, error) {
	p := &publisher{
		nc: nc, prefix: nc.NewInbox() + ".", timeout: timeout,
		window: make(chan struct{}, window), stop: make(chan struct{}), calls: map[uint64]call{},
	}
	sub, err := nc.Subscribe(p.prefix+"*", p.onAck)
	if err != nil {
		return nil, mapError("subscribe to acknowledgements", err)
	}
	// The window bounds what can arrive, so no limit of the client may drop it.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, mapError("subscribe to acknowledgements", err)
	}
	p.sub = sub
	p.stopped.Go(p.expire)
	return p, nil
}

// send publishes and returns; done is called exactly once, on another goroutine
// or on this one, never under a lock. It blocks only for a place in the window.
func (p *publisher) send(op, subject string, hdr nats.Header, data []byte, done func(ack, error)) {
	select {
	case p.window <- struct{}{}:
	case <-p.stop:
		done(ack{}, mapError(op, nats.ErrConnectionClosed))
		return
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.window
		done(ack{}, mapError(op, nats.ErrConnectionClosed))
		return
	}
	p.last++
	id := p.last
	p.calls[id] = call{op: op, done: done}
	p.order = append(p.order, deadline{id: id, at: time.Now().Add(p.timeout)})
	p.mu.Unlock()
	err := p.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: p.prefix + strconv.FormatUint(id, 36), Header: hdr, Data: data})
	if err != nil {
		p.finish(id, ack{}, err)
	}
}

func (p *publisher) onAck(m *nats.Msg) {
	id, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 36, 64)
	if err != nil {
		return
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		p.finish(id, ack{}, nats.ErrNoResponders)
		return
	}
	var a ack
	if err := json.Unmarshal(m.Data, &a); err != nil {
		p.finish(id, ack{}, err)
		return
	}
	p.finish(id, a, nil)
}

func (p *publisher) finish(id uint64, a ack, err error) {
	p.mu.Lock()
	c, ok := p.calls[id]
	delete(p.calls, id)
	p.mu.Unlock()
	if !ok {
		return
	}
	<-p.window
	if err != nil {
		err = mapError(c.op, err)
	} else if a.Error != nil {
		err = apiError(c.op, a.Error)
	}
	c.done(a, err)
}

// expire answers calls whose acknowledgement did not come in time.
func (p *publisher) expire() {
	t := time.NewTicker(max(p.timeout/20, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case now := <-t.C:
			for _, id := range p.expired(now) {
				p.finish(id, ack{}, context.DeadlineExceeded)
			}
		}
	}
}

func (p *publisher) expired(now time.Time) (ids []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, d := range p.order {
		_, waiting := p.calls[d.id]
		if waiting && d.at.After(now) {
			break
		}
		if waiting {
			ids = append(ids, d.id)
		}
		n++
	}
	p.order = append(p.order[:0], p.order[n:]...)
	return ids
}

// close answers every call that still waits.
func (p *publisher) close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	ids := make([]uint64, 0, len(p.calls))
	for id := range p.calls {
		ids = append(ids, id)
	}
	p.mu.Unlock()
	close(p.stop)
	p.stopped.Wait()
	// The connection may be gone already; then so is the subscription.
	_ = p.sub.Unsubscribe()
	for _, id := range ids {
		p.finish(id, ack{}, nats.ErrConnectionClosed)
	}
}

// PublishAsync publishes m; done is called once, and must not block. An error of
// schemas.ErrUnavailable means that the message may have been stored; with MsgID
// set, a repetition is harmless.
func (s *Store) PublishAsync(m Msg, done func(seq uint64, duplicate bool, err error)) {
	hdr := m.Header
	if m.MsgID != "" {
		if hdr == nil {
			hdr = nats.Header{}
		}
		hdr[jetstream.MsgIDHeader] = []string{m.MsgID}
	}
	s.pub.send("publish "+m.Subject, m.Subject, hdr, m.Data, func(a ack, err error) { done(a.Seq, a.Duplicate, err) })
}

// Publish publishes m and waits for the acknowledgement.
func (s *Store) Publish(ctx context.Context, m Msg) (seq uint64, duplicate bool, err error) {
	a, err := s.await(ctx, "publish "+m.Subject, func(done func(ack, error)) {
		s.PublishAsync(m, func(seq uint64, duplicate bool, err error) { done(ack{Seq: seq, Duplicate: duplicate}, err) })
	})
	return a.Seq, a.Duplicate, err
}

// await turns an asynchronous call into a waiting one.
func (s *Store) await(ctx context.Context, op string, start func(done func(ack, error))) (ack, error) {
	type answer struct {
		a   ack
		err error
	}
	ch := make(chan answer, 1)
	start(func(a ack, err error) { ch <- answer{a, err} })
	select {
	case r := <-ch:
		return r.a, r.err
	case <-ctx.Done():
		return ack{}, schemas.Errorf(schemas.CodeUnavailable, "%s: %w; the call may have taken effect", op, context.Cause(ctx))
	}
}
