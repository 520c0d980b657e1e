package functions

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
)

// puller requests the events of one feed: one service's events in TIMERS_FIRED, or its
// retries in TIMERS_RETRY. It requests no more events than the service has free permits
// for, so that no event waits in this process while another node could handle it.
type puller struct {
	f    *Functions
	svc  *service
	kind store.Kind
	wake chan struct{} // a permit may be free, or a request has ended

	// pulling ends with Functions.Stop, or when the feed comes to rest.
	pulling context.Context
	stop    context.CancelFunc
	// regular is true if the feed was woken soon after it had come to rest.
	regular bool
	used    atomic.Int64 // Unix nanoseconds of the last delivery, or of the last look for one
	// elsewhere is true if the last attempt to put the feed to rest found that another node
	// handles an event of it, or has just done so.
	elsewhere atomic.Bool

	mu        sync.Mutex
	requested int // events that are requested and have not arrived
	local     int // deliveries that hold a permit or wait for one
}

func (p *puller) feed() store.Feed { return store.Feed{Service: p.svc.name, Kind: p.kind} }

func (p *puller) touch() { p.used.Store(time.Now().UnixNano()) }

// idle reports whether the feed has had no delivery here for a duration.
func (p *puller) idle(long time.Duration) bool {
	p.mu.Lock()
	local := p.local
	p.mu.Unlock()
	return local == 0 && time.Since(time.Unix(0, p.used.Load())) >= long
}

// run pulls until ctx is done or the feed rests.
func (p *puller) run(ctx context.Context) {
	for wait := minPause; ctx.Err() == nil; {
		begun := time.Now()
		resting, err := p.read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case resting:
			p.f.leaveResting(p.f.pulling, p)
			return
		case err == nil, errors.Is(err, store.ErrConsumerDeleted):
			continue // read the key of the feed: perhaps it rests
		}
		if p.f.complaints.Allow("pull "+p.svc.name, time.Now()) {
			p.f.o.Log.Warn().Err(err).Str("service", p.svc.name).Msg("pulling events failed; retrying")
		}
		if time.Since(begun) > maxPause {
			wait = minPause // this failure does not follow from the last one
		}
		pause.For(ctx, wait)
		wait = min(wait*2, maxPause)
		if err := p.f.o.Store.WaitConnected(ctx); err != nil {
			pause.For(ctx, maxPause) // the connection is closed for good
		}
	}
}

// read opens a reader of the feed and pulls until that fails. It returns true if the feed
// rests.
func (p *puller) read(ctx context.Context) (resting bool, err error) {
	st, err := p.f.o.Store.ServiceState(ctx, p.feed())
	if err != nil || !st.Awake {
		return err == nil, err
	}
	limit := p.svc.limit.n()
	r, err := p.f.o.Store.ReadFeed(ctx, p.feed(), store.FeedOptions{
		Floor: st.Floor, AckWait: p.f.o.AckWait, MaxAckPending: p.f.o.MaxAckPending, Most: limit,
	})
	if err != nil {
		return false, err
	}
	return false, p.pull(ctx, r, limit)
}

// pull requests and receives events until the reader fails (its error), ctx is done, or
// the service's limit changes (nil): the reader has room for limit events.
func (p *puller) pull(ctx context.Context, r *store.FeedReader, limit int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var receiving sync.WaitGroup
	receiving.Go(func() { cancel(p.receive(ctx, r)) })
	defer func() {
		cancel(nil)
		receiving.Wait()
		for _, d := range r.Close() {
			_ = d.Nak(0) // without it, the redelivery comes after AckWait
		}
	}()
	p.mu.Lock()
	p.requested = 0
	p.mu.Unlock()
	for ctx.Err() == nil && p.svc.limit.n() == limit {
		n := p.next(ctx, limit)
		if n == 0 {
			select {
			case <-p.wake:
			case <-ctx.Done():
			}
			continue
		}
		p.mu.Lock()
		err := r.Request(n)
		p.requested += n
		p.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// receive starts a delivery for every event until the reader fails.
func (p *puller) receive(ctx context.Context, r *store.FeedReader) error {
	for {
		d, err := r.Next(ctx)
		switch {
		case err == nil:
			p.start(d)
		case errors.Is(err, store.ErrRequestEnded):
			p.mu.Lock()
			p.requested = r.Requested()
			p.mu.Unlock()
			signal(p.wake)
		default:
			return err
		}
	}
}

// next returns how many events to request now. To make one request serve many events, it
// returns 0 while events are on their way, unless half of the limit could be requested;
// and a busy service waits linger for more permits.
func (p *puller) next(ctx context.Context, limit int) int {
	n, more := p.wanted(limit)
	switch {
	case more && n < max(1, limit/2):
		return 0
	case n > 0 && !more && n < limit/4 && p.f.semaphore.busy(p.svc.quota) > 0:
		if !pause.For(ctx, linger) {
			return 0
		}
		n, _ = p.wanted(limit)
	}
	return n
}

// wanted returns how many events could get a permit and are not requested. more is true if
// requested events are on their way.
func (p *puller) wanted(limit int) (n int, more bool) {
	free := p.f.semaphore.available(p.svc.quota)
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, min(free, limit-p.local)-p.requested), p.requested > 0
}

// start handles an event on a goroutine of its own.
func (p *puller) start(m *store.Delivery) {
	p.touch()
	p.elsewhere.Store(false)
	p.mu.Lock()
	p.requested--
	p.local++
	p.mu.Unlock()
	p.f.deliveries.Add(1)
	p.svc.work.Add(1)
	go func() {
		defer p.f.deliveries.Done()
		defer p.svc.work.Done()
		// The next event may come when the permit of this one is released, while its result
		// is still being written.
		released := sync.OnceFunc(func() {
			p.touch()
			p.mu.Lock()
			p.local--
			p.mu.Unlock()
			signal(p.wake)
		})
		defer released()
		p.f.handle(p.svc, m, released)
	}()
}
