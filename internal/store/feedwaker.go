package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

const (
	// wakeTries bounds the tries of a compare-and-set on a feed's key.
	wakeTries = 5
	// manyFeeds is the number of feeds above which a Waker forgets feeds that it no longer
	// trusts.
	manyFeeds = 1024
)

// FeedKeys are the keys of feeds in bucket "services".
type FeedKeys interface {
	// ServiceState reads a feed's key from its leader. Errors: schemas.ErrUnavailable.
	ServiceState(ctx context.Context, f Feed) (ServiceState, error)
	// PutActive makes a feed awake whose key has that revision. Errors: ErrRevision,
	// schemas.ErrUnavailable.
	PutActive(ctx context.Context, f Feed, floor, rev uint64) (uint64, error)
}

// Waker is the publishers' part in the life of feeds, for one process: it wakes a feed
// before an event is published, and again if the feed has come to rest meanwhile. See
// feed.go for the protocol. It starts no goroutines and reads only the clock that it is
// given. Safe for concurrent use.
type Waker struct {
	keys  FeedKeys
	trust time.Duration
	now   func() time.Time

	mu    sync.Mutex
	feeds map[Feed]*feedEntry
	swept time.Time // when entries were last forgotten
}

// feedEntry is what this process knows of a feed.
type feedEntry struct {
	awake time.Time // when it was last seen awake; zero: it rests, or nobody knows
	rev   uint64    // of the key that said so
	last  uint64    // sequence of the last event that this process published
	ask   *wakeCall
}

// wakeCall is a wake under way, which everybody waits for who needs the feed awake.
type wakeCall struct {
	done chan struct{} // closed when err is set
	err  error
}

// NewWaker makes a Waker. It takes a feed for awake, without reading its key, for half of
// grace after it has seen the feed awake.
func NewWaker(keys FeedKeys, grace time.Duration, now func() time.Time) *Waker {
	return &Waker{keys: keys, trust: grace / 2, now: now, feeds: map[Feed]*feedEntry{}}
}

// Awake reports whether a feed was seen awake a short while ago.
func (w *Waker) Awake(f Feed) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.feeds[f]
	return e != nil && w.trusted(e)
}

func (w *Waker) trusted(e *feedEntry) bool {
	return !e.awake.IsZero() && w.now().Sub(e.awake) < w.trust
}

// Wake wakes a feed that is not known to be awake. Concurrent calls for one feed share a
// request.
func (w *Waker) Wake(ctx context.Context, f Feed) error {
	call, mine := w.begin(f)
	switch {
	case call == nil:
		return nil
	case mine:
		call.err = w.WakeFor(ctx, f, 0)
		w.end(f, call)
		return call.err
	}
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
		return MapError(jet.Wrap("wake service "+f.Service, ctx.Err()))
	}
}

// begin returns nil if the feed is known to be awake, or a call: mine says that the
// caller must make it, and then call end.
func (w *Waker) begin(f Feed) (call *wakeCall, mine bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(f)
	if e.ask != nil {
		return e.ask, false
	}
	if w.trusted(e) {
		return nil, false
	}
	e.ask = &wakeCall{done: make(chan struct{})}
	return e.ask, true
}

func (w *Waker) end(f Feed, call *wakeCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(call.done)
	w.entry(f).ask = nil
}

// WakeFor makes a feed's key active. With need, a sequence, a feed that rests at or above
// it stays at rest: the event of that sequence has been served.
func (w *Waker) WakeFor(ctx context.Context, f Feed, need uint64) error {
	err := ErrRevision
	for try := 0; errors.Is(err, ErrRevision) && try < wakeTries; try++ {
		seen := w.now()
		var st ServiceState
		if st, err = w.keys.ServiceState(ctx, f); err != nil {
			return err
		}
		switch {
		case st.Awake && !st.retiring:
			w.sawAwake(f, st.Rev, seen)
			return nil
		case !st.Awake && need > 0 && st.Floor >= need:
			return nil
		}
		var rev uint64
		if rev, err = w.keys.PutActive(ctx, f, st.Floor, st.Rev); err == nil {
			w.sawAwake(f, rev, seen)
		}
	}
	return err
}

func (w *Waker) sawAwake(f Feed, rev uint64, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entry(f); rev >= e.rev {
		e.awake, e.rev = at, rev
	}
}

// Publish publishes an event of a feed with send, and calls done with its outcome. It
// wakes the feed before, and after the acknowledgement it makes sure that the feed has
// not come to rest. spawn runs what waits for the store, or returns false if the process
// stops; then done gets schemas.ErrUnavailable.
func (w *Waker) Publish(ctx context.Context, f Feed, spawn func(func()) bool, wake func(context.Context, Feed) error, send func(done func(seq uint64, duplicate bool, err error)), done func(seq uint64, duplicate bool, err error)) {
	orStopped := func(do func()) {
		if !spawn(do) {
			done(0, false, schemas.ErrUnavailable)
		}
	}
	publish := func() {
		send(func(seq uint64, duplicate bool, err error) {
			if err != nil || w.published(f, seq) {
				done(seq, duplicate, err)
				return
			}
			orStopped(func() { done(seq, duplicate, w.WakeFor(ctx, f, seq)) })
		})
	}
	if w.Awake(f) {
		publish()
		return
	}
	orStopped(func() {
		if err := wake(ctx, f); err != nil {
			done(0, false, err)
			return
		}
		publish()
	})
}

// published takes note of an acknowledged event. It returns false if the feed may have
// come to rest before the event was stored.
func (w *Waker) published(f Feed, seq uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(f)
	e.last = max(e.last, seq)
	return w.trusted(e)
}

// Rested takes note that a feed rests. If this process has published an event behind the
// floor, it returns that event's sequence: the caller must wake the feed for it with
// WakeFor, until that succeeds. Otherwise it returns 0.
func (w *Waker) Rested(ch ServiceChange) (need uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.feeds[ch.Feed]
	if e == nil || ch.Rev <= e.rev {
		return 0
	}
	e.rev, e.awake = ch.Rev, time.Time{}
	if e.last > ch.Floor {
		return e.last
	}
	e.last = 0 // concluded
	return 0
}

// Missed takes note that changes of keys may have been missed, for however long. It returns
// the feeds that this process has published to and that have not come to rest since, with the
// sequence for which the caller must wake each with WakeFor, until that succeeds.
func (w *Waker) Missed() map[Feed]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	needs := map[Feed]uint64{}
	for f, e := range w.feeds {
		if e.last > 0 {
			needs[f] = e.last
		}
		e.awake = time.Time{}
	}
	return needs
}

// awakeRetries is how many feeds of TIMERS_RETRY are known to be awake.
func (w *Waker) awakeRetries() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f, e := range w.feeds {
		if f.Kind == KindRetry && !e.awake.IsZero() {
			n++
		}
	}
	return n
}

// entry is that of a feed. w.mu is held.
func (w *Waker) entry(f Feed) *feedEntry {
	e := w.feeds[f]
	if e == nil {
		w.forget()
		e = &feedEntry{}
		w.feeds[f] = e
	}
	return e
}

// forget drops entries that are not trusted any more, once there are many. w.mu is held.
func (w *Waker) forget() {
	now := w.now()
	if len(w.feeds) < manyFeeds || now.Sub(w.swept) < time.Second {
		return
	}
	w.swept = now
	for f, e := range w.feeds {
		// Twice: what was published within the trust may be acknowledged after it.
		if e.ask == nil && now.Sub(e.awake) > 2*w.trust {
			delete(w.feeds, f)
		}
	}
}
