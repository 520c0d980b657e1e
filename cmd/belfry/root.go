package main

import (
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/cmdline"
)

// Short names for the helpers of cmdline that every command uses.
var (
	usagef     = cmdline.Usagef
	group      = cmdline.Group
	exactly    = cmdline.Exactly
	atMost     = cmdline.AtMost
	isTerminal = cmdline.IsTerminal
)

// cli is one run of the program.
type cli struct {
	process
	// format is the output format of results and errors: text or json.
	format string
	// zone is the time zone of times in text.
	zone zone
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
		Version: version, SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: group,
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(cmdline.FlagError)
	root.AddGroup(&cobra.Group{ID: "node", Title: "A node:"}, &cobra.Group{ID: "timers", Title: "Timers:"})
	in := func(id string, cmds ...*cobra.Command) {
		for _, cmd := range cmds {
			cmd.GroupID = id
			root.AddCommand(cmd)
		}
	}
	in("node", c.serveCommand(), c.devCommand(), c.clockCommand(), c.healthCommand(), c.statusCommand(), c.doctorCommand(), c.tzCommand(), c.repairCommand(), c.backupCommand(), c.restoreCommand(), c.configCommand(), c.tokenCommand(), c.benchCommand(), c.sizeCommand())
	in("timers", c.addCommand(), c.previewCommand(), c.calendarCommand(), c.flowCommand(), c.orderCommand(), c.getCommand(), c.cancelCommand(), c.rescheduleCommand(), c.pauseCommand(), c.resumeCommand(), c.triggerCommand(), c.backfillCommand(), c.updateCommand(), c.runsCommand(), c.whyCommand(), c.lsCommand(), c.exportCommand(), c.importCommand(), c.applyCommand(), c.tailCommand(), c.listenCommand(), c.deadCommand(), c.rejectedCommand(), c.servicesCommand())
	root.AddCommand(c.versionCommand(), exitCodesTopic())
	root.SetHelpCommand(helpCommand(root))
	completeFlags(root)
	return root
}

// helpCommand shows the help of a command or a topic. In contrast to cobra's own help command, an
// unknown name is a usage error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			switch {
			case err != nil:
				return usagef("%v", err)
			case len(rest) > 0:
				return group(cmd, rest)
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}
