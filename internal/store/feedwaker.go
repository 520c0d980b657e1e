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
	// wakeTries bounds the tries of one compare-and-set on a feed's key.
	wakeTries = 5
	// manyFeeds is the number of feeds at which a Waker starts to forget feeds that it has not
	// seen awake recently; see forget.
	manyFeeds = 1024
)

// FeedKeys reads and writes the keys of feeds in bucket "services"; *ServiceKeys implements
// it.
type FeedKeys interface {
	// ServiceState reads a feed's key from the bucket's leader. Errors:
	// schemas.ErrUnavailable.
	ServiceState(ctx context.Context, f Feed) (ServiceState, error)
	// PutActive makes a feed awake if its key still has revision rev, and returns the new
	// revision. Errors: ErrRevision, schemas.ErrUnavailable.
	PutActive(ctx context.Context, f Feed, floor, rev uint64) (uint64, error)
}

// Waker wakes feeds for the publishers of one process: it wakes a feed before an event is
// published, and again if the feed was put to rest in the meantime. feed.go describes the
// protocol. A Waker starts no goroutines, and reads no clock but the given one. Safe for
// concurrent use.
type Waker struct {
	keys  FeedKeys
	trust time.Duration // how long a feed that was seen awake counts as awake
	now   func() time.Time

	mu    sync.Mutex
	feeds map[Feed]*feedEntry
	swept time.Time // when forget last searched feeds
}

// feedEntry is the state of a feed as far as this process knows it.
type feedEntry struct {
	awake time.Time // when the feed was last seen awake; zero if it rests or the state is unknown
	rev   uint64    // the latest known revision of its key
	last  uint64    // sequence of the last event that this process published; 0 if all have results
	call  *wakeCall // nil if no wake is in progress
}

// wakeCall is a wake in progress. All callers that need the feed awake wait for it.
type wakeCall struct {
	done chan struct{} // closed when err is set
	err  error
}

// NewWaker makes a Waker. A feed that it has seen awake counts as awake for half of grace
// (see Config.ServiceGrace), without a further request.
func NewWaker(keys FeedKeys, grace time.Duration, now func() time.Time) *Waker {
	return &Waker{keys: keys, trust: grace / 2, now: now, feeds: map[Feed]*feedEntry{}}
}

// Awake reports whether this process has seen a feed awake less than half of grace ago.
func (w *Waker) Awake(f Feed) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.feeds[f]
	return e != nil && w.trusted(e)
}

func (w *Waker) trusted(e *feedEntry) bool {
	return !e.awake.IsZero() && w.now().Sub(e.awake) < w.trust
}

// Wake wakes a feed, unless Awake is true for it. Concurrent calls for one feed share one
// request. Errors: those of WakeFor.
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

// begin returns nil if the feed is known to be awake. Otherwise it returns a call to wait
// for; if mine is true, the caller must wake the feed itself, and then call end.
func (w *Waker) begin(f Feed) (call *wakeCall, mine bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(f)
	if e.call != nil {
		return e.call, false
	}
	if w.trusted(e) {
		return nil, false
	}
	e.call = &wakeCall{done: make(chan struct{})}
	return e.call, true
}

func (w *Waker) end(f Feed, call *wakeCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(call.done)
	w.entry(f).call = nil
}

// WakeFor reads the key of a feed, and makes the feed awake if it rests. With a sequence
// need other than 0, a feed whose floor is need or later stays at rest, because the event
// with that sequence has a result. Errors: ErrRevision after wakeTries conflicts,
// schemas.ErrUnavailable.
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

// sawAwake records that a feed was awake at a time, with its key in revision rev.
func (w *Waker) sawAwake(f Feed, rev uint64, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.entry(f); rev >= e.rev {
		e.awake, e.rev = at, rev
	}
}

// Publish publishes an event of a feed with send, and calls done once with the outcome. It
// first wakes the feed with wake, unless Awake is true. After the acknowledgement it checks
// with WakeFor, if necessary, that the feed has not been put to rest in the meantime. It
// never blocks: functions that wait for the store are passed to spawn, which runs them in
// goroutines. If spawn returns false, because the process stops, done gets
// schemas.ErrUnavailable.
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

// published records an acknowledged event. It returns false if the feed may have been put to
// rest before the event was stored.
func (w *Waker) published(f Feed, seq uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(f)
	e.last = max(e.last, seq)
	return w.trusted(e)
}

// Rested records that a feed was put to rest. If this process has published an event after
// the feed's floor, Rested returns its sequence: the caller must call WakeFor with it, and
// repeat that until it succeeds. Otherwise Rested returns 0.
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
	e.last = 0 // all events of this process have results
	return 0
}

// Missed records that the process may have missed changes of keys. It returns the feeds with
// events of this process that may have no result yet, each with the sequence of the last
// event: the caller must call WakeFor with it, and repeat that until it succeeds.
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

// awakeRetries returns the number of feeds of TIMERS_RETRY that this process knows to be
// awake.
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

// entry returns the entry of a feed, and makes it if there is none. w.mu is held.
func (w *Waker) entry(f Feed) *feedEntry {
	e := w.feeds[f]
	if e == nil {
		w.forget()
		e = &feedEntry{}
		w.feeds[f] = e
	}
	return e
}

// forget drops old entries if there are manyFeeds or more, at most once a second. w.mu is
// held.
func (w *Waker) forget() {
	now := w.now()
	if len(w.feeds) < manyFeeds || now.Sub(w.swept) < time.Second {
		return
	}
	w.swept = now
	for f, e := range w.feeds {
		// Twice the trust: an event may be published within it and acknowledged after it.
		if e.call == nil && now.Sub(e.awake) > 2*w.trust {
			delete(w.feeds, f)
		}
	}
}
