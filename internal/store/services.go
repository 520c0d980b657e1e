package store

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// A service with callbacks is served from two streams, TIMERS_FIRED and TIMERS_RETRY.
// Each of the two is a Feed. A feed is awake while it has a consumer, and resting
// otherwise; a resting feed costs one message in the bucket "services" and nothing else.
//
//	key of the feed          state     consumer
//	"callbacks [floor]"      awake     exists, or is about to be made
//	purge marker [floor]     resting   none
//	nothing                  unknown   none
//
// The floor is a sequence of the feed's stream: every event of the service up to it is
// concluded. The next consumer starts behind it.
//
// A publisher of an event that must be called back wakes the feed before it publishes.
// It remembers for serviceTrust that the feed is awake, so a feed may come to rest
// between the publisher's look and the publish. Such an event is found by
//   - functions, which look at the stream right after they put a feed to rest,
//   - the publisher, which follows the bucket and wakes a feed whose floor is below a
//     sequence that it has published, and looks at the key again where the
//     acknowledgement came after serviceTrust,
//   - functions, which look at the stream once more after ServiceGrace,
//   - the sweeper, which wakes the feed of every event that has not concluded.
//
// Every change of a key is a compare-and-set.
const (
	serviceActive = "callbacks"
	// serviceRetiring is what nodes of versions before 0.9 write when they are about to
	// remove a service. It is served, and whoever uses it makes it active again.
	serviceRetiring = "retiring"
	// retryKey ends the keys of feeds of TIMERS_RETRY; no service has a dot in its name.
	retryKey = ".retry"
	// retryRestTTL is how long the marker of a resting retry feed stays: it says nothing
	// that the stream, a work queue, does not say.
	retryRestTTL = time.Hour
	// serviceKeep is how long a resting service is remembered, and counted as one of
	// MaxServices, after its last add or event.
	serviceKeep = 7 * 24 * time.Hour
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
	// manyServices is how many services' entries a node remembers before it forgets
	// those that have expired.
	manyServices = 1024
)

// Feed is one stream of one service.
type Feed struct {
	Service string
	Kind    Kind
}

func (f Feed) key() string {
	if f.Kind == KindRetry {
		return f.Service + retryKey
	}
	return f.Service
}

func feedOf(key string) (f Feed, ok bool) {
	name, retry := strings.CutSuffix(key, retryKey)
	if retry {
		f.Kind = KindRetry
	}
	f.Service = name
	return f, schemas.ValidService(name)
}

// serviceCache is what this process knows of feeds and services.
type serviceCache struct {
	mu    sync.Mutex
	feeds map[Feed]*feedEntry
	known map[string]time.Time // when an add's service was last seen to have a key
	full  time.Time            // when there were last too many services
	// count is how many services there were at countAt, and those that this process has
	// registered since.
	count   int
	countAt time.Time
	swept   time.Time // when expired entries were last forgotten
}

// feedEntry is what this process knows of a feed.
type feedEntry struct {
	awake time.Time // when it was last seen awake; zero: it rests, or nobody knows
	rev   uint64    // of the key that said so
	last  uint64    // sequence of the last event that this process published
	ask   *serviceAsk
}

// serviceAsk is a look-up under way, which everybody waits for who wants to know.
type serviceAsk struct {
	done chan struct{} // closed when err is there
	err  error
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
		c.forget(s.serviceTrust())
	case schemas.CodeOf(err) == schemas.CodeTooManyServices && !full:
		c.full = time.Now()
	}
	return err
}

func checkService(svc string) error {
	if !schemas.ValidService(svc) {
		return schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", svc, schemas.MaxServiceLength)
	}
	return nil
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
	info, err := s.streamState(ctx, servicesStream)
	if err != nil {
		return 0, err
	}
	n := int(info.State.NumSubjects)
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	for f, e := range c.feeds {
		if f.Kind == KindRetry && !e.awake.IsZero() {
			n-- // a second key of a service that is counted
		}
	}
	c.count, c.countAt = n, time.Now()
	return n, nil
}

// counted returns the last count, if it is not too old.
func (c *serviceCache) counted() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count, time.Since(c.countAt) < countFor
}

// WakeService wakes a feed: functions make its consumer. A feed that is known to be
// awake costs nothing.
func (s *Store) WakeService(ctx context.Context, f Feed) error {
	if err := checkService(f.Service); err != nil {
		return err
	}
	ask, mine := s.askFeed(f)
	switch {
	case ask == nil:
		return nil
	case mine:
		ask.err = s.wake(ctx, f, 0)
		s.answerFeed(f, ask)
		return ask.err
	}
	select {
	case <-ask.done:
		return ask.err
	case <-ctx.Done():
		return mapError("wake service "+f.Service, ctx.Err())
	}
}

// serviceTrust is how long a publisher takes a feed for awake without a look.
func (s *Store) serviceTrust() time.Duration { return s.cfg.ServiceGrace / 2 }

// feedAwake reports that a feed was seen awake a short while ago.
func (s *Store) feedAwake(f Feed) bool {
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.feeds[f]
	return e != nil && s.trusted(e)
}

func (s *Store) trusted(e *feedEntry) bool {
	return !e.awake.IsZero() && time.Since(e.awake) < s.serviceTrust()
}

// askFeed returns nil if the feed is known to be awake, or a look-up: mine says that
// the caller is to make it, and to call answerFeed.
func (s *Store) askFeed(f Feed) (ask *serviceAsk, mine bool) {
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(f, s.serviceTrust())
	if e.ask != nil {
		return e.ask, false
	}
	if s.trusted(e) {
		return nil, false
	}
	e.ask = &serviceAsk{done: make(chan struct{})}
	return e.ask, true
}

func (s *Store) answerFeed(f Feed, ask *serviceAsk) {
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	close(ask.done)
	c.entry(f, s.serviceTrust()).ask = nil
}

// entry is that of a feed. c.mu is held.
func (c *serviceCache) entry(f Feed, trust time.Duration) *feedEntry {
	e := c.feeds[f]
	if e == nil {
		if c.feeds == nil {
			c.feeds = map[Feed]*feedEntry{}
		}
		c.forget(trust)
		e = &feedEntry{}
		c.feeds[f] = e
	}
	return e
}

// forget drops entries that have expired, once there are many. c.mu is held.
func (c *serviceCache) forget(trust time.Duration) {
	if len(c.feeds)+len(c.known) < manyServices || time.Since(c.swept) < time.Second {
		return
	}
	c.swept = time.Now()
	for f, e := range c.feeds {
		// Twice: what was published within the trust may be acknowledged after it.
		if e.ask == nil && time.Since(e.awake) > 2*trust {
			delete(c.feeds, f)
		}
	}
	for svc, at := range c.known {
		if time.Since(at) > serviceFresh {
			delete(c.known, svc)
		}
	}
}

// wake makes a feed's key active. With need, a sequence, a feed that rests at or above
// it stays at rest: the event of that sequence has been served.
func (s *Store) wake(ctx context.Context, f Feed, need uint64) error {
	err := ErrRevision
	for try := 0; errors.Is(err, ErrRevision) && try < registerTries; try++ {
		seen := time.Now()
		var st ServiceState
		if st, err = s.ServiceState(ctx, f); err != nil {
			return err
		}
		switch {
		case st.Awake && !st.retiring:
			s.sawAwake(f, st.Rev, seen)
			return nil
		case !st.Awake && need > 0 && st.Floor >= need:
			return nil
		}
		var rev uint64
		if rev, err = s.putCAS(ctx, servicesPrefix+f.key(), activeValue(st.Floor), st.Rev, 0); err == nil {
			s.sawAwake(f, rev, seen)
		}
	}
	return err
}

func (s *Store) sawAwake(f Feed, rev uint64, at time.Time) {
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entry(f, s.serviceTrust()); rev >= e.rev {
		e.awake, e.rev = at, rev
	}
}

// published takes note of an acknowledged event. It returns false if the feed may have
// come to rest before the event was stored.
func (s *Store) published(f Feed, seq uint64) bool {
	c := &s.services
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(f, s.serviceTrust())
	e.last = max(e.last, seq)
	return s.trusted(e)
}

// followServices keeps what this process knows of feeds up to date, until ctx ends.
func (s *Store) followServices(ctx context.Context) {
	s.watchKeys(ctx, func() { s.recheckFeeds(ctx) }, func(ch ServiceChange) {
		if !ch.Awake {
			s.sawRest(ctx, ch)
		}
	}, jetstream.UpdatesOnly())
}

// sawRest takes note that a feed rests, and wakes it if this process has published an
// event behind the floor.
func (s *Store) sawRest(ctx context.Context, ch ServiceChange) {
	c := &s.services
	c.mu.Lock()
	e := c.feeds[ch.Feed]
	var last uint64
	if e != nil && ch.Rev > e.rev {
		e.rev, e.awake, last = ch.Rev, time.Time{}, e.last
	}
	c.mu.Unlock()
	if last > ch.Floor {
		s.inBackground(func() { s.wakeAgain(ctx, ch.Feed, last) })
	}
}

// recheckFeeds looks at every feed that this process has published to: what happened while
// the bucket was not followed is not known.
func (s *Store) recheckFeeds(ctx context.Context) {
	c := &s.services
	c.mu.Lock()
	last := map[Feed]uint64{}
	for f, e := range c.feeds {
		if e.last > 0 && time.Since(e.awake) < 2*s.serviceTrust() {
			last[f] = e.last
		}
		e.awake = time.Time{}
	}
	c.mu.Unlock()
	if len(last) == 0 {
		return
	}
	s.inBackground(func() {
		for f, seq := range last {
			s.wakeAgain(ctx, f, seq)
		}
	})
}

// wakeAgain wakes a feed for an event that was published, trying until the store
// answers or ctx ends.
func (s *Store) wakeAgain(ctx context.Context, f Feed, seq uint64) {
	for ctx.Err() == nil {
		err := s.wake(ctx, f, seq)
		if err == nil {
			return
		}
		timer := time.NewTimer(tailRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// inBackground runs f unless the store is being closed; Close waits for it.
func (s *Store) inBackground(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.background.Go(f)
	return true
}

// ServiceState is what the store has of a feed. Rev is that of its key, or of the
// marker that is left of it, 0 if there is neither.
type ServiceState struct {
	Rev   uint64
	Awake bool
	// Floor is a sequence of the feed's stream: all events of the service up to it are
	// concluded.
	Floor    uint64
	Since    time.Time // of the key's last change, by the leader's clock
	retiring bool
}

// ServiceState reads a feed's key from its leader.
func (s *Store) ServiceState(ctx context.Context, f Feed) (ServiceState, error) {
	m, err := s.getLast(ctx, servicesStream, servicesPrefix+f.key())
	if errors.Is(err, schemas.ErrNotFound) {
		return ServiceState{}, nil
	}
	if err != nil {
		return ServiceState{}, err
	}
	gone := m.Header.Get("KV-Operation") != "" || m.Header.Get(jetstream.MarkerReasonHeader) != ""
	return ServiceState{
		Rev: m.Sequence, Awake: !gone, Floor: floorOf(m.Data), Since: m.Time,
		retiring: !gone && string(m.Data) == serviceRetiring,
	}, nil
}

func activeValue(floor uint64) []byte {
	if floor == 0 {
		return []byte(serviceActive)
	}
	return append([]byte(serviceActive+" "), strconv.FormatUint(floor, 10)...)
}

// floorOf reads the floor of a key or of a marker; 0 where it has none.
func floorOf(value []byte) uint64 {
	text := string(value)
	if i := strings.IndexByte(text, ' '); i >= 0 {
		text = text[i+1:]
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// MayRest reports whether feeds may be put to rest now: while a node of a version
// before 0.9 is alive, they may not, because it would not wake them in time.
func (s *Store) MayRest() bool { return s.level() >= LevelRestingServices }

// RestService puts a feed to rest whose key has that revision; floor is from
// ServiceActivity. Its consumer is left to DropService. Error: ErrRevision.
func (s *Store) RestService(ctx context.Context, f Feed, rev, floor uint64) error {
	rest, err := s.putRest(ctx, f, floor, rev)
	if err != nil {
		return err
	}
	s.sawRest(s.life, ServiceChange{Feed: f, Rev: rest, Floor: floor})
	return nil
}

// putRest writes the marker of a feed that rests.
func (s *Store) putRest(ctx context.Context, f Feed, floor, rev uint64) (uint64, error) {
	ttl := max(serviceKeep, s.cfg.FiredMaxAge)
	if f.Kind == KindRetry {
		ttl = retryRestTTL
	}
	h := casHeader(rev, ttl)
	h["KV-Operation"] = []string{"PURGE"}
	h[jetstream.MsgRollup] = []string{jetstream.MsgRollupSubject}
	op := "put service " + f.key() + " to rest"
	a, err := s.await(ctx, op, func(done func(ack, error)) {
		s.pub.send(op, servicesPrefix+f.key(), h, []byte(strconv.FormatUint(floor, 10)), done)
	})
	return a.Seq, err
}

// ServiceBacklog reports whether a resting feed's stream has an event behind its floor.
func (s *Store) ServiceBacklog(ctx context.Context, f Feed, floor uint64) (bool, error) {
	stream, subject := serviceStream(f.Service, f.Kind)
	m, err := s.getLast(ctx, stream, subject)
	if errors.Is(err, schemas.ErrNotFound) {
		return false, nil
	}
	// What is in the work queue is not concluded.
	return err == nil && (f.Kind == KindRetry || m.Sequence > floor), err
}

// RetryBacklog lists the services that have retries in TIMERS_RETRY.
func (s *Store) RetryBacklog(ctx context.Context) ([]string, error) {
	info, err := s.streamState(ctx, schemas.StreamRetry)
	if err != nil || info.State.Msgs == 0 {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	stream, err := s.findStream(ctx, schemas.StreamRetry)
	if err != nil {
		return nil, mapError("look up stream "+schemas.StreamRetry, err)
	}
	all, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return nil, mapError("list the services with retries", err)
	}
	var out []string
	for subject := range all.State.Subjects {
		if svc := schemas.ServiceOfSubject(subject); schemas.ValidService(svc) {
			out = append(out, svc)
		}
	}
	return out, nil
}

// DropService deletes the consumer of a feed. One that is gone is no error.
func (s *Store) DropService(ctx context.Context, f Feed) error {
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	stream, _ := serviceStream(f.Service, f.Kind)
	op := "delete the consumer of " + f.Service + " on " + stream
	if err := s.change(ctx, op, "$JS.API.CONSUMER.DELETE."+stream+"."+serviceConsumerPrefix+f.Service, nil, &r); err != nil {
		return err
	}
	if r.Error != nil && r.Error.ErrorCode != codeConsumerNotFound {
		return apiError(op, r.Error)
	}
	return nil
}

// ServedFeeds lists the feeds that have consumers.
func (s *Store) ServedFeeds(ctx context.Context) ([]Feed, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var out []Feed
	for name, kind := range map[string]Kind{schemas.StreamFired: KindFired, schemas.StreamRetry: KindRetry} {
		stream, err := s.findStream(ctx, name)
		if err != nil {
			return nil, mapError("look up stream "+name, err)
		}
		list := stream.ConsumerNames(ctx)
		for consumer := range list.Name() {
			if svc, ours := strings.CutPrefix(consumer, serviceConsumerPrefix); ours && schemas.ValidService(svc) {
				out = append(out, Feed{svc, kind})
			}
		}
		if err := list.Err(); err != nil {
			return nil, mapError("list consumers of "+name, err)
		}
	}
	return out, nil
}

// ServiceActivity is what a feed's consumer does.
type ServiceActivity struct {
	// Idle is how long ago it was last used, by the server's clock.
	Idle time.Duration
	// Busy says that events wait or are worked on, or that there is no consumer yet.
	Busy bool
	// Absent says that there is no consumer yet.
	Absent bool
	// Floor is the sequence up to which all events of the service are concluded.
	Floor uint64
}

// ServiceActivity asks the leader of a feed's consumer.
func (s *Store) ServiceActivity(ctx context.Context, f Feed) (ServiceActivity, error) {
	var r struct {
		Error *jetstream.APIError `json:"error"`
		jetstream.ConsumerInfo
	}
	stream, _ := serviceStream(f.Service, f.Kind)
	op := "look up the consumer of " + f.Service + " on " + stream
	if err := s.request(ctx, op, "$JS.API.CONSUMER.INFO."+stream+"."+serviceConsumerPrefix+f.Service, nil, &r); err != nil {
		return ServiceActivity{}, err
	}
	if r.Error != nil && r.Error.ErrorCode == codeConsumerNotFound {
		return ServiceActivity{Busy: true, Absent: true}, nil // about to be made
	}
	if r.Error != nil {
		return ServiceActivity{}, apiError(op, r.Error)
	}
	last := r.Created
	for _, t := range []*time.Time{r.Delivered.Last, r.AckFloor.Last} {
		if t != nil && t.After(last) {
			last = *t
		}
	}
	return ServiceActivity{Idle: r.TimeStamp.Sub(last), Busy: r.NumPending > 0 || r.NumAckPending > 0, Floor: r.AckFloor.Stream}, nil
}

// ServiceGrace is how long after a feed came to rest an event may still be stored whose
// publisher had seen it awake.
func (s *Store) ServiceGrace() time.Duration { return s.cfg.ServiceGrace }

// feedFor is the feed that a message of a service is for.
func feedFor(m *Msg) Feed {
	f := Feed{Service: m.Service}
	if strings.HasPrefix(m.Subject, schemas.SubjectRetryPrefix) {
		f.Kind = KindRetry
	}
	return f
}

// publishFor publishes what a service must be called back for: it wakes the feed
// before, and makes sure after the acknowledgement that it has not come to rest.
func (s *Store) publishFor(m Msg, done func(seq uint64, duplicate bool, err error)) {
	f := feedFor(&m)
	publish := func() {
		s.publishNow(m, func(seq uint64, duplicate bool, err error) {
			if err != nil || s.published(f, seq) {
				done(seq, duplicate, err)
				return
			}
			s.orClosed(m.Subject, done, func() {
				err := s.wake(s.life, f, seq)
				done(seq, duplicate, mapError("publish "+m.Subject, err))
			})
		})
	}
	if s.feedAwake(f) {
		publish()
		return
	}
	s.orClosed(m.Subject, done, func() {
		if err := s.WakeService(s.life, f); err != nil {
			done(0, false, mapError("publish "+m.Subject, err))
			return
		}
		publish()
	})
}

func (s *Store) orClosed(subject string, done func(uint64, bool, error), f func()) {
	if !s.inBackground(f) {
		done(0, false, mapError("publish "+subject, nats.ErrConnectionClosed))
	}
}

// ServiceChange is one change of a feed's key.
type ServiceChange struct {
	Feed
	Awake bool
	Rev   uint64
	Floor uint64
}

// WatchServices sends every feed that is awake, and then every change, until ctx ends;
// then the channel is closed. A change may come twice.
func (s *Store) WatchServices(ctx context.Context) (<-chan ServiceChange, error) {
	// A node that starts is to wait for a slow store here as it does in Open.
	err := patiently(ctx, func(ctx context.Context) error {
		_, err := s.js.KeyValue(ctx, schemas.BucketServices)
		return mapError("watch services", err)
	})
	if err != nil {
		return nil, err
	}
	ch := make(chan ServiceChange)
	go func() {
		defer close(ch)
		s.watchKeys(ctx, func() {}, func(c ServiceChange) {
			select {
			case ch <- c:
			case <-ctx.Done():
			}
		})
	}()
	return ch, nil
}

// watchKeys calls change for each change of a feed's key until ctx ends. begun is
// called whenever the watch has begun, or begun again.
func (s *Store) watchKeys(ctx context.Context, begun func(), change func(ServiceChange), opts ...jetstream.WatchOpt) {
	for ctx.Err() == nil {
		s.watchKeysOnce(ctx, begun, change, opts)
		timer := time.NewTimer(tailRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (s *Store) watchKeysOnce(ctx context.Context, begun func(), change func(ServiceChange), opts []jetstream.WatchOpt) {
	// A watch notices only after seconds that its server has restarted. It ends with
	// the connection, and begins again as soon as that is back.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	forget, ok := s.pub.onBreak(cancel)
	if !ok {
		return
	}
	defer forget()
	w, err := s.watchBucket(ctx, opts)
	if err != nil {
		if !errors.Is(err, context.Canceled) && ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("services cannot be watched; trying again")
		}
		return
	}
	defer func() { _ = w.Stop() }() // fails only with the connection
	begun()
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
			if f, ok := feedOf(e.Key()); ok {
				change(ServiceChange{Feed: f, Awake: e.Operation() == jetstream.KeyValuePut, Rev: e.Revision(), Floor: floorOf(e.Value())})
			}
		}
	}
}

func (s *Store) watchBucket(ctx context.Context, opts []jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	kv, err := s.js.KeyValue(ctx, schemas.BucketServices)
	if err != nil {
		return nil, err
	}
	return kv.WatchAll(ctx, opts...)
}
