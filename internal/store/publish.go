package store

import (
	"context"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// PublishAsync publishes m; done is called once, and must neither block nor publish. An
// error of schemas.ErrUnavailable means that the message may have been stored; with MsgID
// set, a repetition is harmless.
func (s *Store) PublishAsync(m Msg, done func(seq uint64, duplicate bool, err error)) {
	if m.Service != "" {
		s.FeedActivator.publishFor(&m, func(done func(uint64, bool, error)) { s.publishNow(m, done) }, done)
		return
	}
	s.publishNow(m, done)
}

func (s *Store) publishNow(m Msg, done func(seq uint64, duplicate bool, err error)) {
	hdr := m.Header
	if m.MsgID != "" {
		if hdr == nil {
			hdr = jet.Header{}
		}
		jet.SetMsgID(hdr, m.MsgID)
	}
	answer := func(a jet.Ack, err error) {
		if Permanent(err) {
			err = schemas.Errorf(schemas.CodeOf(err), "%w: the message has %d bytes of headers and %d of data", err, schemas.HeaderBytes(hdr), len(m.Data))
		}
		done(a.Seq, a.Duplicate, err)
	}
	op := "publish " + m.Subject
	switch {
	case strings.HasPrefix(m.Subject, schemas.SubjectFiredPrefix):
		s.jet.WriteAsync(schemas.StreamFired, op, m.Subject, hdr, m.Data, answer)
	case strings.HasPrefix(m.Subject, schemas.SubjectRetryPrefix):
		s.jet.WriteAsync(schemas.StreamRetry, op, m.Subject, hdr, m.Data, answer)
	default:
		s.jet.PublishAsync(op, m.Subject, hdr, m.Data, answer)
	}
}

// Publish publishes m and waits for the acknowledgement.
func (s *Store) Publish(ctx context.Context, m Msg) (seq uint64, duplicate bool, err error) {
	a, err := s.jet.Await(ctx, "publish "+m.Subject, func(done func(jet.Ack, error)) {
		s.PublishAsync(m, func(seq uint64, duplicate bool, err error) { done(jet.Ack{Seq: seq, Duplicate: duplicate}, err) })
	})
	return a.Seq, a.Duplicate, err
}
