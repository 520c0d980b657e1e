package belfry

import (
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/belfryio/belfry/schemas"
)

// Get returns a timer. Errors: ErrNotFound, ErrUnavailable.
func (c *Client) Get(ctx context.Context, id TimerID) (Timer, error) {
	var t Timer
	err := c.call(ctx, "get", ref(id), &t)
	return t, err
}

// Inspect is Get. For a timer that has fired it also sets Timer.Claim: the node that claimed the
// timer, and the position of its event in its stream.
func (c *Client) Inspect(ctx context.Context, id TimerID) (Timer, error) {
	var t Timer
	err := c.call(ctx, "get", schemas.GetRequest{TimerRef: ref(id), Claim: true}, &t)
	return t, err
}

// Cancel cancels a pending or paused timer or schedule. After it returned nil, the timer does
// not fire. Cancelling a cancelled timer succeeds again. With [IfRevision] it cancels only that
// revision. Errors: ErrAlreadyFired, ErrNotFound, ErrBadRequest, ErrConflict for another revision,
// ErrUnavailable.
func (c *Client) Cancel(ctx context.Context, id TimerID, opts ...ControlOption) (Timer, error) {
	var t Timer
	o := controlled(opts)
	err := c.call(ctx, "cancel", schemas.CancelRequest{TimerRef: ref(id), By: o.by, Revision: o.revision}, &t)
	return t, err
}

// Reschedule changes the due time of a pending or paused timer. After it has returned nil, the
// timer fires at the new time and not at the old one. For a schedule use [Client.Update]. Errors:
// ErrAlreadyFired, ErrAlreadyDone, ErrNotFound, ErrInvalidAttribute, ErrBadRequest, ErrUnavailable.
func (c *Client) Reschedule(ctx context.Context, id TimerID, when When, opts ...ControlOption) (Timer, error) {
	if when == (When{}) {
		return Timer{}, badRequest("the new due time is missing: use At or After")
	}
	var t Timer
	err := c.call(ctx, "reschedule", schemas.RescheduleRequest{TimerRef: ref(id), By: callerName(opts), At: when.at, After: when.after}, &t)
	return t, err
}

func ref(id TimerID) schemas.TimerRef { return schemas.TimerRef{Timer: id.String()} }

// ListQuery selects timers for [Client.List]. An empty field selects all.
type ListQuery struct {
	States  []State
	Service string
	Group   string
	// OnlySchedules selects schedules, NoSchedules all other timers.
	OnlySchedules, NoSchedules bool
}

// schedule returns the filter of the API.
func (q *ListQuery) schedule() *bool {
	if q.OnlySchedules == q.NoSchedules {
		return nil
	}
	return &q.OnlySchedules
}

// pageSize is the number of entries that a list requests at a time.
const pageSize = 500

// List yields the selected timers shard by shard, in the order of their last change. A timer
// that changes meanwhile may be missing or come twice. The iteration ends after the first
// error: ErrBadRequest, ErrUnavailable.
func (c *Client) List(ctx context.Context, q ListQuery) iter.Seq2[Timer, error] {
	return pages(func(cursor string) ([]Timer, string, error) {
		var page schemas.ListReply
		err := c.call(ctx, "list", schemas.ListRequest{States: q.States, Service: q.Service, Group: q.Group, Schedule: q.schedule(), Limit: pageSize, Cursor: cursor}, &page)
		return page.Timers, page.Cursor, err
	})
}

// DeadLetters yields the dead letters of a service, or of all services if it is empty, oldest
// first. The iteration ends after the first error: ErrBadRequest, ErrUnavailable.
func (c *Client) DeadLetters(ctx context.Context, service string) iter.Seq2[DeadLetter, error] {
	return pages(func(cursor string) ([]DeadLetter, string, error) {
		var page schemas.DeadListReply
		err := c.call(ctx, "dead.list", schemas.DeadListRequest{Service: service, Limit: pageSize, Cursor: cursor}, &page)
		return page.Dead, page.Cursor, err
	})
}

// Rejections yields the rejected adds, oldest first. Belfry keeps them for the setting
// rejected-max-age, 7 days by default. The iteration ends after the first error:
// ErrUnavailable.
func (c *Client) Rejections(ctx context.Context) iter.Seq2[Rejection, error] {
	return pages(func(cursor string) ([]Rejection, string, error) {
		var page schemas.RejectedListReply
		err := c.call(ctx, "rejected.list", schemas.RejectedListRequest{Limit: pageSize, Cursor: cursor}, &page)
		return page.Rejected, page.Cursor, err
	})
}

// OrderedKeys yields the ordering keys (timerkey) of a service that have events, or of all services if
// service is empty. Each has the event whose turn it is, the state of that event, and the number of
// events that wait. The key that has not changed for the longest time is first. A key that changes
// meanwhile may be missing. The iteration ends after the first error: ErrBadRequest, ErrUnavailable.
func (c *Client) OrderedKeys(ctx context.Context, service string) iter.Seq2[OrderedKey, error] {
	return pages(func(cursor string) ([]OrderedKey, string, error) {
		var page schemas.OrderListReply
		err := c.call(ctx, "order.list", schemas.OrderListRequest{Service: service, Limit: schemas.MaxOrderKeys, Cursor: cursor}, &page)
		return page.Keys, page.Cursor, err
	})
}

// pages yields the entries of all pages. read returns the page at a cursor, "" for the first,
// and the cursor of the next page, "" after the last.
func pages[T any](read func(cursor string) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		cursor := ""
		for {
			page, next, err := read(cursor)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, v := range page {
				if !yield(v, nil) {
					return
				}
			}
			if cursor = next; cursor == "" {
				return
			}
		}
	}
}

// Replay calls the callback of a dead timer again, with all its attempts. Errors: ErrNotFound
// if there is no dead letter that can be replayed, ErrBadRequest, ErrUnavailable.
func (c *Client) Replay(ctx context.Context, id TimerID, opts ...ControlOption) error {
	return c.call(ctx, "dead.replay", schemas.ReplayRequest{TimerRef: ref(id), By: callerName(opts)}, &schemas.ReplayReply{})
}

// replayPage is the number of dead letters that ReplayService replays with one request: few, so that also a slow node is
// done within the time limit of a request.
const replayPage = 25

// ReplayService replays the dead letters that a service has at the start, and returns their number. With an error the
// number leaves out the letters of the request that failed. Letters that cannot be replayed stay. If there are only such letters,
// the error has the code of a refusal. Further errors: ErrBadRequest, ErrUnavailable.
func (c *Client) ReplayService(ctx context.Context, service string, opts ...ControlOption) (int, error) {
	var sum BulkCounts
	q := DeadQuery{Service: service}
	request := func(cursor string) any {
		r := q.request(cursor, opts)
		r.Limit = replayPage
		return r
	}
	for page, err := range bulk(ctx, c, "bulk.replay", request, func(p *BulkDeadPage) string { return p.Cursor }) {
		if err != nil {
			return sum.Done, err
		}
		sum.Add(page.BulkCounts)
	}
	if sum.Done == 0 && sum.Refused > 0 {
		code := slices.Min(slices.Collect(maps.Keys(sum.Reasons)))
		return 0, schemas.Errorf(code, "none of %d dead letters of service %s can be replayed", sum.Refused, service)
	}
	return sum.Done, nil
}
