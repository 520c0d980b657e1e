package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/cmdline"
)

// The exit codes, which cmdline defines.
const (
	exitOK          = cmdline.ExitOK
	exitFailure     = cmdline.ExitFailure
	exitUsage       = cmdline.ExitUsage
	exitNotFound    = cmdline.ExitNotFound
	exitRefused     = cmdline.ExitRefused
	exitUnreachable = cmdline.ExitUnreachable
	exitInUse       = cmdline.ExitInUse
	exitUnhealthy   = cmdline.ExitUnhealthy
)

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What each exit code says",
		Long: fmt.Sprintf(`Exit codes:

  %d  done
  %d  failed for another reason than those below
  %d  usage: a flag, an argument, the config file or the server's set-up is wrong;
     nothing was done
  %d  not found: no such timer or dead letter, or its record has expired
  %d  refused by Belfry: an invalid event, an id that is taken, too late to cancel,
     storage full
  %d  unreachable: no NATS server, or nobody there serves Belfry's API, or no answer
     in time; a change may have taken effect if the answer was lost, and it is safe
     to repeat
  %d  in use: the address or the data folder belongs to another process
  %d  unhealthy: belfry doctor or belfry repair found something that must be repaired

The reason is one line on stderr; with -o json it is {"error":{"code","message"}}.`,
			exitOK, exitFailure, exitUsage, exitNotFound, exitRefused, exitUnreachable, exitInUse, exitUnhealthy),
	}
}

// report prints an error as one line and returns the exit code.
func (c *cli) report(err error) int { return cmdline.Report(c.err, "belfry", c.format, err) }
