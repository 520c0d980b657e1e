package store

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// A service with callbacks is served from two streams, TIMERS_FIRED and TIMERS_RETRY.
// Each of the two is a Feed. A feed is awake while it has a consumer, and resting
// otherwise. A resting feed costs one message in bucket "services" and nothing else.
//
//	key of the feed          state     consumer
//	"callbacks [floor]"      awake     exists, or is about to be created
//	purge marker [floor]     resting   none
//	no key                   unknown   none
//
// The floor is a sequence of the feed's stream: every event of the service up to it has a
// result. The next consumer starts after the floor.
//
// The publisher of an event with a callback wakes the feed before it publishes
// (FeedActivator). For half of ServiceGrace after it has seen a feed awake, it publishes
// without reading the key again. So an event may be stored just after its feed was put to rest.
// These parts find such an event:
//   - functions, which check the stream right after they put a feed to rest;
//   - the publisher, which watches the bucket and wakes a feed whose floor is below a
//     sequence that it has published, and reads the key again if the acknowledgement came
//     more than half of ServiceGrace after it saw the feed awake;
//   - functions, which check the stream once more after ServiceGrace. Every node that sees the
//     feed at rest does so, also a node that starts later, because the node that put the feed
//     to rest may have died;
//   - the sweeper, which wakes the feed of every event without a result.
//
// Every change of a key is a compare-and-set.
//
// Waker is the publishers' part of the protocol; Rester, in package functions, is the part
// of the nodes that serve.
const (
	serviceActive = "callbacks"
	// serviceRetiring is written by nodes below LevelRestingServices that are about to remove
	// a service. Such a service is still served, and the next publisher makes it active.
	serviceRetiring = "retiring"
	// retryKey ends the keys of feeds of TIMERS_RETRY; no service has a dot in its name.
	retryKey = ".retry"
	// retryRestTTL is the TTL of the marker of a resting retry feed. The marker may expire:
	// the stream is a work queue, so all of its events have no result yet.
	retryRestTTL = time.Hour
	// serviceKeep is how long after its last add or event a resting service keeps its marker,
	// and counts as one of MaxServices.
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
	return f, schemas.ValidServiceName(name)
}

func checkService(svc string) error {
	if !schemas.ValidServiceName(svc) {
		return schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", svc, schemas.MaxServiceLength)
	}
	return nil
}

// ServiceState is the state of a feed.
type ServiceState struct {
	// Rev is the revision of the feed's key, or of the marker that replaced it; 0 if there
	// is neither.
	Rev   uint64
	Awake bool
	// Floor is a sequence of the feed's stream: all events of the service up to it have a
	// result.
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
	Since time.Time // of the change, by the leader's clock
}

// ServiceKeys are the keys of feeds in bucket "services". Reads come from the bucket's
// leader and every write is a compare-and-set: ErrRevision says that another node was
// first. Safe for concurrent use.
type ServiceKeys struct {
	jet *jet.Client
	log zerolog.Logger
	// restTTL is the TTL of the marker of a resting service. It must not be shorter than
	// events stay in TIMERS_FIRED.
	restTTL time.Duration
}

func newServiceKeys(c *jet.Client, log zerolog.Logger, firedMaxAge time.Duration) *ServiceKeys {
	return &ServiceKeys{jet: c, log: log, restTTL: max(serviceKeep, firedMaxAge)}
}

// ServiceState reads a feed's state from the leader. Errors: schemas.ErrUnavailable.
func (k *ServiceKeys) ServiceState(ctx context.Context, f Feed) (ServiceState, error) {
	m, err := k.jet.Last(ctx, servicesStream, servicesPrefix+f.key())
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

// floorOf reads the floor from a key or a marker; 0 if it has none.
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

// PutActive makes a feed awake if its key still has revision rev, and returns the new
// revision. Errors: ErrRevision, schemas.ErrUnavailable.
func (k *ServiceKeys) PutActive(ctx context.Context, f Feed, floor, rev uint64) (uint64, error) {
	return k.jet.Put(ctx, servicesPrefix+f.key(), activeValue(floor), rev, 0)
}

// putRest replaces a feed's key of revision rev by the marker of a resting feed. Errors:
// ErrRevision, schemas.ErrUnavailable.
func (k *ServiceKeys) putRest(ctx context.Context, f Feed, floor, rev uint64) (uint64, error) {
	ttl := k.restTTL
	if f.Kind == KindRetry {
		ttl = retryRestTTL
	}
	return k.jet.Purge(ctx, "put service "+f.key()+" to rest", servicesPrefix+f.key(), []byte(strconv.FormatUint(floor, 10)), rev, ttl)
}

// keys returns the number of feeds that have a key or a marker. Errors:
// schemas.ErrUnavailable.
func (k *ServiceKeys) keys(ctx context.Context) (int, error) {
	info, err := k.jet.Stream(ctx, servicesStream)
	return int(info.State.NumSubjects), err
}
