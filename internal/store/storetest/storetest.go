// Package storetest holds the conformance suite of the store. It tests the behaviour on which
// the scheduler, the router and functions rely. It runs against the real store on an embedded
// server, and against the simulated store, which must behave in the same way.
package storetest

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Store is the interface that the suite tests; *store.Store implements it.
type Store interface {
	Geometry() schemas.Geometry
	Create(ctx context.Context, timers []store.Write) []store.Result
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	GetAsOf(ctx context.Context, id schemas.TimerID, rev uint64) (store.Timer, error)
	GetNewest(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	Update(ctx context.Context, w store.Write) (uint64, error)
	UpdateAsync(w store.Write, done func(store.Result))
	PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error
	PutIndexes(ctx context.Context, tick int64, ids []schemas.TimerID) error
	List(ctx context.Context, q store.ListQuery) (store.ListPage, error)
	LoadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64, near *store.Near) (store.Load, error)
	ScanQueued(ctx context.Context, shard int, throughMs int64, fn func(store.Timer) error) error
	EachSchedule(ctx context.Context, shard int, after uint64, fn func(store.Timer) (more bool, err error)) error
	Tail(ctx context.Context, shard int, after uint64, fn func(store.Timer)) (*store.Tail, error)
	LastSeq(ctx context.Context, shard int) (uint64, error)
	PublishAsync(m store.Msg, done func(seq uint64, duplicate bool, err error))
	Publish(ctx context.Context, m store.Msg) (seq uint64, duplicate bool, err error)
	PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error)
	MaxMessage() int
	FiredSince(ctx context.Context, subjects []string, since time.Time, ids map[string]struct{}) (map[string]struct{}, error)
	FiredBacklog(ctx context.Context, svc string) (store.FiredBacklog, error)
	FindInBacklog(ctx context.Context, svc string, b store.FiredBacklog, since time.Time, ids map[string]struct{}) (map[string]struct{}, error)
	Inspect(ctx context.Context, shard int, seen, end uint64, expect *store.Expectation) (store.Inspection, error)
	ReadDamage(ctx context.Context) ([]store.ShardDamage, error)
	ReadClock(ctx context.Context, shard int) (store.Clock, uint64, error)
	WriteClock(ctx context.Context, shard int, c store.Clock, rev uint64) (uint64, error)
	ReadCluster(ctx context.Context) (store.Cluster, error)
	Announce(change func(*store.Presence))
	Beat(ctx context.Context) (store.Stamp, error)
	RegisterService(ctx context.Context, svc string) error
	WakeService(ctx context.Context, f store.Feed) error
	WatchServices(ctx context.Context) (<-chan store.ServiceChange, error)
	DeadList(ctx context.Context, q store.DeadQuery) (store.DeadPage, error)
	RejectedList(ctx context.Context, q store.RejectedQuery) (store.RejectedPage, error)
	DeadDelete(ctx context.Context, seq uint64) error
	CalendarsNow() (set *store.CalendarSet, fresh bool)
	RefreshCalendars(ctx context.Context) (*store.CalendarSet, error)
	PutCalendar(ctx context.Context, c store.Calendar, rev uint64) (uint64, error)
	DeleteCalendar(ctx context.Context, c store.Calendar, rev uint64) (uint64, error)
	FlowState(ctx context.Context, key string) (store.FlowKeyState, error)
	PutFlowState(ctx context.Context, s store.FlowKeyState, ttl time.Duration) (uint64, error)
}

var _ Store = (*store.Store)(nil)

// ID returns a timer id for a number, always the same one. The ids of consecutive numbers are
// spread over all shards.
func ID(n int) schemas.TimerID {
	var id schemas.TimerID
	binary.BigEndian.PutUint64(id[:8], uint64(n)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

// IDOf returns the n-th timer id of a shard.
func IDOf(g schemas.Geometry, shard, n int) schemas.TimerID {
	for i, seen := 0, 0; ; i++ {
		if id := ID(i); g.Shard(id) == shard {
			if seen == n {
				return id
			}
			seen++
		}
	}
}

// IDsOf returns the first n timer ids of a shard.
func IDsOf(g schemas.Geometry, shard, n int) []schemas.TimerID {
	ids := make([]schemas.TimerID, 0, n)
	for i := 0; len(ids) < n; i++ {
		if id := ID(i); g.Shard(id) == shard {
			ids = append(ids, id)
		}
	}
	return ids
}

// Pending returns a pending record that is due at dueMs (Unix milliseconds).
func Pending(dueMs int64) *schemas.Record {
	return &schemas.Record{
		Definition: schemas.Definition{AddedMs: dueMs - 1000, Service: "orders", Group: "g", Source: "/test", EventID: "1", Type: "t", Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte(`{"specversion":"1.0"}`)}},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, MaxAttempt: 3, DueMs: dueMs, ScheduledMs: dueMs},
	}
}

// Delivered returns r after its claim.
func Delivered(r schemas.Record) *schemas.Record {
	r.State, r.Queued, r.FiredMs, r.Epoch = schemas.StateDelivered, false, r.DueMs, 1
	return &r
}

// Success returns r after its success.
func Success(r schemas.Record) *schemas.Record {
	r.State, r.Queued, r.DoneMs, r.Body = schemas.StateSuccess, false, r.DueMs, schemas.Body{}
	return &r
}

// NowMs returns the store's time in Unix milliseconds.
func NowMs(t testing.TB, s Store) int64 {
	t.Helper()
	st, err := s.Beat(t.Context())
	if err != nil {
		t.Fatalf("beat: %v", err)
	}
	return st.ServerNs / int64(time.Millisecond)
}

// CreateAll creates timers and fails the test if one is not created.
func CreateAll(t testing.TB, s Store, writes []store.Write) []uint64 {
	t.Helper()
	revs := make([]uint64, 0, len(writes))
	for _, r := range s.Create(t.Context(), writes) {
		if r.Err != nil {
			t.Fatalf("create: %v", r.Err)
		}
		revs = append(revs, r.Rev)
	}
	return revs
}
