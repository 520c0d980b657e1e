package main

import "github.com/spf13/cobra"

// flagValues are the values of flags that have few, by the name of the flag, which has the same values in every
// command that does not complete its own.
var flagValues = map[string][]string{
	"output": {"text", "json"}, "state": {"pending", "delivered", "retrying", "success", "fail", "cancelled", "paused", "completed"},
	"overlap": {"skip", "queue", "allow", "replace"}, "misfire": {"one", "all", "skip"}, "dst": {"auto", "gap=shift", "gap=skip", "overlap=first", "overlap=last", "overlap=both"},
	"days": {"and", "or"}, "exclude-shift": {"skip", "next", "previous"}, "catchup": {"skip", "one", "all"},
	"profile": {"safe", "fast"}, "roles": {"router", "scheduler", "functions", "visibility"}, "log-level": {"debug", "info", "warn", "error"}, "log-format": {"auto", "json", "console"},
}

// completeFlags makes the shell complete the flags in flagValues of a command and its subcommands.
func completeFlags(cmd *cobra.Command) {
	for name, values := range flagValues {
		if _, own := cmd.GetFlagCompletionFunc(name); !own && cmd.Flags().Lookup(name) != nil {
			complete(cmd, name, values...)
		}
	}
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
}

// refuseUnknownShells adds cobra's command completion, and makes an unknown shell a usage error, like an unknown
// subcommand of another command.
func refuseUnknownShells(root *cobra.Command, args []string) {
	root.InitDefaultCompletionCmd(args...)
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args, cmd.RunE = cobra.ArbitraryArgs, group
		}
	}
}

// complete makes the shell complete the values of a flag. The flag must exist.
func complete(cmd *cobra.Command, flag string, values ...string) {
	fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, fixed); err != nil {
		panic(err) // a flag that the command does not have
	}
}
