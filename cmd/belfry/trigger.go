package main

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry"
)

// allowFlag is the flag --allow of trigger and backfill.
type allowFlag struct{ allow bool }

func (f *allowFlag) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.allow, "allow", false, "fire even if the previous run has no result")
}

// options returns the options of a request.
func (f *allowFlag) options(by *byFlag) []belfry.ControlOption {
	opts := []belfry.ControlOption{by.option()}
	if f.allow {
		opts = append(opts, belfry.AllowOverlap())
	}
	return opts
}

func (c *cli) triggerCommand() *cobra.Command {
	ref, by, allow := &timerRef{}, &byFlag{}, &allowFlag{}
	cmd := &cobra.Command{
		Use:   "trigger ID",
		Short: "Run a schedule now",
		Long: `Run a schedule now, even if it is paused. The run has a number of its own and does not
move the schedule. Each call of the command asks for another run. ID is a timer id, or a
CloudEvent's id with --source.`,
		Args: exactly(1),
	}
	ref.add(cmd.Flags())
	by.add(cmd.Flags())
	allow.add(cmd.Flags())
	check := func(args []string) error { return cmp.Or(by.check(), ref.resolve(args)) }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		t, err := s.Trigger(ctx, ref.id, allow.options(by)...)
		if err != nil {
			return ref.explain(err)
		}
		return c.printTimer(t)
	})
}
