package store

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

func (s *Store) timerSubject(id schemas.TimerID) (subject, stream string) {
	sh := &s.subjects[s.geo.Shard(id)]
	return sh.timer + id.String(), sh.stream
}

func (s *Store) slotSubject(id schemas.TimerID, tick int64) string {
	return s.subjects[s.geo.Shard(id)].slot + strconv.FormatInt(s.geo.Slot(tick), 10) + "." + id.String()
}

// casHeader says which revision is replaced (0: none), and when the message expires.
func casHeader(rev uint64, ttl time.Duration) nats.Header {
	h := nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(rev, 10)}}
	if ttl > 0 {
		h[jetstream.MsgTTLHeader] = []string{ttlString(ttl)}
	}
	return h
}

// ttlString rounds up to the second, the server's resolution.
func ttlString(ttl time.Duration) string {
	return strconv.FormatInt(int64((max(ttl, time.Second)+time.Second-1)/time.Second), 10) + "s"
}

// putCAS writes a key and waits.
func (s *Store) putCAS(ctx context.Context, subject string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	a, err := s.await(ctx, "write "+subject, func(done func(ack, error)) {
		s.pub.send("write "+subject, subject, casHeader(rev, ttl), data, done)
	})
	return a.Seq, err
}

// sendIndex writes an index entry. It is written without an expectation: the
// same entry twice is the same entry.
func (s *Store) sendIndex(id schemas.TimerID, tick int64, due, now int64, done func(ack, error)) {
	ttl := time.Duration(max(due-now, 0))*time.Millisecond + s.cfg.IndexKeep
	s.pub.send("index timer", s.slotSubject(id, tick), nats.Header{jetstream.MsgTTLHeader: {ttlString(ttl)}}, nil, done)
}

// indexNow is from when an entry's TTL counts. The record's own times are the
// cluster's; what they miss of now only makes the entry live longer.
func indexNow(r *schemas.Record) int64 { return max(r.AddedMs, r.FiredMs, 0) }

// Create writes new timers: index entry, then record, for all of them in one
// round trip. A timer that exists answers ErrRevision.
func (s *Store) Create(ctx context.Context, timers []Write) []Result {
	results := make([]Result, len(timers))
	var wg sync.WaitGroup
	for i := range timers {
		w, res := &timers[i], &results[i]
		var indexErr error
		var both sync.WaitGroup
		both.Add(2)
		wg.Go(func() {
			both.Wait()
			if res.Err == nil && indexErr != nil {
				// The record is there and its index entry is not: not done. The caller
				// tries again, finds the record, and makes sure of its index.
				res.Err = indexErr
			}
		})
		tick := s.geo.Tick(w.Record.DueMs)
		s.sendIndex(w.ID, tick, w.Record.DueMs, indexNow(w.Record), func(_ ack, err error) {
			indexErr = err
			both.Done()
		})
		s.send(*w, func(a ack, err error) {
			res.Rev, res.Err = a.Seq, err
			both.Done()
		})
	}
	wg.Wait()
	return results
}

func (s *Store) send(w Write, done func(ack, error)) {
	subject, _ := s.timerSubject(w.ID)
	s.pub.send("write timer", subject, casHeader(w.Rev, w.TTL), w.Record.Append(make([]byte, 0, 256+w.Record.Body.Size())), done)
}

// UpdateAsync replaces a record by compare-and-set, without touching the index.
// It blocks only for a place in the window; done must not block.
func (s *Store) UpdateAsync(w Write, done func(Result)) {
	s.send(w, func(a ack, err error) { done(Result{Rev: a.Seq, Err: err}) })
}

// Update replaces a record by compare-and-set and waits. If the record is
// queued, the index entry of its due time is written, and acknowledged, first.
func (s *Store) Update(ctx context.Context, w Write) (uint64, error) {
	if w.Record.Queued {
		if err := s.PutIndex(ctx, w.ID, s.geo.Tick(w.Record.DueMs)); err != nil {
			return 0, err
		}
	}
	a, err := s.await(ctx, "write timer", func(done func(ack, error)) { s.send(w, done) })
	return a.Seq, err
}

// PutIndex writes the index entry of one timer for a tick, and waits.
func (s *Store) PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error {
	now, err := s.nowMs(ctx)
	if err != nil {
		return err
	}
	_, err = s.await(ctx, "index timer", func(done func(ack, error)) {
		s.sendIndex(id, tick, s.geo.TickStart(tick+1), now, done)
	})
	return err
}

// Get reads a record from its shard's leader.
func (s *Store) Get(ctx context.Context, id schemas.TimerID) (Timer, error) {
	subject, stream := s.timerSubject(id)
	m, err := s.getLast(ctx, stream, subject)
	if err != nil {
		return Timer{}, err
	}
	return s.timer(m)
}

// timer decodes a stored message. Its id is the subject's last token.
func (s *Store) timer(m *jetstream.RawStreamMsg) (Timer, error) {
	id, err := schemas.ParseTimerID(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	if err != nil {
		return Timer{}, err
	}
	r, err := schemas.DecodeRecord(m.Data)
	if err != nil {
		return Timer{}, err
	}
	return Timer{ID: id, Rev: m.Sequence, StoredMs: m.Time.UnixMilli(), Record: r}, nil
}

// GetMany reads records by direct get: any replica may answer, and be behind.
// Timers that are not there are left out.
func (s *Store) GetMany(ctx context.Context, ids []schemas.TimerID) ([]Timer, error) {
	byShard := map[int][]string{}
	for _, id := range ids {
		subject, _ := s.timerSubject(id)
		n := s.geo.Shard(id)
		byShard[n] = append(byShard[n], subject)
	}
	out := make([]Timer, 0, len(ids))
	for n, subjects := range byShard {
		got, err := s.lastFor(ctx, n, subjects, 0)
		if err != nil {
			return nil, err
		}
		for _, m := range got {
			if m.Subject == s.subjects[n].meta {
				continue
			}
			t, err := s.timer(m)
			if err != nil {
				return nil, err
			}
			out = append(out, t)
		}
	}
	return out, nil
}
