package functions

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// Services that are not used any more lose their consumers and their key, so that
// a store does not grow with every service that there ever was:
//
//	active ── idle for ServiceIdle ──▶ retiring ── the store's ServiceGrace ──▶ removed
//	   ▲                                  │                                        │
//	   └──────── a timer is added, or one is about to be published ────────────────┘
//
// Every arrow is a compare-and-set on the key, so any number of nodes may try.
// Nothing is lost: whoever publishes has looked at the key within half of the
// grace, so a service that was used meanwhile is active again, and not removed.
// Consumers go after the key; a node that finds one gone looks at the key, and
// either leaves the service or makes the consumer again, from the stream's start.

// retiringSince is since when this process has seen a key retiring.
type retiringSince struct {
	rev uint64
	at  time.Time
}

// retireIdle looks at the services every now and then until ctx is done.
func (f *Functions) retireIdle(ctx context.Context) {
	grace := f.o.Store.ServiceGrace()
	every := max(min(f.o.ServiceIdle/idleLooks, maxIdleLook), grace)
	seen := map[string]retiringSince{}
	// Nodes that start together should not look together.
	for wait := time.Duration(float64(every) * (0.5 + random()/2)); pause(ctx, wait); wait = every {
		for _, name := range f.served() {
			if err := f.retireOne(ctx, name, grace, seen); err != nil && !errors.Is(err, store.ErrRevision) && ctx.Err() == nil && f.mute.ok("retire") {
				f.o.Log.Warn().Err(err).Str("service", name).Msg("whether a service is idle cannot be found out; it is tried again")
			}
		}
	}
}

func (f *Functions) served() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, 0, len(f.services))
	for name := range f.services {
		names = append(names, name)
	}
	return names
}

// retireOne takes a service at most one step further.
func (f *Functions) retireOne(ctx context.Context, name string, grace time.Duration, seen map[string]retiringSince) error {
	st, err := f.o.Store.ServiceState(ctx, name)
	if err != nil {
		return err
	}
	if !st.Registered { // removed by a node that died before it came to the consumers
		return f.o.Store.DropService(ctx, name)
	}
	idle, busy, err := f.o.Store.ServiceActivity(ctx, name)
	if err != nil {
		return err
	}
	r := seen[name]
	delete(seen, name)
	switch {
	case busy || idle < f.o.ServiceIdle:
		return nil
	case !st.Retiring:
		rev, err := f.o.Store.RetireService(ctx, name, st.Rev)
		if err == nil {
			seen[name] = retiringSince{rev, time.Now()}
		}
		return err
	case r.rev != st.Rev:
		seen[name] = retiringSince{st.Rev, time.Now()}
		return nil
	case time.Since(r.at) < grace:
		seen[name] = r
		return nil
	}
	if err := f.o.Store.RemoveService(ctx, name, st.Rev); err != nil {
		return err
	}
	f.o.Log.Info().Str("service", name).Dur("idle", idle).Msg("an idle service loses its consumers until its next timer")
	return f.o.Store.DropService(ctx, name)
}

// registered reports whether a service is to be served.
func (d *feed) registered(ctx context.Context) (bool, error) {
	st, err := d.f.o.Store.ServiceState(ctx, d.svc.name)
	return st.Registered, err
}

// leave ends the work for a service that was removed. It is called by the
// service's feeds. One that comes back just now may have been named while it was
// served still: so it is looked at once more.
func (f *Functions) leave(ctx context.Context, s *service) {
	f.mu.Lock()
	if f.services[s.name] != s {
		f.mu.Unlock()
		return // the other feed has done it
	}
	delete(f.services, s.name)
	f.background.Add(1)
	f.mu.Unlock()
	s.stop()
	go func() {
		defer f.background.Done()
		s.work.Wait()
		f.places.remove(s.seat)
		s.calling.Load().http.Close()
	}()
	for wait := minPause; ; wait = min(wait*2, maxPause) {
		st, err := f.o.Store.ServiceState(ctx, s.name)
		if err == nil {
			if st.Registered {
				f.serve(s.name)
			}
			return
		}
		if !pause(ctx, wait) {
			return
		}
	}
}
