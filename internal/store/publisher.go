package store

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// publisher sends messages to JetStream and hands each acknowledgement to a
// callback: one inbox, a bounded window of slots, one sweeper for all deadlines.
// nats.go's PublishMsgAsync does the same at more CPU a message, and fails when
// its window is full, where this one waits.
//
// While the connection is down, calls fail at once instead of waiting in the
// client's buffer: a write that was given up must not come through minutes
// later. Calls in flight when it breaks fail then; they may have taken effect.
// (In the instant in which it breaks, a call may still reach that buffer, unless
// the connection was made with nats.ReconnectBufSize(-1).)
type publisher struct {
	nc      *nats.Conn
	prefix  string
	sub     *nats.Subscription
	timeout time.Duration
	start   time.Time
	status  chan nats.Status
	stop    chan struct{}
	stopped sync.WaitGroup
	down    atomic.Bool

	// free holds the slots that are not in use: taking one is a place in the window.
	free chan uint32

	mu     sync.Mutex
	slots  []slot
	closed bool
	breaks map[*func()]struct{} // to call when the connection breaks
}

// slot is one call in flight. gen tells a late answer to its former user apart.
type slot struct {
	gen  uint32
	busy bool
	at   time.Duration // when it was sent, since publisher.start
	op   string
	done func(ack, error)
	// whole, if set, is given the answer as it is; done then only what went wrong.
	whole func(*nats.Msg)
}

// ack is JetStream's acknowledgement of one message.
type ack struct {
	Seq       uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
	Error     *jetstream.APIError `json:"error"`
}

func newPublisher(nc *nats.Conn, window int, timeout time.Duration) (*publisher, error) {
	p := &publisher{
		nc: nc, prefix: nc.NewInbox() + ".", timeout: timeout, start: time.Now(),
		stop: make(chan struct{}), free: make(chan uint32, window), slots: make([]slot, window),
		breaks: map[*func()]struct{}{},
	}
	for i := range p.slots {
		p.free <- uint32(i)
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
	p.status = nc.StatusChanged()
	p.down.Store(!nc.IsConnected())
	p.stopped.Go(p.watch)
	return p, nil
}

// send publishes and returns; done is called exactly once, on another goroutine
// or on this one, never under a lock. It blocks only for a place in the window.
func (p *publisher) send(op, subject string, hdr nats.Header, data []byte, done func(ack, error)) {
	p.ask(op, subject, hdr, data, nil, done)
}

// ask is send for a call whose answer is no acknowledgement: either whole or done
// is called.
func (p *publisher) ask(op, subject string, hdr nats.Header, data []byte, whole func(*nats.Msg), done func(ack, error)) {
	if !p.nc.IsConnected() {
		done(ack{}, mapError(op, nats.ErrDisconnected))
		return
	}
	var i uint32
	select {
	case i = <-p.free:
	default:
		select {
		case i = <-p.free:
		case <-p.stop:
			done(ack{}, mapError(op, nats.ErrConnectionClosed))
			return
		}
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.free <- i
		done(ack{}, mapError(op, nats.ErrConnectionClosed))
		return
	}
	s := &p.slots[i]
	s.gen++
	s.busy, s.at, s.op, s.done, s.whole = true, time.Since(p.start), op, done, whole
	token := uint64(s.gen)<<32 | uint64(i)
	p.mu.Unlock()
	err := p.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: p.prefix + strconv.FormatUint(token, 36), Header: hdr, Data: data})
	if err != nil {
		p.finish(token, ack{}, err)
	}
}

func (p *publisher) onAck(m *nats.Msg) {
	token, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 36, 64)
	if err != nil {
		return
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		p.finish(token, ack{}, nats.ErrNoResponders)
		return
	}
	if p.finishWhole(token, m) {
		return
	}
	a, err := parseAck(m.Data)
	p.finish(token, a, err)
}

// finishWhole answers a call of ask; false if it is none.
func (p *publisher) finishWhole(token uint64, m *nats.Msg) bool {
	i, gen := uint32(token), uint32(token>>32)
	p.mu.Lock()
	if int(i) >= len(p.slots) || p.slots[i].gen != gen || !p.slots[i].busy || p.slots[i].whole == nil {
		p.mu.Unlock()
		return false
	}
	s := &p.slots[i]
	whole := s.whole
	s.busy, s.done, s.whole = false, nil, nil
	p.mu.Unlock()
	p.free <- i
	whole(m)
	return true
}

var (
	seqField     = []byte(`"seq":`)
	successField = []byte(`","success":true}`)
)

// parseAck reads an acknowledgement. The plain ones, {"stream":"S","seq":1} of a
// write and {"type":"T","success":true} of a delete, are read without the JSON
// decoder: there is one for every write.
func parseAck(b []byte) (a ack, err error) {
	if bytes.HasSuffix(b, successField) {
		return a, nil
	}
	if i := bytes.Index(b, seqField); i > 0 {
		n := i + len(seqField)
		for n < len(b) && b[n] == ' ' {
			n++
		}
		for n < len(b) && b[n] >= '0' && b[n] <= '9' {
			a.Seq = a.Seq*10 + uint64(b[n]-'0')
			n++
		}
		if n == len(b)-1 && b[n] == '}' && a.Seq > 0 {
			return a, nil
		}
	}
	return parseAckJSON(b)
}

// parseAckJSON is a function of its own, because its ack escapes to the heap.
func parseAckJSON(b []byte) (ack, error) {
	var a ack
	err := json.Unmarshal(b, &a)
	return a, err
}

// finish answers a call, unless it was answered before.
func (p *publisher) finish(token uint64, a ack, err error) {
	i, gen := uint32(token), uint32(token>>32)
	p.mu.Lock()
	if int(i) >= len(p.slots) || p.slots[i].gen != gen || !p.slots[i].busy {
		p.mu.Unlock()
		return
	}
	s := &p.slots[i]
	op, done := s.op, s.done
	s.busy, s.done, s.whole = false, nil, nil
	p.mu.Unlock()
	p.free <- i
	if err != nil {
		err = mapError(op, err)
	} else if a.Error != nil {
		err = apiError(op, a.Error)
	}
	done(a, err)
}

// watch answers calls whose acknowledgement did not come in time, and those that
// a lost connection left without one.
func (p *publisher) watch() {
	t := time.NewTicker(max(p.timeout/20, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case st, ok := <-p.status:
			if !ok {
				p.status = nil // the connection is closed for good
				st = nats.CLOSED
			}
			down := st != nats.CONNECTED
			p.down.Store(down)
			if down {
				p.breakAll()
				p.fail(time.Since(p.start)+1, nats.ErrDisconnected)
			}
		case <-t.C:
			p.fail(time.Since(p.start)-p.timeout, context.DeadlineExceeded)
		}
	}
}

// onBreak has f called, on another goroutine and at most once, when the
// connection breaks; forget ends that. It returns false if it is broken now.
func (p *publisher) onBreak(f func()) (forget func(), ok bool) {
	if !p.nc.IsConnected() {
		return func() {}, false
	}
	p.mu.Lock()
	p.breaks[&f] = struct{}{}
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		delete(p.breaks, &f)
		p.mu.Unlock()
	}, true
}

func (p *publisher) breakAll() {
	p.mu.Lock()
	fs := p.breaks
	p.breaks = map[*func()]struct{}{}
	p.mu.Unlock()
	for f := range fs {
		(*f)()
	}
}

// fail answers every call that was sent before an instant.
func (p *publisher) fail(before time.Duration, err error) {
	var tokens []uint64
	p.mu.Lock()
	for i := range p.slots {
		if s := &p.slots[i]; s.busy && s.at < before {
			tokens = append(tokens, uint64(s.gen)<<32|uint64(i))
		}
	}
	p.mu.Unlock()
	for _, token := range tokens {
		p.finish(token, ack{}, err)
	}
}

// close answers every call that still waits.
func (p *publisher) close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.mu.Unlock()
	close(p.stop)
	p.stopped.Wait()
	if p.status != nil {
		p.nc.RemoveStatusListener(p.status)
	}
	// The connection may be gone already; then so is the subscription.
	_ = p.sub.Unsubscribe()
	p.fail(1<<63-1, nats.ErrConnectionClosed)
}

// PublishAsync publishes m; done is called once, and must neither block nor
// publish. An error of schemas.ErrUnavailable means that the message may have
// been stored; with MsgID set, a repetition is harmless.
func (s *Store) PublishAsync(m Msg, done func(seq uint64, duplicate bool, err error)) {
	if m.Service != "" {
		s.publishFor(m, done)
		return
	}
	s.publishNow(m, done)
}

func (s *Store) publishNow(m Msg, done func(seq uint64, duplicate bool, err error)) {
	hdr := m.Header
	if m.MsgID != "" {
		if hdr == nil {
			hdr = nats.Header{}
		}
		hdr[jetstream.MsgIDHeader] = []string{m.MsgID}
	}
	answer := func(a ack, err error) {
		if Permanent(err) {
			err = schemas.Errorf(schemas.CodeOf(err), "%w: the message has %d bytes of headers and %d of data", err, schemas.HeaderBytes(hdr), len(m.Data))
		}
		done(a.Seq, a.Duplicate, err)
	}
	op := "publish " + m.Subject
	switch {
	case strings.HasPrefix(m.Subject, schemas.SubjectFiredPrefix):
		s.write(schemas.StreamFired, op, m.Subject, hdr, m.Data, answer)
	case strings.HasPrefix(m.Subject, schemas.SubjectRetryPrefix):
		s.write(schemas.StreamRetry, op, m.Subject, hdr, m.Data, answer)
	default:
		s.pub.send(op, m.Subject, hdr, m.Data, answer)
	}
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
	if err := ctx.Err(); err != nil {
		return ack{}, mapError(op, err)
	}
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
