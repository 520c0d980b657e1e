package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) tzCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tz",
		Short: "Compare time zone data",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(c.tzDiffCommand())
	return cmd
}

// maxDiffRuns bounds the runs of a schedule that tz diff compares.
const maxDiffRuns = 100

func (c *cli) tzDiffCommand() *cobra.Command {
	runs := 1
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "List the schedules whose next runs this program's time zone data changes",
		Long: `List the schedules whose next runs would change if nodes ran this version of belfry: run
the new version's "belfry tz diff" against the running cluster before you upgrade it. Each
line has the next run as it is planned, the run as this program's time zone data gives it,
and its local time. Dates that the schedule excludes have no run, as on the nodes. The command
only reads. It reads every record, with pauses, so it takes
about a minute for ten million timers.

With -n it also compares the runs after the next one, and lists the first that differs. That
takes one request to a node for each schedule.

The exit code is 0 if no schedule changes, and 8 if some do. With -o json each changed
schedule is a line, and the last line is the summary.`,
		Example: `  ./belfry-new tz diff
  ./belfry-new tz diff -n 20 -o json`,
		Args: exactly(0),
	}
	cmd.Flags().IntVarP(&runs, "count", "n", 1, fmt.Sprintf("number of next runs to compare, at most %d", maxDiffRuns))
	check := func([]string) error {
		if runs < 1 || runs > maxDiffRuns {
			return usagef("-n %d: must be 1 to %d", runs, maxDiffRuns)
		}
		return nil
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		look, err := store.Look(s.Conn(), s.flags.requestTimeout())
		if err != nil {
			return err
		}
		defer look.Close()
		return c.diffZones(ctx, s, look, runs)
	})
}

// zoneChange is a schedule that the zone data of this program changes. Its JSON is part of
// the interface.
type zoneChange struct {
	Timer   schemas.TimerID `json:"timer"`
	ID      string          `json:"id"`
	Source  string          `json:"source"`
	Service string          `json:"service"`
	Zone    string          `json:"tz"`
	// Next is the run as it is planned, NewNext the same run with the zone data of this
	// program; "" if the schedule would end.
	Next    string `json:"next"`
	NewNext string `json:"new_next"`
	// Local is the local time for which the run was planned; "" if it is not known. NewLocal is
	// the local time of NewNext, with its offset.
	Local    string `json:"local,omitempty"`
	NewLocal string `json:"new_local,omitempty"`
	// Zones is the release of the zone data of the plan.
	Zones string `json:"zones"`
	Why   string `json:"why"`
}

// zoneSummary is the last line.
type zoneSummary struct {
	// Zones is the release of this program's zone data, Nodes has the releases of the live
	// nodes by name.
	Zones string            `json:"zones"`
	Nodes map[string]string `json:"nodes"`
	// Schedules is the number of schedules that were read, and Changed the number that change.
	// Newer counts schedules that were planned with newer zone data than this program's. Unknown
	// counts schedules whose later runs were not compared, because no node with older zone data
	// answered. Unread counts records of a newer format, which may be schedules.
	Schedules int `json:"schedules"`
	Changed   int `json:"changed"`
	Newer     int `json:"newer,omitempty"`
	Unknown   int `json:"unknown,omitempty"`
	Unread    int `json:"unread,omitempty"`
}

func (c *cli) diffZones(ctx context.Context, s session, look *store.View, runs int) error {
	sum := zoneSummary{Zones: calendar.ZoneDataVersion, Nodes: map[string]string{}}
	cluster, err := look.ReadCluster(ctx)
	switch {
	case err != nil:
		return err
	case len(cluster.Clocks) == 0:
		return schemas.Errorf(schemas.CodeUnavailable, "found no Belfry store at %s: no Belfry has run there yet, or JetStream is not available", schemas.RedactURL(s.Conn().ConnectedUrl()))
	}
	nowMs := int64(0)
	for _, clock := range cluster.Clocks {
		nowMs = max(nowMs, clock.StoredMs)
	}
	for _, n := range cluster.Nodes {
		sum.Nodes[n.Node], nowMs = n.Presence.Zones, max(nowMs, n.StoredMs)
	}
	calendars, err := look.ReadCalendars(ctx)
	if err != nil {
		return fmt.Errorf("cannot read the calendars that schedules exclude: %w", err)
	}
	t := table{c.out, []int{schemas.TimerIDLength, 20, 20, c.zone.width(), c.zone.width(), 25}}
	err = look.EachSchedule(ctx, func(tm store.Timer) error {
		if tm.Unread != store.Readable {
			sum.Unread++
			return nil
		}
		sum.Schedules++
		change, err := diffSchedule(ctx, s, tm, calendars, nowMs, runs, &sum)
		if change == nil || err != nil {
			return err
		}
		if sum.Changed++; c.json() {
			return c.printJSON(change)
		}
		if sum.Changed == 1 {
			if err := t.row("TIMER", "ID", "ZONE", "PLANNED", "NEW", "LOCAL", "WHY"); err != nil {
				return err
			}
		}
		return t.row(change.Timer.String(), change.ID+" ("+change.Source+", "+change.Service+")", change.Zone, c.zone.text(change.Next), c.zone.text(change.NewNext), change.NewLocal, change.Why)
	})
	if err != nil {
		return s.far(err, "%d schedules were read", sum.Schedules)
	}
	if err := c.printZoneSummary(&sum); err != nil {
		return err
	}
	if sum.Changed > 0 {
		return cmdline.ErrDiffers
	}
	return nil
}

func (c *cli) printZoneSummary(sum *zoneSummary) error {
	if c.json() {
		return c.printJSON(sum)
	}
	p := &page{}
	if sum.Changed > 0 {
		p.line("")
		p.line("%d of %d schedules change with time zone data %s.", sum.Changed, sum.Schedules, sum.Zones)
	} else {
		p.line("No schedule changes with time zone data %s; %d schedules were read.", sum.Zones, sum.Schedules)
	}
	if sum.Newer > 0 {
		p.line("%d schedules were planned with newer time zone data than this program's; they were not compared.", sum.Newer)
	}
	if sum.Unknown > 0 {
		p.line("The later runs of %d schedules were not compared: no node with older time zone data answered.", sum.Unknown)
	}
	if sum.Unread > 0 {
		p.line("%d records have a newer format than this program reads; they were not compared. Use the program of the newer version.", sum.Unread)
	}
	var nodes []string
	for _, n := range slices.Sorted(maps.Keys(sum.Nodes)) {
		nodes = append(nodes, fmt.Sprintf("%s has %s", printable(n), printable(sum.Nodes[n])))
	}
	if len(nodes) > 0 {
		p.line("Nodes: %s.", strings.Join(nodes, ", "))
	} else {
		p.line("No node is running.")
	}
	_, err := c.out.Write(p.Bytes())
	return err
}

// diffSchedule compares the plan of a schedule with that of this program; nil if they are the
// same.
func diffSchedule(ctx context.Context, s session, t store.Timer, calendars recurrence.Calendars, nowMs int64, runs int, sum *zoneSummary) (*zoneChange, error) {
	progress := &t.Record.Schedule.Progress
	zones, next := progress.Zones, progress.NextMs
	if zones > calendar.ZoneDataVersion {
		sum.Newer++
		return nil, nil
	}
	if zones == "" || zones == calendar.ZoneDataVersion || next == 0 {
		return nil, nil
	}
	plan, err := recurrence.PlanOf(t.ID, t.Record.Schedule, calendars)
	change := &zoneChange{
		Timer: t.ID, ID: t.Record.EventID, Source: t.Record.Source, Service: t.Record.Service, Zone: cmp.Or(t.Record.Schedule.Zone, "UTC"),
		Next: schemas.FormatTime(next), Local: plannedFor(t.Record.Schedule), Zones: zones,
	}
	if err != nil {
		change.Why = "this version cannot plan the schedule: " + err.Error()
		return change, nil //nolint:nilerr // the answer says so
	}
	if plan.Replan(&t.Record, nowMs) && t.Record.Schedule.NextMs != next {
		change.to(plan, t.Record.Schedule.NextMs, next)
		return change, nil
	}
	if runs == 1 {
		return nil, nil
	}
	return diffLater(ctx, s, t.ID, plan, nowMs, runs, change, sum)
}

// to sets the new run of a change. nextMs is 0 if there is none.
func (z *zoneChange) to(plan *recurrence.Plan, nextMs, plannedMs int64) {
	if nextMs == 0 {
		z.Why = fmt.Sprintf("with %s instead of %s the schedule has no run left", calendar.ZoneDataVersion, z.Zones)
		return
	}
	moved, word := time.Duration(nextMs-plannedMs)*time.Millisecond, "later"
	if moved < 0 {
		moved, word = -moved, "earlier"
	}
	z.NewNext, z.NewLocal = schemas.FormatTime(nextMs), plan.Calendar().Local(nextMs)
	z.Why = fmt.Sprintf("%s %s with %s instead of %s", schemas.FormatDuration(moved), word, calendar.ZoneDataVersion, z.Zones)
	for _, o := range plan.Calendar().Explain(nextMs, nextMs, 1) {
		for _, r := range o.Reasons {
			z.Why += "; " + r.String()
		}
	}
}

// plannedFor returns the local time that a cron expression asked for, "" if it is not known.
func plannedFor(s *schemas.Schedule) string {
	if s.Cron == "" || s.NextKey == 0 {
		return ""
	}
	return time.UnixMilli(s.NextKey).UTC().Format("2006-01-02T15:04:05")
}

// diffLater compares the runs after the next one with the runs that a node previews.
func diffLater(ctx context.Context, s session, id schemas.TimerID, plan *recurrence.Plan, nowMs int64, runs int, change *zoneChange, sum *zoneSummary) (*zoneChange, error) {
	ctx, cancel := s.call(ctx)
	defer cancel()
	reply, err := s.Preview(ctx, id, schemas.TimeOf(nowMs), runs)
	switch {
	case schemas.CodeOf(err) == schemas.CodeNotFound:
		return nil, nil // it has ended meanwhile
	case err != nil:
		return nil, err
	case reply.Zones >= calendar.ZoneDataVersion:
		sum.Unknown++
		return nil, nil
	}
	mine := recurrence.Preview(plan.Calendar(), nowMs, runs, false)
	skipped := func(r schemas.PreviewRun) bool { return r.Skipped }
	a, b := slices.DeleteFunc(reply.Runs, skipped), slices.DeleteFunc(mine.Runs, skipped)
	for i := range a {
		planned := a[i].At.UnixMilli()
		if i < len(b) && b[i].At.UnixMilli() == planned {
			continue
		}
		change.Next, change.Local, change.Zones = schemas.FormatTime(planned), a[i].Local, reply.Zones
		next := int64(0)
		if i < len(b) {
			next = b[i].At.UnixMilli()
		}
		change.to(plan, next, planned)
		return change, nil
	}
	return nil, nil
}
