package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Values of a service's key. A service that is retiring is served still.
const (
	serviceActive   = "callbacks"
	serviceRetiring = "retiring"
	// goneTTL is how long the mark of a removed key stays.
	goneTTL = time.Hour
	// registerTries bounds the tries of a compare-and-set on a service's key.
	registerTries = 5
)

// serviceCache is what this process knows of registered services: when each was
// last seen registered, and which are being looked up.
type serviceCache struct {
	mu    sync.Mutex
	seen  map[string]time.Time
	asked map[string]*serviceAsk
}

// serviceAsk is a look-up under way, which everybody waits for who wants to know.
type serviceAsk struct {
	done chan struct{} // closed when err is there
	err  error
}

// RegisterService records that a service has callbacks, so that every node's
// functions serve it. It costs a read once in half of ServiceGrace, and otherwise
// nothing. Who asks at the same time gets the same answer.
func (s *Store) RegisterService(ctx context.Context, svc string) error {
	if !schemas.ValidService(svc) {
		return schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", svc, schemas.MaxServiceLength)
	}
	ask, mine := s.askService(svc)
	switch {
	case ask == nil:
		return nil
	case mine:
		ask.err = s.register(ctx, svc)
		s.answerService(svc, ask)
		return ask.err
	}
	select {
	case <-ask.done:
		return ask.err
	case <-ctx.Done():
		return mapError("register service "+svc, ctx.Err())
	}
}

// serviceKnown reports that a service was seen registered a short while ago.
func (s *Store) serviceKnown(svc string) bool {
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.seen[svc]
	return ok && time.Since(at) < s.cfg.ServiceGrace/2
}

// askService returns nil if the service is known, or a look-up: mine says that the
// caller is to make it, and to call answerService.
func (s *Store) askService(svc string) (ask *serviceAsk, mine bool) {
	if s.serviceKnown(svc) {
		return nil, false
	}
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	if ask := c.asked[svc]; ask != nil {
		return ask, false
	}
	if c.asked == nil {
		c.asked, c.seen = map[string]*serviceAsk{}, map[string]time.Time{}
	}
	ask = &serviceAsk{done: make(chan struct{})}
	c.asked[svc] = ask
	return ask, true
}

func (s *Store) answerService(svc string, ask *serviceAsk) {
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	if ask.err == nil {
		c.seen[svc] = time.Now()
	}
	close(ask.done)
	delete(c.asked, svc)
}

// register makes the key, or makes it active again.
func (s *Store) register(ctx context.Context, svc string) error {
	err := ErrRevision
	for try := 0; errors.Is(err, ErrRevision) && try < registerTries; try++ {
		var st ServiceState
		if st, err = s.ServiceState(ctx, svc); err != nil || st.Registered && !st.Retiring {
			return err
		}
		_, err = s.putCAS(ctx, servicesPrefix+svc, []byte(serviceActive), st.Rev, 0)
	}
	return err
}

// ServiceState is what the store has of a service. Rev is that of its key, or of
// the mark that is left of it, 0 if there is neither.
type ServiceState struct {
	Rev                  uint64
	Registered, Retiring bool
	Since                time.Time // of the key's last change, by the leader's clock
}

// ServiceState reads a service's key from its leader.
func (s *Store) ServiceState(ctx context.Context, svc string) (ServiceState, error) {
	m, err := s.getLast(ctx, servicesStream, servicesPrefix+svc)
	if errors.Is(err, schemas.ErrNotFound) {
		return ServiceState{}, nil
	}
	if err != nil {
		return ServiceState{}, err
	}
	gone := m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != ""
	return ServiceState{Rev: m.Sequence, Registered: !gone, Retiring: !gone && string(m.Data) == serviceRetiring, Since: m.Time}, nil
}

// RetireService announces that an idle service is about to be removed: whoever
// uses it before ServiceGrace is over makes it active again. Error: ErrRevision.
func (s *Store) RetireService(ctx context.Context, svc string, rev uint64) (uint64, error) {
	return s.putCAS(ctx, servicesPrefix+svc, []byte(serviceRetiring), rev, 0)
}

// RemoveService removes a service that was retired with that revision, and stays
// so. Error: ErrRevision. Its consumers are left to DropService.
func (s *Store) RemoveService(ctx context.Context, svc string, rev uint64) error {
	h := casHeader(rev, goneTTL)
	h["KV-Operation"] = []string{"PURGE"}
	h[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	_, err := s.await(ctx, "remove service "+svc, func(done func(ack, error)) {
		s.pub.send("remove service "+svc, servicesPrefix+svc, h, nil, done)
	})
	return err
}

// DropService deletes the consumers of a service. Those that are gone are no error.
func (s *Store) DropService(ctx context.Context, svc string) error {
	for _, kind := range []Kind{KindFired, KindRetry} {
		var r struct {
			Error *jetstream.APIError `json:"error"`
		}
		stream, _ := serviceStream(svc, kind)
		op := "delete the consumer of " + svc + " on " + stream
		if err := s.change(ctx, op, "$JS.API.CONSUMER.DELETE."+stream+"."+serviceConsumerPrefix+svc, nil, &r); err != nil {
			return err
		}
		if r.Error != nil && r.Error.ErrorCode != codeConsumerNotFound {
			return apiError(op, r.Error)
		}
	}
	return nil
}

// ServiceActivity says how long ago a service was last used, by the server's
// clock, and whether anything waits or is worked on.
func (s *Store) ServiceActivity(ctx context.Context, svc string) (idle time.Duration, busy bool, err error) {
	st, err := s.ServiceState(ctx, svc)
	if err != nil {
		return 0, false, err
	}
	var last, now time.Time
	if !st.Retiring { // whose key was changed by nobody who uses it
		last = st.Since
	}
	for _, kind := range []Kind{KindFired, KindRetry} {
		var r struct {
			Error *jetstream.APIError `json:"error"`
			jetstream.ConsumerInfo
		}
		stream, _ := serviceStream(svc, kind)
		op := "look up the consumer of " + svc + " on " + stream
		if err := s.request(ctx, op, "$JS.API.CONSUMER.INFO."+stream+"."+serviceConsumerPrefix+svc, nil, &r); err != nil {
			return 0, false, err
		}
		if r.Error != nil && r.Error.ErrorCode == codeConsumerNotFound {
			return 0, true, nil // about to be made
		}
		if r.Error != nil {
			return 0, false, apiError(op, r.Error)
		}
		busy = busy || r.NumPending > 0 || r.NumAckPending > 0
		for _, t := range []*time.Time{&r.Created, r.Delivered.Last, r.AckFloor.Last} {
			if t != nil && t.After(last) {
				last = *t
			}
		}
		if r.TimeStamp.After(now) {
			now = r.TimeStamp
		}
	}
	return now.Sub(last), busy, nil
}

// ServiceGrace is how long a service is retiring before it is removed. What a
// process knows of a service it believes for half of that.
func (s *Store) ServiceGrace() time.Duration { return s.cfg.ServiceGrace }

// publishFor publishes what a service is to be called back for, once the service
// is certainly registered: it may have been removed since the timer was added.
func (s *Store) publishFor(svc string, m Msg, done func(seq uint64, duplicate bool, err error)) {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		done(0, false, mapError("publish "+m.Subject, nats.ErrConnectionClosed))
		return
	}
	s.background.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.background.Done()
		if err := s.RegisterService(s.life, svc); err != nil {
			done(0, false, mapError("publish "+m.Subject, err))
			return
		}
		s.publishNow(m, done)
	}()
}

// WatchServices sends the registered services, those there are and those to
// come, until ctx ends; then the channel is closed. A service may come twice.
func (s *Store) WatchServices(ctx context.Context) (<-chan string, error) {
	var kv jetstream.KeyValue
	// A node that starts is to wait for a slow store here as it does in Open.
	err := patiently(ctx, func(ctx context.Context) (err error) {
		kv, err = s.js.KeyValue(ctx, schemas.BucketServices)
		return mapError("watch services", err)
	})
	if err != nil {
		return nil, err
	}
	ch := make(chan string)
	go func() {
		defer close(ch)
		for ctx.Err() == nil {
			s.watchServices(ctx, kv, ch)
			timer := time.NewTimer(tailRetry)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
		}
	}()
	return ch, nil
}

func (s *Store) watchServices(ctx context.Context, kv jetstream.KeyValue, ch chan<- string) {
	// A watch finds out after seconds that its server has restarted; it is made
	// anew as soon as the connection is back.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	forget, ok := s.pub.onBreak(cancel)
	if !ok {
		return
	}
	defer forget()
	w, err := kv.WatchAll(ctx, jetstream.IgnoreDeletes(), jetstream.MetaOnly())
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			s.log.Warn().Err(err).Msg("services cannot be watched; trying again")
		}
		return
	}
	defer func() { _ = w.Stop() }() // fails only with the connection
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.Updates():
			if !ok {
				return
			}
			if e == nil {
				continue // the end of what was there
			}
			select {
			case ch <- e.Key():
			case <-ctx.Done():
				return
			}
		}
	}
}
