package recurrence

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// maxSteps bounds the nominal times that one answer counts, to find the number of a run: at
// most some 100 ms of work.
const maxSteps = 50_000

// Why explains an instant of a schedule, in Unix milliseconds: whether a run fired or will fire
// then, or why not. nowMs is the cluster's time.
func (p *Plan) Why(rec *schemas.Record, nowMs, atMs int64) schemas.Answer {
	w := &why{p: p, rec: rec, s: rec.Schedule, now: nowMs}
	return w.answer(atMs)
}

// WhyBetween answers for the nominal times from fromMs to toMs, both inclusive, and for dates
// without a run, in order. It returns at most limit answers, and at least one; more is true
// if there are others. Without a nominal time it answers for fromMs.
func (p *Plan) WhyBetween(rec *schemas.Record, nowMs, fromMs, toMs int64, limit int) (answers []schemas.Answer, more bool) {
	w := &why{p: p, rec: rec, s: rec.Schedule, now: nowMs}
	times := w.times(fromMs, toMs, min(limit, calendar.MaxExplained-1))
	for _, at := range times[:min(len(times), max(limit, 1))] {
		answers = append(answers, w.answer(at))
	}
	return answers, len(answers) < len(times)
}

// WhyRequested answers for the runs that somebody asked for (Plan.Trigger) and that have not
// fired, oldest request first. Their times are those of the requests.
func (p *Plan) WhyRequested(rec *schemas.Record) []schemas.Answer {
	var answers []schemas.Answer
	s := rec.Schedule
	for _, m := range s.Manual {
		a := schemas.Answer{At: schemas.TimeOf(m.AtMs), Local: p.calendar.Local(m.AtMs), Fate: schemas.FateWaiting, Reason: schemas.ReasonRequested}
		asked := "A run was asked for at " + a.Local
		for i := range rec.History {
			if o := &rec.History[i]; o.Kind == schemas.OperationTrigger && o.AtMs == m.AtMs && o.Name() != "" {
				asked += " by " + o.Name()
			}
		}
		switch {
		case m.Allow || !NeedsLast(rec):
			a.Text = asked + ". It is about to fire."
		case s.Overlap == schemas.OverlapSkip:
			a.Text = fmt.Sprintf("%s. It is about to fire, or is skipped if the callback of run %d has no result.", asked, s.Last.Run)
		default:
			a.Text = fmt.Sprintf("%s. It waits until the callback of run %d has a result.", asked, s.Last.Run)
		}
		answers = append(answers, a)
	}
	return answers
}

// times returns the times of a period that have answers, in order. It reads at most limit+1
// nominal times from each calendar, so that it stays fast; the caller applies the limit.
func (w *why) times(fromMs, toMs int64, limit int) []int64 {
	var times []int64
	from := max(fromMs, w.s.ChangedMs)
	if passed := w.s.PassedMs; w.p.excludes() && from <= passed {
		for _, o := range w.p.decides().Explain(from, min(toMs, passed), limit+1) {
			times = append(times, o.NominalMs)
		}
		for i := range w.s.Decisions {
			d := &w.s.Decisions[i]
			for _, at := range [...]int64{d.FromMs, d.ToMs} {
				if (d.Kind == schemas.DecisionExcluded || w.moves()) && !d.Kind.Requested() && from <= at && at <= toMs {
					times = append(times, at)
				}
			}
		}
		from = passed + 1
	}
	for _, o := range w.p.calendar.Explain(from, toMs, limit+1) {
		times = append(times, o.NominalMs)
	}
	// Of older recurrences only the ends of the ranges are known.
	for i := range w.s.Decisions {
		d := &w.s.Decisions[i]
		if d.FromMs >= w.s.ChangedMs || d.Kind.Requested() {
			continue
		}
		for _, at := range [...]int64{d.FromMs, max(d.FromMs+1, fromMs), d.ToMs} {
			if inside := d.FromMs < at && at < d.ToMs; fromMs <= at && at <= toMs && (!inside && at <= d.ToMs || inside && d.Count > 2) {
				times = append(times, at)
			}
		}
	}
	if len(times) == 0 {
		for _, o := range w.p.calendar.Explain(fromMs, toMs, 1) {
			return []int64{o.NominalMs}
		}
		return []int64{fromMs}
	}
	slices.Sort(times)
	return slices.Compact(times)
}

// why answers questions about one record.
type why struct {
	p   *Plan
	rec *schemas.Record
	s   *schemas.Schedule
	now int64
}

// local formats a time in the schedule's zone.
func (w *why) local(ms int64) string { return w.p.calendar.Local(ms) }

// answer answers for one instant.
func (w *why) answer(at int64) schemas.Answer {
	a := schemas.Answer{At: schemas.TimeOf(at), Local: w.local(at)}
	nominal := false
	var none calendar.Reason
	for _, o := range w.p.calendar.Explain(at, at, 1) {
		if o.Skipped {
			none = o.Reasons[0]
			continue
		}
		nominal, a.Due = true, schemas.TimeOf(o.DueMs)
		a.Notes = notes(o.Reasons)
	}
	var decision, filled, excluded *schemas.Decision
	for i := range w.s.Decisions {
		switch d := &w.s.Decisions[i]; {
		case at < d.FromMs || d.ToMs < at || d.Kind.Requested():
		case d.Kind == schemas.DecisionBackfilled:
			filled = d
		case d.Kind == schemas.DecisionExcluded:
			excluded = d
		default:
			decision = d
		}
	}
	switch past := decision != nil || excluded != nil; {
	case excluded != nil && at >= w.s.ChangedMs && w.p.excludes() && names(w.p.all, at):
		decision, nominal = excluded, true // the range of another decision may contain it
	case past && !nominal:
		// The calendars may have changed since.
		nominal = names(w.p.decides(), at) || w.moves() && decision != nil && (at == decision.FromMs || at == decision.ToMs)
	}
	decision = cmp.Or(decision, excluded)
	inside := func(d *schemas.Decision) bool { return d != nil && d.FromMs < at && at < d.ToMs }
	switch {
	case at < w.s.ChangedMs && (inside(decision) || inside(filled)):
		w.before(&a, cmp.Or(decision, filled))
	case !nominal && at >= w.s.ChangedMs, decision == nil && filled == nil:
		w.undecided(&a, at, nominal, none)
	default:
		w.decided(&a, at, decision, filled)
	}
	if nominal {
		w.overdue(&a, at)
	}
	return a
}

// overdue adds the overdue event for a nominal time, or the deadline until which it waits for a
// success.
func (w *why) overdue(a *schemas.Answer, at int64) {
	for i := range w.s.Overdue {
		if o := &w.s.Overdue[i]; o.FromMs <= at && at <= o.ToMs {
			_, text := overdueReason(o)
			a.Overdue = schemas.TimeOf(o.AtMs)
			a.Text += fmt.Sprintf(" Overdue: an event reported it at %s (%s).", w.local(o.AtMs), text)
			return
		}
	}
	for i := range w.s.Expected {
		if e := &w.s.Expected[i]; e.FromMs <= at && at <= e.ToMs {
			a.Notes = append(a.Notes, "expects a success by "+w.local(e.DeadlineMs))
			return
		}
	}
}

// notes returns reasons as text.
func notes(reasons []calendar.Reason) []string {
	var list []string
	for _, r := range reasons {
		list = append(list, r.String())
	}
	return list
}

// before answers for a time in a range of an older recurrence, whose times are not known.
func (w *why) before(a *schemas.Answer, d *schemas.Decision) {
	what := "were skipped (" + d.Kind.String() + ")"
	if d.Kind.Fires() {
		what = "fired"
	}
	a.Fate, a.Reason, a.Decided = schemas.FateUnknown, schemas.ReasonUpdated, schemas.TimeOf(d.AtMs)
	a.Text = fmt.Sprintf("A later update changed the times of the schedule. Before it, %d nominal times from %s to %s %s.", d.Count, w.local(d.FromMs), w.local(d.ToMs), what)
}

// decided answers for a nominal time that was decided, that a backfill fired, or both.
func (w *why) decided(a *schemas.Answer, at int64, d, filled *schemas.Decision) {
	if d != nil {
		a.Decided, a.Run = schemas.TimeOf(d.AtMs), d.Run
		if d.Kind == schemas.DecisionFired {
			a.Fate = schemas.FateFired
			w.fired(a, at, d, "")
		} else {
			a.Fate, a.Reason, a.Text = schemas.FateSkipped, d.Kind.String(), w.skipped(d)
		}
		if d.Kind == schemas.DecisionExcluded {
			a.Run, a.Notes, a.Text = 0, nil, w.excluded(at, d)
		}
	}
	if filled != nil {
		skip := a.Text
		a.Fate = schemas.FateFired
		w.fired(a, at, filled, " of a backfill")
		if skip != "" {
			a.Text = skip + " Later: " + strings.ToLower(a.Text[:1]) + a.Text[1:]
		}
	}
}

// fired answers for a nominal time in a range of runs.
func (w *why) fired(a *schemas.Answer, at int64, d *schemas.Decision, of string) {
	a.Run, a.Decided = w.number(at, d), time.Time{}
	if at == d.ToMs {
		a.Decided = schemas.TimeOf(d.AtMs)
	}
	l := &w.s.Last
	switch {
	case a.Run == 0:
		a.Text = fmt.Sprintf("One of the runs %d to %d%s fired.", d.Run, d.Run+d.Count-1, of)
	case a.Run == l.Run && l.Missed > 0:
		a.Text = fmt.Sprintf("Run %d%s fired at %s, also for %s that it missed before.", a.Run, of, w.local(l.ClaimedMs), times(l.Missed))
	case !a.Decided.IsZero():
		a.Text = fmt.Sprintf("Run %d%s fired at %s.", a.Run, of, w.local(d.AtMs))
	default:
		a.Text = fmt.Sprintf("Run %d%s fired.", a.Run, of)
	}
}

func times(n uint32) string {
	if n == 1 {
		return "one nominal time"
	}
	return fmt.Sprintf("%d nominal times", n)
}

// number returns the number of the run of a nominal time in a range of runs. It counts from
// the nearer end; 0 if that is too far.
func (w *why) number(at int64, d *schemas.Decision) uint32 {
	switch {
	case at == d.FromMs:
		return d.Run
	case at == d.ToMs:
		return d.Run + d.Count - 1
	case at-d.FromMs < d.ToMs-at:
		if n, ok := count(w.p.decides(), d.FromMs, at-1); ok {
			return d.Run + n
		}
	default:
		if n, ok := count(w.p.decides(), at, d.ToMs); ok {
			return d.Run + d.Count - n
		}
	}
	return 0
}

// count returns the number of nominal times from one to another; false if there are too many.
func count(c *calendar.Schedule, from, to int64) (n uint32, ok bool) {
	for range c.Between(from, to) {
		if n++; n > maxSteps {
			return 0, false
		}
	}
	return n, true
}

// skipped returns a sentence with the reason for which the times of a range were skipped.
func (w *why) skipped(d *schemas.Decision) string {
	at := w.local(d.AtMs)
	late := ""
	if ms := d.AtMs - w.p.calendar.DueMs(d.FromMs); d.FromMs >= w.s.ChangedMs && ms > 0 {
		late = ": the schedule was " + short(ms) + " late"
	}
	switch d.Kind {
	case schemas.DecisionCoalesced:
		return fmt.Sprintf("Coalesced into run %d, which fired at %s%s.", d.Run, at, late)
	case schemas.DecisionMisfire:
		return fmt.Sprintf("Skipped at %s, because timermisfire is skip%s.", at, late)
	case schemas.DecisionGrace:
		return fmt.Sprintf("Skipped at %s, because the run was later than timergrace.", at)
	case schemas.DecisionOverlap:
		return fmt.Sprintf("Skipped at %s, because it overlapped run %d, whose callback had no result.", at, d.Run)
	case schemas.DecisionQueue:
		return fmt.Sprintf("Skipped: the run waited for the result of run %d, and at %s a later run took its place.", d.Run, at)
	case schemas.DecisionPaused:
		return "Skipped, because the schedule was paused" + w.pause(d.AtMs) + "."
	case schemas.DecisionUpdated:
		return fmt.Sprintf("Skipped: an update at %s changed the schedule before the run fired.", at)
	case schemas.DecisionCancelled:
		return fmt.Sprintf("Skipped: the schedule was cancelled at %s before the run fired.", at)
	}
	return fmt.Sprintf("Skipped at %s (%s).", at, d.Kind)
}

// excluded returns a sentence with the calendars that excluded the date of a time.
func (w *why) excluded(at int64, d *schemas.Decision) string {
	text := fmt.Sprintf("Skipped: %s was excluded by %s", w.local(at)[:len(time.DateOnly)], strings.Join(w.s.ExcludedBy(d), ", "))
	switch n := len(w.s.Exclude); {
	case n == 0:
		text = strings.TrimSuffix(text, " by ") + " then"
	case n > 1 && d.Run == 0:
		text = strings.Replace(text, " by ", " by one of ", 1) + ", which have changed since"
	}
	if w.moves() {
		text += "; timerexcludeshift moves the run to the " + w.s.ExcludeMode + " date"
	}
	return text + "."
}

// moves reports whether runs on excluded dates move to other dates.
func (w *why) moves() bool { return w.s.ExcludeMode == "next" || w.s.ExcludeMode == "previous" }

// pause returns the time and the caller of the last pause before a time, for the middle of a
// sentence; "" if the history does not go back so far.
func (w *why) pause(beforeMs int64) string {
	text := ""
	for i := range w.rec.History {
		if o := &w.rec.History[i]; o.Kind == schemas.OperationPause && o.AtMs <= beforeMs {
			text = " at " + w.local(o.AtMs)
			if by := o.Name(); by != "" {
				text += " by " + by
			}
		}
	}
	return text
}

// short formats a duration with its two largest units.
func short(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d >= 48*time.Hour:
		h := d / time.Hour
		return fmt.Sprintf("%dd%dh", h/24, h%24)
	case d >= time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Truncate(time.Second).String()
	}
	return d.String()
}

// undecided answers for an instant without a decision. none is the calendar's reason for no
// run at a nominal time.
func (w *why) undecided(a *schemas.Answer, at int64, nominal bool, none calendar.Reason) {
	s := w.s
	last := reached(s)
	set := func(fate, reason, format string, args ...any) {
		a.Fate, a.Reason, a.Text = fate, reason, fmt.Sprintf(format, args...)
	}
	switch {
	case s.Waiting != nil && s.Waiting.NominalMs == at:
		set(schemas.FateWaiting, "", "The run waits until the callback of run %d has a result.", s.Last.Run)
	case w.backfills(at) && nominal:
		set(schemas.FatePlanned, "", "The backfill under way fires it, at %s or later.", w.local(max(s.Backfill.DueMs, w.now)))
	case w.p.excludes() && s.PassedMs < at && at < s.NextMs && at <= w.now && nominal:
		set(schemas.FateNone, string(calendar.Excluded), "No run: the date was excluded when the schedule was planned, by %s.", strings.Join(s.Exclude, ", "))
	case none.Code != "":
		set(schemas.FateNone, string(none.Code), "No run: %s.", none.Text)
		w.nearest(a, at)
	case !nominal:
		w.notNominal(a, at)
	case s.NextMs != 0 && at >= s.NextMs && !w.rec.State.Final():
		w.planned(a, at)
	case at <= w.rec.AddedMs && !s.Forgotten(at):
		set(schemas.FateNone, schemas.ReasonBeforeStart, "No run: the schedule was added at %s.", w.local(w.rec.AddedMs))
	case w.rec.State == schemas.StateCancelled && at > last:
		set(schemas.FateNone, schemas.ReasonEnded, "No run: the schedule was cancelled at %s.", w.local(w.rec.DoneMs))
	case s.LimitReached() && at > last:
		set(schemas.FateNone, schemas.ReasonLimit, "No run: the limit of %d runs was reached with run %d.", s.Limit, s.Last.Run)
	case s.Forgotten(at):
		set(schemas.FateUnknown, "", "Not known: the schedule keeps its last decisions, which go back to %s.", w.local(s.KnownFromMs))
	case at < s.ChangedMs:
		set(schemas.FateNone, schemas.ReasonUpdated, "No run: the schedule got this time by a later update.")
	default:
		set(schemas.FateUnknown, "", "Not known: the record of the schedule has no decision about it.")
	}
}

// backfills reports whether the backfill under way fires a nominal time.
func (w *why) backfills(at int64) bool {
	b := w.s.Backfill
	if b == nil || at < b.NextMs || b.ToMs < at {
		return false
	}
	for _, e := range b.Except {
		if e.FromMs <= at && at <= e.ToMs {
			return false
		}
	}
	return true
}

// nearest sets the nominal times before and after an instant that is none.
func (w *why) nearest(a *schemas.Answer, at int64) {
	if before, ok := w.p.calendar.Prev(at); ok {
		a.Before = schemas.TimeOf(before)
	}
	if after, ok := w.p.calendar.Next(at); ok {
		a.After = schemas.TimeOf(after)
	}
}

// notNominal answers for an instant that the schedule does not name. It looks for a reason on
// the same date: excluded dates and gaps have no run.
func (w *why) notNominal(a *schemas.Answer, at int64) {
	const day = 86_400_000
	a.Fate, a.Reason = schemas.FateNone, schemas.ReasonNotNominal
	w.nearest(a, at)
	s := w.s
	switch {
	case s.StartMs > at:
		a.Reason, a.Text = schemas.ReasonBeforeStart, fmt.Sprintf("No run: the schedule starts at %s.", w.local(s.StartMs))
		return
	case s.EndMs != 0 && s.EndMs < at:
		a.Reason, a.Text = schemas.ReasonAfterEnd, fmt.Sprintf("No run: the schedule ended at %s.", w.local(s.EndMs))
		return
	}
	for _, o := range w.p.calendar.Explain(at-day, at+day, calendar.MaxExplained) {
		if o.Skipped && o.Local()[:len(time.DateOnly)] == a.Local[:len(time.DateOnly)] {
			a.Reason = string(o.Reasons[0].Code)
			a.Notes = append(a.Notes, o.Reasons[0].Text)
		}
	}
	a.Text = "Not a time of the schedule."
	switch {
	case !a.Before.IsZero() && !a.After.IsZero():
		a.Text += fmt.Sprintf(" The nearest are %s and %s.", w.local(a.Before.UnixMilli()), w.local(a.After.UnixMilli()))
	case !a.Before.IsZero():
		a.Text += fmt.Sprintf(" The last one is %s.", w.local(a.Before.UnixMilli()))
	case !a.After.IsZero():
		a.Text += fmt.Sprintf(" The first one is %s.", w.local(a.After.UnixMilli()))
	}
}

// planned answers for a nominal time that the schedule has yet to decide.
func (w *why) planned(a *schemas.Answer, at int64) {
	s, due := w.s, a.Due.UnixMilli()
	if at > s.NextMs && s.Limit > 0 {
		if n, ok := count(w.p.calendar, s.NextMs, at-1); !ok || sum(s.Fired, n) >= s.Limit {
			a.Fate, a.Reason = schemas.FateNone, schemas.ReasonLimit
			a.Text = fmt.Sprintf("No run, if those before it fire: the limit is %d runs, of which %d have fired.", s.Limit, s.Fired)
			return
		}
	}
	a.Fate = schemas.FatePlanned
	paused := w.rec.State == schemas.StatePaused
	switch {
	case paused && due <= w.now:
		a.Text = "Not decided: the schedule was paused" + w.pause(w.now) + ", and the resume decides it."
	case paused:
		a.Text = fmt.Sprintf("Planned for %s, if the schedule is resumed before: it was paused%s.", w.local(due), w.pause(w.now))
	case due <= w.now:
		a.Text = fmt.Sprintf("Due since %s: about to be decided.", w.local(due))
	case at == s.NextMs:
		a.Run = w.rec.Run
		a.Text = fmt.Sprintf("Planned: the next run, number %d, fires at %s.", a.Run, w.local(due))
	default:
		a.Text = fmt.Sprintf("Planned for %s.", w.local(due))
	}
	if note := s.PauseNote; paused && note != "" {
		a.Notes = append(a.Notes, "pause: "+note)
	}
}
