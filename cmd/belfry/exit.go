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
	exitDiffers     = cmdline.ExitDiffers
)

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "The meaning of each exit code",
		Long: fmt.Sprintf(`Exit codes:

  %d  success
  %d  failure: any reason without a code of its own
  %d  usage: a flag, an argument, the config file or a setting of the NATS server is
     wrong; nothing was changed
  %d  not found: no such timer or dead letter, or its record has expired; or
     belfry apply --dry-run found a difference from the files
  %d  refused by Belfry: the event is invalid, another timer has its id, it is too late
     to cancel, or the storage is full
  %d  unreachable: no NATS server, no Belfry router on it, or no answer in time. A change
     may have taken effect; repeating it is safe
  %d  in use: another process uses the address, the data folder or the history folder
  %d  unhealthy: belfry doctor or belfry repair found something that must be repaired, or
     belfry health a node that is not ready
  %d  differs: belfry tz diff found schedules whose next runs other zone data changes

The reason is one line on standard error; with -o json it is
{"error":{"code","message"}}.`,
			exitOK, exitFailure, exitUsage, exitNotFound, exitRefused, exitUnreachable, exitInUse, exitUnhealthy, exitDiffers),
	}
}

// report prints an error as one line and returns the exit code.
func (c *cli) report(err error) int { return cmdline.Report(c.err, "belfry", c.format, err) }
