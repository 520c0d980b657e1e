package main

import "github.com/spf13/cobra"

// complete makes the shell complete the values of a flag. The flag must exist.
func complete(cmd *cobra.Command, flag string, values ...string) {
	fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, fixed); err != nil {
		panic(err) // a flag that the command does not have
	}
}
