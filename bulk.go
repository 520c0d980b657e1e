package belfry

import (
	"context"
	"iter"

	"github.com/belfryio/belfry/schemas"
)

// Types of the bulk operations.
type (
	// BulkPage is the result for one page of timers: counts, and the changed timers.
	BulkPage = schemas.BulkReply
	// BulkDeadPage is the result for one page of dead letters.
	BulkDeadPage = schemas.BulkDeadReply
	// BulkCounts are the counts of a page; Add sums them.
	BulkCounts = schemas.BulkCounts
	// ServiceInfo describes a service that has callbacks, or messages in a stream.
	ServiceInfo = schemas.ServiceInfo
)

// BulkQuery selects timers for [Client.BulkCancel] and [Client.BulkReschedule]: it needs a Service or
// a Group. Without States it selects pending and paused timers.
type BulkQuery struct {
	ListQuery
	// DryRun changes nothing; the pages have the timers that the query selects.
	DryRun bool
}

// request returns the request for a page.
func (q *BulkQuery) request(cursor string, opts []ControlOption) schemas.BulkRequest {
	return schemas.BulkRequest{States: q.States, Service: q.Service, Group: q.Group, Schedule: q.schedule(), DryRun: q.DryRun, By: callerName(opts), Cursor: cursor}
}

// BulkCancel cancels the timers and schedules that a query selects, and yields a page with counts
// for each request. Nothing is done after the iteration ends. Timers that fire meanwhile, for
// example, are counted as refused. Each timer is cancelled as by [Client.Cancel]; repeating the
// call is safe. The iteration ends after the first error: ErrBadRequest, ErrUnavailable.
func (c *Client) BulkCancel(ctx context.Context, q BulkQuery, opts ...ControlOption) iter.Seq2[BulkPage, error] {
	return bulk(ctx, c, "bulk.cancel", func(cursor string) any { return q.request(cursor, opts) }, func(p *BulkPage) string { return p.Cursor })
}

// BulkReschedule gives the timers that a query selects one due time; [After] counts from the first
// page. It skips schedules, and timers that already have this due time. Everything else is as in
// [Client.BulkCancel]. Further errors: ErrInvalidAttribute.
func (c *Client) BulkReschedule(ctx context.Context, q BulkQuery, when When, opts ...ControlOption) iter.Seq2[BulkPage, error] {
	return bulk(ctx, c, "bulk.reschedule", func(cursor string) any {
		return schemas.BulkRescheduleRequest{BulkRequest: q.request(cursor, opts), At: when.at, After: when.after}
	}, func(p *BulkPage) string { return p.Cursor })
}

// DeadQuery selects dead letters for [Client.BulkReplay] and [Client.BulkDiscard]. An empty field
// selects all, but one must be set.
type DeadQuery struct {
	// Timer is a timer, a schedule (all its runs), or the timer of a run; see [RunTimerID].
	Timer   TimerID
	Service string
	// Sequence selects one dead letter by DeadLetter.Sequence. ErrorCode selects the dead letters
	// with this DeadLetter.ErrorCode.
	Sequence  uint64
	ErrorCode string
	// Sequences selects dead letters by their sequences, at most 2,000; not with Sequence.
	Sequences []uint64
	// Rate spreads the calls of BulkReplay: a number of calls in a duration, such as "10/s" or "100/m".
	// Without it all are due at once. BulkDiscard has none.
	Rate string
	// DryRun changes nothing; the pages have the dead letters that the query selects.
	DryRun bool
}

func (q *DeadQuery) request(cursor string, opts []ControlOption) schemas.BulkDeadRequest {
	r := schemas.BulkDeadRequest{Service: q.Service, Sequence: q.Sequence, Sequences: q.Sequences, ErrorCode: q.ErrorCode, Rate: q.Rate, DryRun: q.DryRun, By: callerName(opts), Cursor: cursor}
	if !q.Timer.IsZero() {
		r.TimerRef = ref(q.Timer)
	}
	return r
}

// BulkReplay calls back again for the dead letters that a query selects, with all their attempts,
// and yields a page with counts for each request. Letters that cannot be replayed stay, and are
// counted as refused. Letters that arrive after the start are not selected. With a Rate the letters
// become pending timers at once, with due times that follow the rate. Everything else is as in
// [Client.BulkCancel].
func (c *Client) BulkReplay(ctx context.Context, q DeadQuery, opts ...ControlOption) iter.Seq2[BulkDeadPage, error] {
	return c.bulkDead(ctx, "bulk.replay", &q, opts)
}

// BulkDiscard removes the dead letters that a query selects for good. The records of their timers
// do not change. Everything else is as in [Client.BulkReplay].
func (c *Client) BulkDiscard(ctx context.Context, q DeadQuery, opts ...ControlOption) iter.Seq2[BulkDeadPage, error] {
	return c.bulkDead(ctx, "bulk.discard", &q, opts)
}

func (c *Client) bulkDead(ctx context.Context, verb string, q *DeadQuery, opts []ControlOption) iter.Seq2[BulkDeadPage, error] {
	return bulk(ctx, c, verb, func(cursor string) any { return q.request(cursor, opts) }, func(p *BulkDeadPage) string { return p.Cursor })
}

// bulk requests an operation for each page, until an answer has no cursor.
func bulk[P any](ctx context.Context, c *Client, verb string, request func(cursor string) any, cursorOf func(*P) string) iter.Seq2[P, error] {
	return pages(func(cursor string) ([]P, string, error) {
		var page P
		err := c.call(ctx, verb, request(cursor), &page)
		return []P{page}, cursorOf(&page), err
	})
}

// Services yields the services that have callbacks, or messages in a stream, by name. The iteration
// ends after the first error: ErrUnavailable.
func (c *Client) Services(ctx context.Context) iter.Seq2[ServiceInfo, error] {
	return pages(func(cursor string) ([]ServiceInfo, string, error) {
		var page schemas.ServiceListReply
		err := c.call(ctx, "service.list", schemas.ServiceListRequest{Limit: pageSize, Cursor: cursor}, &page)
		return page.Services, page.Cursor, err
	})
}
