package visibility

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/schemas"
)

// Defaults of Options.
const (
	DefaultHistory      = 7 * 24 * time.Hour
	DefaultHistoryBytes = 2 << 30
	// MaxAttributes bounds the attributes that are indexed.
	MaxAttributes = 8

	// stopBound bounds Stop.
	stopBound = 2 * time.Second
	// openWait bounds the time for which a question waits until the file is opened for the first time. A
	// new file takes some fsyncs, and a node answers requests before it is open. The bound is well below the
	// time for which a client waits for an answer.
	openWait = 2 * time.Second
)

// Options configure a Visibility. Zero values of History and HistoryBytes mean their defaults.
type Options struct {
	Buckets Buckets
	// Folder is the folder of the file. No other process may use it.
	Folder string
	// History is the time for which an entry is kept after it is done. Above HistoryBytes bytes of
	// the file, the oldest done entries are removed earlier. Open entries stay.
	History      time.Duration
	HistoryBytes int64
	// Attributes are the names of extension attributes, or subject, by which entries can be found;
	// at most MaxAttributes.
	Attributes []string
	// NowMs is the cluster's time, in Unix milliseconds.
	NowMs func() int64
	// Spare returns the number of CPU cores that nothing uses, or false if it is unknown. One
	// goroutine calls it. On a machine with little to spare the search index falls behind; see pacer.
	// nil: always unknown.
	Spare      func() (cores float64, ok bool)
	Log        zerolog.Logger
	Registerer prometheus.Registerer

	metrics *metrics
	// most, check, count, prune and compare replace maxQueued, checkPace, minCounting, prunePace and comparePace in tests.
	most                         int
	check, count, prune, compare time.Duration
}

func (o *Options) checkPace() time.Duration   { return cmp.Or(o.check, checkPace) }
func (o *Options) minCounting() time.Duration { return cmp.Or(o.count, minCounting) }
func (o *Options) prunePace() time.Duration   { return cmp.Or(o.prune, prunePace) }
func (o *Options) comparePace() time.Duration { return cmp.Or(o.compare, comparePace) }

// keepAfter returns the time before which an entry that is done is removed, in Unix milliseconds.
func (o *Options) keepAfter() int64 { return o.NowMs() - o.History.Milliseconds() }

// kept returns the time for which a record of a timer that is done is certainly in the stream, and not older than History.
func (o *Options) kept() time.Duration { return min(o.Buckets.Retention(), o.History) / 2 }

// attributes returns the indexed attributes of an event; nil for a record without one.
func (o *Options) attributes(b *schemas.Body) map[string]string {
	if len(o.Attributes) == 0 || b.Mode == schemas.ModeNone {
		return nil
	}
	found := map[string]string{}
	e, err := b.Event()
	if err != nil {
		return found // the parse fails only for an event that a newer version accepted
	}
	for _, name := range o.Attributes {
		if name == "subject" && e.Subject() != "" {
			found[name] = e.Subject()
		} else if v, ok := e.Extensions()[name]; ok {
			found[name] = fmt.Sprint(v)
		}
	}
	return found
}

// CheckAttributes returns an error of schemas.CodeConfig for names that cannot be indexed.
func CheckAttributes(names []string) error {
	if len(names) > MaxAttributes {
		return schemas.Errorf(schemas.CodeConfig, "history-attributes has %d names; there may be %d", len(names), MaxAttributes)
	}
	for i, name := range names {
		valid := name != "" && len(name) <= schemas.MaxNameLength && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
		if !valid || slices.Contains(names[:i], name) || slices.Contains([]string{"id", "source", "type", "time", "data", "specversion", "datacontenttype", "dataschema"}, name) {
			return schemas.Errorf(schemas.CodeConfig, "history-attributes: %.80q is not the name of an extension attribute, or is a duplicate", name)
		}
	}
	return nil
}

// Visibility keeps the embedded store up to date, and answers from it. It is a Reader.
type Visibility struct {
	o Options
	// life ends with Stop.
	life   context.Context
	cancel context.CancelFunc
	// started is true after Start, which is not concurrent with Stop.
	started bool
	done    chan struct{}
	queue   *queue
	// tried is closed when the first attempt to open the file has ended.
	tried     chan struct{}
	triedOnce sync.Once

	mu       sync.Mutex
	progress Progress

	// use guards store: read-locked while a call uses it, write-locked to replace it.
	use   sync.RWMutex
	store Store
}

// New returns a Visibility. It does not open the file. Errors: schemas.CodeConfig.
func New(o Options) (*Visibility, error) {
	o.History, o.HistoryBytes = cmp.Or(o.History, DefaultHistory), cmp.Or(o.HistoryBytes, DefaultHistoryBytes)
	if o.History < 0 || o.HistoryBytes < 0 {
		return nil, schemas.Errorf(schemas.CodeConfig, "history is %s and history-bytes %d; they must be more than 0", o.History, o.HistoryBytes)
	}
	if err := CheckAttributes(o.Attributes); err != nil {
		return nil, err
	}
	v := &Visibility{o: o, done: make(chan struct{}), tried: make(chan struct{}), queue: newQueue(o.Buckets.Geometry().Shards, cmp.Or(o.most, maxQueued)), progress: Progress{CatchingUp: true}}
	v.life, v.cancel = context.WithCancel(context.Background())
	var err error
	v.o.metrics, err = newMetrics(o.Registerer, v.Progress)
	return v, err
}

// Start begins to follow the buckets. It does not wait. An error of the file does not stop the node:
// Progress.Problem has it.
func (v *Visibility) Start() {
	v.started = true
	go func() {
		defer close(v.done)
		v.loop(v.life)
	}()
}

// Stop writes the queued changes, and ends all goroutines, within stopBound. It may be called more than
// once, and without Start.
func (v *Visibility) Stop() {
	v.cancel()
	if v.started {
		<-v.done
	}
}

// report changes the progress.
func (v *Visibility) report(f func(*Progress)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(&v.progress)
}

// Progress implements Reader.
func (v *Visibility) Progress() Progress {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.progress
}

// loop follows until ctx ends, and continues after each error.
func (v *Visibility) loop(ctx context.Context) {
	defer v.replace(nil)
	for ctx.Err() == nil {
		err := v.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		v.report(func(p *Progress) { p.Problem = err.Error() })
		v.firstTried()
		v.o.Log.Warn().Err(err).Msg("the search index is not written; trying again")
		timer := time.NewTimer(retryPace)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// follow opens the store unless it is open, and follows the buckets. It deletes a store that cannot
// be used.
func (v *Visibility) follow(ctx context.Context) error {
	v.use.RLock()
	st := v.store
	v.use.RUnlock()
	if st == nil {
		opened, made, err := OpenSQL(ctx, v.o.Folder)
		if err != nil {
			return err
		}
		v.o.Log.Info().Str("folder", v.o.Folder).Bool("new", made).Msg("search index opened")
		st = opened
		v.replace(st)
		v.firstTried()
	}
	f := &follower{o: &v.o, store: st, queue: v.queue, log: v.o.Log, report: v.report, rowCost: 50 * time.Microsecond, pace: pacer{spare: v.o.Spare}}
	err := f.run(ctx)
	if errors.Is(err, errOther) || errors.Is(err, ErrDamagedFile) {
		v.o.Log.Warn().Err(err).Msg("the search index is deleted and built again")
		v.replace(nil)
		if removed := removeFiles(v.o.Folder); removed != nil {
			return errors.Join(err, removed)
		}
	}
	return err
}

// replace closes the store, and stores another one.
func (v *Visibility) replace(st Store) {
	v.use.Lock()
	defer v.use.Unlock()
	if v.store != nil {
		if err := v.store.Close(); err != nil {
			v.o.Log.Debug().Err(err).Msg("the search index was not closed")
		}
	}
	v.store = st
}

// firstTried ends the wait for the first attempt to open the file.
func (v *Visibility) firstTried() { v.triedOnce.Do(func() { close(v.tried) }) }

// awaitOpening waits until the first attempt to open the file has ended, for openWait at most.
func (v *Visibility) awaitOpening(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	select {
	case <-v.tried:
	case <-ctx.Done():
	}
}

// opened calls f with the store. While the file is opened for the first time, it waits.
func opened[T any](ctx context.Context, v *Visibility, f func(context.Context, Store) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.life, cancel)()
	v.awaitOpening(ctx)
	v.use.RLock()
	defer v.use.RUnlock()
	if v.store == nil {
		var none T
		return none, schemas.Errorf(schemas.CodeUnavailable, "the search index is not open: %s", cmp.Or(v.Progress().Problem, "try again"))
	}
	return f(ctx, v.store)
}

// Search implements Reader.
func (v *Visibility) Search(ctx context.Context, q Query) (Page, error) {
	return opened(ctx, v, func(ctx context.Context, s Store) (Page, error) { return s.Search(ctx, q) })
}

// Get implements Reader.
func (v *Visibility) Get(ctx context.Context, id schemas.TimerID) (Entry, error) {
	return opened(ctx, v, func(ctx context.Context, s Store) (Entry, error) { return s.Get(ctx, id) })
}

// Counts implements Reader.
func (v *Visibility) Counts(ctx context.Context, q CountsQuery) (Counts, error) {
	return opened(ctx, v, func(ctx context.Context, s Store) (Counts, error) {
		c, err := s.Counts(ctx, q)
		if err == nil {
			v.queue.addTo(&c, &q)
		}
		return c, err
	})
}

// addTo adds the outcomes that were counted only, and whose rows are not written yet, to the buckets.
func (q *queue) addTo(c *Counts, cq *CountsQuery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	bucket := cmp.Or(cq.Bucket, time.Minute).Milliseconds()
	for k, n := range q.overlay {
		at := k.minute * minuteMs
		if n == 0 || at < cq.From.UnixMilli() || at >= cq.To.UnixMilli() || !cq.selects(k.service) {
			continue
		}
		b := Bucket{Start: schemas.TimeOf(at - at%bucket)}
		if cq.ByService {
			b.Tenant, b.Service = k.tenant, k.service.service
		}
		i, found := slices.BinarySearchFunc(c.Buckets, b, compareBuckets)
		if !found {
			b.Done = map[schemas.State]int64{}
			c.Buckets = slices.Insert(c.Buckets, i, b)
		}
		c.Buckets[i].Done[k.state] += n
	}
}

// compareBuckets orders buckets by time, tenant and service.
func compareBuckets(a, b Bucket) int {
	return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Service, b.Service))
}
