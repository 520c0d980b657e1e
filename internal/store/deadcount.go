package store

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Dead letters and rejected adds leave their streams by age, by size, or because a
// replay removed them. JetStream tells only how many are gone in all. Belfry
// therefore counts those that it removed itself in a key of bucket clock; the
// others left without a replay, and status and metrics show their number.

// deadCountSubject holds the number of messages that left TIMERS_DEAD by
// Belfry's own hand, as decimal text.
const deadCountSubject = clockPrefix + "count.dead"

// maxCountTries bounds the compare-and-sets of one increment: routers that
// replay at the same time contend for the key.
const maxCountTries = 50

// Loss counts the dead letters and rejected adds that are kept, and the expired ones.
type Loss struct {
	// Dead counts dead letters by service.
	Dead map[string]uint64
	// Rejected is the number of refused adds that are kept, and LastRejected is
	// when the newest was refused; zero without any.
	Rejected     uint64
	LastRejected time.Time
	// DeadExpired counts dead letters that left by age or size, or that somebody
	// else removed, without a replay. A node that dies between a replay and its
	// count adds one.
	DeadExpired uint64
	// RejectedExpired counts rejected adds that left by age or size.
	RejectedExpired uint64
}

// DeadCounts reads the counts. Errors: schemas.ErrUnavailable.
func (s *Store) DeadCounts(ctx context.Context) (Loss, error) {
	loss := Loss{Dead: map[string]uint64{}}
	dead, err := s.subjectCounts(ctx, schemas.StreamDead)
	if err != nil {
		return loss, err
	}
	// The key last: a replay in between makes the difference smaller, never larger.
	deleted, err := s.peekDeadDeleted(ctx)
	if err != nil {
		return loss, err
	}
	for subject, n := range dead.State.Subjects {
		if svc, ok := strings.CutPrefix(subject, schemas.SubjectDeadPrefix); ok {
			loss.Dead[svc] += n
		}
	}
	if gone := dead.State.LastSeq - dead.State.Msgs; gone > deleted {
		loss.DeadExpired = gone - deleted
	}
	rejected, err := s.subjectCounts(ctx, schemas.StreamRejected)
	if errors.Is(err, schemas.ErrNotFound) {
		return loss, nil // a store of an earlier build that no node has opened since
	}
	if err != nil {
		return loss, err
	}
	loss.Rejected, loss.RejectedExpired = rejected.State.Msgs, rejected.State.LastSeq-rejected.State.Msgs
	if loss.Rejected > 0 {
		loss.LastRejected = rejected.State.LastTime
	}
	return loss, nil
}

func (s *Store) subjectCounts(ctx context.Context, name string) (jet.StreamInfo, error) {
	info, err := s.jet.Subjects(ctx, name)
	if errors.Is(err, jet.ErrNoStream) {
		return info, schemas.Errorf(schemas.CodeNotFound, "stream %s does not exist", name)
	}
	return info, err
}

// startDeadCount makes the key. What left the stream before that, in a store of
// an earlier build, does not count as expired.
func (s *Store) startDeadCount(ctx context.Context) error {
	info, err := s.jet.Stream(ctx, schemas.StreamDead)
	if err != nil {
		return err
	}
	return s.jet.CreateOnce(ctx, clockStream, deadCountSubject, []byte(strconv.FormatUint(info.State.LastSeq-info.State.Msgs, 10)))
}

// deadDeleted is the key's value and revision, from the stream's leader.
func (s *Store) deadDeleted(ctx context.Context) (n, rev uint64, err error) {
	m, err := s.jet.Last(ctx, clockStream, deadCountSubject)
	if err != nil {
		return 0, 0, err
	}
	n, err = parseDeadCount(m.Data)
	return n, m.Sequence, err
}

// peekDeadDeleted is the key's value as any replica has it, which needs no right
// to read from the leader; 0 before the key was made.
func (s *Store) peekDeadDeleted(ctx context.Context) (uint64, error) {
	a, err := s.jet.Direct(ctx, clockStream, jet.Get{MultiLast: []string{deadCountSubject}})
	if err != nil || len(a.Msgs) == 0 {
		return 0, err
	}
	return parseDeadCount(a.Msgs[0].Data)
}

func parseDeadCount(b []byte) (uint64, error) {
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		return 0, schemas.Errorf(schemas.CodeUnknownFormat, "key %s holds no number: remove the key and restart a node", deadCountSubject)
	}
	return n, nil
}

// countDeadDeleted adds one to the key.
func (s *Store) countDeadDeleted(ctx context.Context) error {
	var err error
	for range maxCountTries {
		var n, rev uint64
		if n, rev, err = s.deadDeleted(ctx); err != nil {
			return err
		}
		if _, err = s.jet.Put(ctx, deadCountSubject, []byte(strconv.FormatUint(n+1, 10)), rev, 0); !errors.Is(err, ErrRevision) {
			return err
		}
	}
	return schemas.Errorf(schemas.CodeUnavailable, "a removed dead letter was not counted after %d tries: %w", maxCountTries, err)
}
