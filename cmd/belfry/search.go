package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// searchFlags are the flags of ls that ask the search index.
type searchFlags struct {
	fs         *pflag.FlagSet
	q          belfry.SearchQuery
	attributes []string
	sort       string
	counts     bool
}

func (f *searchFlags) add(fs *pflag.FlagSet) {
	f.fs = fs
	fs.StringVar(&f.q.Text, "search", "", "timers with this event id, source or type, also if their records have expired; with a last * the start of an event id")
	fs.StringVar(&f.q.Error, "error", "", "search: this text is in the error of the last attempt")
	fs.StringVar(&f.q.Host, "host", "", "search: the host of the callback, or nats:<subject>")
	fs.StringSliceVar(&f.attributes, "attribute", nil, "search: an attribute that the setting history-attributes names, as name=value")
	fs.StringVar(&f.sort, "sort", "due", "search: order by due, or by done, which lists only finished timers")
	fs.BoolVar(&f.q.Descending, "desc", false, "search: the latest first")
	fs.BoolVar(&f.counts, "counts", false, "show the number of timers of each service and state, of the search index; of the filters only --svc applies")
}

// asks reports whether a flag asks the search index.
func (f *searchFlags) asks() bool {
	for _, name := range []string{"search", "error", "host", "attribute", "sort", "desc"} {
		if f.fs.Changed(name) {
			return true
		}
	}
	return false
}

// check checks the flags, and completes the query with those of a list.
func (f *searchFlags) check(q *belfry.ListQuery) error {
	if f.counts {
		for _, name := range []string{"state", "group", "schedule", "limit", "search", "error", "host", "attribute", "sort", "desc"} {
			if f.fs.Changed(name) {
				return usagef("--counts counts all timers, or those of --svc: give no --%s", name)
			}
		}
	}
	switch f.sort {
	case "due":
	case "done":
		f.q.ByDone = true
	default:
		return usagef("--sort %.40q: it must be due or done", f.sort)
	}
	for _, pair := range f.attributes {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return usagef("--attribute %.80q: write name=value", pair)
		}
		if f.q.Attributes == nil {
			f.q.Attributes = map[string]string{}
		}
		f.q.Attributes[name] = value
	}
	f.q.States, f.q.Service, f.q.Group, f.q.OnlySchedules, f.q.NoSchedules = q.States, q.Service, q.Group, q.OnlySchedules, q.NoSchedules
	return nil
}

// searchTimers prints timers of the search index, and says as of when it is.
func (c *cli) searchTimers(ctx context.Context, s session, q belfry.SearchQuery, rows int) error {
	var first schemas.Freshness
	timers := func(yield func(belfry.Timer, error) bool) {
		for {
			page, err := s.Search(ctx, q)
			if err != nil {
				yield(belfry.Timer{}, err)
				return
			}
			if q.Cursor == "" {
				first = page.Freshness
			}
			for _, t := range page.Timers {
				if !yield(t, nil) {
					return
				}
			}
			if q.Cursor = page.Cursor; q.Cursor == "" {
				return
			}
		}
	}
	if err := printRows(c, s, c.timerTable(), rows, timers, timerColumns, c.timerRow); err != nil {
		return err
	}
	return c.fresh(first)
}

// fresh says as of when the search index is.
func (c *cli) fresh(f schemas.Freshness) error {
	text := "from the search index, which is being built"
	if !f.AsOf.IsZero() {
		text = "from the search index as of " + c.zone.show(f.AsOf)
	}
	if f.CountsOnly {
		text += "; timers change faster than it can be written, so it lacks some of their last changes"
	}
	_, err := fmt.Fprintln(c.err, text)
	return err
}

// countTimers prints the numbers of timers by service and state.
func (c *cli) countTimers(ctx context.Context, s session, service string) error {
	ctx, cancel := s.call(ctx)
	defer cancel()
	counts, err := s.Counts(ctx, service)
	if err != nil {
		return err
	}
	if c.json() {
		return c.printJSON(counts)
	}
	var p page
	p.line("timers by service and state")
	columns(&p, "SERVICE\tSTATE\tTIMERS", counts.Totals, func(t schemas.TotalInfo) []any {
		return []any{schemas.TenantService(t.Tenant, t.Service), t.State, t.Timers}
	})
	if _, err := c.out.Write(p.Bytes()); err != nil {
		return err
	}
	return c.fresh(counts.Freshness)
}
