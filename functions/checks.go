package functions

import (
	"context"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

const (
	// maxChecks bounds the checks between two searches for idle feeds.
	maxChecks = 64
	// checkRetry is the pause before a failed check is repeated.
	checkRetry = time.Second
	// restedBefore is the minimum age of a marker for which a node checks the feed at once, in
	// addition to the check after ServiceGrace. The node has just started, or its watch was
	// interrupted, and the node that put the feed to rest may have died before its own check.
	restedBefore = 5 * time.Second
)

// check is a check of a resting feed for events after its floor; see Rester.Check. The node
// that put the feed to rest checks it at once and after ServiceGrace. All other nodes check
// it, too, because that node may die in between.
type check struct {
	feed  store.Feed
	floor uint64
	at    time.Time
	// drop is true if the check removes the consumer of the feed.
	drop bool
	// last is true for the check after ServiceGrace.
	last bool
}

// checks are the checks to make, at most one for each feed. Safe for concurrent use.
type checks struct {
	mu     sync.Mutex
	byFeed map[store.Feed]check
}

// add adds a check, unless the feed has a check already that makes it unnecessary: the check of
// a later rest, or the check that is followed by this one.
func (s *checks) add(c check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.byFeed[c.feed]
	switch {
	case ok && old.floor > c.floor:
	case ok && old.floor == c.floor && !old.last && c.last:
	case ok && old.floor == c.floor && old.last && c.last && old.at.After(c.at):
	default:
		s.byFeed[c.feed] = c
	}
}

// due removes and returns up to maxChecks checks that are due.
func (s *checks) due(now time.Time) []check {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []check
	for k, c := range s.byFeed {
		if len(out) == maxChecks {
			break
		}
		if !c.at.After(now) {
			delete(s.byFeed, k)
			out = append(out, c)
		}
	}
	return out
}

// earliest returns the time of the first check; ok is false if there is none.
func (s *checks) earliest() (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.byFeed {
		if !ok || c.at.Before(at) {
			at, ok = c.at, true
		}
	}
	return at, ok
}

// sawRest queues the checks of a feed whose key says that it rests.
func (f *Functions) sawRest(c store.ServiceChange) {
	now := time.Now()
	if now.Sub(c.Since) >= restedBefore {
		f.checks.add(check{feed: c.Feed, floor: c.Floor, at: now})
		return
	}
	f.checks.add(check{feed: c.Feed, floor: c.Floor, at: now.Add(f.o.Store.ServiceGrace()), last: true})
}

// checkSome makes up to maxChecks checks that are due.
func (f *Functions) checkSome(ctx context.Context) {
	restEach(f.checks.due(time.Now()), func(c check) { f.check(ctx, c) })
}

// check makes a check, and queues the next check of the feed, if any.
func (f *Functions) check(ctx context.Context, c check) {
	resting, err := f.rester().Check(ctx, c.feed, c.floor, c.drop)
	switch {
	case err != nil:
		f.complain("check a service at rest", err)
		c.at = time.Now().Add(checkRetry)
		f.checks.add(c)
	case resting && !c.last:
		f.checks.add(check{feed: c.feed, floor: c.floor, at: time.Now().Add(f.o.Store.ServiceGrace()), last: true})
	}
}
