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

// deadCountSubject is the subject of the key that counts the messages that Belfry itself has
// removed from TIMERS_DEAD. Its value is a decimal number.
const deadCountSubject = clockPrefix + "count.dead"

// maxCountTries bounds the compare-and-sets of one increment: several routers may remove
// letters, and increment the key, at the same time.
const maxCountTries = 50

// LetterCounts counts dead letters and rejected adds: the stored and the expired ones.
//
// A letter leaves its stream when it is too old, when the stream is full, or when it is
// replayed or discarded. JetStream counts all of them together. LetterCounts therefore counts the
// letters that were replayed or discarded in a key of bucket clock, and takes the difference for
// expired letters. A letter that could not be counted is in the difference, too. Safe for
// concurrent use.
type LetterCounts struct {
	jet *jet.Client
}

// LetterTotals is the result of DeadCounts.
type LetterTotals struct {
	// Dead is the number of stored dead letters by service.
	Dead map[string]uint64
	// Rejected is the number of stored rejected adds, and LastRejected the time at which
	// the newest was stored; zero if there is none.
	Rejected     uint64
	LastRejected time.Time
	// DeadExpired is the number of dead letters that left the stream and were neither replayed nor
	// discarded: by age or size, or because another client removed them. A node that dies between
	// the removal of a letter and its count adds one.
	DeadExpired uint64
	// RejectedExpired is the number of rejected adds that left the stream by age or size.
	RejectedExpired uint64
}

// DeadCounts reads the counts. Errors: schemas.ErrUnavailable.
func (c *LetterCounts) DeadCounts(ctx context.Context) (LetterTotals, error) {
	totals := LetterTotals{Dead: map[string]uint64{}}
	dead, err := c.stream(ctx, schemas.StreamDead)
	if err != nil {
		return totals, err
	}
	// Read the key last: then a replay in between makes the difference smaller, not larger.
	deleted, err := c.peek(ctx)
	if err != nil {
		return totals, err
	}
	for subject, n := range dead.State.Subjects {
		if svc, ok := strings.CutPrefix(subject, schemas.SubjectDeadPrefix); ok {
			totals.Dead[svc] += n
		}
	}
	if gone := dead.State.LastSeq - dead.State.Msgs; gone > deleted {
		totals.DeadExpired = gone - deleted
	}
	rejected, err := c.stream(ctx, schemas.StreamRejected)
	if errors.Is(err, schemas.ErrNotFound) {
		return totals, nil // only an older build has opened this store
	}
	if err != nil {
		return totals, err
	}
	totals.Rejected, totals.RejectedExpired = rejected.State.Msgs, rejected.State.LastSeq-rejected.State.Msgs
	if totals.Rejected > 0 {
		totals.LastRejected = rejected.State.LastTime
	}
	return totals, nil
}

func (c *LetterCounts) stream(ctx context.Context, name string) (jet.StreamInfo, error) {
	info, err := c.jet.Subjects(ctx, name)
	if errors.Is(err, jet.ErrNoStream) {
		return info, schemas.Errorf(schemas.CodeNotFound, "stream %s does not exist", name)
	}
	return info, err
}

// create makes the key, if there is none. Its first value is the number of messages that have
// left the stream so far, in a store of an older build, so that they do not count as expired.
func (c *LetterCounts) create(ctx context.Context) error {
	info, err := c.jet.Stream(ctx, schemas.StreamDead)
	if err != nil {
		return err
	}
	return c.jet.CreateOnce(ctx, clockStream, deadCountSubject, []byte(strconv.FormatUint(info.State.LastSeq-info.State.Msgs, 10)))
}

// removed reads the key's value and revision from the leader.
func (c *LetterCounts) removed(ctx context.Context) (n, rev uint64, err error) {
	m, err := c.jet.Last(ctx, clockStream, deadCountSubject)
	if err != nil {
		return 0, 0, err
	}
	n, err = parseDeadCount(m.Data)
	return n, m.Sequence, err
}

// peek reads the key's value from any replica, so that status needs only the permission for
// direct gets. The value is 0 before the key is made.
func (c *LetterCounts) peek(ctx context.Context) (uint64, error) {
	a, err := c.jet.Direct(ctx, clockStream, jet.Get{MultiLast: []string{deadCountSubject}})
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

// countRemoved adds one to the key.
func (c *LetterCounts) countRemoved(ctx context.Context) error {
	var err error
	for range maxCountTries {
		var n, rev uint64
		if n, rev, err = c.removed(ctx); err != nil {
			return err
		}
		if _, err = c.jet.Put(ctx, deadCountSubject, []byte(strconv.FormatUint(n+1, 10)), rev, 0); !errors.Is(err, ErrRevision) {
			return err
		}
	}
	return schemas.Errorf(schemas.CodeUnavailable, "a removed dead letter was not counted after %d tries: %w", maxCountTries, err)
}
