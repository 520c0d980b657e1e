package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

const (
	// applyRuns is the number of runs that apply shows before and after a change.
	applyRuns = 3
	// applyTries bounds the attempts to change a schedule whose runs change its revision meanwhile.
	applyTries = 20
)

func (c *cli) applyCommand() *cobra.Command {
	a := &applier{c: c}
	by := &byFlag{}
	var paths []string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the schedules what files say",
		Long: `Add and update schedules so that they are what YAML files say. The command prints each
schedule with its action, and for a change the next runs before and after. It checks all
files, and asks a node about each change, before the first change.

  schedules:
    - id: nightly-report
      source: /reports
      cron: 30 2 * * *
      tz: Europe/Berlin
      svc: reports
      callback: https://reports.example/nightly

The keys are the flags of "belfry add". With --group all schedules have this group, and
--prune cancels the schedules of the group that the files do not have, never another one.
An empty file is a mistake: write "schedules: []" for no schedules. A schedule that is in
another group is not touched, and is an error. What is paused stays paused.

--dry-run changes nothing. The exit code is then 3 if something would change, and 0 if not.
Each change is made only if the schedule is still as the plan has seen it, so several may
apply at the same time. If the command is interrupted, the same command does the rest.`,
		Example: `  belfry apply -f schedules.yaml --group ops --prune --dry-run
  belfry apply -f schedules/ --group ops --prune`,
		Args: exactly(0),
	}
	fs := cmd.Flags()
	fs.StringArrayVarP(&paths, "file", "f", nil, "file of schedules, a folder with files *.yaml and *.yml, or - for standard input (may be repeated)")
	fs.StringVar(&a.group, "group", "", "the group of all these schedules (default: that in the file)")
	fs.BoolVar(&a.prune, "prune", false, "with --group: cancel the schedules of the group that the files do not have")
	fs.BoolVar(&a.dryRun, "dry-run", false, "print the plan and change nothing; exit code 3 if something would change")
	by.add(fs)
	check := func([]string) error {
		switch {
		case len(paths) == 0:
			return usagef("-f is required: a file or folder of schedules")
		case a.prune && a.group == "":
			return usagef("--prune needs --group: it cancels schedules of that group alone")
		}
		if err := by.check(); err != nil {
			return err
		}
		files := scheduleFiles{c: c, group: a.group}
		err := files.read(paths)
		a.wanted, a.by = files.wanted, by.option()
		return err
	}
	return c.talking(cmd, check, a.run)
}

// applier makes schedules what files say.
type applier struct {
	c             *cli
	group         string
	prune, dryRun bool
	by            belfry.ControlOption
	wanted        []wanted
	steps         []applyStep
}

// The actions of apply.
const (
	actionCreate    = "create"
	actionChange    = "change"
	actionUnchanged = "unchanged"
	actionDelete    = "delete"
	actionRefused   = "refused"
)

// applyStep is what apply does with one schedule. Its JSON is part of the interface.
type applyStep struct {
	Action string `json:"action"`
	ID     string `json:"id"`
	Source string `json:"source"`
	// Place is where a file has the schedule: <file>:<line>.
	Place string `json:"place,omitempty"`
	// Changes are the attributes that differ.
	Changes []attributeChange `json:"changes,omitempty"`
	// Before and After are the next nominal times.
	Before []time.Time `json:"before,omitempty"`
	After  []time.Time `json:"after,omitempty"`
	// Reason says why a schedule is refused.
	Reason string `json:"reason,omitempty"`
	Paused bool   `json:"paused,omitempty"`

	want *wanted
	have belfry.Exported
}

// attributeChange is an attribute that differs. A value that may be secret, or long, is left out.
type attributeChange struct {
	Name string `json:"name"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

func (a *applier) run(ctx context.Context, s session) error {
	if err := a.plan(ctx, s); err != nil {
		return fmt.Errorf("%w (nothing was changed)", err)
	}
	counts, done := map[string]int{}, 0
	var refused *applyStep
	for i := range a.steps {
		step := &a.steps[i]
		counts[step.Action]++
		if !a.dryRun {
			if err := a.do(ctx, s, step); err != nil {
				return fmt.Errorf("%s of source %s: %w (%d changes were made; the same command does the rest)", step.ID, step.Source, err, done)
			}
		}
		switch step.Action {
		case actionRefused:
			refused = cmp.Or(refused, step)
		case actionUnchanged:
		default:
			done++
		}
		if err := a.print(step); err != nil {
			return err
		}
	}
	var p page
	p.line("%s: %d to create, %d to change, %d to delete, %d unchanged", map[bool]string{true: "plan", false: "done"}[a.dryRun],
		counts[actionCreate], counts[actionChange], counts[actionDelete], counts[actionUnchanged])
	text := p.String()
	if !a.dryRun {
		text = strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(text, "to create", "created"), "to change", "changed"), "to delete", "deleted")
	}
	if _, err := a.c.err.Write([]byte(text)); err != nil {
		return err
	}
	switch {
	case refused != nil:
		return schemas.Errorf(schemas.CodeConflict, "%d schedules were refused; the first is %s of source %s (%s): %s", counts[actionRefused], refused.ID, refused.Source, refused.Place, refused.Reason)
	case a.dryRun && done > 0:
		return cmdline.ErrDrift
	}
	return nil
}

// plan compares the files with the schedules, and asks a node about each change.
func (a *applier) plan(ctx context.Context, s session) error {
	there, err := a.ofGroup(ctx, s)
	if err != nil {
		return err
	}
	named := map[identity]bool{}
	for i := range a.wanted {
		w := &a.wanted[i]
		named[w.identity] = true
		have, found := there[w.identity]
		if !found {
			if have, found, err = stored(ctx, s, w.identity); err != nil {
				return fmt.Errorf("%s: %w", w.place, err)
			}
		}
		step := applyStep{ID: w.id, Source: w.source, Place: w.place, want: w, have: have, Paused: have.State == schemas.StatePaused}
		if err := a.compare(ctx, s, &step, found); err != nil {
			return fmt.Errorf("%s: %w", w.place, err)
		}
		a.steps = append(a.steps, step)
	}
	if !a.prune {
		return nil
	}
	for _, id := range slices.SortedFunc(maps.Keys(there), func(a, b identity) int {
		return cmp.Or(strings.Compare(a.source, b.source), strings.Compare(a.id, b.id))
	}) {
		if named[id] {
			continue
		}
		step := applyStep{Action: actionDelete, ID: id.id, Source: id.source, have: there[id], Paused: there[id].State == schemas.StatePaused}
		if step.Before, err = nextRuns(ctx, s, step.have.Timer); err != nil {
			return err
		}
		a.steps = append(a.steps, step)
	}
	return nil
}

// ofGroup returns the schedules of the group that can still fire.
func (a *applier) ofGroup(ctx context.Context, s session) (map[identity]belfry.Exported, error) {
	there := map[identity]belfry.Exported{}
	if a.group == "" {
		return there, nil
	}
	x := exporter{query: belfry.ExportQuery{ListQuery: belfry.ListQuery{Group: a.group, OnlySchedules: true}, Limit: exportPage}}
	for {
		page, err := x.page(ctx, s)
		if err != nil {
			return nil, err
		}
		if len(page.Skipped) > 0 {
			skip := page.Skipped[0]
			return nil, schemas.Errorf(skip.Code, "schedule %s of source %s: %s", skip.ID, skip.Source, skip.Error)
		}
		for _, t := range page.Timers {
			e, err := eventOf(&t)
			if err != nil {
				return nil, err
			}
			there[identity{e.Source(), e.ID()}] = t
		}
		if x.query.Cursor = page.Cursor; page.Cursor == "" {
			return there, nil
		}
	}
}

// stored returns the timer of an event.
func stored(ctx context.Context, s session, id identity) (t belfry.Exported, found bool, err error) {
	page, err := persist(ctx, func() (belfry.ExportPage, error) {
		ctx, cancel := s.call(ctx)
		defer cancel()
		return s.Export(ctx, belfry.ExportQuery{ID: id.id, Source: id.source})
	})
	switch {
	case errors.Is(err, belfry.ErrNotFound):
		return t, false, nil
	case err != nil:
		return t, false, err
	case len(page.Timers) == 0:
		return t, false, schemas.Errorf(schemas.CodeDamaged, "the event of the stored timer cannot be read")
	}
	return page.Timers[0], true, nil
}

// eventOf decodes the event of an exported timer.
func eventOf(t *belfry.Exported) (*event.Event, error) {
	return schemas.Body{Mode: schemas.ModeStructured, Data: t.Event}.Event()
}

// nextRuns returns the next nominal times of a stored schedule.
func nextRuns(ctx context.Context, s session, id schemas.TimerID) ([]time.Time, error) {
	return runsOf(ctx, s, func(ctx context.Context) (belfry.Preview, error) { return s.Preview(ctx, id, time.Time{}, applyRuns) })
}

func runsOf(ctx context.Context, s session, preview func(context.Context) (belfry.Preview, error)) (times []time.Time, err error) {
	reply, err := persist(ctx, func() (belfry.Preview, error) {
		ctx, cancel := s.call(ctx)
		defer cancel()
		return preview(ctx)
	})
	for _, run := range reply.Runs {
		if !run.Skipped {
			times = append(times, run.At)
		}
	}
	return times, err
}

// compare sets what a step does with a schedule of a file. Its errors are those of a node that refuses the
// schedule.
func (a *applier) compare(ctx context.Context, s session, step *applyStep, found bool) (err error) {
	want, have := step.want, &step.have
	refuse := func(format string, args ...any) error {
		step.Action, step.Reason = actionRefused, fmt.Sprintf(format, args...)
		return nil
	}
	preview := func(e event.Event) (err error) {
		step.After, err = runsOf(ctx, s, func(ctx context.Context) (belfry.Preview, error) {
			return s.PreviewEvent(ctx, e, nil, time.Time{}, applyRuns)
		})
		return err
	}
	switch {
	case !found:
		step.Action = actionCreate
		return preview(want.event)
	case have.Group != "" && have.Group != want.group:
		return refuse("it is in group %s: give it another id, or update it with belfry update --group", have.Group)
	case have.State == schemas.StateCancelled:
		return refuse("it was cancelled, and its record has not expired: apply again later, or give it another id")
	case have.Hash == want.hash: // also if it is completed
		step.Action = actionUnchanged
		return nil
	case have.State != schemas.StatePending && have.State != schemas.StatePaused:
		return refuse("it is %s, and its record has not expired: apply again later, or give it another id", have.State)
	}
	old, err := eventOf(have)
	if err != nil {
		return err
	}
	after := want.event.Clone()
	oldStart, hadStart := old.Extensions()[schemas.AttrStart]
	_, hasStart := after.Extensions()[schemas.AttrStart]
	_, periodic := after.Extensions()[schemas.AttrEvery]
	_, wasPeriodic := old.Extensions()[schemas.AttrEvery]
	switch {
	case old.Extensions()[schemas.AttrCron] == nil && !wasPeriodic:
		return refuse("it is a timer that fires once, not a schedule: give it another id")
	case periodic && wasPeriodic && hadStart && !hasStart:
		// The update keeps the phase, which the export has as the start.
		after.SetExtension(schemas.AttrStart, oldStart)
	}
	step.Action, step.Changes = actionChange, differences(old, &after)
	if err := preview(after); err != nil {
		return err
	}
	step.Before, err = nextRuns(ctx, s, have.Timer)
	return err
}

// differences returns the attributes that differ, by name.
func differences(old, now *event.Event) (all []attributeChange) {
	a, b := attributesOf(old), attributesOf(now)
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if _, ok := b[name]; !ok {
			b[name] = ""
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b)) {
		from, to := a[name], b[name]
		switch {
		case from == to:
			continue
		case name == schemas.AttrCallback:
			from, to = schemas.RedactURL(from), schemas.RedactURL(to)
		}
		all = append(all, attributeChange{name, from, to})
	}
	if !bytes.Equal(old.Data(), now.Data()) {
		all = append(all, attributeChange{Name: "data"})
	}
	return all
}

// attributesOf returns the attributes of an event that make a difference.
func attributesOf(e *event.Event) map[string]string {
	all := map[string]string{"type": e.Type(), "subject": e.Subject(), "dataschema": e.DataSchema(), "datacontenttype": e.DataContentType()}
	for name, value := range e.Extensions() {
		switch name {
		case schemas.AttrExportState, schemas.AttrExportNote, "traceparent", "tracestate":
		default:
			all[name] = fmt.Sprint(value)
		}
	}
	return all
}

// errChanged ends an apply after somebody else has changed a schedule since the plan.
var errChanged = schemas.Errorf(schemas.CodeConflict, "another caller has changed it since the plan was made")

// do carries out a step.
func (a *applier) do(ctx context.Context, s session, step *applyStep) error {
	switch step.Action {
	case actionCreate:
		return a.create(ctx, s, step)
	case actionChange:
		return a.change(ctx, s, step, func(ctx context.Context, revision uint64) error {
			u, err := s.Update(ctx, step.want.event, nil, a.by, belfry.IfRevision(revision))
			if err == nil {
				step.Before, step.After = first(u.Before, applyRuns), first(u.After, applyRuns)
			}
			return err
		})
	case actionDelete:
		return a.change(ctx, s, step, func(ctx context.Context, revision uint64) error {
			_, err := s.Cancel(ctx, step.have.Timer, a.by, belfry.IfRevision(revision))
			return err
		})
	}
	return nil
}

func first[T any](all []T, n int) []T { return all[:min(n, len(all))] }

func (a *applier) create(ctx context.Context, s session, step *applyStep) error {
	r, err := persist(ctx, func() (belfry.Receipt, error) {
		ctx, cancel := s.call(ctx)
		defer cancel()
		return s.Add(ctx, step.want.event)
	})
	switch {
	case errors.Is(err, belfry.ErrConflict):
		return errChanged
	case err == nil && r.Duplicate && r.State.Final():
		return schemas.Errorf(schemas.CodeConflict, "another caller has added it since the plan was made, and it is %s already", r.State)
	}
	return err
}

// change changes a schedule by compare-and-set, again if only a run, a pause or a resume has changed
// its revision since the plan.
func (a *applier) change(ctx context.Context, s session, step *applyStep, do func(ctx context.Context, revision uint64) error) error {
	revision := step.have.Revision
	for range applyTries {
		_, err := persist(ctx, func() (struct{}, error) {
			ctx, cancel := s.call(ctx)
			defer cancel()
			return struct{}{}, do(ctx, revision)
		})
		if !errors.Is(err, belfry.ErrConflict) {
			return err
		}
		now, found, err := stored(ctx, s, identity{step.Source, step.ID})
		switch {
		case err != nil:
			return err
		case step.want != nil && found && now.Hash == step.want.hash:
			return nil // another caller has applied the same change, or the answer was lost
		case step.want == nil && (!found || now.State.Final()):
			return nil
		case !found || now.Hash != step.have.Hash || now.State.Final():
			return errChanged
		}
		revision = now.Revision
	}
	return schemas.Errorf(schemas.CodeUnavailable, "a run, a pause or a resume changed the schedule during each of %d tries: try again", applyTries)
}

// print prints a step.
func (a *applier) print(step *applyStep) error {
	if a.c.json() {
		return a.c.printJSON(step)
	}
	var p page
	note := ""
	if step.Paused {
		note = " (paused)"
	}
	p.line("%-9s  %s of source %s%s", step.Action, printable(step.ID), printable(step.Source), note)
	for _, change := range step.Changes {
		p.line("           %s", printable(change.text()))
	}
	if step.Reason != "" {
		p.line("           %s", printable(step.Reason))
	}
	for _, runs := range []struct {
		name  string
		times []time.Time
		shown bool
	}{{"before", step.Before, step.Action == actionChange || step.Action == actionDelete}, {"after", step.After, step.Action == actionChange || step.Action == actionCreate}} {
		if runs.shown {
			p.line("           %-6s %s", runs.name, cmp.Or(a.c.showTimes(runs.times), "no run"))
		}
	}
	_, err := a.c.out.Write(p.Bytes())
	return err
}

func (x attributeChange) text() string {
	switch {
	case x.From == x.To:
		return x.Name + " differs"
	case x.From == "":
		return fmt.Sprintf("%s: none -> %q", x.Name, cut(x.To, 80))
	case x.To == "":
		return fmt.Sprintf("%s: %q -> none", x.Name, cut(x.From, 80))
	}
	return fmt.Sprintf("%s: %q -> %q", x.Name, cut(x.From, 80), cut(x.To, 80))
}
