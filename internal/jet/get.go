package jet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// MaxMultiLast is the most subjects that the server answers in one multi-subject
	// direct get (server/stream.go, getDirectMulti); it answers 413 to more.
	MaxMultiLast = 1024
	// MaxSubjects is the most exact subjects that LastEach names in one request; the rest
	// of MaxMultiLast is for the witness key and a reserve.
	MaxSubjects = 1000
	// MaxAnswerBytes bounds the bytes of one answer, well below what makes the server
	// regard a client as slow; the next request gets the rest.
	MaxAnswerBytes = 16 << 20
)

// Get requests several messages by direct get; see JetStream's ADR-31.
type Get struct {
	// MultiLast are subjects, with or without wildcards, of which the last messages are
	// wanted.
	MultiLast []string `json:"multi_last,omitempty"`
	// NextFor is a subject of which the messages from Seq, or StartTime, on are wanted.
	NextFor   string     `json:"next_by_subj,omitempty"`
	Seq       uint64     `json:"seq,omitempty"`
	StartTime *time.Time `json:"start_time,omitempty"`
	// Batch bounds the number of messages of the answer, MaxBytes their size.
	Batch    int `json:"batch,omitempty"`
	MaxBytes int `json:"max_bytes,omitempty"`
}

// Answer is the answer to a Get.
type Answer struct {
	Msgs []*Msg
	// Found is false if the replica has no such message.
	Found bool
	// More is the number of messages that would follow.
	More uint64
	// UpTo is the sequence as of which the replica answered a Get with MultiLast.
	UpTo uint64
}

// Reads reads messages: of the stream's leader (Last, At, Has), of any replica (Direct,
// PeekAsync, Next, LastEach), or many of them in stream order (Scan). What a replica answers
// may be stale; only a compare-and-set decides. LastEach and Scan notice a replica that is
// behind.
//
// Reads are hedged, except PeekAsync. Errors: ErrNotFound, ErrNoStream, ErrTooMany, and
// ErrUnavailable, which comes with ErrBehind or ErrMissing if a replica answered wrongly.
type Reads struct{ conn *Connection }

// Direct makes a direct get. Any replica may answer and be behind. Errors: ErrTooMany,
// ErrUnavailable.
func (c *Reads) Direct(ctx context.Context, stream string, req Get) (Answer, error) {
	op := "read " + stream
	first := c.conn.pub.getting()
	ctx, release, err := c.conn.bindTo(ctx, first, op)
	if err != nil {
		return Answer{}, err
	}
	defer release()
	body, err := json.Marshal(req)
	if err != nil {
		return Answer{}, fmt.Errorf("jet: %w", err)
	}
	var again atomic.Bool
	a, err := hedge(ctx, func(ctx context.Context, heard func()) (Answer, error) {
		l := first
		if again.Swap(true) {
			l = c.conn.pub.getting()
		}
		return c.directOnce(ctx, l, op, stream, body, max(req.Batch, MaxMultiLast), heard)
	})
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = c.conn.ctxError(ctx, op, err)
	}
	return a, err
}

// directOnce sends a direct get through a connection and collects the messages, at most as many as most, up to the end mark.
func (c *Reads) directOnce(ctx context.Context, l *line, op, stream string, body []byte, most int, heard func()) (Answer, error) {
	inbox := l.nc.NewInbox()
	// The channel holds the largest answer and its end mark. SubscribeSync would allocate
	// half a megabyte for each request.
	arrived := make(chan *nats.Msg, most+1)
	sub, err := l.nc.ChanSubscribe(inbox, arrived)
	if err != nil {
		return Answer{}, c.conn.mapErr.wrap(op, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	if err := l.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
		return Answer{}, c.conn.mapErr.wrap(op, err)
	}
	a := Answer{Found: true}
	for {
		var m *nats.Msg
		select {
		case m = <-arrived:
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		}
		heard()
		status := m.Header.Get(headerStatus)
		if status != "503" {
			l.answered()
		}
		switch status {
		case "":
		case "204":
			a.More, _ = strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64) // absent: 0
			a.UpTo, _ = strconv.ParseUint(m.Header.Get("Nats-UpTo-Sequence"), 10, 64)
			return a, nil
		case "404":
			a.Found = false
			return a, nil
		case "413":
			return Answer{}, ErrTooMany
		case "503":
			return Answer{}, c.conn.mapErr.wrap(op, nats.ErrNoResponders)
		default:
			return Answer{}, c.conn.mapErr.errorf(ErrUnavailable, "%s: JetStream answers %s %s", op, status, m.Header.Get("Description"))
		}
		raw, err := directMsg(m)
		if err != nil {
			return Answer{}, c.conn.mapErr.wrap(op, err)
		}
		a.Msgs = append(a.Msgs, raw)
	}
}

func directMsg(m *nats.Msg) (*Msg, error) {
	seq, err := directSeq(m)
	if err != nil {
		return nil, err
	}
	at, err := time.Parse(time.RFC3339Nano, serversValue(m, jetstream.TimeStampHeaer))
	if err != nil {
		return nil, fmt.Errorf("direct get without a time stamp: %w", err)
	}
	return &Msg{Subject: serversValue(m, jetstream.SubjectHeader), Sequence: seq, Time: at, Header: m.Header, Data: m.Data}, nil
}

// serversValue returns the value of a header that the server adds to the message of a direct get. The server adds it at
// the end: a header with which the message was stored may have the same name.
func serversValue(m *nats.Msg, header string) string {
	v := m.Header[header]
	if len(v) == 0 {
		return ""
	}
	return v[len(v)-1]
}

func directSeq(m *nats.Msg) (uint64, error) {
	seq, err := strconv.ParseUint(serversValue(m, jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("direct get without a sequence: %w", err)
	}
	return seq, nil
}

// PeekAsync reads the last message of a subject by direct get, at a third of the cost of
// Last. Any replica may answer and be behind. The message has no Time. The server reads
// inside the loop that takes the direct gets of this client, so PeekAsync suits messages that
// are likely to be in its memory. It blocks only while the window is full; done must not
// block. Errors: ErrNotFound, ErrUnavailable.
func (c *Reads) PeekAsync(op, stream, subject string, done func(Peeked)) {
	c.conn.pub.get(op, "$JS.API.DIRECT.GET."+stream+"."+subject, nil,
		func(m *nats.Msg) { done(Peeked{c: c, op: op, msg: m}) },
		func(_ Ack, err error) { done(Peeked{err: err}) })
}

// Peeked is the answer to PeekAsync, decoded by Msg on the goroutine that wants it.
type Peeked struct {
	c   *Reads
	op  string
	msg *nats.Msg
	err error
}

// Msg decodes the answer.
func (p Peeked) Msg() (Msg, error) {
	if p.err != nil {
		return Msg{}, p.err
	}
	if p.msg.Header.Get(headerStatus) != "" { // whatever it says, no message came
		return Msg{}, p.c.conn.mapErr.notFound()
	}
	seq, err := directSeq(p.msg)
	if err != nil {
		return Msg{}, p.c.conn.mapErr.wrap(p.op, err)
	}
	return Msg{Sequence: seq, Header: p.msg.Header, Data: p.msg.Data}, nil
}

// Next reads the messages that match a filter after a sequence, in stream order, by
// direct get. more is the number of messages that follow.
func (c *Reads) Next(ctx context.Context, stream, filter string, after uint64, batch int) (msgs []*Msg, more uint64, err error) {
	a, err := c.Direct(ctx, stream, Get{NextFor: filter, Seq: after + 1, Batch: batch, MaxBytes: MaxAnswerBytes})
	return a.Msgs, a.More, err
}

// LastEach reads the last message of each subject (which may have wildcards) by direct
// get, all of a replica that has reached the sequence minSeq. witness is a key of the
// stream that always exists: with it there is always something to answer, so that an
// empty answer is known to be wrong, and the answer says as of which sequence it was
// given. The server also answers "not found" to the whole request if it cannot read one of
// the messages: work-around 2 (docs/internals/nats-server.md). Errors: ErrTooMany; ErrUnavailable, with ErrBehind or ErrMissing.
func (c *Reads) LastEach(ctx context.Context, stream, witness string, subjects []string, minSeq uint64) ([]*Msg, error) {
	var out []*Msg
	for len(subjects) > 0 {
		n := min(len(subjects), MaxSubjects)
		req := Get{MultiLast: append(append(make([]string, 0, n+1), subjects[:n]...), witness), MaxBytes: MaxAnswerBytes}
		for {
			a, err := c.Direct(ctx, stream, req)
			if err != nil {
				return nil, err
			}
			if err := c.checkFresh(stream, &a, req.Seq > 0, minSeq); err != nil {
				return nil, err
			}
			for _, m := range a.Msgs {
				if m.Subject != witness {
					out = append(out, m)
				}
			}
			if a.More == 0 || len(a.Msgs) == 0 {
				break
			}
			req.Seq = a.Msgs[len(a.Msgs)-1].Sequence + 1
		}
		subjects = subjects[n:]
	}
	return out, nil
}

// checkFresh rejects an answer that cannot be true. A 404 to a first request contradicts
// the witness key: the replica is still empty, or it could not read a message that its
// index has. rest marks a later request of the same read.
func (c *Reads) checkFresh(stream string, a *Answer, rest bool, minSeq uint64) error {
	switch {
	case !a.Found && rest:
		return nil
	case !a.Found:
		return c.conn.mapErr.errorf(ErrUnavailable, "read %s: %w", stream, ErrMissing)
	case a.UpTo < minSeq:
		return c.conn.mapErr.errorf(ErrUnavailable, "read %s: %w (at %d of %d)", stream, ErrBehind, a.UpTo, minSeq)
	}
	return nil
}

// apiMsg is a message as the stream's leader answers it.
type apiMsg struct {
	Error   *jetstream.APIError `json:"error"`
	Message *struct {
		Subject string    `json:"subject"`
		Seq     uint64    `json:"seq"`
		Hdrs    []byte    `json:"hdrs"`
		Data    []byte    `json:"data"`
		Time    time.Time `json:"time"`
	} `json:"message"`
}

// Last reads the last message of a subject, which may have wildcards, from the stream's
// leader. Errors: ErrNotFound, ErrUnavailable.
func (c *Reads) Last(ctx context.Context, stream, subject string) (*Msg, error) {
	req, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, fmt.Errorf("jet: %w", err)
	}
	return c.leaderGet(ctx, "read "+subject, stream, req)
}

// At reads the message of a sequence from the stream's leader. Errors: ErrNotFound,
// ErrUnavailable.
func (c *Reads) At(ctx context.Context, stream string, seq uint64) (*Msg, error) {
	return c.leaderGet(ctx, fmt.Sprintf("read %s, sequence %d", stream, seq), stream, fmt.Appendf(nil, `{"seq":%d}`, seq))
}

// Has asks the stream's leader whether a message exists.
func (c *Reads) Has(ctx context.Context, stream string, seq uint64) (bool, error) {
	_, err := c.At(ctx, stream, seq)
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// HasNext asks the stream's leader whether a message that matches a filter follows a sequence.
// Errors: ErrUnavailable.
func (c *Reads) HasNext(ctx context.Context, stream, filter string, after uint64) (bool, error) {
	req, err := json.Marshal(Get{NextFor: filter, Seq: after + 1})
	if err != nil {
		return false, fmt.Errorf("jet: %w", err)
	}
	_, err = c.leaderGet(ctx, "read "+stream, stream, req)
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (c *Reads) leaderGet(ctx context.Context, op, stream string, req []byte) (*Msg, error) {
	var r apiMsg
	if err := c.conn.call(ctx, op, "$JS.API.STREAM.MSG.GET."+stream, req, &r); err != nil {
		return nil, err
	}
	if r.Error != nil {
		return nil, c.conn.mapErr.wrap(op, r.Error)
	}
	if r.Message == nil {
		return nil, c.conn.mapErr.notFound()
	}
	m := &Msg{Subject: r.Message.Subject, Sequence: r.Message.Seq, Data: r.Message.Data, Time: r.Message.Time}
	if len(r.Message.Hdrs) > 0 {
		var err error
		if m.Header, err = nats.DecodeHeadersMsg(r.Message.Hdrs); err != nil {
			return nil, c.conn.mapErr.wrap(op, err)
		}
	}
	return m, nil
}
