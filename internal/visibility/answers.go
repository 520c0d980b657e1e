package visibility

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Answers answers the requests of the API. It implements router.History.
type Answers struct{ *Visibility }

// Find returns the record of a timer from the index, without its event and without the credentials of
// its callback, and the as-of time of the index. Errors: schemas.ErrNotFound, schemas.ErrUnavailable.
func (a Answers) Find(ctx context.Context, id schemas.TimerID) (store.Timer, time.Time, error) {
	asOf := a.Progress().AsOf
	e, err := a.Get(ctx, id)
	if err != nil {
		return store.Timer{}, asOf, err
	}
	return store.Timer{ID: id, Rev: e.Timer.Revision, StoredMs: e.Stored.UnixMilli(), Record: e.Record}, asOf, nil
}

// freshness describes the index. It must be read before the answer, so that the answer is at least
// that fresh.
func (a Answers) freshness() schemas.Freshness {
	p := a.Progress()
	return schemas.Freshness{From: schemas.FromHistory, AsOf: p.AsOf, Behind: p.Behind, CountsOnly: p.CountsOnly}
}

// SearchFor answers a search among the timers of a tenant, nil for all. service is the tenant's name of
// q.Service. Errors: those of Search.
func (a Answers) SearchFor(ctx context.Context, q schemas.SearchRequest, service string, tenant *string) (schemas.SearchReply, error) {
	vq, err := queryOf(&q)
	if err != nil {
		return schemas.SearchReply{}, err
	}
	vq.Service, vq.Tenant = service, tenant
	reply := schemas.SearchReply{Freshness: a.freshness(), Timers: []schemas.TimerInfo{}}
	page, err := a.Search(ctx, vq)
	if err != nil {
		return reply, err
	}
	reply.Cursor = page.Cursor
	for _, e := range page.Entries {
		e.Timer.LastAttempts = nil // as in a list
		reply.Timers = append(reply.Timers, e.Timer)
	}
	return reply, nil
}

// queryOf converts a request, without its service.
func queryOf(q *schemas.SearchRequest) (Query, error) {
	vq := Query{
		Text: q.Q, ID: q.ID, Source: q.Source, Type: q.Type, Group: q.Group, States: q.States, Schedule: q.Schedule, Host: q.Host, Error: q.Error,
		Attributes: q.Attributes, Descending: q.Descending, Limit: q.Limit, Cursor: q.Cursor,
	}
	switch q.Sort {
	case "", "due":
	case "done":
		vq.Sort = SortDone
	default:
		return Query{}, schemas.Errorf(schemas.CodeBadRequest, "sort is %.40q; it must be due or done", q.Sort).About("sort")
	}
	if q.RunsOf != "" {
		id, err := schemas.ParseTimerID(q.RunsOf)
		if err != nil {
			return Query{}, err
		}
		vq.RunsOf = id
	}
	for _, t := range []struct {
		name, text string
		into       *time.Time
	}{{"due_from", q.DueFrom, &vq.DueFrom}, {"due_to", q.DueTo, &vq.DueTo}, {"done_from", q.DoneFrom, &vq.DoneFrom}, {"done_to", q.DoneTo, &vq.DoneTo}} {
		if err := parseTime(t.name, t.text, t.into); err != nil {
			return Query{}, err
		}
	}
	return vq, nil
}

// parseTime parses a time of a request. It leaves into unchanged if text is empty.
func parseTime(name, text string, into *time.Time) (err error) {
	if text == "" {
		return nil
	}
	if *into, err = time.Parse(time.RFC3339Nano, text); err != nil {
		return schemas.Errorf(schemas.CodeBadRequest, "%s is %.40q; it must be an RFC 3339 time", name, text).About(name)
	}
	return nil
}

// CountsFor answers a request for numbers; service and tenant are as in SearchFor. Errors: those of
// Counts.
func (a Answers) CountsFor(ctx context.Context, q schemas.CountsRequest, service string, tenant *string) (schemas.CountsReply, error) {
	cq := CountsQuery{Service: service, Tenant: tenant, ByService: q.ByService}
	if err := parseTime("from", q.From, &cq.From); err != nil {
		return schemas.CountsReply{}, err
	}
	if err := parseTime("to", q.To, &cq.To); err != nil {
		return schemas.CountsReply{}, err
	}
	if cq.From.IsZero() != cq.To.IsZero() {
		return schemas.CountsReply{}, schemas.Errorf(schemas.CodeBadRequest, "give both from and to, or neither")
	}
	if q.Bucket != "" {
		var err error
		if cq.Bucket, err = time.ParseDuration(q.Bucket); err != nil {
			return schemas.CountsReply{}, schemas.Errorf(schemas.CodeBadRequest, "bucket is %.40q; it must be a duration such as 5m", q.Bucket).About("bucket")
		}
	}
	reply := schemas.CountsReply{Freshness: a.freshness(), Totals: []schemas.TotalInfo{}}
	c, err := a.Counts(ctx, cq)
	if err != nil {
		return reply, err
	}
	for _, t := range c.Totals {
		reply.Totals = append(reply.Totals, schemas.TotalInfo{Service: t.Service, Tenant: t.Tenant, State: t.State, Timers: t.Entries})
	}
	for _, b := range c.Buckets {
		info := schemas.BucketInfo{Start: b.Start, Service: b.Service, Tenant: b.Tenant, Added: b.Added, Fired: b.Fired, Due: b.Due}
		for state, n := range b.Done {
			if info.Done == nil {
				info.Done = map[string]int64{}
			}
			info.Done[state.String()] = n
		}
		reply.Buckets = append(reply.Buckets, info)
	}
	return reply, nil
}
