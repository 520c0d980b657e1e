package belfry

import (
	"context"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/schemas"
)

// ExportQuery selects timers for [Client.Export]: one by its ID and Source, or a page by the other
// fields. An empty field selects all; without States, pending and paused timers.
type ExportQuery struct {
	ListQuery
	// ID and Source name one timer by its event.
	ID, Source string
	// Tenant is the tenant whose timers are exported, by default the caller's own. Only programs in
	// Belfry's own account, which is the default tenant, may name another one.
	Tenant string
	// Limit is the number of timers of a page, at most 1,000; 0 for 100. A page may have fewer.
	Limit int
	// Cursor is ExportPage.Cursor of the previous page.
	Cursor string
}

// Types of an export.
type (
	// ExportPage is one page of exported timers.
	ExportPage = schemas.ExportReply
	// Exported is an exported timer: Exported.Event can be published again.
	Exported = schemas.ExportInfo
)

// Export returns the events of a page of timers, with absolute due times, so that they can be
// published again. The events include their data and the credentials in their callbacks. Timers may be
// added, changed and cancelled during the export. A timer that the query selects during the whole
// export is on at least one page, and on several if it changes. Errors: ErrBadRequest; ErrNotFound for
// a query that names a timer; ErrUnavailable, after which the same call continues.
func (c *Client) Export(ctx context.Context, q ExportQuery) (ExportPage, error) {
	r := schemas.ExportRequest{
		TimerRef: schemas.TimerRef{ID: q.ID, Source: q.Source}, States: q.States, Service: q.Service, Group: q.Group,
		Schedule: q.schedule(), Tenant: q.Tenant, Limit: q.Limit, Cursor: q.Cursor,
	}
	var page ExportPage
	err := c.call(ctx, "export", r, &page)
	return page, err
}

// PreviewEvent returns the next n runs, at most 1,000, of the schedule that the event and the add
// options would make, with explanations. The runs begin at from; the zero time is the present. A
// period without timerstart counts from the present. It stores nothing. Errors: those of
// [Client.Add], ErrBadRequest.
func (c *Client) PreviewEvent(ctx context.Context, e event.Event, add []AddOption, from time.Time, n int) (Preview, error) {
	e = e.Clone()
	schemas.Apply(&e, settingsOf(add))
	q := schemas.PreviewRequest{TimerRef: schemas.TimerRef{ID: e.ID(), Source: e.Source()}, Attributes: map[string]string{}, N: n}
	for name, value := range e.Extensions() {
		if strings.HasPrefix(name, "timer") {
			q.Attributes[name] = schemas.ExtensionText(value)
		}
	}
	if !from.IsZero() {
		q.From = from.UTC().Format(time.RFC3339Nano)
	}
	var reply Preview
	err := c.call(ctx, "schedule.preview", q, &reply)
	return reply, err
}
