package visibility

import (
	"context"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of a Query.
const (
	// MaxLimit bounds the entries of a page, DefaultLimit is the limit of a query without one.
	MaxLimit     = 100
	DefaultLimit = 50
)

// Sort is the time by which a page is ordered.
type Sort uint8

// The orders of a page. SortDone selects only timers that are done.
const (
	SortDue Sort = iota
	SortDone
)

// Query selects timers, schedules and runs of schedules. An empty field selects all. Every field but
// Error and IDPrefix is compared as a whole, and case matters.
type Query struct {
	// Text selects entries with this event id, source or type. With a "*" at its end, the text before
	// it is an IDPrefix.
	Text string
	// ID is an event id. IDPrefix is the start of an event id; a page is then ordered by event id,
	// whatever Sort is.
	ID, IDPrefix string
	// Source, Type and Group are attributes of the event. Service is the tenant's name for a
	// service.
	Source, Type, Service, Group string
	// Tenant selects the timers of one tenant, "" those of the default tenant; nil for all.
	Tenant *string
	States []schemas.State
	// Schedule selects schedules (true) or all other entries (false). RunsOf selects the runs of
	// one schedule that have a record of their own.
	Schedule *bool
	RunsOf   schemas.TimerID
	// DueFrom and DueTo bound the time at which Belfry acts next, or acted last, DoneFrom and
	// DoneTo the time at which the entry reached its final state. From is inclusive, To exclusive;
	// the zero time is no bound.
	DueFrom, DueTo, DoneFrom, DoneTo time.Time
	// Host is the host of an HTTP callback with its port, if it has one, or "nats:" and a subject.
	Host string
	// Error is a part of the last attempt's error, whatever its case.
	Error string
	// Attributes are attributes of the event that the setting history-attributes names.
	Attributes map[string]string

	Sort       Sort
	Descending bool
	// Limit is at most MaxLimit; 0 for DefaultLimit.
	Limit int
	// Cursor is Page.Cursor of the previous page of the same query.
	Cursor string
}

// Entry is a timer, a schedule or a run of a schedule.
type Entry struct {
	// Timer describes it as timers.api.get does, with its attempts and control operations. It is
	// of revision Timer.Revision.
	Timer schemas.TimerInfo
	// Shard is the shard of the record. Epoch is the clock epoch of the owner that claimed it, 0
	// before the first claim.
	Shard int
	Epoch uint64
	// Host is the value that Query.Host selects by; "" without a callback.
	Host string
	// Attributes are the indexed attributes of the event. An entry whose first stored change was its
	// end has none, because the record of a done timer has no event.
	Attributes map[string]string
	// Stored is the time at which this revision was stored.
	Stored time.Time
	// Record is the record, without its event and without the credentials of its callback.
	Record schemas.Record
}

// Page is one page of entries. Cursor is empty on the last page. The work of one call is bounded, so
// a page before the last may have fewer entries than the limit, or none.
type Page struct {
	Entries []Entry
	Cursor  string
}

// CountsQuery selects the entries and periods of Counts.
type CountsQuery struct {
	// Tenant is as in Query. Service is one service; "" for all.
	Tenant  *string
	Service string
	// From and To bound the buckets: From is rounded down to a multiple of Bucket, To up. The zero
	// From asks for no buckets.
	From, To time.Time
	// Bucket is a whole number of minutes; default one minute. There are at most MaxBuckets.
	Bucket time.Duration
	// ByService makes a bucket for each service instead of one for all of them. There are at most
	// MaxServiceBuckets that are not empty.
	ByService bool
}

const (
	// MaxBuckets bounds the buckets of an answer, by time.
	MaxBuckets = 1500
	// MaxServiceBuckets bounds the buckets of all services. An answer takes about 1 kB of memory for each.
	MaxServiceBuckets = 50_000
)

// Counts are numbers of entries. Schedules count in Totals only, their runs as timers.
type Counts struct {
	Totals []Total
	// Buckets are in the order of time. Empty buckets are absent.
	Buckets []Bucket
}

// Total is the number of stored entries of a service in a state.
type Total struct {
	Tenant, Service string
	State           schemas.State
	Entries         int64
}

// Bucket is a period.
type Bucket struct {
	Start time.Time
	// Tenant and Service are empty without CountsQuery.ByService.
	Tenant, Service string
	// Added and Fired count the timers that were added, and that fired for the first time, in this
	// period.
	Added, Fired int64
	// Done counts the timers that reached a final state in this period, by that state.
	Done map[schemas.State]int64
	// Due counts the open timers that are due in this period.
	Due int64
}

// Progress describes how complete the store is.
type Progress struct {
	// AsOf: each timer that has not changed since this time is in the store in its current state. Zero before it is known.
	AsOf time.Time
	// Behind is the number of sequences in the shards' streams after the stored offsets, an upper
	// bound of the changes that the store lacks.
	Behind uint64
	// CountsOnly is true while timers change faster than they can be written: outcomes are
	// counted, rows are not written.
	CountsOnly bool
	// CatchingUp is true while the store reads the shards after a start, after it only counted,
	// or after the machine was busy.
	CatchingUp bool
	// Rows and Bytes are the number of entries and the size of the store.
	Rows, Bytes int64
	// Skipped is the number of changes that were counted only, since the process started.
	Skipped uint64
	// Problem is the reason why the store is not written at present; "" if it is written.
	Problem string
}

// Reader answers questions. Safe for concurrent use. *Visibility is one.
type Reader interface {
	// Search returns a page. It always reads an index, never all rows. Errors:
	// schemas.CodeBadRequest for an invalid query, and schemas.ErrUnavailable, also if the answer
	// would take longer than ReadTimeout.
	Search(ctx context.Context, q Query) (Page, error)
	// Get returns one entry. Errors: schemas.ErrNotFound, schemas.ErrUnavailable.
	Get(ctx context.Context, id schemas.TimerID) (Entry, error)
	// Counts returns numbers for charts. Errors are those of Search.
	Counts(ctx context.Context, q CountsQuery) (Counts, error)
	// Progress describes how complete the answers are. It does not wait.
	Progress() Progress
}

// ReadTimeout bounds a call of a Reader.
const ReadTimeout = 5 * time.Second

// Change is a new state of a timer that the Follower has read.
type Change struct {
	Shard int
	ID    schemas.TimerID
	// Revision is the revision of the record, StoredMs the time at which it was stored, in Unix
	// milliseconds.
	Revision uint64
	StoredMs int64
	Record   schemas.Record
	// Attributes are the indexed attributes of the event; nil if the record has no event.
	Attributes map[string]string
}

// Offset is the position up to which the rows have a shard's stream. Stream identifies the stream: a
// stream that was deleted and created again has another value.
type Offset struct {
	Stream   string
	Revision uint64
	// AsOfMs: each timer of the shard that has not changed since this time, in Unix milliseconds, is in the rows in its
	// current state.
	AsOfMs int64
}

// Batch is the content of one transaction: changes of different timers, and the offsets after them.
type Batch struct {
	Changes []*Change
	Offsets map[int]Offset
	// Between is called within the transaction between each sliceRows changes and the next, with their number. It may
	// pause. nil: not called.
	Between func(rows int)
}

// Store keeps the entries. The embedded store is the only implementation; the interface allows another
// database. One goroutine writes, any number reads.
type Store interface {
	Search(ctx context.Context, q Query) (Page, error)
	Get(ctx context.Context, id schemas.TimerID) (Entry, error)
	Counts(ctx context.Context, q CountsQuery) (Counts, error)
	// Size returns the number of entries, and the bytes that they take.
	Size() (rows, bytes int64)

	// Err returns ErrDamagedFile once a reader has found the store damaged.
	Err() error
	// Offsets returns the stored offset of each shard that has one.
	Offsets(ctx context.Context) (map[int]Offset, error)
	// Write writes a batch, all of it or nothing. A change that is not newer than its row is left
	// out.
	Write(ctx context.Context, b Batch) error
	// Prune removes entries that are done, the oldest first: the entries done before a time in
	// Unix milliseconds, and further ones while the store is larger than a number of bytes. It
	// removes a bounded number; more is true if there are others.
	Prune(ctx context.Context, beforeMs, maxBytes int64) (removed int, more bool, err error)
	// Reconcile passes the open entries of a shard with a revision up to through to keep, some at a time,
	// and removes those for which keep returns false.
	Reconcile(ctx context.Context, shard int, through uint64, keep func(id schemas.TimerID, revision uint64) bool) (removed int, err error)
	Close() error
}
