package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// selection names one timer on the command line, or the timers of a group.
type selection struct {
	timerRef
	group string
}

func (s *selection) add(fs *pflag.FlagSet) {
	s.timerRef.add(fs)
	fs.StringVar(&s.group, "group", "", "all timers and schedules of this group, instead of ID")
}

// args accepts an ID or --group.
func (s *selection) args(cmd *cobra.Command, args []string) error {
	if len(args) > 1 || (len(args) == 1) == (s.group != "") {
		return usagef("name either one timer or a group; usage: %s", cmd.UseLine())
	}
	return nil
}

// resolve sets id from the first argument, if there is one.
func (s *selection) resolve(args []string) error {
	if s.group != "" {
		return nil
	}
	return s.timerRef.resolve(args)
}

// control calls one for a timer or a run, or many for a group, and prints the result. done is the
// word for the result of a group, such as "paused".
func (c *cli) control(ctx context.Context, s session, sel *selection, done string, one func(ctx context.Context, id schemas.TimerID) (belfry.Timer, error), many func(ctx context.Context) (int, error)) error {
	if sel.group == "" {
		ctx, cancel := s.call(ctx)
		defer cancel()
		t, err := atRun(ctx, s, &sel.timerRef, one)
		if err != nil {
			return err
		}
		return c.printTimer(t)
	}
	n, err := many(ctx)
	if err != nil {
		return s.far(err, "%d were %s; the same command does the rest", n, done)
	}
	if c.json() {
		return c.printJSON(map[string]int{done: n})
	}
	return c.printText(done, fmt.Sprint(n))
}

func (c *cli) pauseCommand() *cobra.Command {
	sel, by, note := &selection{}, &byFlag{}, ""
	cmd := &cobra.Command{
		Use:   "pause ID | --group GROUP",
		Short: "Stop a timer or schedule until it is resumed",
		Long: `Pause a pending timer or schedule. After the command has succeeded, it does not fire
until "belfry resume". Runs that "belfry trigger" and "belfry backfill" ask for still
fire. ID is a timer id, or a CloudEvent's id with --source. With --group the command
pauses all pending timers and schedules of the group.`,
		Example: `  belfry pause nightly --source /reports --note "the printer is broken"
  belfry pause --group reports`,
		Args: sel.args,
	}
	sel.add(cmd.Flags())
	by.add(cmd.Flags())
	cmd.Flags().StringVar(&note, "note", "", fmt.Sprintf("why, at most %d bytes; get and ls show it", schemas.MaxPauseNote))
	check := func(args []string) error {
		if err := schemas.CheckNote(note); err != nil {
			return usagef("--note: %v", err)
		}
		return cmp.Or(by.check(), sel.resolve(args))
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		return c.control(ctx, s, sel, "paused",
			func(ctx context.Context, id schemas.TimerID) (belfry.Timer, error) {
				return s.Pause(ctx, id, note, by.option())
			},
			func(ctx context.Context) (int, error) { return s.PauseGroup(ctx, sel.group, note, by.option()) })
	})
}

func (c *cli) resumeCommand() *cobra.Command {
	sel, by, word := &selection{}, &byFlag{}, ""
	var catchUp belfry.CatchUp
	cmd := &cobra.Command{
		Use:   "resume ID | --group GROUP",
		Short: "Let a paused timer or schedule fire again",
		Long: `Resume a paused timer or schedule. A timer whose due time has passed fires at once. For a
schedule --catchup decides about the nominal times of the pause: skip fires none of them,
one fires the latest for all, all fires each, the oldest first. ID is a timer id, or a
CloudEvent's id with --source.`,
		Example: `  belfry resume nightly --source /reports --catchup one
  belfry resume --group reports`,
		Args: sel.args,
	}
	sel.add(cmd.Flags())
	by.add(cmd.Flags())
	cmd.Flags().StringVar(&word, "catchup", "skip", "nominal times of the pause that fire: skip, one or all")
	check := func(args []string) (err error) {
		if catchUp, err = schemas.ParseMisfire(word); err != nil {
			return usagef("--catchup: %v", err)
		}
		return cmp.Or(by.check(), sel.resolve(args))
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		return c.control(ctx, s, sel, "resumed",
			func(ctx context.Context, id schemas.TimerID) (belfry.Timer, error) {
				return s.Resume(ctx, id, catchUp, by.option())
			},
			func(ctx context.Context) (int, error) { return s.ResumeGroup(ctx, sel.group, catchUp, by.option()) })
	})
}
