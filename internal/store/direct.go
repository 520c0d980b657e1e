package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

const (
	// maxMultiLast is how many subjects the server answers at most in one
	// multi-subject direct get (server/stream.go, getDirectMulti); more is a 413.
	maxMultiLast = 1024
	// maxExact is how many exact subjects one request names: one more is the
	// shard's meta key, the rest is reserve.
	maxExact = 1000
	// maxAnswer bounds the bytes of one answer, well below what makes the server
	// take a client for a slow one; the rest is asked for next.
	maxAnswer = 16 << 20
)

var (
	errTooMany = errors.New("more results than one answer holds")
	errBehind  = errors.New("the replica that answered is behind")
	errMissing = errors.New("the replica that answered does not have what it must")
)

// directGet is a request for several messages; see JetStream's ADR-31.
type directGet struct {
	MultiLast []string   `json:"multi_last,omitempty"`
	NextFor   string     `json:"next_by_subj,omitempty"`
	Seq       uint64     `json:"seq,omitempty"`
	StartTime *time.Time `json:"start_time,omitempty"`
	Batch     int        `json:"batch,omitempty"`
	MaxBytes  int        `json:"max_bytes,omitempty"`
}

// answer is what came back for a directGet: found is false for a 404, more is
// how many messages would follow, upTo the sequence as of which a multi-last
// request was answered.
type answer struct {
	msgs       []*jetstream.RawStreamMsg
	found      bool
	more, upTo uint64
}

// direct sends a direct get and collects the answers up to the end mark.
func (s *Store) direct(ctx context.Context, stream string, req directGet) (answer, error) {
	op := "read " + stream
	ctx, release, err := s.bind(ctx, op)
	if err != nil {
		return answer{}, err
	}
	defer release()
	body, err := json.Marshal(req)
	if err != nil {
		return answer{}, fmt.Errorf("store: %w", err)
	}
	a, err := again(ctx, func(ctx context.Context, heard func()) (answer, error) {
		return s.directOnce(ctx, op, stream, body, heard)
	})
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = ctxError(ctx, op, err)
	}
	return a, err
}

func (s *Store) directOnce(ctx context.Context, op, stream string, body []byte, heard func()) (answer, error) {
	inbox := s.nc.NewInbox()
	// Room for the largest answer and its end. SubscribeSync would make half a
	// megabyte of it for each request.
	arrived := make(chan *nats.Msg, maxMultiLast+1)
	sub, err := s.nc.ChanSubscribe(inbox, arrived)
	if err != nil {
		return answer{}, mapError(op, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	if err := s.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
		return answer{}, mapError(op, err)
	}
	a := answer{found: true}
	for {
		var m *nats.Msg
		select {
		case m = <-arrived:
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
		heard()
		switch status := m.Header.Get("Status"); status {
		case "":
		case "204":
			a.more, _ = strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64) // absent: 0
			a.upTo, _ = strconv.ParseUint(m.Header.Get("Nats-UpTo-Sequence"), 10, 64)
			return a, nil
		case "404":
			a.found = false
			return a, nil
		case "413":
			return answer{}, errTooMany
		case "503":
			return answer{}, mapError(op, nats.ErrNoResponders)
		default:
			return answer{}, schemas.Errorf(schemas.CodeUnavailable, "%s: JetStream answers %s %s", op, status, m.Header.Get("Description"))
		}
		raw, err := rawMessage(m)
		if err != nil {
			return answer{}, mapError(op, err)
		}
		a.msgs = append(a.msgs, raw)
	}
}

func rawMessage(m *nats.Msg) (*jetstream.RawStreamMsg, error) {
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("direct get without a sequence: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return nil, fmt.Errorf("direct get without a time stamp: %w", err)
	}
	return &jetstream.RawStreamMsg{Subject: m.Header.Get(jetstream.SubjectHeader), Sequence: seq, Time: at, Header: m.Header, Data: m.Data}, nil
}

// next reads the messages that match a filter after a sequence, in stream order.
func (s *Store) next(ctx context.Context, stream, filter string, after uint64, batch int) (msgs []*jetstream.RawStreamMsg, more uint64, err error) {
	a, err := s.direct(ctx, stream, directGet{NextFor: filter, Seq: after + 1, Batch: batch, MaxBytes: maxAnswer})
	return a.msgs, a.more, err
}

// nextRecords reads the records of a shard after a sequence, in stream order. It
// asks for all messages and leaves the index out here: with a filter the server
// counts what matches, which takes 60 ms a request in a shard of 250,000 timers.
// last is the sequence to go on after, looked how many messages that took; it
// ends with more false.
func (s *Store) nextRecords(ctx context.Context, shard int, after uint64) (records []*jetstream.RawStreamMsg, last uint64, looked int, more bool, err error) {
	sh := &s.subjects[shard]
	a, err := s.direct(ctx, sh.stream, directGet{Seq: after + 1, Batch: scanBatch, MaxBytes: maxAnswer})
	if err != nil || len(a.msgs) == 0 {
		return nil, after, 0, false, err
	}
	for _, m := range a.msgs {
		if strings.HasPrefix(m.Subject, sh.timer) {
			records = append(records, m)
		}
	}
	return records, a.msgs[len(a.msgs)-1].Sequence, len(a.msgs), a.more > 0, nil
}

// lastFor reads the last message of each subject (which may have wildcards) of a
// shard. The shard's meta key is always asked for, too: with it there is always
// something to answer, and the answer comes with the sequence as of which it was
// given.
func (s *Store) lastFor(ctx context.Context, shard int, subjects []string, seen uint64) ([]*jetstream.RawStreamMsg, error) {
	sh := &s.subjects[shard]
	var out []*jetstream.RawStreamMsg
	for len(subjects) > 0 {
		n := min(len(subjects), maxExact)
		req := directGet{MultiLast: append(append(make([]string, 0, n+1), subjects[:n]...), sh.meta), MaxBytes: maxAnswer}
		for {
			a, err := s.direct(ctx, sh.stream, req)
			if err != nil {
				return nil, err
			}
			if err := checkFresh(sh.stream, &a, req.Seq > 0, seen); err != nil {
				return nil, err
			}
			for _, m := range a.msgs {
				if m.Subject != sh.meta {
					out = append(out, m)
				}
			}
			if a.more == 0 || len(a.msgs) == 0 {
				break
			}
			req.Seq = a.msgs[len(a.msgs)-1].Sequence + 1
		}
		subjects = subjects[n:]
	}
	return out, nil
}

// checkFresh refuses an answer that cannot be taken for the truth. A 404 to a
// first request contradicts the meta key: the replica is empty still, or a
// message that it had found could not be read.
func checkFresh(stream string, a *answer, rest bool, seen uint64) error {
	switch {
	case !a.found && rest:
		return nil
	case !a.found:
		return schemas.Errorf(schemas.CodeUnavailable, "read %s: %w", stream, errMissing)
	case a.upTo < seen:
		return schemas.Errorf(schemas.CodeUnavailable, "read %s: %w (at %d of %d)", stream, errBehind, a.upTo, seen)
	}
	return nil
}

// getLast reads the last message of a subject from the stream's leader.
func (s *Store) getLast(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	req, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	var r struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Seq  uint64    `json:"seq"`
			Hdrs []byte    `json:"hdrs"`
			Data []byte    `json:"data"`
			Time time.Time `json:"time"`
		} `json:"message"`
	}
	op := "read " + subject
	if err := s.request(ctx, op, "$JS.API.STREAM.MSG.GET."+stream, req, &r); err != nil {
		return nil, err
	}
	if r.Error != nil {
		return nil, apiError(op, r.Error)
	}
	if r.Message == nil {
		return nil, schemas.ErrNotFound
	}
	m := &jetstream.RawStreamMsg{Subject: subject, Sequence: r.Message.Seq, Data: r.Message.Data, Time: r.Message.Time}
	if len(r.Message.Hdrs) > 0 {
		if m.Header, err = nats.DecodeHeadersMsg(r.Message.Hdrs); err != nil {
			return nil, mapError(op, err)
		}
	}
	return m, nil
}

// streamState asks the stream's leader.
func (s *Store) streamState(ctx context.Context, stream string) (jetstream.StreamInfo, error) {
	var r struct {
		Error *jetstream.APIError `json:"error"`
		jetstream.StreamInfo
	}
	op := "look up stream " + stream
	if err := s.request(ctx, op, "$JS.API.STREAM.INFO."+stream, nil, &r); err != nil {
		return r.StreamInfo, err
	}
	if r.Error != nil {
		return r.StreamInfo, apiError(op, r.Error)
	}
	return r.StreamInfo, nil
}

// request asks JetStream's API what changes nothing, and decodes the answer.
func (s *Store) request(ctx context.Context, op, subject string, body []byte, into any) error {
	return s.ask(ctx, op, into, func(ctx context.Context) (*nats.Msg, error) {
		return again(ctx, func(ctx context.Context, _ func()) (*nats.Msg, error) {
			return s.nc.RequestWithContext(ctx, subject, body)
		})
	})
}

// change asks JetStream's API for a change, once: a second request would be
// answered with what the first one did.
func (s *Store) change(ctx context.Context, op, subject string, body []byte, into any) error {
	return s.ask(ctx, op, into, func(ctx context.Context) (*nats.Msg, error) {
		return s.nc.RequestWithContext(ctx, subject, body)
	})
}

func (s *Store) ask(ctx context.Context, op string, into any, send func(context.Context) (*nats.Msg, error)) error {
	ctx, release, err := s.bind(ctx, op)
	if err != nil {
		return err
	}
	defer release()
	resp, err := send(ctx)
	if err != nil {
		return ctxError(ctx, op, err)
	}
	if err := json.Unmarshal(resp.Data, into); err != nil {
		return mapError(op, err)
	}
	return nil
}

// bind bounds a call by Config.Timeout and by the connection: when that breaks,
// the answer is lost and there is nothing to wait for.
func (s *Store) bind(ctx context.Context, op string) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, mapError(op, err)
	}
	ctx, cancelTimeout := context.WithTimeout(ctx, s.cfg.Timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	forget, ok := s.pub.onBreak(func() { cancel(nats.ErrDisconnected) })
	release := func() {
		forget()
		cancel(nil)
		cancelTimeout()
	}
	if !ok {
		release()
		return nil, nil, mapError(op, nats.ErrDisconnected)
	}
	return ctx, release, nil
}

// ctxError maps an error of a bound call.
func ctxError(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, nats.ErrDisconnected) {
		return mapError(op, cause)
	}
	return mapError(op, err)
}
