package router_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// large is a store whose lists begin with empty pages, as those of a large store do whose timers a query does not
// select. Each of them takes some time.
type large struct {
	*store.Store
	pages  atomic.Int64
	each   time.Duration
	begins atomic.Int64 // lists from the first page
}

func (l *large) List(ctx context.Context, q store.ListQuery) (store.ListPage, error) {
	if q.Cursor == "" {
		l.begins.Add(1)
	}
	var page int64
	var err error
	if text, ok := strings.CutPrefix(q.Cursor, "page "); ok {
		if page, err = strconv.ParseInt(text, 10, 64); err != nil {
			return store.ListPage{}, err
		}
		q.Cursor = ""
	}
	if page >= l.pages.Load() || q.Cursor != "" {
		return l.Store.List(ctx, q)
	}
	if !pause.For(ctx, l.each) {
		return store.ListPage{}, ctx.Err()
	}
	return store.ListPage{Cursor: fmt.Sprintf("page %d", page+1)}, nil
}

// TestCalendarOfLargeStore: a calendar is deleted although one request has no time to read all schedules: the next
// requests continue. A schedule that they find keeps the calendar.
func TestCalendarOfLargeStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	l := &large{Store: f.store}
	f.r = f.startWith(router.Options{Store: l, Time: f.clock, Log: zerolog.Nop()})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	f.scheduled("other", daily, nil)
	put := func() {
		t.Helper()
		if code, text := f.answer("calendar.put", []byte(`{"name":"c","dates":["2030-12-25"]}`), new(schemas.CalendarPutReply)); code != "" {
			t.Fatal(code, text)
		}
	}
	// remove repeats the deletion while the answer says when, and returns the number of requests.
	remove := func() (requests int, err error) {
		t.Helper()
		l.begins.Store(0)
		for requests = 1; requests <= 10; requests++ {
			_, err = f.r.CalendarDelete(t.Context(), schemas.CalendarRequest{Name: "c"}, schemas.Caller{})
			if schemas.RetryAfterOf(err) <= 0 {
				return requests, err
			}
			if schemas.CodeOf(err) != schemas.CodeUnavailable || !strings.Contains(err.Error(), "repeat the request within 2m0s, and it continues") {
				t.Errorf("unfinished: %v", err)
			}
		}
		return requests, err
	}
	for name, x := range map[string]struct {
		pages int64
		each  time.Duration
	}{
		"many pages":     {9, 400 * time.Millisecond},
		"one, read late": {1, 1500 * time.Millisecond},
	} {
		put()
		l.pages.Store(x.pages)
		l.each = x.each
		requests, err := remove()
		if err != nil || requests < 2 || l.begins.Load() != 1 {
			t.Errorf("%s: %v after %d requests, %d of them from the beginning; want a deletion that continues", name, err, requests, l.begins.Load())
		}
		l.pages.Store(0)
	}
	put()
	f.scheduled("user", daily, func(r *schemas.Record) { r.Schedule.Exclude = []string{"c"} })
	l.pages.Store(9)
	l.each = 400 * time.Millisecond
	if requests, err := remove(); schemas.CodeOf(err) != schemas.CodeConflict || !strings.Contains(err.Error(), "1 schedules exclude calendar c (source and id): /test user") || requests < 2 {
		t.Errorf("a calendar in use: %v after %d requests", err, requests)
	}
}
