package store

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
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
//
// Waker is the publishers' part, package functions' Rester the part of those who serve.
const (
	serviceActive = "callbacks"
	// serviceRetiring is written by nodes before version 0.9 that are about to remove a
	// service. Such a service is still served, and the next publisher makes it active.
	serviceRetiring = "retiring"
	// retryKey ends the keys of feeds of TIMERS_RETRY; no service has a dot in its name.
	retryKey = ".retry"
	// retryRestTTL is how long the marker of a resting retry feed stays: it says nothing
	// that the stream, a work queue, does not say.
	retryRestTTL = time.Hour
	// serviceKeep is how long a resting service is remembered, and counted as one of
	// MaxServices, after its last add or event.
	serviceKeep = 7 * 24 * time.Hour
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

func checkService(svc string) error {
	if !schemas.ValidService(svc) {
		return schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", svc, schemas.MaxServiceLength)
	}
	return nil
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

// ServiceChange is one change of a feed's key.
type ServiceChange struct {
	Feed
	Awake bool
	Rev   uint64
	Floor uint64
}

// ServiceState reads a feed's key from its leader.
func (s *Store) ServiceState(ctx context.Context, f Feed) (ServiceState, error) {
	m, err := s.jet.Last(ctx, servicesStream, servicesPrefix+f.key())
	if errors.Is(err, schemas.ErrNotFound) {
		return ServiceState{}, nil
	}
	if err != nil {
		return ServiceState{}, err
	}
	gone := jet.HasOperation(m)
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

// PutActive makes a feed awake whose key has that revision. Error: ErrRevision.
func (s *Store) PutActive(ctx context.Context, f Feed, floor, rev uint64) (uint64, error) {
	return s.jet.Put(ctx, servicesPrefix+f.key(), activeValue(floor), rev, 0)
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
	s.sawRest(s.background.ctx, ServiceChange{Feed: f, Rev: rest, Floor: floor})
	return nil
}

// putRest writes the marker of a feed that rests.
func (s *Store) putRest(ctx context.Context, f Feed, floor, rev uint64) (uint64, error) {
	ttl := max(serviceKeep, s.cfg.FiredMaxAge)
	if f.Kind == KindRetry {
		ttl = retryRestTTL
	}
	return s.jet.Purge(ctx, "put service "+f.key()+" to rest", servicesPrefix+f.key(), []byte(strconv.FormatUint(floor, 10)), rev, ttl)
}

// ServiceGrace is how long after a feed came to rest an event may still be stored whose
// publisher had seen it awake.
func (s *Store) ServiceGrace() time.Duration { return s.cfg.ServiceGrace }
