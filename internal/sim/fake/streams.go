package fake

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// streamOf returns the name of the stream that captures a subject, or "".
func streamOf(subject string) string {
	one := func(prefix string) bool {
		rest, ok := strings.CutPrefix(subject, prefix)
		return ok && rest != "" && !strings.Contains(rest, ".")
	}
	switch {
	case subject == schemas.SubjectAdd:
		return schemas.StreamAdd
	case one(schemas.SubjectFiredPrefix):
		return schemas.StreamFired
	case one(schemas.SubjectRetryPrefix):
		return schemas.StreamRetry
	case one(schemas.SubjectDeadPrefix):
		return schemas.StreamDead
	case one(schemas.SubjectOverduePrefix):
		return schemas.StreamOverdue
	case subject == schemas.SubjectRejected:
		return schemas.StreamRejected
	}
	return ""
}

// publishing returns the request that publishes a message. Its step sets seq and duplicate.
func (c *Client) publishing(m store.Msg, seq *uint64, duplicate *bool) (Request, error) {
	name := streamOf(m.Subject)
	if name == "" {
		return Request{}, schemas.Errorf(schemas.CodeUnavailable, "publish %s: no stream captures it", m.Subject)
	}
	st := c.s.streams[name]
	return Request{Stream: name, Steps: []func(uint64) error{func(uint64) error {
		if err := c.s.refusesMsg(m); err != nil {
			return err
		}
		*seq, *duplicate = st.publish(eventOf(m))
		return nil
	}}}, nil
}

// Publish publishes a message and waits for the answer.
func (c *Client) Publish(ctx context.Context, m store.Msg) (seq uint64, duplicate bool, err error) {
	r, err := c.publishing(m, &seq, &duplicate)
	if err == nil {
		err = c.t.Do(ctx, r)
	}
	return seq, duplicate, err
}

// PublishAsync publishes a message and calls done with the answer.
func (c *Client) PublishAsync(m store.Msg, done func(seq uint64, duplicate bool, err error)) {
	seq, duplicate := new(uint64), new(bool)
	r, err := c.publishing(m, seq, duplicate)
	if err != nil {
		done(0, false, err)
		return
	}
	c.t.Start(r, func(err error) { done(*seq, *duplicate, err) })
}

// FiredSince returns the message ids among ids that were published since a time; see
// store.Store. Like a consumer it may read from a replica.
func (c *Client) FiredSince(ctx context.Context, subjects []string, since time.Time, ids map[string]struct{}) (map[string]struct{}, error) {
	found := map[string]struct{}{}
	for _, name := range [...]string{schemas.StreamFired, schemas.StreamRetry, schemas.StreamDead, schemas.StreamOverdue} {
		var filter []string
		for _, sub := range subjects {
			if streamOf(sub) == name {
				filter = append(filter, sub)
			}
		}
		if len(filter) == 0 {
			continue
		}
		// A consumer starts at the first message since that time. TIMERS_RETRY is a work
		// queue and is read from its beginning.
		in := func(m *message) bool { return name == schemas.StreamRetry || m.at >= since.UnixNano() }
		if err := c.find(ctx, name, filter, in, ids, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// find adds the ids that a stream has on the subjects of filter, from the first message for which in returns true on, to
// found.
func (c *Client) find(ctx context.Context, name string, filter []string, in func(*message) bool, ids, found map[string]struct{}) error {
	st := c.s.streams[name]
	var newest uint64
	if name != schemas.StreamRetry {
		var err error
		if newest, err = c.newest(ctx, name, func(m *message) bool { return slices.Contains(filter, m.subject) && in(m) }); err != nil {
			return err
		}
	}
	return c.direct(ctx, name, func(upTo uint64) error {
		if upTo < newest {
			return errBehind
		}
		from := slices.IndexFunc(st.log, func(m *message) bool { return st.alive(m) && in(m) })
		if from < 0 {
			return nil
		}
		for _, m := range st.log[from:] {
			if _, asked := ids[m.msgID]; asked && m.seq <= upTo && st.alive(m) && slices.Contains(filter, m.subject) {
				found[m.msgID] = struct{}{}
			}
		}
		return nil
	})
}

// FiredBacklog returns the backlog of a service; see store.Events. The floor is Server.FiredFloor.
func (c *Client) FiredBacklog(ctx context.Context, svc string) (b store.FiredBacklog, err error) {
	err = c.leader(ctx, schemas.StreamFired, func() error {
		b = store.FiredBacklog{}
		if c.s.FiredFloor != nil {
			b.Floor = c.s.FiredFloor(svc)
		}
		b.Oldest = c.oldest(schemas.StreamFired, schemas.SubjectFired(svc), b.Floor)
		return nil
	})
	if err != nil {
		return b, err
	}
	err = c.leader(ctx, schemas.StreamRetry, func() error {
		b.OldestRetry = c.oldest(schemas.StreamRetry, schemas.SubjectRetry(svc), 0)
		return nil
	})
	return b, err
}

// oldest returns the time of the oldest event of a subject after a sequence; zero if there is none.
func (c *Client) oldest(stream, subject string, after uint64) time.Time {
	st := c.s.streams[stream]
	for _, m := range st.log {
		if m.seq > after && st.alive(m) && m.subject == subject {
			return time.Unix(0, m.at)
		}
	}
	return time.Time{}
}

// FindInBacklog returns the message ids among ids that are in the backlog of a service. Like a consumer it may read from a
// replica.
func (c *Client) FindInBacklog(ctx context.Context, svc string, b store.FiredBacklog, since time.Time, ids map[string]struct{}) (map[string]struct{}, error) {
	found := map[string]struct{}{}
	in := func(m *message) bool { return m.seq > b.Floor && (b.Floor > 0 || m.at >= since.UnixNano()) }
	return found, c.find(ctx, schemas.StreamFired, []string{schemas.SubjectFired(svc)}, in, ids, found)
}

// ReadClock reads a shard's clock from the leader.
func (c *Client) ReadClock(ctx context.Context, shard int) (clock store.Clock, rev uint64, err error) {
	err = c.leader(ctx, StreamClock, func() (err error) {
		clock, rev, err = c.s.Clock(shard)
		return err
	})
	if errors.Is(err, schemas.ErrDamaged) || errors.Is(err, schemas.ErrNewer) {
		return store.Clock{}, rev, err
	}
	if err != nil {
		return store.Clock{}, 0, err
	}
	return clock, rev, nil
}

// WriteClock moves a shard's clock by compare-and-set. It first reports the damaged records
// that the client has read.
func (c *Client) WriteClock(ctx context.Context, shard int, clock store.Clock, rev uint64) (next uint64, err error) {
	if err := c.report(ctx, shard); err != nil {
		return 0, err
	}
	err = c.leader(ctx, StreamClock, func() (err error) {
		if next, err = c.s.putClock(shard, clock, &rev); err == nil {
			c.s.copyClock(shard, clock)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return next, nil
}

// RegisterService records a service that has callbacks.
func (c *Client) RegisterService(ctx context.Context, svc string) error {
	return c.service(ctx, svc, "known "+svc)
}

// WakeService wakes a feed.
func (c *Client) WakeService(ctx context.Context, f store.Feed) error {
	return c.service(ctx, f.Service, fmt.Sprint("awake ", f.Kind, " ", f.Service))
}

// service writes a key of a service unless it exists. The client remembers the keys that it has
// written.
func (c *Client) service(ctx context.Context, svc, subject string) error {
	if _, known := c.services[subject]; known {
		return nil
	}
	if !schemas.ValidService(svc) {
		return schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", svc, schemas.MaxServiceLength)
	}
	k := key{subject: subject}
	err := c.leader(ctx, streamServices, func() error {
		if c.s.service.current(k) != 0 {
			return nil
		}
		_, err := c.s.service.put(&message{key: k}, nil, 0)
		return err
	})
	if err == nil {
		c.services[subject] = struct{}{}
	}
	return err
}

// Awake returns the feeds that are awake, in the order in which they were woken.
func (s *Server) Awake() []store.Feed {
	var out []store.Feed
	for _, m := range s.service.log {
		var f store.Feed
		if n, err := fmt.Sscanf(m.subject, "awake %d %s", &f.Kind, &f.Service); n == 2 && err == nil {
			out = append(out, f)
		}
	}
	return out
}

// list returns one page of records. A cursor is the shard and the sequence to continue after.
func (c *Client) list(ctx context.Context, q store.ListQuery) (store.ListPage, error) {
	limit := q.Limit
	if limit == 0 {
		limit = store.DefaultListLimit
	}
	if limit < 1 || limit > store.MaxListLimit {
		return store.ListPage{}, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, store.MaxListLimit)
	}
	var shard int
	var after uint64
	if q.Cursor != "" {
		if n, err := fmt.Sscanf(q.Cursor, "%d.%d", &shard, &after); n != 2 || err != nil || shard < 0 || shard >= len(c.s.shards) {
			return store.ListPage{}, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by list", q.Cursor)
		}
	}
	var page store.ListPage
	for shard < len(c.s.shards) {
		var got []store.Timer
		var last uint64
		var end bool
		err := c.direct(ctx, StreamShard(shard), func(upTo uint64) error {
			got, last, end = c.next(shard, after, upTo, scanBatch, math.MaxUint64)
			return nil
		})
		if err != nil {
			return store.ListPage{}, err
		}
		for _, t := range got {
			if t.Unread == store.UnreadOpen {
				page.Unread++
			}
			if t.Unread != store.Readable {
				continue
			}
			if len(page.Timers) == limit {
				page.Cursor = fmt.Sprintf("%d.%d", shard, after)
				return page, nil
			}
			after = t.Rev
			r := &t.Record
			if (len(q.States) == 0 || slices.Contains(q.States, r.State)) && (q.Service == "" || q.Service == r.Service) && (q.Tenant == nil || *q.Tenant == schemas.TenantOf(r.Service)) && (q.Group == "" || q.Group == r.Group) {
				page.Timers = append(page.Timers, t)
			}
		}
		if after = last; end {
			shard, after = shard+1, 0
		}
	}
	return page, nil
}

// DeadList returns one page of dead letters; see store.Store.
func (c *Client) DeadList(ctx context.Context, q store.DeadQuery) (store.DeadPage, error) {
	limit := q.Limit
	if limit == 0 {
		limit = store.DefaultListLimit
	}
	if limit < 1 || limit > store.MaxListLimit {
		return store.DeadPage{}, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, store.MaxListLimit)
	}
	var after uint64
	if q.Cursor != "" {
		var err error
		if after, err = strconv.ParseUint(q.Cursor, 10, 64); err != nil {
			return store.DeadPage{}, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by dead.list", q.Cursor)
		}
	}
	if q.Service != "" && !schemas.ValidService(q.Service) {
		return store.DeadPage{}, schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", q.Service, schemas.MaxServiceLength)
	}
	st := c.s.streams[schemas.StreamDead]
	var page store.DeadPage
	err := c.direct(ctx, schemas.StreamDead, func(upTo uint64) error {
		page = store.DeadPage{}
		for _, m := range st.log[min(after, uint64(len(st.log))):] {
			if m.seq > upTo || !st.alive(m) || !strings.HasPrefix(m.subject, schemas.SubjectDeadPrefix) ||
				q.Service != "" && m.subject != schemas.SubjectDead(q.Service) {
				continue
			}
			if len(page.Letters) == limit {
				page.Cursor = strconv.FormatUint(after, 10)
				return nil
			}
			after = m.seq
			if m := raw(m); !store.IsLetterPart(m) && q.Selects(m) {
				page.Letters = append(page.Letters, st.open(m))
			}
		}
		return nil
	})
	return page, err
}

// raw returns a message as the store reads a letter, before store.OpenLetter.
func raw(m *message) *store.Letter {
	hdr := jet.Header{}
	for name, v := range m.hdr {
		hdr[name] = v
	}
	if m.msgID != "" {
		hdr[jet.HeaderMsgID] = []string{m.msgID}
	}
	return &store.Letter{Subject: m.subject, Sequence: m.seq, Stored: time.Unix(0, m.at), Header: hdr, Data: m.data}
}

// RejectedList returns one page of rejected adds; see store.Store.
func (c *Client) RejectedList(ctx context.Context, q store.RejectedQuery) (store.RejectedPage, error) {
	limit := q.Limit
	if limit == 0 {
		limit = store.DefaultListLimit
	}
	if limit < 1 || limit > store.MaxListLimit {
		return store.RejectedPage{}, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", q.Limit, store.MaxListLimit)
	}
	var after uint64
	if q.Cursor != "" {
		var err error
		if after, err = strconv.ParseUint(q.Cursor, 10, 64); err != nil {
			return store.RejectedPage{}, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by rejected.list", q.Cursor)
		}
	}
	st := c.s.streams[schemas.StreamRejected]
	var page store.RejectedPage
	err := c.direct(ctx, schemas.StreamRejected, func(upTo uint64) error {
		page = store.RejectedPage{}
		for _, m := range st.log[min(after, uint64(len(st.log))):] {
			if m.seq > upTo || !st.alive(m) {
				continue
			}
			if len(page.Adds) == limit {
				page.Cursor = strconv.FormatUint(after, 10)
				return nil
			}
			after = m.seq
			if m := raw(m); !store.IsLetterPart(m) {
				page.Adds = append(page.Adds, st.open(m))
			}
		}
		return nil
	})
	return page, err
}

// DeadDelete removes a dead letter with its parts. A missing dead letter is no error.
func (c *Client) DeadDelete(ctx context.Context, seq uint64) error {
	return c.leader(ctx, schemas.StreamDead, func() error {
		m := c.s.streams[schemas.StreamDead].bySeq(seq)
		if m == nil {
			return nil
		}
		parts, err := store.LetterParts(raw(m))
		for _, part := range append(parts, seq) {
			if err == nil {
				err = c.s.Remove(schemas.StreamDead, part)
			}
		}
		return err
	})
}

// Remove removes a message from a stream, by a delete or by the acknowledgement of a work
// queue's consumer.
func (s *Server) Remove(stream string, seq uint64) error {
	if m := s.streams[stream].bySeq(seq); m != nil {
		m.removed = true
	}
	return nil
}

// Event is a message of a stream of events, as a consumer receives it. StampNs is the leader's
// timestamp in Unix nanoseconds.
type Event struct {
	Seq     uint64
	StampNs int64
	Subject string
	MsgID   string
	Header  jet.Header
	Data    []byte
}

// Event returns the message with a sequence, or false if the stream no longer has it.
func (s *Server) Event(stream string, seq uint64) (Event, bool) {
	m := s.streams[stream].bySeq(seq)
	if m == nil {
		return Event{}, false
	}
	return Event{Seq: m.seq, StampNs: m.at, Subject: m.subject, MsgID: m.msgID, Header: m.hdr, Data: m.data}, true
}
