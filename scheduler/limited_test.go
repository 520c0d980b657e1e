package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/store"
)

// limitStore has the numbers and the clock of one shard.
type limitStore struct {
	TermStore
	LimitStore
	was   store.PendingCount
	clock store.Clock
	put   *store.PendingCount
}

func (s *limitStore) FlowsNow() (*store.FlowSet, bool) { return nil, false }

func (s *limitStore) PendingCount(context.Context, int) (store.PendingCount, error) {
	return s.was, nil
}

func (s *limitStore) PutPendingCount(_ context.Context, c store.PendingCount) (uint64, error) {
	s.put = &c
	return c.Rev + 1, nil
}

func (s *limitStore) ReadClock(context.Context, int) (store.Clock, uint64, error) {
	return s.clock, 1, nil
}

// TestStoreLimited: an owner replaces the numbers of earlier terms, and those from a backup that has a later
// epoch than its clock, but not the numbers of the node that owns the shard by now.
func TestStoreLimited(t *testing.T) {
	t.Parallel()
	count := func(epoch, rev uint64) store.PendingCount {
		return store.PendingCount{Selection: "s", Rev: rev, Count: quota.Count{Epoch: epoch}}
	}
	for name, c := range map[string]struct {
		was     store.PendingCount
		clock   uint64
		ended   bool // the limits were deleted
		written bool
	}{
		"the first":               {count(0, 0), 3, false, true},
		"of an earlier term":      {count(2, 9), 3, false, true},
		"of this term":            {count(3, 9), 3, false, true},
		"of a later term":         {count(4, 9), 4, false, false},
		"of a backup":             {count(4, 9), 3, false, true},
		"nothing to delete":       {count(0, 0), 3, true, false},
		"of limits that are gone": {count(3, 9), 3, true, true},
	} {
		s := &limitStore{was: c.was, clock: store.Clock{Epoch: c.clock}}
		term := &Term{cfg: TermConfig{Store: s, Limits: s}}
		next := count(3, 0)
		if c.ended {
			next.Selection = ""
		}
		if err := term.storeLimited(t.Context(), next); err != nil || (s.put != nil) != c.written || s.put != nil && s.put.Rev != c.was.Rev {
			t.Errorf("%s: wrote %+v, %v", name, s.put, err)
		}
	}
}

// TestLimitedCount: after a loss of messages nothing is published before another scan has ended, and the
// end of the limits is published once.
func TestLimitedCount(t *testing.T) {
	t.Parallel()
	tally := quota.NewTally(func(string) bool { return true }, 0)
	l := limitedCount{wanted: "s", counted: "s", tally: tally, begun: true, dirty: true}
	if !l.publishes() {
		t.Error("changed numbers are not published")
	}
	if l.recount(); l.publishes() || !l.again {
		t.Error("numbers are published that lack the lost messages")
	}
	l = limitedCount{begun: true, dirty: true, ended: true}
	if !l.publishes() {
		t.Error("the end of the limits is not published")
	}
}

// TestPendingCountIsRenewed: an owner publishes the numbers of a quiet shard again before they expire.
func TestPendingCountIsRenewed(t *testing.T) {
	t.Parallel()
	s := &limitStore{clock: store.Clock{Epoch: 3}}
	term, h := endedTerm(t, s.clock, &endedStore{})
	term.cfg.Limits = s
	term.limited = limitedCount{wanted: "s", counted: "s", tally: quota.NewTally(func(string) bool { return true }, 0), begun: true, dirty: true}
	var published []time.Duration
	for turn := 0; len(published) < 3; turn++ {
		term.countLimited()
		if h.run(t.Context()); s.put != nil {
			published = append(published, h.now)
			s.put = nil
			continue // the next turn has the result
		}
		wait, ok := term.limited.due(h.now)
		if !ok {
			t.Fatalf("nothing is due %s after a publication", h.now)
		}
		if h.now += wait; turn == 100 {
			t.Fatalf("the numbers were published after %v, and then not until %s", published, h.now)
		}
	}
	for i, at := range published[1:] {
		if after := at - published[i]; after < time.Hour || after > store.PendingCountTTL/2 {
			t.Errorf("the numbers were published after %v, want each time before half of their TTL, and not often", published)
		}
	}
}
