package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// serviceFresh is the time after a node has read or written the key of a service in which
	// it does not read the key again.
	serviceFresh = time.Hour
	// fullFor is the time after the limit was reached in which a node rejects new services
	// without another count.
	fullFor = time.Second
	// countFor is the time in which a node uses a count of the services, so that many adds with
	// new services cost one count.
	countFor = time.Second
	// registerTries bounds the tries of a compare-and-set on a service's key.
	registerTries = 5
	// manyServices is the number of services above which a node forgets services that it
	// has not seen for serviceFresh.
	manyServices = 1024
)

// Services registers the services that adds name, at most MaxServices of them. A service
// counts from its first add until serviceKeep after its last add or event.
//
// The bound is not exact: the nodes count on their own, so the services of a cluster may
// exceed it by as many as other nodes register within countFor. Safe for concurrent use.
type Services struct {
	keys  *ServiceKeys
	waker *Waker
	most  int // MaxServices

	mu    sync.Mutex
	known map[string]time.Time // when a registered service was last seen to have a key
	swept time.Time            // when forget last searched known
	full  time.Time            // when the limit was last reached
	// count is the number of services at countAt, plus the number that this process has
	// registered since.
	count   int
	countAt time.Time
}

func newServices(keys *ServiceKeys, w *Waker, most int) *Services {
	return &Services{keys: keys, waker: w, most: most, known: map[string]time.Time{}}
}

// RegisterService registers a service with callbacks, so that it counts as one of
// MaxServices. It does not wake the service; publishers do that. For a known service it
// sends one request an hour from each node. Errors: bad_request, too_many_services,
// unavailable.
func (s *Services) RegisterService(ctx context.Context, svc string) error {
	if err := checkService(svc); err != nil {
		return err
	}
	s.mu.Lock()
	at, known := s.known[svc]
	full := time.Since(s.full) < fullFor
	s.mu.Unlock()
	if known && time.Since(at) < serviceFresh {
		return nil
	}
	err := ErrRevision
	for try := 0; errors.Is(err, ErrRevision) && try < registerTries; try++ {
		err = s.register(ctx, Feed{Service: svc}, full)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.known[svc] = time.Now()
		s.forget()
	case schemas.CodeOf(err) == schemas.CodeTooManyServices && !full:
		s.full = time.Now()
	}
	return err
}

// register makes the key of a service if there is none, or prolongs its marker. full is true if
// the limit of services was reached less than fullFor ago. Error: schemas.CodeTooManyServices
// for a new service beyond the limit.
func (s *Services) register(ctx context.Context, f Feed, full bool) error {
	st, err := s.keys.ServiceState(ctx, f)
	if err != nil || st.Awake {
		return err
	}
	if st.Rev == 0 { // unknown
		n := s.most
		if !full {
			if n, err = s.countServices(ctx); err != nil {
				return err
			}
		}
		if n >= s.most {
			return schemas.Errorf(schemas.CodeTooManyServices, "service %s would be one too many: there are %d services with callbacks, the limit (max-services) is %d: raise it, use fewer names, or wait until a service has had no timer for %s",
				f.Service, n, s.most, serviceKeep)
		}
	} else if time.Since(st.Since) < serviceKeep/2 { // this host's clock and the server's differ by less than days
		return nil
	}
	if _, err = s.keys.putRest(ctx, f, st.Floor, st.Rev); err == nil && st.Rev == 0 {
		s.mu.Lock()
		s.count++
		s.mu.Unlock()
	}
	return err
}

// countServices returns the number of services that have a key.
func (s *Services) countServices(ctx context.Context) (int, error) {
	if n, ok := s.counted(); ok {
		return n, nil
	}
	n, err := s.keys.keys(ctx)
	if err != nil {
		return 0, err
	}
	// A retry feed that is awake is a second key of a service that is counted.
	n -= s.waker.awakeRetries()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count, s.countAt = n, time.Now()
	return n, nil
}

// counted returns the last count, if it is not older than countFor.
func (s *Services) counted() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, time.Since(s.countAt) < countFor
}

// forget drops services that were not seen for serviceFresh, once there are many. s.mu is
// held.
func (s *Services) forget() {
	if len(s.known) < manyServices || time.Since(s.swept) < time.Second {
		return
	}
	s.swept = time.Now()
	for svc, at := range s.known {
		if time.Since(at) > serviceFresh {
			delete(s.known, svc)
		}
	}
}
