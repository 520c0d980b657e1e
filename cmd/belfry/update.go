package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/calendar"
)

func (c *cli) updateCommand() *cobra.Command {
	f, by := &addFlags{}, &byFlag{}
	var revision uint64
	cmd := &cobra.Command{
		Use:   "update ID --cron EXPR | --every PERIOD",
		Short: "Replace a schedule",
		Long: `Replace the schedule with this CloudEvent's id (ID or --id) and --source by the event that
the flags make, as in "belfry add". An option without a flag has its default afterwards.
Runs keep counting from the last number, and --every keeps its phase, unless --start
changes. The command prints the next nominal times before and after.

With --revision it fails if the schedule has changed since; "belfry get" shows the
revision with -o json. A run changes the revision, too.`,
		Example: `  belfry update nightly --source /reports --cron '0 3 * * *' --tz Europe/Berlin --svc reports`,
		Args:    atMost(1),
	}
	f.add(cmd.Flags())
	cmd.Flags().Lookup("id").Usage = "the CloudEvent's id of the schedule, instead of ID"
	cmd.Flags().Lookup("start").Usage = "no run before this RFC 3339 time; --every counts from it (default: none, and --every keeps its phase)"
	by.add(cmd.Flags())
	cmd.Flags().Uint64Var(&revision, "revision", 0, "update only this revision (default: any)")
	var e event.Event
	var schedule *calendar.Schedule
	check := func(args []string) (err error) {
		switch {
		case len(args) == 1 && f.id != "" && f.id != args[0]:
			return usagef("give the CloudEvent's id once: got %q and --id %q", args[0], f.id)
		case len(args) == 1:
			f.id = args[0]
		}
		switch {
		case f.id == "":
			return usagef("ID is required: the CloudEvent's id of the schedule")
		case !f.recurrence.recurs():
			return usagef("give --cron or --every: an update replaces the whole schedule")
		}
		if e, err = c.makeEvent(f); err == nil {
			schedule, err = checkSchedule(e)
		}
		return cmp.Or(err, by.check())
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		u, err := s.Update(ctx, e, nil, by.option(), belfry.IfRevision(revision))
		if err != nil {
			return namingFlag(err)
		}
		for _, w := range schedule.Warnings() {
			fmt.Fprintf(c.err, "belfry: warning: %s\n", printable(w)) //nolint:errcheck // stderr is the last resort
		}
		if c.json() {
			return c.printJSON(u)
		}
		return c.printText("timer", u.Timer.Timer.String(), "id", u.Timer.ID, "source", u.Timer.Source, "schedule", f.recurrence.describe(ctx, s, u.Timer.Timer, schedule),
			"revision", strconv.FormatUint(u.Timer.Revision, 10), "before", c.showTimes(u.Before), "after", c.showTimes(u.After))
	})
}

// showTimes formats times in one line.
func (c *cli) showTimes(times []time.Time) string {
	all := make([]string, len(times))
	for i, t := range times {
		all[i] = c.zone.show(t)
	}
	return strings.Join(all, " ")
}
