package belfry

import (
	"context"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// SearchQuery selects timers for [Client.Search]. An empty field selects all; every field but Error,
// and a Text that ends with *, is compared as a whole.
type SearchQuery struct {
	// Text is an event id, a source or a type; with a * at its end, the start of an event id.
	Text               string
	ID, Source, Type   string
	Service, Group     string
	States             []State
	DueFrom, DueTo     time.Time // inclusive, exclusive
	DoneFrom, DoneTo   time.Time
	Host               string            // of an HTTP callback, or nats:<subject>
	Error              string            // a part of the last attempt's error, in any case
	Attributes         map[string]string // that the setting history-attributes names
	ByDone, Descending bool              // order by the time of the end, and the latest first
	// OnlySchedules selects schedules, NoSchedules all other timers.
	OnlySchedules, NoSchedules bool
	// Limit is the number of timers of a page, at most 100; 0 for 50.
	Limit int
	// Cursor is SearchPage.Cursor of the previous page.
	Cursor string
}

// SearchPage is one page of a search in the search index of a node.
type SearchPage = schemas.SearchReply

// Search returns a page of timers from the search index of a node, including timers whose records have
// expired. Each timer that has not changed since SearchPage.AsOf is in the index in its current state. Nodes with
// role visibility have an index. Errors: ErrBadRequest, ErrUnavailable, also if no node has an index.
func (c *Client) Search(ctx context.Context, q SearchQuery) (SearchPage, error) {
	r := schemas.SearchRequest{
		Q: q.Text, ID: q.ID, Source: q.Source, Type: q.Type, Service: q.Service, Group: q.Group, States: q.States, DueFrom: searchTime(q.DueFrom), DueTo: searchTime(q.DueTo),
		DoneFrom: searchTime(q.DoneFrom), DoneTo: searchTime(q.DoneTo), Host: q.Host, Error: q.Error, Attributes: q.Attributes, Descending: q.Descending, Limit: q.Limit, Cursor: q.Cursor,
	}
	if q.OnlySchedules != q.NoSchedules {
		r.Schedule = &q.OnlySchedules
	}
	if q.ByDone {
		r.Sort = "done"
	}
	var page SearchPage
	err := c.call(ctx, "search", r, &page)
	return page, err
}

// searchTime formats a bound of a search, "" for the zero time.
func searchTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Counts are numbers of timers by service, state and time.
type Counts = schemas.CountsReply

// Counts returns the numbers of timers of a service, "" for all, by state, from the search index of a
// node. Errors: those of Search.
func (c *Client) Counts(ctx context.Context, service string) (Counts, error) {
	var counts Counts
	err := c.call(ctx, "counts", schemas.CountsRequest{Service: service}, &counts)
	return counts, err
}
