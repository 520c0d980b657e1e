package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Flows keeps the limits of flow control, and the state of each flow key that has one. Both
// are in bucket flows and change only by compare-and-set.
//
//	limit.<pattern, base64>   a limit (FlowLimit); its revision is its generation
//	limit.hold.<key, base64>  what stops the calls of a key (FlowHold); expires when it has ended
//	limit.target.<hash>       the rate that the target of a flow key allows (TargetRate)
//	state.<hash of the key>   the state of a flow key (flow.State); expires when it is idle
//	replan.<pattern, base64>  how far the waiting events of a changed limit were moved (Replan)
//	pending.<shard>           the pending timers of limited services (PendingCount)
//
// # When a change of a limit is in force
//
// Every node keeps a copy of all limits (freshCopy), which it confirms every flowPoll and may use
// for FlowFresh. Functions makes a call only by a fresh copy. A change is acknowledged FlowFresh
// after it was stored (see PutLimit). By then no older copy is fresh, so every call that begins
// after the acknowledgement follows the change.
//
// A node that cannot read the limits makes no calls: their events wait, and another node may
// receive them.
type Flows struct {
	jet *jet.Client
	log zerolog.Logger
	// callbacks, tenantKeys, adds, pending and quotas return an error while limits of callbacks, of those of tenants,
	// of adds, of pending timers, or of schedules, services and bytes must not be stored;
	// see Levels.CanLimit.
	callbacks, tenantKeys, adds, pending, quotas func() error

	copy freshCopy[*FlowSet]
	// maxHolds is MaxHolds, or less in tests.
	maxHolds int
}

const (
	// FlowFresh is how long a copy of the limits may be used. The acknowledgement of a change
	// takes as long.
	FlowFresh = time.Second
	// flowPoll is the interval at which a node confirms its copy. Two requests may fail before
	// the copy is no longer fresh.
	flowPoll = 250 * time.Millisecond
	// flowPatience bounds one refresh of the copy.
	flowPatience = 2 * time.Second
	// MaxStoredLimits bounds the limits of a store.
	MaxStoredLimits = 1000
	// MaxFlowNote bounds FlowLimit.Note, in bytes.
	MaxFlowNote = 256
	// FlowStateTTL is how long the state of a key is kept after its last time of interest. A key
	// costs the server about 1 kB that long. It must be longer than flow.StepDoubt and FlowFresh,
	// so that no node decides without the state of leases or by an older limit.
	FlowStateTTL = 5 * time.Minute
	// deletedLimitTTL is how long a deleted limit is kept, so that every node sees the deletion
	// and the events that wait for the limit are moved.
	deletedLimitTTL = 24 * time.Hour
	flowsStream     = "KV_" + schemas.BucketFlows
	flowsPrefix     = "$KV." + schemas.BucketFlows + "."
	limitPrefix     = flowsPrefix + "limit."
	holdPrefix      = limitPrefix + "hold."
	statePrefix     = flowsPrefix + "state."
	replanPrefix    = flowsPrefix + "replan."
	// flowVersion is the version of the values in the bucket.
	flowVersion = 1
	// maxFlowMatches bounds the keys whose limits a copy remembers.
	maxFlowMatches = 10_000
)

func newFlows(c *jet.Client, replicated bool, callbacks, tenantKeys, adds, pending, quotas func() error, log zerolog.Logger) *Flows {
	return &Flows{jet: c, callbacks: callbacks, tenantKeys: tenantKeys, adds: adds, pending: pending, quotas: quotas, log: log, maxHolds: MaxHolds, copy: freshCopy[*FlowSet]{
		source: limitSource{c, replicated}, clock: CopyClock{Now: time.Now, Pause: pause.For}, period: FlowFresh,
	}}
}

// limitSource reads limits for a copy.
type limitSource struct {
	jet *jet.Client
	// replicated is true if the stream has replicas: then a server that has led it may answer.
	replicated bool
}

func (c limitSource) empty() *FlowSet { return newFlowSet() }
func (c limitSource) what() string    { return "flow limits" }

func (c limitSource) last(ctx context.Context) (uint64, error) {
	last, err := c.jet.LastOf(ctx, flowsStream, jet.Range{Filters: []string{limitPrefix + ">"}})
	if err != nil || !c.replicated {
		return last, err
	}
	_, err = c.jet.LeaderInfo(ctx, flowsStream)
	return last, err
}

func (c limitSource) has(ctx context.Context, seq uint64) (bool, error) {
	return c.jet.Has(ctx, flowsStream, seq)
}

func (c limitSource) readAfter(ctx context.Context, from *FlowSet) (*FlowSet, error) {
	set := &FlowSet{Seq: from.Seq, all: maps.Clone(from.all), holds: maps.Clone(from.holds), targets: maps.Clone(from.targets)}
	var newest time.Time
	err := c.jet.Scan(ctx, flowsStream, jet.Range{Filters: []string{limitPrefix + ">"}, AfterSeq: from.Seq}, func(m jet.Msg) (bool, error) {
		set.Seq, newest = m.Sequence, m.Time
		if strings.HasPrefix(m.Subject, targetPrefix) {
			set.applyTarget(&m)
		} else {
			set.apply(&m)
		}
		return true, nil
	})
	set.forgetHolds(newest)
	set.index()
	return set, err
}

func (s *FlowSet) sequence() uint64    { return s.Seq }
func (s *FlowSet) includes(seq uint64) { s.Seq = seq }

// FlowLimit is a stored limit: that of one flow key or, with '*' in its pattern, of each key
// that matches, by itself.
type FlowLimit struct {
	// Pattern is a flow key, or has '*' for any run of characters; see schemas.CheckFlowPattern.
	Pattern string
	// Rev is the revision of the limit, its generation.
	Rev   uint64
	Limit flow.Limit
	// Note says why the limit is paused, at most MaxFlowNote bytes. PausedMs is the time of the
	// pause, in Unix milliseconds, and PausedBy says who paused. All are zero if it is not
	// paused.
	Note     string
	PausedMs int64
	PausedBy string
	// AtMs is the time of the last change, in Unix milliseconds; By is the name of its caller.
	AtMs int64
	By   string
	// Raised is true if the last change may permit earlier calls, so that the waiting events of
	// the limit's keys are planned again. PutLimit and DeleteLimit set it.
	Raised bool
	// Deleted is true for a limit that was deleted; only FlowSet.Raised returns such a limit.
	Deleted bool
	// Target is the rate that the target of the flow key allows, if it lowers the limit; nil
	// otherwise. Only FlowSet.Find sets it.
	Target *TargetRate
	// Err says why the value cannot be read: schemas.ErrDamaged or schemas.ErrNewer. Events
	// under this limit wait until it is stored again.
	Err error
}

// storedLimit is the value of a limit's key: JSON with a checksum. Its keys differ from those of
// the API and stay as they are, because nodes of other builds read them.
type storedLimit struct {
	Version  int    `json:"v"`
	Pattern  string `json:"pattern"`
	Count    int    `json:"count,omitempty"`
	PerNs    int64  `json:"per,omitempty"`
	Burst    int    `json:"burst,omitempty"`
	Parallel int    `json:"parallel,omitempty"`
	Pending  int    `json:"pending,omitempty"`
	// Nodes before LevelQuota do not know the next three; may stores none while such a node is alive.
	Schedules int    `json:"schedules,omitempty"`
	Services  int    `json:"services,omitempty"`
	Bytes     int64  `json:"bytes,omitempty"`
	Circuit   int    `json:"circuit,omitempty"`
	Paused    bool   `json:"paused,omitempty"`
	Note      string `json:"note,omitempty"`
	PausedMs  int64  `json:"pausedat,omitempty"`
	PausedBy  string `json:"pausedby,omitempty"`
	AtMs      int64  `json:"at,omitempty"`
	By        string `json:"by,omitempty"`
	Raised    bool   `json:"raised,omitempty"`
	Deleted   bool   `json:"deleted,omitempty"`
}

func encodeLimit(l *FlowLimit) ([]byte, error) {
	return marshalSummed(storedLimit{
		Version: flowVersion, Pattern: l.Pattern, Count: l.Limit.Rate.Count, PerNs: int64(l.Limit.Rate.Per), Burst: l.Limit.Burst,
		Parallel: l.Limit.Parallel, Pending: l.Limit.Pending, Schedules: l.Limit.Schedules, Services: l.Limit.Services, Bytes: l.Limit.Bytes, Circuit: l.Limit.Circuit, Paused: l.Limit.Paused, Note: l.Note, PausedMs: l.PausedMs, PausedBy: l.PausedBy,
		AtMs: l.AtMs, By: l.By, Raised: l.Raised, Deleted: l.Deleted,
	})
}

// decodeLimit reads the limit of a pattern. A value that cannot be read is a limit with Err.
func decodeLimit(pattern string, b []byte) FlowLimit {
	var s struct {
		storedLimit
		Sum uint32 `json:"sum"`
	}
	if err := unmarshalFlow("limit of "+pattern, b, &s, &s.Version, &s.Sum); err != nil {
		return FlowLimit{Pattern: pattern, Err: err}
	}
	return FlowLimit{
		Pattern: pattern, Note: s.Note, PausedMs: s.PausedMs, PausedBy: s.PausedBy, AtMs: s.AtMs, By: s.By, Raised: s.Raised, Deleted: s.Deleted,
		Limit: flow.Limit{Rate: flow.Rate{Count: s.Count, Per: time.Duration(s.PerNs)}, Burst: s.Burst, Parallel: s.Parallel, Pending: s.Pending, Schedules: s.Schedules, Services: s.Services, Bytes: s.Bytes, Circuit: s.Circuit, Paused: s.Paused},
	}
}

// onConflict calls change, and calls it again after ErrRevision, a conflict with another writer: at most
// tries times (0: no bound), with a random pause below most in between. It returns the last error of change.
// If ctx ends during a pause, that is ErrRevision.
func onConflict(ctx context.Context, tries int, most time.Duration, change func() error) error {
	for try := 1; ; try++ {
		if err := change(); !errors.Is(err, ErrRevision) || try == tries || !pause.Random(ctx, most) {
			return err
		}
	}
}

// unmarshalFlow reads a value of the bucket into v and checks its version and checksum, which
// are parts of v. what names the value in errors: schemas.ErrNewer, schemas.ErrDamaged.
func unmarshalFlow(what string, b []byte, v any, version *int, sum *uint32) error {
	if err := json.Unmarshal(b, v); err != nil {
		return schemas.Errorf(schemas.CodeDamaged, "%s is damaged: %w", what, err)
	}
	if *version > flowVersion {
		return schemas.Errorf(schemas.CodeUnknownFormat, "%s has format version %d; this version of belfry reads %d: upgrade this node", what, *version, flowVersion)
	}
	if has, right := checkSum(b, *sum); !has || !right {
		return schemas.Errorf(schemas.CodeDamaged, "%s is damaged: its checksum does not match", what)
	}
	return nil
}

// FlowSet is one copy of all limits. It is immutable and safe for concurrent use.
type FlowSet struct {
	// Seq is the sequence of the newest limit that the copy includes; 0 if there is none.
	Seq uint64
	// all has the limits by pattern, deleted ones too.
	all map[string]FlowLimit
	// patterns are the limits with '*' that are not deleted, in the order in which they apply.
	patterns []FlowLimit
	// live is the number of limits that are not deleted. holding counts the paused and the
	// unreadable ones among those of callbacks.
	live, holding int
	// targets has the rates that targets allow, by flow key.
	targets map[string]TargetRate
	// adds has the limits of adds that are not deleted, in the order in which they apply.
	adds []FlowLimit
	// holds has the holds by flow key; see flowholds.go. Copies share the holds, so a copy costs little. undisturbed is true if there are neither
	// holds nor limits of callbacks.
	holds       map[string]*FlowHold
	undisturbed bool
	// pending identifies the services whose pending timers are limited; see PendingSelection.
	pending string

	mu sync.Mutex
	// found has results of Find, at most maxFlowMatches.
	found map[string]*FlowLimit
	// ofAdds has results of AddLimits by service, at most maxFlowMatches.
	ofAdds map[string][]AddLimit
}

func newFlowSet() *FlowSet {
	return &FlowSet{all: map[string]FlowLimit{}, holds: map[string]*FlowHold{}, targets: map[string]TargetRate{}, undisturbed: true}
}

// Empty reports whether there is no limit of callbacks.
func (s *FlowSet) Empty() bool { return s.live == len(s.adds) && len(s.targets) == 0 }

// Get returns the limit that is stored for a pattern.
func (s *FlowSet) Get(pattern string) (FlowLimit, bool) {
	l, ok := s.all[pattern]
	return l, ok && !l.Deleted
}

// Find returns the limit of the callbacks of a flow key: that of the key itself, or of the longest pattern that
// matches, or of the pattern that sorts first among the longest; lowered so far that the rate is kept that the
// target of the key allows.
func (s *FlowSet) Find(key string) (FlowLimit, bool) {
	if s.Empty() {
		return FlowLimit{}, false
	}
	l, ok := s.stored(key)
	return s.lowered(key, l, ok)
}

// Configured returns the stored limit of the callbacks of a flow key, as Find without the rate that its
// target allows; the zero value without one.
func (s *FlowSet) Configured(key string) FlowLimit {
	l, _ := s.stored(key)
	return l
}

// stored returns the stored limit of the callbacks of a flow key; see Find.
func (s *FlowSet) stored(key string) (FlowLimit, bool) {
	if l, ok := s.Get(key); ok && !schemas.LimitsAdds(key) {
		return l, true
	}
	if len(s.patterns) == 0 {
		return FlowLimit{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, known := s.found[key]
	if !known {
		if i := slices.IndexFunc(s.patterns, func(l FlowLimit) bool { return flow.Match(l.Pattern, key) }); i >= 0 {
			l = &s.patterns[i]
		}
		if s.found == nil || len(s.found) >= maxFlowMatches {
			s.found = map[string]*FlowLimit{}
		}
		s.found[key] = l
	}
	if l == nil {
		return FlowLimit{}, false
	}
	return *l, true
}

// Hold returns the limit that holds all callbacks of a service or of a group, whatever their
// flow keys: that of schemas.ServiceFlowPrefix with the service, or of schemas.GroupFlowPrefix
// with the group, if it is paused or cannot be read, or that of a pattern that begins with such a
// prefix. key is that key. ok is false if nothing holds them. An empty group is none. The groups of a tenant
// are its own, so their names begin with the tenant.
func (s *FlowSet) Hold(service, group string) (key string, l FlowLimit, ok bool) {
	if s.holding == 0 {
		return "", l, false
	}
	if key, l, ok = s.hold(schemas.ServiceFlowPrefix, service); ok || group == "" {
		return key, l, ok
	}
	tenant := schemas.TenantOf(service)
	if tenant == "" && schemas.NamesTenant(group) { // it would have the key of a tenant's group
		return key, l, false
	}
	return s.hold(schemas.GroupFlowPrefix, schemas.TenantService(tenant, group))
}

// hold returns the limit that holds all callbacks of a service or group with this name.
func (s *FlowSet) hold(prefix, name string) (key string, l FlowLimit, ok bool) {
	key = prefix + name
	l, ok = s.Find(key)
	return key, l, ok && l.holds() && strings.HasPrefix(l.Pattern, prefix)
}

// holds reports whether no call may begin under the limit.
func (l *FlowLimit) holds() bool { return l.Limit.Paused || l.Err != nil }

// All returns the limits by pattern, in order.
func (s *FlowSet) All() []FlowLimit { return s.sorted(func(l *FlowLimit) bool { return !l.Deleted }) }

// Paused returns the limits that users have paused, by pattern.
func (s *FlowSet) Paused() []FlowLimit {
	return s.sorted(func(l *FlowLimit) bool { return l.Limit.Paused && !l.Deleted })
}

// Raised returns the limits with Raised, also deleted ones, in order.
func (s *FlowSet) Raised() []FlowLimit { return s.sorted(func(l *FlowLimit) bool { return l.Raised }) }

// sorted returns the limits that keep selects, in order.
func (s *FlowSet) sorted(keep func(*FlowLimit) bool) []FlowLimit {
	var out []FlowLimit
	for _, l := range s.all {
		if keep(&l) {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b FlowLimit) int { return strings.Compare(a.Pattern, b.Pattern) })
	return out
}

// With returns a copy in which one limit differs. Its revision is higher than any in the
// store.
func (s *FlowSet) With(l FlowLimit) *FlowSet {
	next := &FlowSet{Seq: s.Seq + 1, all: map[string]FlowLimit{}, holds: s.holds, targets: s.targets}
	maps.Copy(next.all, s.all)
	l.Rev = next.Seq
	next.all[l.Pattern] = l
	next.index()
	return next
}

// index sets the fields that follow from all and holds.
func (s *FlowSet) index() {
	for pattern, l := range s.all {
		if l.Deleted {
			continue
		}
		s.live++
		if schemas.LimitsAdds(pattern) {
			s.adds = append(s.adds, l)
			continue
		}
		if l.holds() {
			s.holding++
		}
		if strings.Contains(pattern, "*") {
			s.patterns = append(s.patterns, l)
		}
	}
	longest := func(a, b FlowLimit) int {
		if d := len(b.Pattern) - len(a.Pattern); d != 0 {
			return d
		}
		return strings.Compare(a.Pattern, b.Pattern)
	}
	slices.SortFunc(s.patterns, longest)
	slices.SortFunc(s.adds, longest)
	s.undisturbed = s.Empty() && len(s.holds) == 0
	s.pending = pendingSelection(s.adds)
}

// FlowsNow returns the node's copy of the limits; nil before the first reading. fresh reports
// whether calls may follow it. It takes no lock.
func (f *Flows) FlowsNow() (set *FlowSet, fresh bool) { return f.copy.now() }

// RefreshFlows confirms or renews the node's copy now, and returns it. Errors:
// schemas.ErrUnavailable.
func (f *Flows) RefreshFlows(ctx context.Context) (*FlowSet, error) { return f.copy.refresh(ctx) }

// apply applies one message of the limits.
func (s *FlowSet) apply(m *jet.Msg) {
	if strings.HasPrefix(m.Subject, holdPrefix) {
		s.applyHold(m)
		return
	}
	name, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(m.Subject, limitPrefix))
	if err != nil {
		return // not written by Belfry: no key can match it
	}
	pattern := string(name)
	l := FlowLimit{Pattern: pattern, Deleted: true}
	if !jet.HasOperation(m) {
		l = decodeLimit(pattern, m.Data)
	}
	l.Rev = m.Sequence
	s.all[pattern] = l
}

// run keeps the node's copy fresh until ctx ends.
func (f *Flows) run(ctx context.Context) {
	f.copy.keep(ctx, flowPoll, flowPatience, f.log, "flow limits cannot be read: callbacks wait", "flow limits can be read again")
}

// PutLimit stores a limit by compare-and-set and returns its new revision once the change is
// in force on all nodes, FlowFresh later. rev is the revision that it must have, 0 for a limit
// that must not exist. Errors: ErrRevision; schemas.CodeBadRequest for a limit that is not
// valid, and for too many limits; schemas.ErrStoreFull; schemas.ErrUnavailable, after which
// the change may be in force, and while a live node does not know limits.
func (f *Flows) PutLimit(ctx context.Context, l FlowLimit, rev uint64) (uint64, error) {
	if err := l.check(); err != nil {
		return 0, err
	}
	if err := f.may(&l); err != nil {
		return 0, err
	}
	set, err := f.RefreshFlows(ctx)
	if err != nil {
		return 0, err
	}
	old, known := set.Get(l.Pattern)
	if !known && set.live >= MaxStoredLimits {
		return 0, schemas.Errorf(schemas.CodeBadRequest, "there are %d flow limits, which is the limit: delete one, or use a pattern such as customer:* for many keys", MaxStoredLimits)
	}
	// No event waits for a limit of adds.
	l.Deleted, l.Raised = false, !schemas.LimitsAdds(l.Pattern) && (known && raised(old.Limit, l.Limit) || !known && set.replaces(l.Pattern))
	return f.write(ctx, set, l, rev)
}

// DeleteLimit removes a limit by compare-and-set. Only the pattern, AtMs and By of l are used.
// It is otherwise as PutLimit.
func (f *Flows) DeleteLimit(ctx context.Context, l FlowLimit, rev uint64) (uint64, error) {
	set, err := f.RefreshFlows(ctx)
	if err != nil {
		return 0, err
	}
	return f.write(ctx, set, FlowLimit{Pattern: l.Pattern, AtMs: l.AtMs, By: l.By, Deleted: true, Raised: !schemas.LimitsAdds(l.Pattern)}, rev)
}

// may returns an error while a limit must not be stored.
func (f *Flows) may(l *FlowLimit) error {
	switch {
	case l.Limit.Quotas():
		return f.quotas()
	case l.Limit.Pending > 0:
		return f.pending()
	case schemas.LimitsAdds(l.Pattern):
		return f.adds()
	case schemas.NamesTenant(l.Pattern):
		return f.tenantKeys()
	}
	return f.callbacks()
}

// replaces reports whether keys of a new limit may have had another one: that of a pattern, or
// one with the same name that was deleted.
func (s *FlowSet) replaces(pattern string) bool {
	if _, deleted := s.all[pattern]; deleted {
		return true
	}
	return slices.ContainsFunc(s.patterns, func(l FlowLimit) bool { return strings.Contains(pattern, "*") || flow.Match(l.Pattern, pattern) })
}

// raised reports whether a changed limit may permit earlier calls.
func raised(old, now flow.Limit) bool {
	less := func(a, b flow.Rate) bool { // a permits less than b
		return a.Count > 0 && (b.Count == 0 || float64(a.Count)*float64(b.Per) < float64(b.Count)*float64(a.Per))
	}
	return old.Paused && !now.Paused || less(old.Rate, now.Rate) || old.Parallel > 0 && (now.Parallel == 0 || now.Parallel > old.Parallel)
}

// write writes a limit's key. A key whose limit was deleted has a revision that the caller
// does not know.
func (f *Flows) write(ctx context.Context, set *FlowSet, l FlowLimit, rev uint64) (uint64, error) {
	old, ok := set.all[l.Pattern]
	switch {
	case !ok && rev != 0:
		return 0, ErrRevision
	case !ok:
	case old.Rev != rev && (rev != 0 || !old.Deleted):
		return 0, ErrRevision
	default:
		rev = old.Rev
	}
	if old.Deleted {
		// The stream may have dropped the key of a deleted limit, which the copy does not see.
		switch _, err := f.jet.Last(ctx, flowsStream, limitSubject(l.Pattern)); {
		case errors.Is(err, schemas.ErrNotFound):
			rev = 0
		case err != nil:
			return 0, err
		}
	}
	b, err := encodeLimit(&l)
	if err != nil {
		return 0, err
	}
	var ttl time.Duration
	if l.Deleted {
		ttl = deletedLimitTTL
	}
	next, err := f.jet.Put(ctx, limitSubject(l.Pattern), b, rev, ttl)
	if err != nil {
		return 0, err
	}
	if err := f.copy.acknowledge(ctx, "the limit of "+l.Pattern); err != nil {
		return 0, err
	}
	return next, nil
}

// limitSubject returns the subject of a limit's key.
func limitSubject(pattern string) string { return encodedSubject(limitPrefix, pattern) }

// encodedSubject returns the subject of a key that ends with a name of a user, which may have characters that a
// subject does not permit.
func encodedSubject(prefix, name string) string {
	return prefix + base64.RawURLEncoding.EncodeToString([]byte(name))
}

// check checks a limit. Errors: schemas.CodeBadRequest.
func (l *FlowLimit) check() error {
	if err := schemas.CheckFlowPattern(l.Pattern); err != nil {
		return err
	}
	if err := l.Limit.Check(); err != nil {
		return schemas.Errorf(schemas.CodeBadRequest, "limit of %s: %w", l.Pattern, err)
	}
	if len(l.Note) > MaxFlowNote {
		return schemas.Errorf(schemas.CodeBadRequest, "limit of %s: note has %d bytes; the limit is %d", l.Pattern, len(l.Note), MaxFlowNote)
	}
	return nil
}
