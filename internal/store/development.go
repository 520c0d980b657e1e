package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// A development store belongs to one node whose clock can be moved; see package
// internal/devclock. Its layout has a version of its own, which is written before any other
// stream or key is made, so a store is of one kind for its whole life.

const (
	// DevelopmentDedupWindow is the dedup window of a development store, the shortest that
	// JetStream allows. A moved clock passes the retention in less real time than any other
	// window, and within the window the event of a timer that is added again would be dropped.
	DevelopmentDedupWindow = 100 * time.Millisecond
	// DevelopmentIndexKeep is the IndexKeep of a development store: with a clock that stands
	// still, an index entry may have to stay for any time.
	DevelopmentIndexKeep = 50 * 365 * 24 * time.Hour

	movedClockSubject = clockPrefix + "moved"
)

// fits returns an error of schemas.CodeConfig for a layout of the other kind of store.
func (c *Config) fits(m meta) error {
	switch development := m.Format == layoutDevelopment; {
	case development && !c.Development:
		return schemas.Errorf(schemas.CodeConfig, "this is a development store of \"belfry dev\", whose clock can be moved: \"belfry serve\" does not open it; use another data folder or account")
	case !development && c.Development:
		return schemas.Errorf(schemas.CodeConfig, "this store was made without a movable clock: a development node does not open it; use an empty data folder")
	}
	return nil
}

// checkDevelopment refuses a store of the other kind before anything is changed. In a new
// development store it writes the marker before anything else is made.
func (m *streamMaker) checkDevelopment(ctx context.Context) error {
	layout := layoutRecord{jet: m.jet, log: m.log}
	_, err := m.jet.Stream(ctx, clockStream)
	if err == nil {
		was, _, err := layout.read(ctx)
		if err == nil {
			return m.configs.cfg.fits(was)
		}
		if !m.configs.cfg.Development {
			return nil // the next steps report the error
		}
		if !errors.Is(err, schemas.ErrNotFound) {
			return err
		}
	}
	if !m.configs.cfg.Development {
		return nil
	}
	if err != nil && !errors.Is(err, jet.ErrNoStream) {
		return err
	}
	if err := m.ensure(ctx, m.configs.clock()); err != nil {
		return err
	}
	_, err = m.storeLayout(ctx)
	return err
}

// at maps a time of the stream leader's clock.
func at(moved func(time.Time) time.Time, t time.Time) time.Time {
	if moved == nil {
		return t
	}
	return moved(t)
}

// MovedClock is the clock of a development store: it showed AtMs when the stream leader's clock
// showed ServerMs, both in Unix milliseconds, and has run since, unless it is frozen.
type MovedClock struct {
	AtMs     int64 `json:"at_ms"`
	ServerMs int64 `json:"server_ms"`
	Frozen   bool  `json:"frozen,omitempty"`
}

// At returns what the clock shows when the stream leader's clock shows serverMs, both in Unix
// milliseconds. The zero MovedClock, of a store whose clock has not been moved, shows serverMs.
func (c MovedClock) At(serverMs int64) int64 {
	switch {
	case c == MovedClock{}:
		return serverMs
	case c.Frozen:
		return c.AtMs
	}
	return c.AtMs + max(serverMs-c.ServerMs, 0)
}

// ReadMovedClock reads the clock of a development store and its revision, 0 before the first
// WriteMovedClock. Errors: schemas.ErrDamaged, schemas.ErrUnavailable.
func (s *Store) ReadMovedClock(ctx context.Context) (MovedClock, uint64, error) {
	return readMovedClock(ctx, s.jet)
}

// ReadMovedClock reads the clock of a development store. That of any other store is the zero
// MovedClock. Errors: schemas.ErrDamaged, schemas.ErrUnavailable.
func (v *View) ReadMovedClock(ctx context.Context) (MovedClock, error) {
	c, _, err := readMovedClock(ctx, v.jet)
	return c, err
}

func readMovedClock(ctx context.Context, c *jet.Client) (MovedClock, uint64, error) {
	msg, err := c.Last(ctx, clockStream, movedClockSubject)
	if errors.Is(err, schemas.ErrNotFound) {
		return MovedClock{}, 0, nil
	}
	if err != nil {
		return MovedClock{}, 0, err
	}
	var moved MovedClock
	if err := json.Unmarshal(msg.Data, &moved); err != nil {
		return MovedClock{}, 0, schemas.Errorf(schemas.CodeDamaged, "the moved clock (key moved of bucket clock) is damaged: %w", err)
	}
	return moved, msg.Sequence, nil
}

// WriteMovedClock replaces the clock of a development store by compare-and-set, and returns its
// new revision. Errors: ErrRevision, schemas.ErrUnavailable.
func (s *Store) WriteMovedClock(ctx context.Context, c MovedClock, rev uint64) (uint64, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	return s.jet.Put(ctx, movedClockSubject, b, rev, 0)
}

// End returns the last sequence of a stream and the number of its messages. Errors:
// schemas.ErrUnavailable.
func (s *Store) End(ctx context.Context, stream string) (last, messages uint64, err error) {
	info, err := s.jet.Stream(ctx, stream)
	return info.State.LastSeq, info.State.Msgs, err
}

// Forget removes the record of a timer up to a revision, as its TTL does later. Errors:
// schemas.ErrUnavailable.
func (s *Store) Forget(ctx context.Context, id schemas.TimerID, rev uint64) error {
	subject, stream := s.timerSubject(id)
	return s.jet.RemoveBelow(ctx, "forget timer", stream, subject, rev+1)
}
