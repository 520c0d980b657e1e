package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// serviceFresh is how long a node remembers that it has seen, or made, the key of a
	// service that an add names.
	serviceFresh = time.Hour
	// fullFor is how long a node refuses unknown services without asking again, once
	// there were too many.
	fullFor = time.Second
	// countFor is how long a count of the services is used: many may be new at once.
	countFor = time.Second
	// registerTries bounds the tries of a compare-and-set on a service's key.
	registerTries = 5
	// manyServices is the number of services above which a node forgets services that it
	// has not seen for serviceFresh.
	manyServices = 1024
)

// registrations is what this process knows of the services that adds name.
type registrations struct {
	mu    sync.Mutex
	known map[string]time.Time // when an add's service was last seen to have a key
	swept time.Time            // when known was last searched for what is too old
	full  time.Time            // when there were last too many services
	// count is how many services there were at countAt, and those that this process has
	// registered since.
	count   int
	countAt time.Time
}

// RegisterService makes a service with callbacks known, so that it counts as one of
// MaxServices. It does not wake it: that is for whoever publishes. A known service
// costs a read once an hour and node. Errors: bad_request, too_many_services,
// unavailable.
func (s *Store) RegisterService(ctx context.Context, svc string) error {
	if err := checkService(svc); err != nil {
		return err
	}
	c := &s.services
	c.mu.Lock()
	at, known := c.known[svc]
	full := time.Since(c.full) < fullFor
	c.mu.Unlock()
	if known && time.Since(at) < serviceFresh {
		return nil
	}
	err := ErrRevision
	for try := 0; errors.Is(err, ErrRevision) && try < registerTries; try++ {
		err = s.register(ctx, Feed{Service: svc}, full)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		if c.known == nil {
			c.known = map[string]time.Time{}
		}
		c.known[svc] = time.Now()
		c.forget()
	case schemas.CodeOf(err) == schemas.CodeTooManyServices && !full:
		c.full = time.Now()
	}
	return err
}

// register looks for the key of a service, and makes it where there is room. full says
// that there was none a moment ago.
func (s *Store) register(ctx context.Context, f Feed, full bool) error {
	st, err := s.ServiceState(ctx, f)
	if err != nil || st.Awake {
		return err
	}
	if st.Rev == 0 { // unknown
		n := s.cfg.MaxServices
		if !full {
			if n, err = s.countServices(ctx); err != nil {
				return err
			}
		}
		if n >= s.cfg.MaxServices {
			return schemas.Errorf(schemas.CodeTooManyServices, "service %s would be one too many: there are %d services with callbacks, the limit (max-services) is %d: raise it, use fewer names, or wait until a service has had no timer for %s",
				f.Service, n, s.cfg.MaxServices, serviceKeep)
		}
	} else if time.Since(st.Since) < serviceKeep/2 { // by two clocks, which days forgive
		return nil
	}
	if _, err = s.putRest(ctx, f, st.Floor, st.Rev); err == nil && st.Rev == 0 {
		s.services.mu.Lock()
		s.services.count++
		s.services.mu.Unlock()
	}
	return err
}

// countServices is how many services have a key. What other nodes have registered within
// countFor is not counted, so the services of a cluster may exceed MaxServices by as many.
func (s *Store) countServices(ctx context.Context) (int, error) {
	if n, ok := s.services.counted(); ok {
		return n, nil
	}
	info, err := s.jet.Stream(ctx, servicesStream)
	if err != nil {
		return 0, err
	}
	// A retry feed that is awake is a second key of a service that is counted.
	n := int(info.State.NumSubjects) - s.waker.awakeRetries()
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count, c.countAt = n, time.Now()
	return n, nil
}

// counted returns the last count, if it is not too old.
func (c *registrations) counted() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count, time.Since(c.countAt) < countFor
}

// forget drops services that were not seen for long, once there are many. c.mu is held.
func (c *registrations) forget() {
	if len(c.known) < manyServices || time.Since(c.swept) < time.Second {
		return
	}
	c.swept = time.Now()
	for svc, at := range c.known {
		if time.Since(at) > serviceFresh {
			delete(c.known, svc)
		}
	}
}
