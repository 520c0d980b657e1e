package calendar

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// Code names a reason.
type Code string

// The reasons why a run is when it is, or why there is none.
const (
	// GapShifted: the local time does not exist that day; the run is at the first instant
	// after the gap.
	GapShifted Code = "gap-shifted"
	// GapSkipped: the local time does not exist that day; there is no run.
	GapSkipped Code = "gap-skipped"
	// OverlapFirst and OverlapLast: the local time occurs twice; the run is in this pass.
	OverlapFirst Code = "overlap-first"
	OverlapLast  Code = "overlap-last"
	// Excluded: the date is excluded, and there is no run; or the run moved from an excluded
	// date.
	Excluded Code = "excluded"
	// MonthEnd: the month is shorter than the day of the start.
	MonthEnd Code = "month-end"
	// NearestWeekday: nW or LW moved the run off a weekend.
	NearestWeekday Code = "nearest-weekday"
	// Jitter: the run is due later than its nominal time.
	Jitter Code = "jitter"
)

// Reason is a reason as a code for programs and a text for people.
type Reason struct {
	Code Code   `json:"code"`
	Text string `json:"text"`
}

// String joins code and text, for example "jitter +12s".
func (r Reason) String() string {
	if r.Code == Jitter {
		return string(r.Code) + " " + r.Text
	}
	return string(r.Code) + ": " + r.Text
}

// Occurrence is a nominal time with its explanation: a run, or a skip.
type Occurrence struct {
	// NominalMs is the instant of the run. Of a skip it is the instant at which the run would
	// have been: the first one of an excluded date, or the end of a gap.
	NominalMs int64
	// DueMs is NominalMs plus jitter.
	DueMs int64
	// OffsetSeconds is the zone's offset at NominalMs.
	OffsetSeconds int
	Skipped       bool
	// Reasons is empty if nothing is special about the run. A skip has one reason.
	Reasons []Reason
}

// Local returns the local time with its offset, as RFC 3339.
func (o Occurrence) Local() string {
	return time.UnixMilli(o.NominalMs).In(time.FixedZone("", o.OffsetSeconds)).Format("2006-01-02T15:04:05.999-07:00")
}

// MaxExplained bounds the runs, and the skips, that one call of Explain returns.
const MaxExplained = 1000

// Explain returns the nominal times from fromMs to toMs, both inclusive, with reasons. It
// returns at most the given number of runs and MaxExplained of each runs and skips. An
// excluded date is one skip, however many runs it would have had.
func (s *Schedule) Explain(fromMs, toMs int64, runs int) []Occurrence {
	var list []Occurrence
	toMs = min(toMs, s.endMs)
	q := search{Schedule: s}
	for after, skips := max(fromMs, s.startMs)-1, MaxExplained; min(runs, MaxExplained) > 0; runs-- {
		f, ok := q.after(after)
		if ok = ok && f.atMs <= toMs; !ok {
			return append(list, s.skips(after, toMs, skips)...)
		}
		skipped := s.skips(after, f.atMs, skips)
		skips -= len(skipped)
		list = append(append(list, skipped...), s.explain(f))
		if after = f.atMs; len(list) >= 2*MaxExplained {
			break
		}
	}
	return list
}

// explain describes a run.
func (s *Schedule) explain(f found) Occurrence {
	g := &s.zone.segments[f.segment]
	o := Occurrence{NominalMs: f.atMs, DueMs: s.DueMs(f.atMs), OffsetSeconds: int(g.offsetMs / secondMs)}
	if s.cron != nil || s.every.unit != unitElapsed {
		o.Reasons = append(o.Reasons, s.changeReasons(f, g)...)
		o.Reasons = append(o.Reasons, s.dayReasons(f)...)
	}
	if late := o.DueMs - o.NominalMs; late > 0 {
		o.Reasons = append(o.Reasons, Reason{Jitter, "+" + durationText(late)})
	}
	return o
}

// changeReasons explains a run near a change of the offset.
func (s *Schedule) changeReasons(f found, g *segment) []Reason {
	if f.shifted {
		return []Reason{{GapShifted, missing(f.wantedMs, g) + "; runs at the first instant after the gap"}}
	}
	pass := func(code Code, name string, other int64) []Reason {
		text := fmt.Sprintf("%s occurs twice on %s", clock(f.wantedMs), date(f.wantedMs))
		switch {
		case s.cron == nil && f.atMs == s.startMs:
			return []Reason{{code, text + "; the start is in the " + name + " pass"}}
		case s.dst.overlap == overlapBoth:
			return []Reason{{code, text + "; this is the " + name + " pass"}}
		}
		return []Reason{{code, text + "; runs in the " + name + " pass only, not at " + offsetText(other)}}
	}
	i := f.segment
	switch {
	case f.wantedMs < g.seenMs && i > 0:
		return pass(OverlapLast, "last", s.zone.segments[i-1].offsetMs)
	case f.wantedMs >= g.laterMs && i < len(s.zone.segments)-1:
		return pass(OverlapFirst, "first", s.zone.segments[i+1].offsetMs)
	}
	return nil
}

// dayReasons explains why a run is on its date.
func (s *Schedule) dayReasons(f found) []Reason {
	var list []Reason
	day := dayOf(f.wantedMs)
	first, last := s.exclude.sources(day)
	onDay := s.asksFor(f.wantedMs)
	for source := first; source <= last; source++ {
		if source == day || !s.asksFor(f.wantedMs+(source-day)*dayMs) {
			continue
		}
		text := fmt.Sprintf("moved from %s, excluded by %s", date(source*dayMs), s.exclude.names(source))
		if onDay {
			text = fmt.Sprintf("also stands for %s, excluded by %s", date(source*dayMs), s.exclude.names(source))
		}
		list = append(list, Reason{Excluded, text})
	}
	if !onDay {
		return list
	}
	year, month, dayOfMonth := civil(day)
	length := daysIn(year, month)
	if s.cron == nil {
		if s.every.unit == unitMonths && dayOfMonth < s.every.day {
			list = append(list, Reason{MonthEnd, fmt.Sprintf("%s %d has no day %d", time.Month(month), year, s.every.day)})
		}
		return list
	}
	nearest := s.cron.days.nearest
	if s.cron.days.lastWeekday {
		nearest |= 1 << length
	}
	weekdayOfFirst := weekday(day - int64(dayOfMonth-1))
	for ; nearest != 0; nearest &= nearest - 1 {
		n := bits.TrailingZeros32(nearest)
		if n <= length && n != dayOfMonth && nearestWeekday(n, weekdayOfFirst, length) == dayOfMonth {
			list = append(list, Reason{NearestWeekday, fmt.Sprintf("the %s is a %s", ordinal(n), time.Weekday((weekdayOfFirst+n-1)%7))})
		}
	}
	return list
}

// asksFor reports whether the expression or period contains a local time, without regard to
// excluded dates.
func (s *Schedule) asksFor(localMs int64) bool {
	q := search{Schedule: s}
	at, ok := q.rule(localMs, localMs+1)
	return ok && at == localMs
}

// skips returns at most limit skips after an instant, up to and including another, in order.
func (s *Schedule) skips(afterMs, toMs int64, limit int) []Occurrence {
	list := append(s.excludedSkips(afterMs, toMs, limit), s.gapSkips(afterMs, toMs)...)
	slices.SortStableFunc(list, func(a, b Occurrence) int { return cmp.Compare(a.NominalMs, b.NominalMs) })
	return list[:min(len(list), max(limit, 0))]
}

// excludedSkips returns one skip for each excluded date that would have had a run.
func (s *Schedule) excludedSkips(afterMs, toMs int64, limit int) []Occurrence {
	if s.exclude.count == 0 || s.exclude.shift != shiftSkip {
		return nil
	}
	var list []Occurrence
	q := search{Schedule: s.Without()}
	for f, ok := q.after(afterMs); ok && f.atMs <= toMs && len(list) < limit; f, ok = q.after(afterMs) {
		day := dayOf(f.wantedMs)
		if afterMs = f.atMs; !s.exclude.excluded(day) {
			continue
		}
		g := &s.zone.segments[f.segment]
		list = append(list, Occurrence{NominalMs: f.atMs, DueMs: f.atMs, OffsetSeconds: int(g.offsetMs / secondMs), Skipped: true,
			Reasons: []Reason{{Excluded, fmt.Sprintf("%s is excluded by %s", date(f.wantedMs), s.exclude.names(day))}}})
		afterMs = max(afterMs, s.zone.firstInstant((day+1)*dayMs)-1)
	}
	return list
}

// gapSkips returns one skip for each gap that swallows local times of the schedule. A
// wildcard schedule asks for no local times, unless it restricts the hours.
func (s *Schedule) gapSkips(afterMs, toMs int64) []Occurrence {
	if s.cron == nil && s.every.unit == unitElapsed || s.cron != nil && s.cron.wildcard && s.cron.hour == allHours {
		return nil
	}
	var list []Occurrence
	q := search{Schedule: s}
	for i := s.zone.at(max(afterMs, MinMs)); i < len(s.zone.segments) && s.zone.segments[i].startMs <= toMs; i++ {
		g := &s.zone.segments[i]
		first, last, ok := g.gap()
		if g.startMs <= afterMs || !ok || s.dst.shiftsGap(last-first) {
			continue
		}
		if wanted, ok := q.wanted(first, last); ok {
			text := missing(wanted, g) + "; no run"
			if s.dst.shift {
				text += ", because the gap is longer than 3 h"
			}
			list = append(list, Occurrence{NominalMs: g.startMs, DueMs: g.startMs, OffsetSeconds: int(g.offsetMs / secondMs), Skipped: true, Reasons: []Reason{{GapSkipped, text}}})
		}
	}
	return list
}

// warnOfRealTime warns if a wildcard schedule asks for hours that change the offset.
func (s *Schedule) warnOfRealTime() {
	if s.cron == nil || !s.cron.wildcard || s.cron.hour == allHours || s.spec.DST != "" && s.spec.DST != "auto" {
		return
	}
	for _, g := range s.zone.segments[1:] {
		if g.endMs < s.startMs || g.startMs < warnFromMs {
			continue
		}
		change := g.startMs + g.offsetMs
		for local := min(change, g.seenMs); local < max(change, g.seenMs); local += minuteMs {
			if hour := (local - dayOf(local)*dayMs) / hourMs; s.cron.hour&(1<<hour) != 0 {
				s.warnings = append(s.warnings, "the minute or hour field begins with *, so runs follow real time: none in a gap, and both passes of an overlap")
				return
			}
		}
	}
}

const (
	allHours = 1<<24 - 1
	// warnFromMs is 2026-01-01: warnings ignore rules that ended before.
	warnFromMs = 1_767_225_600_000
)

// missing says which local time a gap swallowed.
func missing(wantedMs int64, g *segment) string {
	first, last, _ := g.gap()
	from, to := clock(first), clock(last)
	if dayOf(first) != dayOf(last) {
		from, to = date(first)+" "+from, date(last)+" "+to
	}
	return fmt.Sprintf("%s does not exist on %s, when the clock goes from %s to %s", clock(wantedMs), date(wantedMs), from, to)
}

// date formats the date of a local time.
func date(localMs int64) string { return time.UnixMilli(localMs).UTC().Format(time.DateOnly) }

// clock formats the time of day of a local time, without seconds if they are 0.
func clock(localMs int64) string {
	return strings.TrimSuffix(time.UnixMilli(localMs).UTC().Format("15:04:05.999"), ":00")
}

// durationText formats a duration without units that are 0: 1h30m instead of 1h30m0s.
func durationText(ms int64) string {
	text := (time.Duration(ms) * time.Millisecond).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// offsetText formats an offset, for example +02:00.
func offsetText(offsetMs int64) string {
	return time.Unix(0, 0).In(time.FixedZone("", int(offsetMs/secondMs))).Format("-07:00")
}
