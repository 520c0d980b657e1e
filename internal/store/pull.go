package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// puller reads a consumer in rounds: a request takes what there is, or waits for
// the first message if there is nothing, and ends with the last one that there is.
// The next one follows not before roundPace has passed since the round began, unless
// there was more than a round holds.
//
// The client's own iterator has a request open all the time, so that on a busy
// stream the server is woken, and wakes the client, for each message by itself;
// and it makes three timers for each. A round is one wake-up for what came in two
// milliseconds. What was overwritten meanwhile is not sent at all. And since each
// message of a round has its place in the buffer, and nothing is sent between
// rounds, none is ever dropped for want of room, however long the reader is away.
type puller struct {
	subject string // of requests
	inbox   string
	nc      *nats.Conn
	sub     *nats.Subscription
	arrived chan *nats.Msg
	timer   *time.Timer

	open  bool // a request is under way
	got   int  // of the round
	sum   uint64
	begun time.Time
}

const (
	roundMost = 1024
	// roundSpare is room for a round's end and for heartbeats, which come while the
	// request waits for its first message and the reader is there.
	roundSpare = 16
	// roundPace is the least time from round to round, and so what a record that is
	// due at once may be late by; it is that of the router's groups, too.
	roundPace   = 2 * time.Millisecond
	roundExpiry = 30 * time.Second
)

const lastConsumerHeader = "Nats-Last-Consumer"

var errNoHeartbeat = errors.New("nothing was heard of the consumer")

// roundRequest asks for a round.
var roundRequest = fmt.Appendf(nil, `{"batch":%d,"no_wait":true,"expires":%d,"idle_heartbeat":%d}`, roundMost, roundExpiry, tailHeartbeat)

// nextSubject is where a consumer is asked for messages.
func nextSubject(stream, consumer string) string {
	return "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer
}

func newPuller(nc *nats.Conn, stream, consumer string) (*puller, error) {
	p := &puller{
		subject: nextSubject(stream, consumer), inbox: nc.NewInbox(), nc: nc,
		arrived: make(chan *nats.Msg, roundMost+roundSpare), timer: time.NewTimer(time.Hour),
	}
	var err error
	p.sub, err = nc.ChanSubscribe(p.inbox, p.arrived)
	return p, err
}

func (p *puller) close() {
	p.timer.Stop()
	_ = p.sub.Unsubscribe() // fails only with the connection
}

// next returns the next message. An error is the end of the consumer, or of what
// is heard of it; the caller makes another.
func (p *puller) next(ctx context.Context) (*nats.Msg, error) {
	for {
		if !p.open {
			if err := p.begin(ctx); err != nil {
				return nil, err
			}
		}
		m, err := p.take(ctx)
		if err != nil {
			return nil, err
		}
		if len(m.Data) > 0 || m.Header.Get("Status") == "" {
			p.sum++
			if p.got++; p.got == roundMost {
				p.open = false
			}
			return m, nil
		}
		// A heartbeat says how many the consumer has sent.
		if last, err := strconv.ParseUint(m.Header.Get(lastConsumerHeader), 10, 64); err == nil && last > p.sum {
			return nil, fmt.Errorf("the client dropped messages: %d came, %d were sent", p.sum, last)
		}
		switch status := m.Header.Get("Status"); status {
		case "100": // a heartbeat
		case "404", "408": // that is all, or nothing came
			p.open = false
		default:
			return nil, fmt.Errorf("JetStream ends the request: %s %s", status, strings.TrimSpace(m.Header.Get("Description")))
		}
	}
}

// begin asks for a round, when it is time for one.
func (p *puller) begin(ctx context.Context) error {
	if rest := roundPace - time.Since(p.begun); p.got < roundMost && rest > 0 {
		p.timer.Reset(rest)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.timer.C:
		}
	}
	p.open, p.got, p.begun = true, 0, time.Now()
	return p.nc.PublishRequest(p.subject, p.inbox, roundRequest)
}

// take waits for what comes next.
func (p *puller) take(ctx context.Context) (*nats.Msg, error) {
	select {
	case m := <-p.arrived:
		return m, nil
	default:
	}
	p.timer.Reset(tailSilence)
	select {
	case m := <-p.arrived:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.timer.C:
		return nil, errNoHeartbeat
	}
}
