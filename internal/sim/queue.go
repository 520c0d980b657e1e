package sim

import (
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/schemas"
)

// consumer is a durable consumer of a stream of events. It delivers each message to one of
// the running nodes, and again after ackWait until it is acknowledged.
type consumer struct {
	w       *world
	stream  string
	service string // of the subject, empty for all
	ackWait time.Duration
	handle  func(n *node, m *msg)
	// stalled is the time, in Unix nanoseconds, until which no node pulls from it.
	stalled int64
	// floor is the sequence up to which all messages are acknowledged or have left the stream, open are the later ones.
	floor uint64
	open  []*outstanding
}

// outstanding is one message that is not acknowledged.
type outstanding struct {
	seq        uint64
	deliveries uint64
	acked      bool
}

// msg is one delivery of a message to a node.
type msg struct {
	fake.Event
	c          *consumer
	o          *outstanding
	n          *node
	deliveries uint64
	sentAt     int64 // the true time at which the consumer sent it
}

const addAckWait = 3 * time.Second

// pullsFor bounds how long pull requests of a paused process receive messages.
const pullsFor = 5 * time.Second

// openQueues makes the consumers.
func (w *world) openQueues() {
	w.queues = append(w.queues, &consumer{w: w, stream: schemas.StreamAdd, ackWait: addAckWait, handle: (*node).routeAdd})
	for _, svc := range services {
		for _, stream := range [...]string{schemas.StreamFired, schemas.StreamRetry} {
			w.queues = append(w.queues, &consumer{w: w, stream: stream, service: svc, ackWait: 5 * time.Second, handle: (*node).callBack})
		}
	}
}

// firedFloor returns the sequence up to which all events of a service in TIMERS_FIRED are acknowledged or have left the stream.
func (w *world) firedFloor(svc string) uint64 {
	for _, c := range w.queues {
		if c.stream != schemas.StreamFired || c.service != svc {
			continue
		}
		for len(c.open) > 0 {
			if _, there := w.server.Event(c.stream, c.open[0].seq); there && !c.open[0].acked {
				break
			}
			c.floor, c.open = c.open[0].seq, c.open[1:]
		}
		return c.floor
	}
	return 0
}

// offer hands a new message to the consumers of its stream.
func (w *world) offer(stream string, e fake.Event) {
	for _, c := range w.queues {
		if c.stream == stream && (c.service == "" || c.service == schemas.ServiceOfSubject(e.Subject)) {
			o := &outstanding{seq: e.Seq}
			c.open = append(c.open, o)
			w.after(w.net.delay(), func() { c.deliver(o) })
		}
	}
}

func (c *consumer) deliver(o *outstanding) {
	w := c.w
	if o.acked {
		return
	}
	e, there := w.server.Event(c.stream, o.seq)
	if !there {
		return // the message has left the stream
	}
	if w.now < c.stalled {
		w.at(c.stalled+int64(w.between(0, time.Second)), func() { c.deliver(o) })
		return
	}
	n := w.someNode()
	if n == nil || w.net.leader[c.stream] < 0 {
		w.after(w.between(100*time.Millisecond, 500*time.Millisecond), func() { c.deliver(o) })
		return
	}
	o.deliveries++
	count := o.deliveries
	w.after(c.ackWait, func() {
		if o.deliveries == count {
			c.deliver(o)
		}
	})
	if w.net.loses() {
		return
	}
	inc, m := n.inc, &msg{Event: e, c: c, o: o, n: n, deliveries: count, sentAt: w.now}
	w.after(w.net.delay(), func() {
		n.run(inc, func() { c.handle(n, m) })
	})
}

// someNode returns a node that takes messages and requests, nil if there is none.
func (w *world) someNode() *node {
	first := w.rng.IntN(len(w.nodes))
	for i := range w.nodes {
		n := w.nodes[(first+i)%len(w.nodes)]
		// A paused node sends no new pull requests, but its open requests still receive messages.
		if n.serves() && w.now >= n.cutUntil && (!n.paused || w.now < n.pausedAt+int64(pullsFor)) {
			return n
		}
	}
	return nil
}

// send carries an acknowledgement, or loses it.
func (m *msg) send(f func()) {
	w := m.c.w
	if w.now < m.n.cutUntil || w.net.loses() || w.net.leader[m.c.stream] < 0 {
		return
	}
	w.after(w.net.delay(), f)
}

// ack ends the message.
func (m *msg) ack() {
	m.send(func() {
		m.o.acked = true
		if m.c.stream != schemas.StreamFired {
			// A work queue removes an acknowledged message. The message exists, so this cannot
			// fail.
			_ = m.c.w.server.Remove(m.c.stream, m.o.seq)
		}
	})
}

// nak makes the consumer deliver the message again after a pause.
func (m *msg) nak(d time.Duration) {
	m.send(func() {
		m.c.w.after(d, func() {
			if m.o.deliveries == m.deliveries {
				m.c.deliver(m.o)
			}
		})
	})
}
