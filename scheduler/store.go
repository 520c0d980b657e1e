package scheduler

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// The parts of *store.Store that this package uses, by concern. Package store documents each
// method. A type that runs on its own states the parts that it needs: SweepStore, TermStore,
// CoordinatorStore.

// IndexStore reads and writes the index: which records to look at when a tick is due.
type IndexStore interface {
	LoadTicks(ctx context.Context, shard int, ticks []int64, limit int, after, seen uint64, near *store.Near) (store.Load, error)
	PutIndex(ctx context.Context, id schemas.TimerID, tick int64) error
	PutIndexes(ctx context.Context, tick int64, ids []schemas.TimerID) error
}

// RecordStore reads and writes records.
type RecordStore interface {
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
	GetAsOf(ctx context.Context, id schemas.TimerID, rev uint64) (store.Timer, error)
	Create(ctx context.Context, timers []store.Write) []store.Result
	Update(ctx context.Context, w store.Write) (uint64, error)
	UpdateAsync(w store.Write, done func(store.Result))
	ScanQueued(ctx context.Context, shard int, throughMs int64, fn func(store.Timer) error) error
	EachSchedule(ctx context.Context, shard int, after uint64, fn func(store.Timer) (more bool, err error)) error
	CountPending(ctx context.Context, shard int, through uint64) (store.Count, error)
}

// ClockStore reads and writes the clock of a shard.
type ClockStore interface {
	ReadClock(ctx context.Context, shard int) (store.Clock, uint64, error)
	WriteClock(ctx context.Context, shard int, c store.Clock, rev uint64) (uint64, error)
}

// EventStore publishes events and dead letters.
type EventStore interface {
	PublishAsync(m store.Msg, done func(seq uint64, duplicate bool, err error))
	PublishLetter(ctx context.Context, m store.Msg) (duplicate bool, err error)
}

// FiredStore looks up fired events, and wakes the service of an event that waits.
type FiredStore interface {
	FiredSince(ctx context.Context, subjects []string, since time.Time, ids map[string]struct{}) (map[string]struct{}, error)
	FiredBacklog(ctx context.Context, svc string) (store.FiredBacklog, error)
	FindInBacklog(ctx context.Context, svc string, b store.FiredBacklog, since time.Time, ids map[string]struct{}) (map[string]struct{}, error)
	WakeService(ctx context.Context, f store.Feed) error
}

// InspectStore looks for damage to a shard.
type InspectStore interface {
	Inspect(ctx context.Context, shard int, seen, end uint64, expect *store.Expectation) (store.Inspection, error)
	Audit(ctx context.Context, shard int, in store.Inspection, expect store.Expectation, throughMs int64, fn func(store.Timer) error) (store.ShardDamage, error)
	Reindex(ctx context.Context, shard int) (timers int, err error)
	Interruptions() uint64
	Messages(ctx context.Context, shard int) (n uint64, atMs int64, err error)
	LastSeq(ctx context.Context, shard int) (uint64, error)
}

// MemberStore reads the membership snapshot and announces this node.
type MemberStore interface {
	ReadCluster(ctx context.Context) (store.Cluster, error)
	// Reads is the format level that this process reads.
	Reads() store.FormatLevel
	Announce(change func(*store.Presence))
}

// SweepStore is the part of the store that a Sweeper uses.
type SweepStore interface {
	IndexStore
	FiredStore
	Get(ctx context.Context, id schemas.TimerID) (store.Timer, error)
}

// TermStore is the part of the store that a Term uses.
type TermStore interface {
	SweepStore
	RecordStore
	ClockStore
	EventStore
}

// CoordinatorStore is the part of the store that a coordinator's loop uses.
type CoordinatorStore interface {
	ReadCluster(ctx context.Context) (store.Cluster, error)
	WriteClock(ctx context.Context, shard int, c store.Clock, rev uint64) (uint64, error)
}

// CalendarStore has the node's copy of the calendars that schedules exclude.
type CalendarStore interface {
	CalendarsNow() (set *store.CalendarSet, fresh bool)
}

// Store is the part of the store that a Scheduler uses.
type Store interface {
	CalendarStore
	LimitStore
	EndedStore
	TermStore
	InspectStore
	MemberStore
	Geometry() schemas.Geometry
	SealCallback(id schemas.TimerID, callback string) string
	Tail(ctx context.Context, shard int, after uint64, fn func(store.Timer)) (*store.Tail, error)
}
