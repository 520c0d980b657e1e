package router

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/skipped"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/throttle"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/schemas"
)

// FastRecords is the part of the store that the fast path of cancels uses; *store.Store has it.
type FastRecords interface {
	Cached(id schemas.TimerID) (store.Timer, bool)
	PeekAsync(id schemas.TimerID, done func(store.Peek))
	UpdateAsync(w store.Write, done func(store.Result))
}

// Letters is the part of the store that keeps dead letters and rejected adds; *store.Store
// has it.
type Letters interface {
	PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error)
	DeadList(ctx context.Context, q store.DeadQuery) (store.DeadPage, error)
	DeadDelete(ctx context.Context, seq uint64) error
	// GetAsOf reads the record of a letter.
	GetAsOf(ctx context.Context, id schemas.TimerID, rev uint64) (store.Timer, error)
	RejectedList(ctx context.Context, q store.RejectedQuery) (store.RejectedPage, error)
}

// Firings is the part of the store that reads clocks and looks up fired events; *store.Store has it.
type Firings interface {
	ReadClock(ctx context.Context, shard int) (store.Clock, uint64, error)
	TermOwner(ctx context.Context, shard int, epoch uint64) (string, error)
	FindFired(ctx context.Context, service, msgID string, since time.Time) (uint64, error)
}

// Lister is the part of the store that lists records; *store.Store has it.
type Lister interface {
	List(ctx context.Context, q store.ListQuery) (store.ListPage, error)
}

// Settings is the part of the store that has its layout and its limits; *store.Store has it.
type Settings interface {
	Geometry() schemas.Geometry
	Retention() time.Duration
	// Replicated reports whether the streams have more than one replica.
	Replicated() bool
	// MaxMessage returns the size of the largest message that the server accepts, in bytes. It may
	// change.
	MaxMessage() int
	// CanSchedule returns an error of schemas.CodeUnavailable while schedules cannot be
	// stored.
	CanSchedule() error
	// CanServeTenants is CanSchedule for timers of tenants.
	CanServeTenants() error
	// CanKeyTenants is CanSchedule for timers of tenants with a flow key.
	CanKeyTenants() error
	// CanOrder is CanSchedule for timers with an ordering key.
	CanOrder() error
	OpenCallback(id schemas.TimerID, sealed string) (string, error)
}

// Store is all that a Service needs of the store. Its parts use the smaller interfaces.
type Store interface {
	Settings
	Records
	FastRecords
	Services
	Adds
	Letters
	Firings
	Lister
	ServiceLister
	Calendars
	Flows
	Orders
	// AwaitAdds waits for a bounded time for adds that were acknowledged before the call and are not settled. It returns
	// false if it knows nothing of them, or if ctx ends; see Adds of package store.
	AwaitAdds(ctx context.Context, most time.Duration) bool
}

// Time is the cluster's time; *clustertime.Service has it.
type Time interface {
	// LatestNs is the leader's clock in Unix nanoseconds, never behind it.
	LatestNs() int64
	Ready(ctx context.Context) error
}

// Options configure a Service.
type Options struct {
	Store  Store
	Dedup  DedupCheck
	Time   Time
	Limits schemas.Limits
	// Callbacks restricts the callbacks of adds, until SetCallbacks replaces it; nil allows
	// all.
	Callbacks *schemas.CallbackPolicy
	// Accounts has the tenants by their accounts; nil for none. TenantDedup is Dedup for the adds
	// of tenants; required if there are any.
	Accounts    map[string]string
	TenantDedup DedupCheck
	// Linger delays adds of the stream that are due in a second or later by up to 0.1 s while many arrive,
	// so that more of them share a sync. It is for servers that sync every write; see
	// store.Config.GroupCommit.
	Linger bool
	// History is the node's search index; nil for none.
	History History
	// Tracing makes a span of each add; nil for none.
	Tracing    *tracing.Tracer
	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// Bounds of a Service.
const (
	// OperationTimeout bounds every operation. After the timeout the operation may have taken
	// effect.
	OperationTimeout = 4 * time.Second
	// MaxAdds bounds the adds under way whose callers wait; further adds are refused.
	MaxAdds = 1024
	// MaxOperations bounds the other operations under way.
	MaxOperations = 256
	// MaxSlowOperations bounds the lists and replays under way. A tenant has at most a quarter of each of
	// these numbers.
	MaxSlowOperations = 8
	// maxAwaiting bounds the operations that found no timer and wait for adds on their way. They hold permits of
	// MaxOperations, and shall leave most of these to others.
	maxAwaiting = MaxOperations / 4
	// awaitMost bounds such a wait. Where there are tenants awaitTenants does, because the wait is for the adds of all
	// tenants, and the flood of one shall not delay the answers of the others for long.
	awaitMost    = 2 * time.Second
	awaitTenants = 200 * time.Millisecond
	// StopTimeout bounds how long Stop waits for operations under way before it cancels
	// them.
	StopTimeout = 5 * time.Second
)

// Service validates adds and carries out operations on timers, for any transport. Nodes
// share the work. All methods may be called concurrently; between Start and Stop, unless
// they say otherwise.
//
// Every operation returns an error with a schemas.Code; see the package comment for
// admission control and time-outs.
//
// A Service acts for one Scope. New returns the Service of Belfry's own account, In the Services of
// other scopes.
type Service struct {
	*engine
	scope Scope
	ops   Operations
}

// engine is the state that the services of all scopes share.
type engine struct {
	o      Options
	m      *metrics
	writer Writer
	// tenantWriter is writer for the adds of tenants that come from the stream.
	tenantWriter Writer
	breakers     *Breakers
	batcher      *batcher
	linger       *lingerer // nil without Options.Linger
	// rejections throttles log lines about rejected adds.
	rejections throttle.Log
	// limiter applies the limits of adds; limits throttles its log lines.
	limiter   *limiter
	limits    throttle.Log
	unknown   unknownAccounts
	deletions deletions
	callbacks atomic.Pointer[schemas.CallbackPolicy]
	parse     parser

	// run ends when operations under way are cancelled.
	run    context.Context
	cancel context.CancelCauseFunc
	// batching is the batcher's loop, with the groups that it processes.
	batching sync.WaitGroup
	// cancelling are the workers of fast cancels.
	cancelling sync.WaitGroup
	// gate counts the operations under way; permits bound them by kind.
	gate              gate
	adds, quick, slow *permits
	// awaiting bounds the operations that wait for adds on their way; see Operations.AwaitAdds.
	awaiting *permits
	// cancels are fast cancels that wait for their next step.
	cancels chan *fastCancel

	mu      sync.Mutex
	started bool
	stopped bool
}

// parser makes the record of an add; see recurrence.ParseAdd.
type parser func(header map[string][]string, data []byte, addedMs int64, lim schemas.Limits, cals recurrence.Calendars) (schemas.Record, schemas.Spec, error)

// parseUpdate is the parser of updates. Operations.Update compiles the recurrence.
func parseUpdate(header map[string][]string, data []byte, atMs int64, lim schemas.Limits, _ recurrence.Calendars) (schemas.Record, schemas.Spec, error) {
	return recurrence.ParseUpdate(header, data, atMs, lim)
}

var errStopping = errors.New("router is stopping")

var (
	// errClosed answers operations that arrive while the router stops.
	errClosed = schemas.Errorf(schemas.CodeUnavailable, "this router is stopping; nothing was done: try again")
	// errSlow answers operations that took too long.
	errSlow = schemas.Errorf(schemas.CodeUnavailable, "the request took longer than %s; it may have taken effect", OperationTimeout)
)

// New checks the options; it starts nothing.
func New(o Options) (*Service, error) {
	if o.Store == nil || o.Dedup == nil || o.Time == nil {
		return nil, schemas.Errorf(schemas.CodeConfig, "router needs a store, a dedup check and a time source")
	}
	if len(o.Accounts) > 0 && o.TenantDedup == nil {
		return nil, schemas.Errorf(schemas.CodeConfig, "router needs a dedup check for the adds of tenants")
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("router: register metrics: %w", err)
	}
	geo := o.Store.Geometry()
	s := &Service{scope: Scope{All: true}, engine: &engine{
		o: o, m: m, breakers: NewBreakers(geo.Shards, time.Now, o.Log),
		adds: newPermits(MaxAdds), quick: newPermits(MaxOperations), slow: newPermits(MaxSlowOperations), awaiting: newPermits(maxAwaiting),
		cancels: make(chan *fastCancel, MaxOperations),
		parse:   recurrence.ParseAdd,
	}}
	s.run, s.cancel = context.WithCancelCause(context.Background())
	s.callbacks.Store(o.Callbacks)
	horizon := o.Limits.MaxHorizon
	if horizon == 0 {
		horizon = schemas.DefaultLimitHorizon
	}
	s.ops = Operations{Scope: s.scope, Records: o.Store, Adds: o.Store, Geometry: geo, SameTimer: s.sameTimer, Retention: o.Store.Retention(), MaxHorizon: horizon, NowMs: s.nowMs, Confirm: o.Store.Replicated(), Changed: s.changed, Calendars: s.calendars, Register: o.Store.RegisterService, AwaitAdds: s.awaitAdds}
	s.writer = Writer{
		Records: o.Store, Services: o.Store, Dedup: o.Dedup, Sink: outcomes{s}, Breakers: s.breakers, Geometry: geo, NowMs: s.nowMs, Log: o.Log,
	}
	s.tenantWriter = s.writer
	s.tenantWriter.Dedup = o.TenantDedup
	s.batcher = newBatcher(s.process)
	if o.Linger {
		s.linger = &lingerer{write: s.write, permits: s.batcher.permits}
	}
	s.limiter = newLimiter(s)
	return s, nil
}

// SetCallbacks replaces the restrictions of callbacks for further adds. It may be called at
// any time.
func (s *Service) SetCallbacks(p *schemas.CallbackPolicy) { s.callbacks.Store(p) }

// Start waits for the cluster's time and starts the service. A service that was stopped
// cannot be started again.
func (s *Service) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
		return schemas.Errorf(schemas.CodeConfig, "a router that was stopped cannot be started again; make a new one")
	case s.started:
		return nil
	}
	if err := s.o.Time.Ready(ctx); err != nil {
		return fmt.Errorf("router: the cluster's time is not known: %w", err)
	}
	s.started = true
	s.batching.Go(s.batcher.loop)
	s.limiter.start()
	for range cancelWorkers {
		s.cancelling.Go(s.cancelLoop)
	}
	return nil
}

// Stop refuses further operations and waits for those under way. It cancels them when ctx
// ends or StopTimeout has passed. It may be called more than once, and without Start.
func (s *Service) Stop(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate.close()
	if s.stopped {
		return
	}
	s.stopped = true
	defer s.cancel(errStopping)
	if !s.started {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	// Adds of the stream that were cancelled are delivered again to another router.
	defer context.AfterFunc(ctx, func() { s.cancel(errStopping) })()
	s.gate.wait()
	s.batcher.close()
	s.batching.Wait()
	s.linger.close()
	s.limiter.close()
	close(s.cancels)
	s.cancelling.Wait()
}

// awaitAdds is Operations.AwaitAdds. It returns false at once if maxAwaiting operations wait already, or if a quarter of that
// number wait for the same tenant; the default tenant may have all.
func (s *Service) awaitAdds(ctx context.Context, tenant string) bool {
	if !s.awaiting.take(tenant) {
		return false
	}
	defer s.awaiting.release(tenant)
	most := awaitMost
	if len(s.o.Accounts) > 0 {
		most = awaitTenants
	}
	return s.o.Store.AwaitAdds(ctx, most)
}

func (s *Service) nowMs() int64 { return s.o.Time.LatestNs() / int64(time.Millisecond) }

// admit takes a permit and a place behind the gate; the caller calls leave.
func (s *Service) admit(p *permits) error {
	if !p.take(s.scope.Tenant) {
		return schemas.Errorf(schemas.CodeUnavailable, "%d requests of this kind are being served%s, which is the limit; nothing was done: try again", p.most(s.scope.Tenant), s.scope.whose())
	}
	if !s.gate.enter() {
		p.release(s.scope.Tenant)
		return errClosed
	}
	return nil
}

func (s *Service) leave(p *permits) {
	p.release(s.scope.Tenant)
	s.gate.leave()
}

// do carries out one operation on the caller's goroutine.
func do[T any](ctx context.Context, s *Service, p *permits, f func(context.Context) (T, error)) (v T, err error) {
	if err := s.admit(p); err != nil {
		return v, err
	}
	defer s.leave(p)
	return bounded(ctx, s, time.Now().Add(OperationTimeout), f)
}

// bounded runs f until a deadline, the end of ctx or that of the service. A panic is an
// error of this operation alone.
func bounded[T any](ctx context.Context, s *Service, deadline time.Time, f func(context.Context) (T, error)) (v T, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.run, func() { cancel(errStopping) })()
	ctx, stop := context.WithDeadlineCause(ctx, deadline, errSlow)
	defer stop()
	return contain(s, func() (T, error) { return f(ctx) })
}

// contain turns a panic of f into an error.
func contain[T any](s *Service, f func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.m.panics.Inc()
			s.o.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("the router panicked on a request")
			err = schemas.Errorf(schemas.CodeUnavailable, "the request made this router panic: %v", p)
		}
	}()
	return f()
}

// Get reads a timer. Errors: bad_request, invalid_timer_id, not_found, unavailable.
func (s *Service) Get(ctx context.Context, ref schemas.TimerRef) (store.Timer, error) {
	return do(ctx, s, s.quick, func(ctx context.Context) (store.Timer, error) { return s.ops.Get(ctx, ref) })
}

// Describe describes a timer. If the timer waits for its turn under its ordering key, it names the
// timer whose turn it is. If the record has expired, the description comes from the search index, if
// the node has one; see schemas.TimerInfo.From. Errors: those of Get.
func (s *Service) Describe(ctx context.Context, ref schemas.TimerRef) (schemas.TimerInfo, error) {
	return s.Inspect(ctx, schemas.GetRequest{TimerRef: ref})
}

// Inspect is Describe. With q.Claim it adds the node that claimed the timer and the position of its
// event.
func (s *Service) Inspect(ctx context.Context, q schemas.GetRequest) (schemas.TimerInfo, error) {
	return do(ctx, s, s.quick, func(ctx context.Context) (schemas.TimerInfo, error) {
		t, err := s.ops.Get(ctx, q.TimerRef)
		if err != nil {
			t, asOf, err := s.expired(ctx, q.TimerRef, err)
			if err != nil {
				return schemas.TimerInfo{}, err
			}
			info := schemas.FromRecord(t.ID, &t.Record, t.Rev)
			info.From, info.AsOf = schemas.FromHistory, asOf
			if q.Claim {
				info.Claim = s.claimOf(ctx, &t)
			}
			return info, nil
		}
		info := schemas.FromRecord(t.ID, &t.Record, t.Rev)
		if q.Claim {
			info.Claim = s.claimOf(ctx, &t)
		}
		if t.Record.State.Waits() && t.Record.Schedule != nil {
			info.Schedule.Problem = s.scheduleProblem(ctx, &t)
		}
		if info.Order != nil && info.Order.Waits {
			if head, _ := s.turnOf(ctx, &t.Record); !head.IsZero() && head != t.ID {
				info.Order.Head = head.String()
			}
		}
		if info.Flow != nil {
			s.heldBy(info.Flow)
		}
		return info, nil
	})
}

// Reschedule moves a pending timer. from is the verified part of the caller, q.By the
// caller's own claim. Errors: those of Get, invalid_attribute, already_fired, already_done.
func (s *Service) Reschedule(ctx context.Context, q schemas.RescheduleRequest, from schemas.Caller) (store.Timer, error) {
	return do(ctx, s, s.quick, func(ctx context.Context) (t store.Timer, err error) {
		by, err := claimed(from, q.By)
		if err != nil {
			return t, err
		}
		due, err := s.ops.due(q)
		if err != nil {
			return t, err
		}
		return atRef(ctx, &s.ops, q.TimerRef, func(ctx context.Context, id schemas.TimerID) (store.Timer, error) {
			return s.ops.Reschedule(ctx, id, due, by)
		})
	})
}

// List returns a page of timers. Errors: bad_request, unavailable.
func (s *Service) List(ctx context.Context, q schemas.ListRequest) (schemas.ListReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (schemas.ListReply, error) {
		service, tenant, err := s.scope.selects(q.Service)
		if err != nil {
			return schemas.ListReply{}, err
		}
		page, err := s.o.Store.List(ctx, store.ListQuery{States: q.States, Service: service, Tenant: tenant, Group: q.Group, Schedule: q.Schedule, Cursor: q.Cursor, Limit: q.Limit})
		if err != nil {
			return schemas.ListReply{}, err
		}
		calendars := calendarCheck{ctx: ctx, from: s.o.Store}
		reply := schemas.ListReply{From: schemas.FromRecords, Timers: make([]schemas.TimerInfo, 0, len(page.Timers)), Cursor: page.Cursor}
		for _, t := range page.Timers {
			info := schemas.FromRecord(t.ID, &t.Record, t.Rev)
			info.LastAttempts = nil // a page has up to MaxListLimit timers
			if t.Record.State.Waits() && t.Record.Schedule != nil {
				info.Schedule.Problem = calendars.problem(t.Record.Schedule.Exclude)
			}
			reply.Timers = append(reply.Timers, info)
		}
		return reply, nil
	})
}

// claimed adds the caller's own claim to the verified part of a caller.
func claimed(from schemas.Caller, by string) (schemas.Caller, error) {
	if by == "" {
		return from, nil
	}
	if err := schemas.CheckBy(by); err != nil {
		return from, err
	}
	from.By = by
	return from, nil
}

// auditMessages are constant, so that logs can be searched for them.
var auditMessages = map[schemas.OperationKind]string{
	schemas.OperationCancel: "timer cancelled", schemas.OperationReschedule: "timer rescheduled", schemas.OperationReplay: "timer replayed",
	schemas.OperationPause: "timer paused", schemas.OperationResume: "timer resumed", schemas.OperationTrigger: "schedule triggered",
	schemas.OperationBackfill: "schedule backfilled", schemas.OperationUpdate: "schedule updated",
}

// changed counts the nominal times that an operation has decided, and logs the operation.
func (s *Service) changed(before *schemas.Schedule, t *store.Timer) {
	s.m.skipped.Add(skipped.Between(before, t.Record.Schedule)...)
	s.audit(t)
	s.endTurn(t)
}

// audit logs the last operation of a timer's history.
func (s *Service) audit(t *store.Timer) {
	rec := &t.Record
	if len(rec.History) == 0 {
		return
	}
	op := rec.History[len(rec.History)-1]
	e := s.o.Log.Info().Stringer("timer", t.ID).Stringer("op", op.Kind).Str("service", rec.Service)
	callerFields(e, op.Caller).Msg(auditMessages[op.Kind])
}

// callerFields adds a caller to a log line.
func callerFields(e *zerolog.Event, by schemas.Caller) *zerolog.Event {
	for _, f := range [...]struct{ name, value string }{{"by", by.By}, {"account", by.Account}, {"user", by.User}} {
		if f.value != "" {
			e = e.Str(f.name, f.value)
		}
	}
	return e
}
