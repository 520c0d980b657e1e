package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// cli is one run of the program.
type cli struct {
	process
	// format is how results and errors are printed: text or json.
	format string
}

func (c *cli) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "belfry",
		Short: "Durable timers on NATS JetStream",
		Long: `Belfry keeps CloudEvents until they are due, publishes them on
timers.fired.<service>, and calls back over HTTP or NATS until that succeeds.

  belfry serve                                    run a node with its own NATS server
  belfry add --in 2s --svc orders --data '{"n":1}'   add a timer
  belfry tail orders                              see what fires`,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v (see %s --help)", err, cmd.CommandPath())
	})
	root.AddGroup(&cobra.Group{ID: "node", Title: "A node:"}, &cobra.Group{ID: "timers", Title: "Timers:"})
	in := func(id string, cmds ...*cobra.Command) {
		for _, cmd := range cmds {
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
	in("node", c.serveCommand(), c.statusCommand(), c.doctorCommand(), c.repairCommand(), c.backupCommand(), c.restoreCommand(), c.configCommand(), c.benchCommand())
	in("timers", c.addCommand(), c.getCommand(), c.cancelCommand(), c.rescheduleCommand(), c.lsCommand(), c.tailCommand(), c.deadCommand(), c.rejectedCommand())
	root.AddCommand(c.versionCommand(), exitCodesTopic())
	return root
}

// group is what a command does that only has others below it.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2 // letters that may be wrong
	hint := ""
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "; did you mean " + strings.Join(s, " or ") + "?"
	}
	return usagef("unknown command %q for %q%s", args[0], cmd.CommandPath(), hint)
}

// exactly wants the arguments that the command's use line names.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return usagef("got %d arguments; the use is: %s", len(args), cmd.UseLine())
	}
}
