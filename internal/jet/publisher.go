package jet

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
)

// publisher sends messages to JetStream and passes each acknowledgement to a callback. It
// has one inbox, a bounded window of slots, and one goroutine that checks all deadlines.
// nats.go's PublishMsgAsync costs more CPU a message, and fails when its window is full,
// where publisher waits.
//
// While the connection is down, calls fail at once instead of waiting in the client's
// buffer: a write whose caller has given up must not come through minutes later. Calls
// that are in flight when the connection breaks fail then; they may have taken effect.
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

	mapErr errorMapper

	// free holds the slots that are not in use; taking one enters the window.
	free chan uint32

	mu     sync.Mutex
	slots  []slot
	closed bool
	breaks map[*func()]struct{} // called when the connection breaks
}

// slot is one call in flight. gen distinguishes a late answer to an earlier call.
type slot struct {
	gen  uint32
	busy bool
	at   time.Duration // when the call was sent, since publisher.start
	op   string
	done func(Ack, error)
	// whole, if set, receives the answer undecoded; done then receives errors only.
	whole func(*nats.Msg)
}

// Ack is JetStream's acknowledgement of one message.
type Ack struct {
	// Seq is the sequence of the message in its stream.
	Seq uint64
	// Duplicate says that the stream had a message of the same id already.
	Duplicate bool
	// refused is JetStream's error, which comes in place of an acknowledgement.
	refused *jetstream.APIError
}

func newPublisher(nc *nats.Conn, window int, timeout time.Duration, mapErr errorMapper) (*publisher, error) {
	p := &publisher{
		nc: nc, prefix: nc.NewInbox() + ".", timeout: timeout, start: time.Now(),
		stop: make(chan struct{}), free: make(chan uint32, window), slots: make([]slot, window),
		breaks: map[*func()]struct{}{}, mapErr: mapErr,
	}
	for i := range p.slots {
		p.free <- uint32(i)
	}
	sub, err := nc.Subscribe(p.prefix+"*", p.onAck)
	if err != nil {
		return nil, mapErr.wrap("subscribe to acknowledgements", err)
	}
	// The window bounds what can arrive, so no limit of the client may drop it.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, mapErr.wrap("subscribe to acknowledgements", err)
	}
	p.sub = sub
	p.status = nc.StatusChanged()
	p.down.Store(!nc.IsConnected())
	p.stopped.Go(p.watch)
	return p, nil
}

// send publishes and returns. done is called exactly once, on another goroutine or on
// this one, never under a lock. send blocks only while the window is full.
func (p *publisher) send(op, subject string, hdr nats.Header, data []byte, done func(Ack, error)) {
	p.ask(op, subject, hdr, data, nil, done)
}

// ask is send for a call whose answer is not an acknowledgement: either whole receives
// the answer, or done an error.
func (p *publisher) ask(op, subject string, hdr nats.Header, data []byte, whole func(*nats.Msg), done func(Ack, error)) {
	if !p.nc.IsConnected() {
		done(Ack{}, p.mapErr.wrap(op, nats.ErrDisconnected))
		return
	}
	var i uint32
	select {
	case i = <-p.free:
	default:
		select {
		case i = <-p.free:
		case <-p.stop:
			done(Ack{}, p.mapErr.wrap(op, nats.ErrConnectionClosed))
			return
		}
	}
	p.askIn(i, op, subject, hdr, data, whole, done)
}

// askNow is ask for a caller that must not wait. It returns false, and calls nothing, if the window is full.
func (p *publisher) askNow(op, subject string, data []byte, whole func(*nats.Msg), done func(Ack, error)) bool {
	if !p.nc.IsConnected() {
		done(Ack{}, p.mapErr.wrap(op, nats.ErrDisconnected))
		return true
	}
	select {
	case i := <-p.free:
		p.askIn(i, op, subject, nil, data, whole, done)
		return true
	default:
		return false
	}
}

// askIn sends a call in a free slot.
func (p *publisher) askIn(i uint32, op, subject string, hdr nats.Header, data []byte, whole func(*nats.Msg), done func(Ack, error)) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.free <- i
		done(Ack{}, p.mapErr.wrap(op, nats.ErrConnectionClosed))
		return
	}
	s := &p.slots[i]
	s.gen++
	s.busy, s.at, s.op, s.done, s.whole = true, time.Since(p.start), op, done, whole
	token := uint64(s.gen)<<32 | uint64(i)
	p.mu.Unlock()
	err := p.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: p.prefix + strconv.FormatUint(token, 36), Header: hdr, Data: data})
	if err != nil {
		p.finish(token, Ack{}, err)
	}
}

func (p *publisher) onAck(m *nats.Msg) {
	token, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 36, 64)
	if err != nil {
		return
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" && m.Header.Get(jetstream.SequenceHeader) == "" {
		p.finish(token, Ack{}, nats.ErrNoResponders)
		return
	}
	if p.finishWhole(token, m) {
		return
	}
	a, err := parseAck(m.Data)
	p.finish(token, a, err)
}

// finishWhole answers a call of ask. It returns false for any other call.
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

// parseAck reads an acknowledgement. It reads the common ones, {"stream":"S","seq":1} of
// a write and {"type":"T","success":true} of a delete, without the JSON decoder, since
// every write has one.
func parseAck(b []byte) (a Ack, err error) {
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
	var r struct {
		Seq       uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
		Error     *jetstream.APIError `json:"error"`
	}
	err = json.Unmarshal(b, &r)
	return Ack{Seq: r.Seq, Duplicate: r.Duplicate, refused: r.Error}, err
}

// finish answers a call unless it was answered before.
func (p *publisher) finish(token uint64, a Ack, err error) {
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
		err = p.mapErr.wrap(op, err)
	} else if a.refused != nil {
		err = p.mapErr.wrap(op, a.refused)
	}
	done(a, err)
}

// watch fails calls whose acknowledgement does not come in time, and all calls in flight
// when the connection breaks.
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

// reconnects returns how often the connection was established again.
func (p *publisher) reconnects() uint64 { return p.nc.Stats().Reconnects }

// onBreak is Client.OnBreak.
func (p *publisher) onBreak(f func()) (forget func(), ok bool) {
	p.mu.Lock()
	p.breaks[&f] = struct{}{}
	p.mu.Unlock()
	forget = func() {
		p.mu.Lock()
		delete(p.breaks, &f)
		p.mu.Unlock()
	}
	// Only now: a break before this line would not be noticed otherwise.
	if !p.nc.IsConnected() {
		forget()
		return func() {}, false
	}
	return forget, true
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

// fail fails every call that was sent before an instant.
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
		p.finish(token, Ack{}, err)
	}
}

// close fails every call in flight.
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
