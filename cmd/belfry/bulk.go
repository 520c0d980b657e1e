package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/schemas"
)

// bulkFlags selects many timers by a filter, instead of by IDs.
type bulkFlags struct {
	query belfry.BulkQuery
}

// add adds the flags; verb is the verb of the command in their help.
func (f *bulkFlags) add(fs *pflag.FlagSet, what, verb string) {
	fs.StringVar(&f.query.Service, "svc", "", "all "+what+" of this service, instead of IDs")
	fs.StringVar(&f.query.Group, "group", "", "all "+what+" of this group, instead of IDs")
	fs.BoolVar(&f.query.DryRun, "dry-run", false, "with --svc or --group: list the timers, and "+verb+" none")
}

// selects reports whether a filter names the timers.
func (f *bulkFlags) selects() bool { return f.query.Service != "" || f.query.Group != "" }

// checkFilter refuses a filter without a value, such as --group "$UNSET": left out, it would select more.
func checkFilter(fs *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if f := fs.Lookup(name); f != nil && f.Changed && f.Value.String() == f.DefValue {
			return usagef("--%s has no value: give one, or leave --%s out, which selects more", name, name)
		}
	}
	return nil
}

// checkRef refuses a filter without a value, and flags of the other choice; ref has the flags that belong to an ID, and names are
// the flags that belong to a filter.
func (f *bulkFlags) checkRef(fs *pflag.FlagSet, ref *timerRef, names ...string) error {
	if err := checkFilter(fs, "svc", "group"); err != nil {
		return err
	}
	if f.selects() {
		if ref.source != "" || ref.tenant != "" {
			return usagef("--source and --tenant belong to an ID: give either IDs, or --svc and --group")
		}
		return nil
	}
	for _, name := range append(names, "dry-run") {
		if fs.Changed(name) {
			return usagef("--%s needs --svc or --group", name)
		}
	}
	return nil
}

// bulkTimers prints the timers of the pages of a bulk operation, and their counts. done is a
// participle, such as cancelled.
func (c *cli) bulkTimers(s session, pages iter.Seq2[belfry.BulkPage, error], dry bool, done string) error {
	rows := bulkRows[belfry.Timer]{c: c, t: c.timerTable(), head: timerColumns, row: c.timerRow}
	var sum belfry.BulkCounts
	for page, err := range pages {
		if err != nil {
			return s.far(err, "%d were %s; the same command does the rest", sum.Done, done)
		}
		sum.Add(page.BulkCounts)
		if err := rows.print(page.Timers); err != nil {
			return err
		}
	}
	return c.bulkEnd(sum, dry, done)
}

// bulkDead is bulkTimers for dead letters.
func (c *cli) bulkDead(s session, pages iter.Seq2[belfry.BulkDeadPage, error], dry bool, done string) (sum belfry.BulkCounts, err error) {
	rows := bulkRows[schemas.DeadInfo]{c: c, t: deadTable(c), head: deadColumns, row: c.deadRow}
	for page, err := range pages {
		if err != nil {
			return sum, s.far(err, "%d were %s; the same command does the rest", sum.Done, done)
		}
		sum.Add(page.BulkCounts)
		if !dry {
			continue
		}
		if err := rows.print(page.Dead); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// bulkRows prints pages as one table, or as one JSON object per line.
type bulkRows[T any] struct {
	c       *cli
	t       table
	head    []string
	row     func(T) []string
	started bool
}

func (r *bulkRows[T]) print(items []T) error {
	for _, item := range items {
		if r.c.json() {
			if err := r.c.printJSON(item); err != nil {
				return err
			}
			continue
		}
		if !r.started {
			r.started = true
			if err := r.t.row(r.head...); err != nil {
				return err
			}
		}
		if err := r.t.row(r.row(item)...); err != nil {
			return err
		}
	}
	return nil
}

// bulkEnd prints the counts of a bulk operation to stderr.
func (c *cli) bulkEnd(sum belfry.BulkCounts, dry bool, done string) error {
	if sum.Matched == 0 {
		if c.json() {
			return nil
		}
		return c.empty()
	}
	if dry {
		return nil
	}
	_, err := fmt.Fprintf(c.err, "%s %d%s\n", done, sum.Done, refusedText(sum))
	return err
}

// refusedText says how many were refused, and why.
func refusedText(sum belfry.BulkCounts) string {
	if sum.Refused == 0 {
		return ""
	}
	var reasons []string
	for _, code := range slices.Sorted(maps.Keys(sum.Reasons)) {
		reasons = append(reasons, fmt.Sprintf("%s %d", code, sum.Reasons[code]))
	}
	return fmt.Sprintf("; %d refused: %s", sum.Refused, strings.Join(reasons, ", "))
}

// deadFlags selects dead letters: those of a timer, or by a filter.
type deadFlags struct {
	timerRef
	query belfry.DeadQuery
}

// add adds the flags; done says what becomes of the letters.
func (f *deadFlags) add(fs *pflag.FlagSet, done string) {
	f.timerRef.add(fs)
	fs.StringVar(&f.query.Service, "svc", "", "the dead letters of this service, instead of an ID")
	fs.StringVar(&f.query.ErrorCode, "code", "", "the dead letters with this CODE, as \"dead ls\" shows it; with or without --svc, instead of an ID")
	fs.BoolVar(&f.query.DryRun, "dry-run", false, "list the dead letters, and "+done+" none")
}

// selects reports whether a filter names the dead letters.
func (f *deadFlags) selects() bool {
	return f.query.Service != "" || f.query.ErrorCode != "" || f.query.Sequence != 0
}

// args checks that either an ID or a filter names the dead letters.
func (f *deadFlags) args(cmd *cobra.Command, args []string) error {
	if len(args) > 1 || (len(args) == 1) == f.selects() {
		return usagef("give either one timer, or a filter such as --svc; usage: %s", cmd.UseLine())
	}
	return nil
}

// resolve completes the query from the arguments.
func (f *deadFlags) resolve(fs *pflag.FlagSet, args []string) error {
	if err := checkFilter(fs, "svc", "code", "sequence"); err != nil {
		return err
	}
	if f.selects() {
		if f.source != "" || f.tenant != "" {
			return usagef("--source and --tenant belong to an ID: give either an ID, or a filter")
		}
		return nil
	}
	err := f.timerRef.resolve(args)
	f.query.Timer = f.id
	return err
}

// checkRate validates the rate of a replay before any request.
func (f *deadFlags) checkRate() error {
	if f.query.Rate == "" {
		return nil
	}
	if _, err := flow.ParseRate(f.query.Rate); err != nil {
		return usagef("--rate: %v", err)
	}
	return nil
}

// none is the error of an ID without dead letters.
func (f *deadFlags) none() error {
	return f.explain(schemas.Errorf(schemas.CodeNotFound, "no dead letter of timer %s", f.id))
}

// runDead carries out an operation on dead letters, and prints their number as done. It fails if an
// ID has no dead letter, or if all were refused.
func (c *cli) runDead(ctx context.Context, s session, f *deadFlags, done string, do func(context.Context, belfry.DeadQuery) iter.Seq2[belfry.BulkDeadPage, error]) error {
	sum, err := c.bulkDead(s, do(ctx, f.query), f.query.DryRun, done)
	switch {
	case err != nil:
		return err
	case sum.Matched == 0 && !f.selects():
		return f.none()
	case f.query.DryRun || sum.Matched == 0 && !c.json():
		return c.bulkEnd(sum, true, done)
	case sum.Done == 0 && sum.Refused > 0:
		code := slices.Min(slices.Collect(maps.Keys(sum.Reasons)))
		return schemas.Errorf(code, "no dead letter was %s%s; \"belfry dead ls\" shows them", done, refusedText(sum))
	case sum.Refused > 0:
		if _, err := fmt.Fprintf(c.err, "%s %d%s\n", done, sum.Done, refusedText(sum)); err != nil {
			return err
		}
	}
	if c.json() {
		return c.printJSON(map[string]int{done: sum.Done})
	}
	return c.printText(done, fmt.Sprint(sum.Done))
}
