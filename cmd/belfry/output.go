package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

// printing adds the flags -o and --time-zone to a command.
func (c *cli) printing(cmd *cobra.Command) *cobra.Command {
	cmdline.AddOutput(cmd, &c.format)
	cmd.Flags().Var(&c.zone, "time-zone", "time zone of times in text output: UTC, Local or an IANA name")
	return cmd
}

func (c *cli) json() bool { return c.format == cmdline.FormatJSON }

// printJSON prints a value as one line of JSON.
func (c *cli) printJSON(v any) error {
	e := json.NewEncoder(c.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printText prints "name  value" lines in columns, leaving out empty values.
func (c *cli) printText(pairs ...string) error {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			if _, err := fmt.Fprintf(w, "%s\t%s\n", pairs[i], printable(pairs[i+1])); err != nil {
				return err
			}
		}
	}
	return w.Flush()
}

// printTimer prints a timer.
func (c *cli) printTimer(t schemas.TimerInfo) error {
	if c.json() {
		return c.printJSON(t)
	}
	attempts := ""
	if t.Attempts > 0 {
		attempts = fmt.Sprintf("%d of %d", t.Attempts, t.MaxAttempts)
	}
	outcome, response := "", ""
	if o := t.Outcome; o != nil {
		outcome, response = o.Text(), o.Response
	}
	waits := ""
	if f := t.Flow; f != nil {
		waits = c.flowWait(f)
		if f.Deferrals > 0 {
			waits += fmt.Sprintf(", deferral %d", f.Deferrals)
		}
	}
	key := ""
	if o := t.Order; o != nil {
		key = o.Key
		switch {
		case o.Head != "":
			waits = fmt.Sprintf("for %s of key %s", o.Head, o.Key)
		case o.Waits:
			waits = "for its turn of key " + o.Key
		}
	}
	due := ""
	if !t.Due.Equal(t.Scheduled) {
		due = c.zone.show(t.Due)
	}
	pairs := []string{"timer", t.Timer.String(), "id", t.ID, "source", t.Source, "type", t.Type, "service", t.Service, "tenant", t.Tenant, "group", t.Group, "key", key,
		"callback", t.Callback, "state", t.State.String(), "note", t.PauseNote, "scheduled", c.zone.show(t.Scheduled), "due", due, "added", c.zone.show(t.Added), "fired", c.zone.show(t.Fired), "claimed", claimLine(t.Claim), "published", publishedLine(t.Claim),
		"done", c.zone.show(t.Done), "attempts", attempts, "waits", waits, "next", c.zone.show(t.Next), "until", c.zone.show(t.Until), "outcome", outcome, "response", response}
	pairs = append(pairs, c.schedulePairs(t)...)
	for _, a := range t.LastAttempts {
		pairs = append(pairs, "attempt", c.attemptLine(a))
	}
	if t.From == schemas.FromHistory {
		pairs = append(pairs, "from", "the history, because the record has expired", "as of", c.zone.show(t.AsOf))
	}
	for _, op := range t.History {
		pairs = append(pairs, "history", c.historyLine(op))
	}
	return c.printText(pairs...)
}

// claimLine returns the line about the node that claimed a timer; "" if it is not known.
func claimLine(c *schemas.ClaimInfo) string {
	switch {
	case c == nil:
		return ""
	case c.Node == "":
		return fmt.Sprintf("in epoch %d of its shard", c.Epoch)
	}
	return fmt.Sprintf("by node %s, in epoch %d of its shard", c.Node, c.Epoch)
}

// publishedLine says where the event of a timer is; "" if it is not known.
func publishedLine(c *schemas.ClaimInfo) string {
	switch {
	case c == nil:
		return ""
	case c.Sequence == 0:
		return c.Message + ", not in TIMERS_FIRED any more"
	}
	return fmt.Sprintf("%s, sequence %d of TIMERS_FIRED", c.Message, c.Sequence)
}

// flowWait describes the wait of a timer for a call of its flow key.
func (c *cli) flowWait(f *schemas.FlowInfo) string {
	switch f.Hold {
	case schemas.HoldPause:
		return fmt.Sprintf("until %s, as its target asked (flow %s)", c.zone.show(f.Until), f.Key)
	case schemas.HoldCircuit:
		return fmt.Sprintf("for its target, which cannot be reached; next probe at %s (flow %s)", c.zone.show(f.Until), f.Key)
	}
	return fmt.Sprintf("for its slot at %s (flow %s)", c.zone.show(f.Slot), f.Key)
}

// schedulePairs returns the lines about a schedule, or about the schedule of a run.
func (c *cli) schedulePairs(t schemas.TimerInfo) []string {
	if o := t.Origin; o != nil {
		return []string{"schedule", o.Schedule.String(), "run", fmt.Sprint(t.Run), "trigger", o.Trigger, "missed", number(int(o.Missed))}
	}
	s := t.Schedule
	if s == nil {
		return nil
	}
	ms := func(n int64) string {
		if n == 0 {
			return ""
		}
		return schemas.FormatDuration(time.Duration(n) * time.Millisecond)
	}
	next := c.zone.show(s.Next)
	if s.Problem != "" {
		next = "" // that time need not come
	}
	pairs := []string{"cron", s.Cron, "every", s.Every, "tz", s.Zone, "start", c.zone.show(s.Start), "end", c.zone.show(s.End), "limit", number(int(s.Limit)),
		"jitter", ms(s.JitterMs), "dst", s.DST, "days", s.Days, "exclude", excludeText(s), "misfire", s.Misfire, "grace", ms(s.GraceMs), "overlap", s.Overlap, "expect", ms(s.ExpectMs),
		"problem", s.Problem, "next run", next, "runs", fmt.Sprint(s.Fired)}
	if l := s.Last; l != nil {
		pairs = append(pairs, "last run", fmt.Sprintf("%d, scheduled %s, fired %s", l.Run, c.zone.show(l.Scheduled), c.zone.show(l.Fired)))
	}
	pairs = append(pairs, "waiting", c.zone.show(s.Waiting), "triggered", number(s.Triggered))
	if b := s.Backfill; b != nil {
		pairs = append(pairs, "backfill", fmt.Sprintf("from %s to %s, %d runs so far", c.zone.show(b.Next), c.zone.show(b.To), b.Fired))
	}
	pairs = append(pairs, "deadline", c.zone.show(s.Deadline))
	for _, o := range s.Overdue {
		pairs = append(pairs, "overdue", c.overdueLine(o))
	}
	return pairs
}

// excludeText describes the excluded calendars of a schedule.
func excludeText(s *schemas.ScheduleInfo) string {
	text := strings.Join(s.Exclude, ", ")
	if s.ExcludeShift != "" && text != "" {
		text += " (" + s.ExcludeShift + ")"
	}
	return text
}

// overdueLine describes an overdue event.
func (c *cli) overdueLine(o schemas.OverdueInfo) string {
	line := c.zone.show(o.To)
	if o.Count > 1 {
		line = fmt.Sprintf("%d times from %s to %s", o.Count, c.zone.show(o.From), line)
	}
	if o.Run != 0 {
		line += fmt.Sprintf(", run %d", o.Run)
	}
	return line + ", event at " + c.zone.show(o.At)
}

// number formats a number, and 0 as "".
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// showTime formats a time as the API does, and the zero time as "".
func showTime(t time.Time) string {
	return new(zone).show(t)
}

// attemptLine describes one attempt of the callback.
func (c *cli) attemptLine(a schemas.AttemptInfo) string {
	line := fmt.Sprintf("%d at %s, %d ms", a.Attempt, c.zone.show(a.At), a.TookMs)
	if result := a.Text(); result != "" {
		line += ": " + result
	}
	if a.Response != "" {
		line += ", answer " + strconv.Quote(a.Response)
	}
	return line
}

// historyLine formats one control operation. The caller's name comes from the request, so the
// line marks it as not verified. Belfry's own operations have no caller.
func (c *cli) historyLine(op schemas.OperationInfo) string {
	line := op.Op + " at " + c.zone.show(op.At)
	if op.Account != "" {
		line += ", account " + op.Account
	}
	if op.User != "" {
		line += ", user " + op.User
	}
	switch {
	case op.By == "":
	case strings.HasPrefix(op.By, schemas.ByBelfry):
		line += ", by " + op.By
	default:
		line += ", by " + op.By + " (name not verified)"
	}
	return line
}

// table prints rows one by one, with fixed column widths, so that a long list needs no
// memory.
type table struct {
	w      io.Writer
	widths []int
}

func (t table) row(cells ...string) error {
	var b strings.Builder
	for i, cell := range cells {
		cell = printable(cell)
		b.WriteString(cell)
		if i < len(cells)-1 {
			b.WriteString(strings.Repeat(" ", max(t.widths[i]-len([]rune(cell)), 0)+2))
		}
	}
	_, err := fmt.Fprintln(t.w, strings.TrimRight(b.String(), " "))
	return err
}

// printable replaces control characters in text of other users, which could control the
// terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}

// cut shortens s to n characters.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
