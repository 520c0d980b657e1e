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
//
// Direct gets go through a second connection if there is one (see Options.DirectGets), or through the first one while
// the second one is down. They fail when the connection breaks that they went through.
type publisher struct {
	line
	// gets is the connection for direct gets, or the first one.
	gets    *line
	timeout time.Duration
	start   time.Time
	stop    chan struct{}
	stopped sync.WaitGroup
	down    atomic.Bool

	mapErr errorMapper

	// free holds the slots that are not in use; taking one enters the window.
	free chan uint32

	mu     sync.Mutex
	slots  []slot
	closed bool
}

// line is a connection with an inbox for answers.
type line struct {
	nc     *nats.Conn
	prefix string
	sub    *nats.Subscription
	status chan nats.Status
	breaks map[*func()]struct{} // called when the connection breaks; under publisher.mu
	// silent is the time of the first direct get since the last answer to one, since publisher.start; 0 for none.
	silent atomic.Int64
}

// The two connections may be to different servers of a cluster. If nothing answers direct gets on their own connection for
// getPatience, direct gets use the first connection, and try the other one again every getAgain.
const (
	getPatience = 2 * time.Second
	getAgain    = 10 * time.Second
)

// slot is one call in flight. gen distinguishes a late answer to an earlier call.
type slot struct {
	gen  uint32
	busy bool
	line *line
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

// newPublisher returns a publisher. gets is the connection for direct gets; nil for nc.
func newPublisher(nc, gets *nats.Conn, window int, timeout time.Duration, mapErr errorMapper) (*publisher, error) {
	p := &publisher{
		timeout: timeout, start: time.Now(),
		stop: make(chan struct{}), free: make(chan uint32, window), slots: make([]slot, window), mapErr: mapErr,
	}
	for i := range p.slots {
		p.free <- uint32(i)
	}
	p.gets = &p.line
	err := p.open(&p.line, nc)
	if err == nil && gets != nil {
		p.gets = &line{}
		err = p.open(p.gets, gets)
	}
	if err != nil {
		return nil, mapErr.wrap("subscribe to acknowledgements", err)
	}
	p.down.Store(!nc.IsConnected())
	for _, l := range p.lines() {
		p.stopped.Go(func() { p.watch(l) })
	}
	p.stopped.Go(p.expire)
	return p, nil
}

// open makes the inbox of a line.
func (p *publisher) open(l *line, nc *nats.Conn) error {
	l.nc, l.prefix, l.breaks = nc, nc.NewInbox()+".", map[*func()]struct{}{}
	sub, err := nc.Subscribe(l.prefix+"*", p.onAck)
	if err != nil {
		return err
	}
	// The window bounds what can arrive, so no limit of the client may drop it.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	l.sub, l.status = sub, nc.StatusChanged()
	return nil
}

// lines returns the one or two connections.
func (p *publisher) lines() []*line {
	if p.gets == &p.line {
		return []*line{&p.line}
	}
	return []*line{&p.line, p.gets}
}

// getting returns the connection for a direct get that is made now.
func (p *publisher) getting() *line {
	l, now := p.gets, int64(time.Since(p.start))
	if l == &p.line || !l.nc.IsConnected() {
		return &p.line
	}
	switch silent := l.silent.Load(); {
	case silent == 0:
		l.silent.CompareAndSwap(0, now)
	case now-silent > int64(getAgain):
		l.silent.Store(now)
	case now-silent > int64(getPatience):
		return &p.line
	}
	return l
}

// answered notes an answer to a direct get. "No responders" is none.
func (l *line) answered() { l.silent.Store(0) }

// send publishes and returns. done is called exactly once, on another goroutine or on
// this one, never under a lock. send blocks only while the window is full.
func (p *publisher) send(op, subject string, hdr nats.Header, data []byte, done func(Ack, error)) {
	p.call(&p.line, op, subject, hdr, data, nil, done)
}

// get is send for a direct get: either whole receives the answer, or done an error.
func (p *publisher) get(op, subject string, data []byte, whole func(*nats.Msg), done func(Ack, error)) {
	p.call(p.getting(), op, subject, nil, data, whole, done)
}

// call publishes through a connection once the window has room.
func (p *publisher) call(l *line, op, subject string, hdr nats.Header, data []byte, whole func(*nats.Msg), done func(Ack, error)) {
	if !l.nc.IsConnected() {
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
	p.callIn(i, l, op, subject, hdr, data, whole, done)
}

// getNow is get for a caller that must not wait. It returns false, and calls nothing, if the window is full.
func (p *publisher) getNow(op, subject string, data []byte, whole func(*nats.Msg), done func(Ack, error)) bool {
	l := p.getting()
	if !l.nc.IsConnected() {
		done(Ack{}, p.mapErr.wrap(op, nats.ErrDisconnected))
		return true
	}
	select {
	case i := <-p.free:
		p.callIn(i, l, op, subject, nil, data, whole, done)
		return true
	default:
		return false
	}
}

// callIn sends a call in a free slot.
func (p *publisher) callIn(i uint32, l *line, op, subject string, hdr nats.Header, data []byte, whole func(*nats.Msg), done func(Ack, error)) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.free <- i
		done(Ack{}, p.mapErr.wrap(op, nats.ErrConnectionClosed))
		return
	}
	s := &p.slots[i]
	s.gen++
	s.busy, s.line, s.at, s.op, s.done, s.whole = true, l, time.Since(p.start), op, done, whole
	token := uint64(s.gen)<<32 | uint64(i)
	p.mu.Unlock()
	err := l.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: l.prefix + strconv.FormatUint(token, 36), Header: hdr, Data: data})
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

// finishWhole answers a direct get. It returns false for any other call.
func (p *publisher) finishWhole(token uint64, m *nats.Msg) bool {
	i, gen := uint32(token), uint32(token>>32)
	p.mu.Lock()
	if int(i) >= len(p.slots) || p.slots[i].gen != gen || !p.slots[i].busy || p.slots[i].whole == nil {
		p.mu.Unlock()
		return false
	}
	s := &p.slots[i]
	whole, l := s.whole, s.line
	s.busy, s.done, s.whole = false, nil, nil
	p.mu.Unlock()
	l.answered()
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

// expire fails calls whose answer does not come in time.
func (p *publisher) expire() {
	t := time.NewTicker(max(p.timeout/20, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-t.C:
			p.fail(nil, time.Since(p.start)-p.timeout, context.DeadlineExceeded)
		}
	}
}

// watch fails all calls in flight through a connection when that breaks.
func (p *publisher) watch(l *line) {
	status := l.status
	for {
		select {
		case <-p.stop:
			return
		case st, ok := <-status:
			if !ok {
				status = nil // the connection is closed for good
				st = nats.CLOSED
			}
			down := st != nats.CONNECTED
			if l == &p.line {
				p.down.Store(down)
			}
			if down {
				p.breakAll(l)
				p.fail(l, time.Since(p.start)+1, nats.ErrDisconnected)
			}
		}
	}
}

// reconnects returns how often the connection was established again.
func (p *publisher) reconnects() uint64 { return p.nc.Stats().Reconnects }

// onBreak is Client.OnBreak for one of the connections.
func (p *publisher) onBreak(l *line, f func()) (forget func(), ok bool) {
	p.mu.Lock()
	l.breaks[&f] = struct{}{}
	p.mu.Unlock()
	forget = func() {
		p.mu.Lock()
		delete(l.breaks, &f)
		p.mu.Unlock()
	}
	// Only now: a break before this line would not be noticed otherwise.
	if !l.nc.IsConnected() {
		forget()
		return func() {}, false
	}
	return forget, true
}

func (p *publisher) breakAll(l *line) {
	p.mu.Lock()
	fs := l.breaks
	l.breaks = map[*func()]struct{}{}
	p.mu.Unlock()
	for f := range fs {
		(*f)()
	}
}

// fail fails every call that was sent through a connection, nil for each of them, before an instant.
func (p *publisher) fail(l *line, before time.Duration, err error) {
	var tokens []uint64
	p.mu.Lock()
	for i := range p.slots {
		if s := &p.slots[i]; s.busy && s.at < before && (l == nil || s.line == l) {
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
	for _, l := range p.lines() {
		if !l.nc.IsClosed() { // it has closed the channel otherwise
			l.nc.RemoveStatusListener(l.status)
		}
		// The connection may be gone already; then so is the subscription.
		_ = l.sub.Unsubscribe()
	}
	p.fail(nil, 1<<63-1, nats.ErrConnectionClosed)
}
