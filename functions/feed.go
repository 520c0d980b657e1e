package functions

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
)

// source is one of the two streams that a service is served from.
type source = store.Kind

const (
	sourceFired = store.KindFired
	sourceRetry = store.KindRetry
)

// feed pulls one service's messages from one stream, never more than the
// service has free places for.
type feed struct {
	f      *Functions
	svc    *service
	source source
	wake   chan struct{}

	// pulling ends with Functions.Stop, or when the feed comes to rest.
	pulling context.Context
	stop    context.CancelFunc
	// regular says that the feed was woken soon after it had come to rest.
	regular bool
	used    atomic.Int64 // when it last had a message, or was looked at, in Unix nanoseconds
	// elsewhere says that the last attempt to put the feed to rest found work for it that
	// another node holds, or has just concluded.
	elsewhere atomic.Bool

	mu    sync.Mutex
	asked int // messages asked for and not yet come
	local int // messages here that have a place, or wait for one
	fault error
	pulls sync.WaitGroup
}

func (d *feed) key() store.Feed { return store.Feed{Service: d.svc.name, Kind: d.source} }

func (d *feed) touch() { d.used.Store(time.Now().UnixNano()) }

// idle reports whether the feed has had nothing to do here for so long.
func (d *feed) idle(long time.Duration) bool {
	d.mu.Lock()
	local := d.local
	d.mu.Unlock()
	return local == 0 && time.Since(time.Unix(0, d.used.Load())) >= long
}

// run pulls until ctx is done.
func (d *feed) run(ctx context.Context) {
	defer d.pulls.Wait()
	wait := minPause
	for ctx.Err() == nil {
		// A request that the old connection swallowed ends when the new one is there.
		conn := d.f.pullContext()
		st, err := d.f.o.Store.ServiceState(conn, d.key())
		if err == nil && !st.Awake {
			d.f.leaveResting(d.f.pulling, d)
			return
		}
		var cons jetstream.Consumer
		if err == nil {
			cons, err = d.f.o.Store.ServiceConsumer(conn, d.key(), st.Floor, d.f.o.MaxAckPending, d.f.o.AckWait)
		}
		if err == nil {
			err = d.pull(ctx, cons, func() { wait = minPause })
		}
		switch {
		case ctx.Err() != nil:
			return
		case conn.Err() != nil:
			wait = minPause
		case errors.Is(err, jetstream.ErrConsumerDeleted):
			continue // it rests, perhaps
		}
		if d.f.complaints.Allow("pull "+d.svc.name, time.Now()) {
			d.f.o.Log.Warn().Err(err).Str("service", d.svc.name).Msg("pulling events failed; it is tried again")
		}
		pause.For(ctx, wait)
		wait = min(wait*2, maxPause)
	}
}

// pull keeps pulls open until one fails. healthy is called when one did not.
func (d *feed) pull(ctx context.Context, cons jetstream.Consumer, healthy func()) error {
	born := cons.CachedInfo().Created
	for {
		n, err := d.next()
		if err != nil || ctx.Err() != nil {
			return err
		}
		if n == 0 {
			select {
			case <-d.wake:
			case <-ctx.Done():
				return nil
			}
			healthy()
			continue
		}
		if err := d.fetch(cons, born, n); err != nil {
			return err
		}
	}
}

// next says how many messages to ask for now, 0 for none. While some are still
// expected, more are asked for only when half of the service's places could be
// filled; a busy service lets places add up for a moment. Both make one pull
// serve many messages.
func (d *feed) next() (int, error) {
	n, expecting, err := d.wanted()
	switch {
	case err != nil || n == 0:
		return 0, err
	case expecting && n < max(1, d.svc.limit.n()/2):
		return 0, nil
	case !expecting && n < d.svc.limit.n()/4 && d.f.places.busy(d.svc.seat) > 0:
		if !pause.For(d.f.pulling, linger) {
			return 0, nil
		}
		n, _, err = d.wanted()
	}
	return n, err
}

func (d *feed) wanted() (n int, expecting bool, err error) {
	room := d.f.places.room(d.svc.seat)
	d.mu.Lock()
	defer d.mu.Unlock()
	err, d.fault = d.fault, nil
	return max(0, min(room, d.svc.limit.n()-d.local)-d.asked), d.asked > 0, err
}

// fetch asks for n messages and handles them as they come.
func (d *feed) fetch(cons jetstream.Consumer, born time.Time, n int) error {
	parent := d.f.pullContext()
	ctx, cancel := context.WithTimeoutCause(parent, fetchExpiry, errReconnected)
	unhook := context.AfterFunc(d.pulling, cancel)
	batch, err := cons.Fetch(n, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(fetchHeartbeat))
	if err != nil {
		unhook()
		cancel()
		return err
	}
	d.mu.Lock()
	d.asked += n
	d.mu.Unlock()
	d.pulls.Add(1)
	go func() {
		defer d.pulls.Done()
		defer cancel()
		defer unhook()
		for m := range batch.Messages() {
			n--
			d.arrived(m, born)
		}
		d.ended(n, batch.Error())
	}()
	return nil
}

// arrived starts to work on a message.
func (d *feed) arrived(m jetstream.Msg, born time.Time) {
	d.touch()
	d.elsewhere.Store(false)
	d.mu.Lock()
	d.asked--
	d.local++
	d.mu.Unlock()
	d.f.deliveries.Add(1)
	d.svc.work.Add(1)
	go func() {
		defer d.f.deliveries.Done()
		defer d.svc.work.Done()
		// The next one may come when this one's place is free, whatever is left to
		// be written.
		left := sync.OnceFunc(func() {
			d.touch()
			d.mu.Lock()
			d.local--
			d.mu.Unlock()
			d.poke()
		})
		defer left()
		d.f.handle(d.svc, m, born, left)
	}()
}

// ended takes note of the end of a pull that was left messages short.
func (d *feed) ended(left int, err error) {
	d.mu.Lock()
	d.asked -= left
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		d.fault = err
	}
	d.mu.Unlock()
	d.poke()
}

func (d *feed) poke() {
	select {
	case d.wake <- struct{}{}:
	default: // it is to wake already
	}
}
