package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// cancelWorkers is the number of cancels that one command has in flight.
const cancelWorkers = 32

func (c *cli) cancelCommand() *cobra.Command {
	by, many := &byFlag{}, &cancelFlags{}
	cmd := &cobra.Command{
		Use:     "cancel ID... | --svc SERVICE | --group GROUP",
		Aliases: []string{"delete"},
		Short:   "Cancel waiting timers or schedules",
		Long: `Cancel waiting or paused timers and schedules. After the command has succeeded, they never
fire. ID is a timer id, a run of a schedule (<timer id>.<run>), or a CloudEvent's id with
--source. A run is cancelled only while it waits for its next attempt.

The command fails if the timer of an ID has fired already; it cancels the others. With --svc
and --group, instead of IDs, it cancels all pending and paused timers that both select. Try
it first with --dry-run, which lists them and cancels none.`,
		Example: `  belfry cancel order-17 order-18 --source /shop
  belfry cancel --svc reminders --group customer-42 --dry-run`,
		Args: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) != many.selects() {
				return usagef("name timers, or select them with --svc or --group; usage: %s", cmd.UseLine())
			}
			return nil
		},
	}
	many.add(cmd)
	by.add(cmd.Flags())
	check := func(args []string) error { return cmp.Or(by.check(), many.resolve(cmd.Flags(), args)) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		one := func(ctx context.Context, ref *timerRef) (belfry.Timer, error) {
			ctx, cancel := s.call(ctx)
			defer cancel()
			return atRun(ctx, s, ref, func(ctx context.Context, id schemas.TimerID) (belfry.Timer, error) {
				return s.Cancel(ctx, id, by.option())
			})
		}
		switch {
		case len(many.refs) == 1:
			t, err := one(ctx, &many.refs[0])
			if err != nil {
				return err
			}
			return c.printTimer(t)
		case many.dry:
			return c.listTimers(ctx, s, many.query, 0)
		}
		b := &cancelBatch{c: c, table: c.timerTable()}
		return b.run(ctx, many.each(ctx, s), one)
	})
}

// cancelFlags names the timers to cancel: by ID, or by a filter.
type cancelFlags struct {
	timerRef
	query     belfry.ListQuery
	schedules bool
	dry       bool
	refs      []timerRef // set by resolve, one for each ID
}

func (f *cancelFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.timerRef.add(fs)
	fs.StringVar(&f.query.Service, "svc", "", "all timers and schedules of this service, instead of IDs")
	fs.StringVar(&f.query.Group, "group", "", "all timers and schedules of this group, instead of IDs")
	fs.BoolVar(&f.schedules, "schedule", false, "with --svc or --group: only schedules; --schedule=false: no schedules (default: both)")
	fs.BoolVar(&f.dry, "dry-run", false, "with --svc or --group: list the timers, and cancel none")
}

// selects reports whether a filter names the timers.
func (f *cancelFlags) selects() bool { return f.query.Service != "" || f.query.Group != "" }

// resolve sets refs from the arguments, or completes the filter.
func (f *cancelFlags) resolve(fs *pflag.FlagSet, args []string) error {
	if f.selects() {
		if f.source != "" || f.tenant != "" {
			return usagef("--source and --tenant belong to an ID: give either IDs, or --svc and --group")
		}
		f.query.States = []schemas.State{schemas.StatePending, schemas.StatePaused}
		if fs.Changed("schedule") {
			f.query.OnlySchedules, f.query.NoSchedules = f.schedules, !f.schedules
		}
		return nil
	}
	for _, name := range []string{"schedule", "dry-run"} {
		if fs.Changed(name) {
			return usagef("--%s needs --svc or --group", name)
		}
	}
	for _, arg := range args {
		ref := f.timerRef
		if err := ref.resolve([]string{arg}); err != nil {
			return err
		}
		f.refs = append(f.refs, ref)
	}
	return nil
}

// cancelled is a timer to cancel, with the name that the user knows.
type cancelled struct {
	ref      timerRef
	name     string
	selected bool // by a filter, not by its ID
}

// each yields the timers to cancel.
func (f *cancelFlags) each(ctx context.Context, s session) iter.Seq2[cancelled, error] {
	return func(yield func(cancelled, error) bool) {
		for _, ref := range f.refs {
			if !yield(cancelled{ref: ref, name: ref.text}, nil) {
				return
			}
		}
		if !f.selects() {
			return
		}
		for t, err := range s.List(ctx, f.query) {
			if !yield(cancelled{ref: timerRef{id: t.Timer}, name: t.Timer.String(), selected: true}, err) {
				return
			}
		}
	}
}

// cancelBatch cancels many timers, cancelWorkers at a time.
type cancelBatch struct {
	c     *cli
	table table

	mu      sync.Mutex
	done    int   // timers that are cancelled
	fired   int   // selected timers that fired or ended before their cancel
	refused error // why the timer of an ID could not be cancelled; the first such error
	failed  int   // IDs whose timers could not be cancelled
	err     error // ends the batch
}

// run cancels the timers and prints each. A timer that cannot be cancelled does not stop the
// others; an error of the connection or of the output does.
func (b *cancelBatch) run(ctx context.Context, list iter.Seq2[cancelled, error], one func(ctx context.Context, ref *timerRef) (belfry.Timer, error)) error {
	todo := make(chan cancelled)
	var workers sync.WaitGroup
	for range cancelWorkers {
		workers.Go(func() {
			for x := range todo {
				t, err := one(ctx, &x.ref)
				b.note(x, &t, err)
			}
		})
	}
	for x, err := range list {
		if err != nil {
			b.end(err)
		}
		if b.ended() {
			break
		}
		todo <- x
	}
	close(todo)
	workers.Wait()
	switch {
	case b.err != nil:
		return fmt.Errorf("%w (%d were cancelled; the same command does the rest)", b.err, b.done)
	case b.failed > 0:
		return fmt.Errorf("%d of %d were not cancelled: %w", b.failed, b.failed+b.done, b.refused)
	case b.done+b.fired == 0 && !b.c.json():
		return b.c.empty()
	}
	_, err := fmt.Fprintf(b.c.err, "cancelled %d%s\n", b.done, b.late())
	return err
}

// late describes the selected timers that fired or ended before their cancel.
func (b *cancelBatch) late() string {
	if b.fired == 0 {
		return ""
	}
	return fmt.Sprintf("; %d fired or ended meanwhile", b.fired)
}

// note takes the result of one cancel.
func (b *cancelBatch) note(x cancelled, t *belfry.Timer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	tooLate := errors.Is(err, belfry.ErrNotFound) || errors.Is(err, belfry.ErrAlreadyFired) || errors.Is(err, belfry.ErrAlreadyDone)
	switch {
	case err == nil:
		b.done++
		err = b.print(t)
	case tooLate && x.selected:
		b.fired++
		return
	case tooLate:
		b.failed++
		b.refused = cmp.Or(b.refused, fmt.Errorf("%s: %w", printable(x.name), err))
		return
	}
	b.err = cmp.Or(b.err, err)
}

func (b *cancelBatch) print(t *belfry.Timer) error {
	if b.c.json() {
		return b.c.printJSON(t)
	}
	if b.done == 1 {
		if err := b.table.row(timerColumns...); err != nil {
			return err
		}
	}
	return b.table.row(timerRow(*t)...)
}

// end ends the batch with an error.
func (b *cancelBatch) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = cmp.Or(b.err, err)
}

func (b *cancelBatch) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err != nil
}
