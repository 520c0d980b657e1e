package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
		if many.selects() {
			return c.bulkTimers(s, s.BulkCancel(ctx, many.query, by.option()), many.query.DryRun, "cancelled")
		}
		one := func(ctx context.Context, ref *timerRef) (belfry.Timer, error) {
			ctx, cancel := s.call(ctx)
			defer cancel()
			return atRun(ctx, s, ref, func(ctx context.Context, id schemas.TimerID) (belfry.Timer, error) {
				return s.Cancel(ctx, id, by.option())
			})
		}
		if len(many.refs) == 1 {
			t, err := one(ctx, &many.refs[0])
			if err != nil {
				return err
			}
			return c.printTimer(t)
		}
		b := &cancelBatch{c: c, table: c.timerTable()}
		return b.run(ctx, many.refs, one)
	})
}

// cancelFlags names the timers to cancel: by ID, or by a filter.
type cancelFlags struct {
	timerRef
	bulkFlags
	schedules bool
	refs      []timerRef // set by resolve, one for each ID
}

func (f *cancelFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.timerRef.add(fs)
	f.bulkFlags.add(fs, "timers and schedules", "cancel")
	fs.BoolVar(&f.schedules, "schedule", false, "with --svc or --group: only schedules; --schedule=false: no schedules (default: both)")
}

// resolve sets refs from the arguments, or completes the filter.
func (f *cancelFlags) resolve(fs *pflag.FlagSet, args []string) error {
	if err := f.checkRef(fs, &f.timerRef, "schedule"); err != nil {
		return err
	}
	if f.selects() {
		if fs.Changed("schedule") {
			f.query.OnlySchedules, f.query.NoSchedules = f.schedules, !f.schedules
		}
		return nil
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

// cancelBatch cancels the timers of several IDs, cancelWorkers at a time.
type cancelBatch struct {
	c     *cli
	table table

	mu      sync.Mutex
	done    int   // timers that are cancelled
	refused error // why the timer of an ID could not be cancelled; the first such error
	failed  int   // IDs whose timers could not be cancelled
	err     error // ends the batch
}

// run cancels the timers and prints each. A timer that cannot be cancelled does not stop the
// others; an error of the connection or of the output does.
func (b *cancelBatch) run(ctx context.Context, refs []timerRef, one func(ctx context.Context, ref *timerRef) (belfry.Timer, error)) error {
	todo := make(chan timerRef)
	var workers sync.WaitGroup
	for range cancelWorkers {
		workers.Go(func() {
			for ref := range todo {
				t, err := one(ctx, &ref)
				b.note(&ref, &t, err)
			}
		})
	}
	for _, ref := range refs {
		if b.ended() {
			break
		}
		todo <- ref
	}
	close(todo)
	workers.Wait()
	switch {
	case b.err != nil:
		return fmt.Errorf("%w (%d were cancelled; the same command does the rest)", b.err, b.done)
	case b.failed > 0:
		return fmt.Errorf("%d of %d were not cancelled: %w", b.failed, b.failed+b.done, b.refused)
	}
	_, err := fmt.Fprintf(b.c.err, "cancelled %d\n", b.done)
	return err
}

// note takes the result of one cancel.
func (b *cancelBatch) note(ref *timerRef, t *belfry.Timer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		b.done++
		err = b.print(t)
	case errors.Is(err, belfry.ErrNotFound) || errors.Is(err, belfry.ErrAlreadyFired) || errors.Is(err, belfry.ErrAlreadyDone):
		b.failed++
		b.refused = cmp.Or(b.refused, fmt.Errorf("%s: %w", printable(ref.text), err))
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
	return b.table.row(b.c.timerRow(*t)...)
}

func (b *cancelBatch) ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err != nil
}
