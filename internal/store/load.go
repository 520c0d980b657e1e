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

// maxMultiLast is how many subjects the server answers at most in one
// multi-subject direct get (server/stream.go, getDirectMulti); more is a 413.
const maxMultiLast = 1024

var (
	errTooMany = errors.New("more results than one answer holds")
	errBehind  = errors.New("the replica that answered is behind")
)

// directGet is a request for several messages; see JetStream's ADR-31.
type directGet struct {
	MultiLast []string `json:"multi_last,omitempty"`
	NextFor   string   `json:"next_by_subj,omitempty"`
	Seq       uint64   `json:"seq,omitempty"`
	Batch     int      `json:"batch,omitempty"`
}

// direct sends a direct get and collects the answers up to the end mark. more is
// how many messages would follow; upTo is the sequence as of which a multi-last
// request was answered.
func (s *Store) direct(ctx context.Context, stream string, req directGet) (out []*jetstream.RawStreamMsg, more, upTo uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	body, err := json.Marshal(req)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("store: %w", err)
	}
	inbox := s.nc.NewInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, 0, 0, mapError("read "+stream, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, 0, 0, mapError("read "+stream, err)
	}
	if err := s.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
		return nil, 0, 0, mapError("read "+stream, err)
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, 0, 0, mapError("read "+stream, err)
		}
		switch status := m.Header.Get("Status"); status {
		case "":
		case "204":
			more, _ = strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64) // absent: 0
			upTo, _ = strconv.ParseUint(m.Header.Get("Nats-UpTo-Sequence"), 10, 64)
			return out, more, upTo, nil
		case "404":
			return out, 0, 0, nil
		case "413":
			return nil, 0, 0, errTooMany
		case "503":
			return nil, 0, 0, mapError("read "+stream, nats.ErrNoResponders)
		default:
			return nil, 0, 0, schemas.Errorf(schemas.CodeUnavailable, "read %s: JetStream answers %s %s", stream, status, m.Header.Get("Description"))
		}
		raw, err := rawMessage(m)
		if err != nil {
			return nil, 0, 0, mapError("read "+stream, err)
		}
		out = append(out, raw)
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

// lastFor reads the last message of each subject (which may have wildcards) of a
// shard. The shard's meta key is always asked for, too: it makes the answer come
// with the sequence as of which it was given, even where nothing else matches.
func (s *Store) lastFor(ctx context.Context, shard int, subjects []string, seen uint64) ([]*jetstream.RawStreamMsg, error) {
	sh := &s.subjects[shard]
	const chunk = maxMultiLast - 24
	var out []*jetstream.RawStreamMsg
	for len(subjects) > 0 {
		n := min(len(subjects), chunk)
		ask := append(append(make([]string, 0, n+1), subjects[:n]...), sh.meta)
		got, _, upTo, err := s.direct(ctx, sh.stream, directGet{MultiLast: ask})
		if err != nil {
			return nil, err
		}
		if upTo < seen {
			return nil, schemas.Errorf(schemas.CodeUnavailable, "read %s: %w (%d of %d)", sh.stream, errBehind, upTo, seen)
		}
		for _, m := range got {
			if m.Subject != sh.meta {
				out = append(out, m)
			}
		}
		subjects = subjects[n:]
	}
	return out, nil
}

// LoadTicks reads the records that the index names for the ticks of a shard, at
// most about limit of them. If there are more in several ticks, the answer is
// incomplete and empty; a single tick is answered page by page, after being the
// last page's Next. seen is a sequence that the answering replica must have
// reached.
func (s *Store) LoadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64) (Load, error) {
	limit = min(limit, maxMultiLast-24)
	if after == 0 {
		load, err := s.loadAtOnce(ctx, shard, ticks, limit, seen)
		if !errors.Is(err, errTooMany) {
			return load, err
		}
		if len(ticks) > 1 {
			return Load{}, nil
		}
	}
	return s.loadPage(ctx, shard, ticks[0], limit, after, seen)
}

func (s *Store) loadAtOnce(ctx context.Context, shard int, ticks []int64, limit int, seen uint64) (Load, error) {
	subjects := make([]string, len(ticks))
	for i, t := range ticks {
		subjects[i] = s.slotFilter(shard, t)
	}
	index, err := s.lastFor(ctx, shard, subjects, seen)
	if err != nil {
		return Load{}, err
	}
	if len(index) > limit {
		return Load{}, errTooMany
	}
	timers, err := s.indexed(ctx, shard, index, seen)
	return Load{Timers: timers, Complete: err == nil}, err
}

// loadPage reads a page of a tick that holds more than one answer does, in
// stream order.
func (s *Store) loadPage(ctx context.Context, shard int, tick int64, limit int, after, seen uint64) (Load, error) {
	index, more, _, err := s.direct(ctx, s.subjects[shard].stream, directGet{NextFor: s.slotFilter(shard, tick), Seq: after + 1, Batch: limit})
	if err != nil || len(index) == 0 {
		return Load{Complete: err == nil}, err
	}
	timers, err := s.indexed(ctx, shard, index, seen)
	if err != nil {
		return Load{}, err
	}
	load := Load{Timers: timers, Complete: true}
	if more > 0 {
		load.Next = index[len(index)-1].Sequence
	}
	return load, nil
}

func (s *Store) slotFilter(shard int, tick int64) string {
	return s.subjects[shard].slot + strconv.FormatInt(s.geo.Slot(tick), 10) + ".>"
}

// indexed reads the records that index entries name. A record that cannot be
// decoded is logged and left out: it must not stop the others.
func (s *Store) indexed(ctx context.Context, shard int, index []*jetstream.RawStreamMsg, seen uint64) ([]Timer, error) {
	subjects := make([]string, 0, len(index))
	for _, m := range index {
		subjects = append(subjects, s.subjects[shard].timer+m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	}
	got, err := s.lastFor(ctx, shard, subjects, seen)
	if err != nil {
		return nil, err
	}
	return s.decodeAll(got), nil
}

func (s *Store) decodeAll(msgs []*jetstream.RawStreamMsg) []Timer {
	timers := make([]Timer, 0, len(msgs))
	for _, m := range msgs {
		t, err := s.timer(m)
		if err != nil {
			s.log.Error().Str("key", m.Subject).Uint64("revision", m.Sequence).Err(err).Msg("record skipped: it cannot be decoded")
			continue
		}
		timers = append(timers, t)
	}
	return timers
}

// ScanQueued reads every record of a shard once, in stream order, and hands over
// those that are due by throughMs and not concluded: waiting, or claimed. Its
// cost is that of the whole shard; it is for a mark that is older than the index.
func (s *Store) ScanQueued(ctx context.Context, shard int, throughMs int64, fn func(Timer) error) error {
	sh := &s.subjects[shard]
	const batch = 500
	for after := uint64(0); ; {
		msgs, more, _, err := s.direct(ctx, sh.stream, directGet{NextFor: sh.timer + "*", Seq: after + 1, Batch: batch})
		if err != nil {
			return err
		}
		for _, t := range s.decodeAll(msgs) {
			r := &t.Record
			if r.DueMs <= throughMs && (r.Pending() || r.State == schemas.StateDelivered) {
				if err := fn(t); err != nil {
					return err
				}
			}
		}
		if more == 0 || len(msgs) == 0 {
			return nil
		}
		after = msgs[len(msgs)-1].Sequence
	}
}
