package httpapi

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// All streams of one service share a feed, which is one JetStream consumer. A feed keeps its newest
// events, and each stream takes events from it at its own pace. A stream that needs older events,
// because its client has reconnected or is slow, reads them from TIMERS_FIRED, a page at a time. So an
// idle stream costs only its connection, and a slow stream does not delay others.

// Bounds of feeds.
const (
	// maxFeeds bounds the feeds of a node, because each is a JetStream consumer. maxTenantFeeds bounds
	// the feeds of one tenant.
	maxFeeds       = 256
	maxTenantFeeds = maxFeeds / 4
	// A feed keeps at most feedEvents events and feedBytes bytes, but at least one event.
	feedEvents = 512
	feedBytes  = 1 << 20
	// A page of older events has at most pageEvents events, and ends with the event that exceeds
	// pageBytes.
	pageEvents = 32
	pageBytes  = 256 << 10
	// maxPages bounds the pages that are read or sent at a time. maxHolderPages bounds the pages of one
	// tenant, or of one token of the default tenant.
	maxPages       = 128
	maxHolderPages = maxPages / 4
)

// feedKey identifies a feed: a service, and the tenants whose events it has.
type feedKey struct {
	tenant     string
	allTenants bool
	service    string
}

// feed follows the fired events of a service for all its streams.
type feed struct {
	key    feedKey
	begun  chan struct{} // closed when the feed has begun, or cannot begin
	ended  chan struct{} // closed when run has returned
	cancel context.CancelFunc

	streams int // guarded by feeds.mu

	mu  sync.Mutex
	err error // the reason why it could not begin
	// kept has all events of the feed after the sequence floor, in order.
	floor uint64
	kept  []*store.Letter
	bytes int
	// news is closed when an event arrives, or the feed ends.
	news chan struct{}
}

// feeds are the feeds of an API.
type feeds struct {
	mu      sync.Mutex
	follow  func(ctx context.Context, id Identity, service string, after uint64, begun func(after uint64), fn func(*store.Letter)) error
	byKey   map[feedKey]*feed
	tenants map[string]int // feeds of tenants

	pages   int
	holders map[holder]int // pages of holders
}

// join returns the feed of a service, and begins it if there is none. The caller must call leave.
// Errors: those of Config.Fired, and schemas.CodeUnavailable.
func (f *feeds) join(ctx context.Context, id Identity, service string) (*feed, error) {
	fd, err := f.take(id, service)
	if err != nil {
		return nil, err
	}
	select {
	case <-fd.begun:
	case <-ctx.Done():
		f.leave(fd)
		return nil, ctx.Err()
	}
	fd.mu.Lock()
	err = fd.err
	fd.mu.Unlock()
	if err != nil {
		f.leave(fd)
		return nil, err
	}
	return fd, nil
}

func (f *feeds) take(id Identity, service string) (*feed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := feedKey{id.Tenant, id.AllTenants, service}
	if fd := f.byKey[key]; fd != nil {
		fd.streams++
		return fd, nil
	}
	switch {
	case len(f.byKey) >= maxFeeds:
		return nil, schemas.Errorf(schemas.CodeUnavailable, "streams of %d services are open, which is the limit of a node: close the streams of a service, or use another node", maxFeeds)
	case key.tenant != "" && f.tenants[key.tenant] >= maxTenantFeeds:
		return nil, schemas.Errorf(schemas.CodeUnavailable, "streams of %d services of tenant %s are open, which is its limit on a node: close the streams of a service, or use another node", maxTenantFeeds, key.tenant)
	}
	ctx, cancel := context.WithCancel(context.Background())
	fd := &feed{key: key, begun: make(chan struct{}), ended: make(chan struct{}), cancel: cancel, streams: 1, news: make(chan struct{})}
	f.byKey[key] = fd
	if key.tenant != "" {
		f.tenants[key.tenant]++
	}
	go fd.run(ctx, f.follow, id)
	return fd, nil
}

// leave removes a stream from a feed. For the last stream it ends the feed, and waits until it has
// ended.
func (f *feeds) leave(fd *feed) {
	if f.last(fd) {
		fd.cancel()
		<-fd.ended
	}
}

// last removes a stream from a feed. It reports whether that was the last stream. The next stream
// then begins another feed.
func (f *feeds) last(fd *feed) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fd.streams--; fd.streams > 0 {
		return false
	}
	delete(f.byKey, fd.key)
	if fd.key.tenant != "" {
		if f.tenants[fd.key.tenant]--; f.tenants[fd.key.tenant] == 0 {
			delete(f.tenants, fd.key.tenant)
		}
	}
	return true
}

// enterPage takes a permit to read and send a page. If it returns true, the caller must call
// leavePage.
func (f *feeds) enterPage(h holder) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pages >= maxPages || h != (holder{}) && f.holders[h] >= maxHolderPages {
		return false
	}
	f.pages++
	f.holders[h]++
	return true
}

func (f *feeds) leavePage(h holder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages--
	if f.holders[h]--; f.holders[h] == 0 {
		delete(f.holders, h)
	}
}

// run follows until ctx ends.
func (fd *feed) run(ctx context.Context, follow func(context.Context, Identity, string, uint64, func(uint64), func(*store.Letter)) error, id Identity) {
	defer close(fd.ended)
	var once sync.Once
	began := func() { once.Do(func() { close(fd.begun) }) }
	err := follow(ctx, id, fd.key.service, fromNow, func(after uint64) {
		fd.mu.Lock()
		fd.floor = after
		fd.mu.Unlock()
		began()
	}, fd.add)
	fd.mu.Lock()
	fd.err = err
	fd.mu.Unlock()
	began()
}

// add keeps an event, and drops the oldest events beyond the bounds.
func (fd *feed) add(l *store.Letter) {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	fd.kept = append(fd.kept, l)
	fd.bytes += len(l.Data)
	drop := 0
	for drop < len(fd.kept)-1 && (len(fd.kept)-drop > feedEvents || fd.bytes > feedBytes) {
		fd.bytes -= len(fd.kept[drop].Data)
		fd.floor = fd.kept[drop].Sequence
		drop++
	}
	// Delete clears the dropped elements, so that their memory is freed.
	fd.kept = slices.Delete(fd.kept, 0, drop)
	close(fd.news)
	fd.news = make(chan struct{})
}

// after returns the event that follows a sequence. If there is none, it returns a channel that is
// closed when there may be one. If behind is true, the feed may lack events after the sequence, up to
// floor.
func (fd *feed) after(seq uint64) (l *store.Letter, news <-chan struct{}, floor uint64, behind bool) {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	if seq < fd.floor {
		return nil, nil, fd.floor, true
	}
	i, found := slices.BinarySearchFunc(fd.kept, seq, func(l *store.Letter, seq uint64) int { return cmp.Compare(l.Sequence, seq) })
	if found {
		i++
	}
	if i < len(fd.kept) {
		return fd.kept[i], nil, fd.floor, false
	}
	return nil, fd.news, fd.floor, false
}
