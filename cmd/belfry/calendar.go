package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) calendarCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "calendar",
		Short: "Calendars of dates on which schedules do not run",
		Long: `Store, show and delete calendars. A calendar is a named list of dates. A schedule that
excludes it (belfry add --exclude) does not run on these dates.`,
		RunE: group,
	}
	cmd.AddCommand(c.calendarPutCommand(), c.calendarGetCommand(), c.calendarListCommand(), c.calendarDeleteCommand())
	return cmd
}

func (c *cli) calendarPutCommand() *cobra.Command {
	by, file, dryRun := &byFlag{}, "", false
	var dates []string
	var revision uint64
	cmd := &cobra.Command{
		Use:   "put NAME",
		Short: "Store all dates of a calendar",
		Long: `Replace all dates of a calendar, or make a new one. A date is 2027-12-25, or *-12-25 for
every year. The command takes about two seconds: after it has succeeded, no run is on
a date that the calendar excludes. It prints how many schedules exclude the calendar,
and how many of their next runs move.`,
		Example: `  belfry calendar put de-holidays --date 2027-03-26,2027-03-29 --date '*-12-25'
  belfry calendar put de-holidays --file dates.txt --dry-run`,
		Args: exactly(1),
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&dates, "date", nil, "a date such as 2027-12-25, or *-12-25 for every year; repeat it for more")
	fs.StringVar(&file, "file", "", "a file with one date a line; text after # is a comment")
	fs.Uint64Var(&revision, "revision", 0, "fail unless the calendar has this revision")
	fs.BoolVar(&dryRun, "dry-run", false, "change nothing; print how many next runs would move")
	by.add(fs)
	var name string
	check := func(args []string) error {
		name = args[0]
		if err := store.CheckCalendarName(name); err != nil {
			return usagef("%v", err)
		}
		if file != "" {
			more, err := readDates(file)
			if err != nil {
				return usagef("--file: %v", err)
			}
			dates = append(dates, more...)
		}
		if len(dates) == 0 {
			return usagef("give the dates with --date or --file")
		}
		if _, err := calendar.NewDates(name, dates...); err != nil {
			return usagef("%v", err)
		}
		return by.check()
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		opts := []belfry.CalendarOption{belfry.CalendarBy(by.by), belfry.CalendarRevision(revision)}
		if dryRun {
			opts = append(opts, belfry.CalendarDryRun())
		}
		r, err := s.PutCalendar(ctx, name, dates, opts...)
		if err != nil {
			return err
		}
		if c.json() {
			return c.printJSON(r)
		}
		moved := strconv.Itoa(r.Moved)
		if r.Partial {
			moved += " or more"
		}
		return c.printText("calendar", name, "dates", strconv.Itoa(r.Calendar.Count), "revision", strconv.FormatUint(r.Calendar.Revision, 10),
			"schedules", strconv.Itoa(r.Schedules), "next runs moved", moved)
	})
}

func (c *cli) calendarGetCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "get NAME", Short: "Show the dates of a calendar", Args: exactly(1)}
	var name string
	return c.talking(cmd, func(args []string) error { name = args[0]; return nil }, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		cal, err := s.GetCalendar(ctx, name)
		if err != nil {
			return err
		}
		if c.json() {
			return c.printJSON(cal)
		}
		return c.printText("calendar", cal.Name, "revision", strconv.FormatUint(cal.Revision, 10), "changed by", cal.By, "dates", strings.Join(cal.Dates, " "))
	})
}

func (c *cli) calendarListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List the calendars", Args: exactly(0)}
	return c.talking(cmd, func([]string) error { return nil }, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		all, err := s.Calendars(ctx)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return c.empty()
		}
		for _, cal := range all {
			if c.json() {
				err = c.printJSON(cal)
			} else {
				text := fmt.Sprintf("%d dates, revision %d", cal.Count, cal.Revision)
				if cal.Error != "" {
					text = "cannot be read: " + cal.Error
				}
				err = c.printText(cal.Name, text)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *cli) calendarDeleteCommand() *cobra.Command {
	by := &byFlag{}
	var revision uint64
	cmd := &cobra.Command{
		Use: "rm NAME", Short: "Delete a calendar that no schedule excludes", Args: exactly(1),
		Long: `Delete a calendar. The command fails while a schedule excludes the calendar; the error
names some of these schedules. It reads all timers first, which takes some seconds for each
100,000.`,
	}
	cmd.Flags().Uint64Var(&revision, "revision", 0, "fail unless the calendar has this revision")
	by.add(cmd.Flags())
	var name string
	check := func(args []string) error { name = args[0]; return by.check() }
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		cal, err := deleteCalendar(ctx, s, name, belfry.CalendarRevision(revision), belfry.CalendarBy(by.by))
		if err != nil {
			return err
		}
		if c.json() {
			return c.printJSON(cal)
		}
		return c.printText("deleted", cal.Name)
	})
}

// deletePatience bounds the time in which deleteCalendar repeats its request.
const deletePatience = 2 * time.Minute

// deleteCalendar deletes a calendar. It repeats the request while the node has not read all schedules.
func deleteCalendar(ctx context.Context, s session, name string, opts ...belfry.CalendarOption) (belfry.Calendar, error) {
	once := func() (belfry.Calendar, error) {
		ctx, cancel := s.call(ctx)
		defer cancel()
		return s.DeleteCalendar(ctx, name, opts...)
	}
	for begun := time.Now(); ; {
		cal, err := once()
		wait := schemas.RetryAfterOf(err)
		if wait <= 0 || time.Since(begun) > deletePatience || sleep(ctx, wait) != nil {
			return cal, err
		}
	}
}
