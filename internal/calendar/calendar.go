package calendar

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Names of the attributes in error messages.
const (
	attrZone    = "timertz"
	attrStart   = "timerstart"
	attrEnd     = "timerend"
	attrJitter  = "timerjitter"
	attrDST     = "timerdst"
	attrDays    = "timerdays"
	attrExclude = "timerexclude"
	attrShift   = "timerexcludeshift"
)

// Values of timerdays.
const (
	daysAnd = "and"
	daysOr  = "or"
)

// MaxJitter is the greatest jitter. Jitter is capped at the next nominal time anyway.
const MaxJitter = 24 * time.Hour

// Spec is the specification of a schedule. The zero value of a field means that the attribute
// is absent.
type Spec struct {
	// ID is the timer ID. H and jitter are derived from it.
	ID string
	// Cron is timercron and Every is timerevery. Exactly one of them is set.
	Cron, Every string
	// Zone is timertz, an IANA name such as Europe/Berlin. The default is UTC.
	Zone string
	// Zones is the zone data; nil for that of the process.
	Zones *ZoneData
	// StartMs is timerstart and EndMs is timerend, both inclusive, in Unix milliseconds; 0
	// means none. Every counts from StartMs, so the caller sets StartMs to the time of the
	// add if the user gave no timerstart.
	StartMs, EndMs int64
	// Jitter is timerjitter: up to MaxJitter, in whole milliseconds.
	Jitter time.Duration
	// DST is timerdst: auto (the default), or gap=shift|skip and overlap=first|last|both.
	DST string
	// Days is timerdays: and, or or. It is required if a cron expression restricts both the
	// day of month and the day of week.
	Days string
	// Exclude are the calendars of timerexclude, at most MaxCalendars; nil for none.
	Exclude *Exclusions
	// ExcludeShift is timerexcludeshift: skip (the default), next or previous.
	ExcludeShift string
}

// Schedule is a compiled Spec. It is immutable and safe for concurrent use.
type Schedule struct {
	spec     Spec
	zone     *zone
	cron     *cron // nil for a period
	every    every
	dst      dst
	exclude  exclusion
	startMs  int64
	endMs    int64 // inclusive
	jitterMs int64
	resolved string // the expression with H replaced; "" without H
	warnings []string
}

// New compiles a specification. The error is an *Error.
func New(spec Spec) (*Schedule, error) {
	s := &Schedule{spec: spec, startMs: cmp.Or(spec.StartMs, MinMs), endMs: cmp.Or(spec.EndMs, MaxMs)}
	s.spec.Zones = cmp.Or(spec.Zones, processZones)
	var err error
	if s.zone, err = parseZone(spec.Zone, s.spec.Zones); err != nil {
		return nil, err
	}
	if err := s.parseBounds(); err != nil {
		return nil, err
	}
	if err := s.parseRule(); err != nil {
		return nil, err
	}
	elapsed := s.cron == nil && s.every.unit == unitElapsed
	if s.dst, err = parseDST(spec.DST, elapsed || s.cron != nil && s.cron.wildcard, elapsed); err != nil {
		return nil, err
	}
	if err := s.parseExclusion(elapsed); err != nil {
		return nil, err
	}
	if spec.ID == "" && (s.resolved != "" || s.jitterMs > 0) {
		s.warnings = append(s.warnings, "H and jitter are derived from the timer ID; without one the times differ from those of the stored schedule")
	}
	s.warnOfRealTime()
	return s, nil
}

// parseBounds checks start, end and jitter.
func (s *Schedule) parseBounds() error {
	switch at := formatUTC(s.spec.StartMs); {
	case s.startMs < MinMs || s.startMs >= MaxMs:
		return &Error{attrStart, at, whole, "the start is outside 1970 to 2199", "write a time in this range"}
	case s.endMs < MinMs || s.endMs > MaxMs:
		return &Error{attrEnd, formatUTC(s.spec.EndMs), whole, "the end is outside 1970 to 2199", "write a time in this range"}
	case s.endMs < s.startMs:
		return &Error{attrEnd, formatUTC(s.spec.EndMs), whole, "the end is before the start, " + formatUTC(s.startMs), "write a later end"}
	}
	s.jitterMs = s.spec.Jitter.Milliseconds()
	switch text := s.spec.Jitter.String(); {
	case s.spec.Jitter < 0:
		return &Error{attrJitter, text, whole, "jitter is negative, and a run is never early", "write 0s or more"}
	case s.spec.Jitter > MaxJitter:
		return &Error{attrJitter, text, whole, "the limit is " + MaxJitter.String(), "write at most PT24H"}
	case s.spec.Jitter%time.Millisecond != 0:
		return &Error{attrJitter, text, whole, "jitter is finer than a millisecond", "round it to milliseconds"}
	}
	return nil
}

// parseRule compiles the expression or the period.
func (s *Schedule) parseRule() error {
	switch days := s.spec.Days; {
	case s.spec.Cron != "" && s.spec.Every != "":
		return &Error{attrEvery, s.spec.Every, whole, "timercron is set too", "write one of the two"}
	case days != "" && days != daysAnd && days != daysOr:
		return &Error{attrDays, days, whole, "not a rule", "write \"and\" or \"or\""}
	case days != "" && s.spec.Every != "":
		return &Error{attrDays, days, whole, "a period has no days to combine", "remove timerdays"}
	case s.spec.Every != "" && s.spec.StartMs == 0:
		return &Error{attrEvery, s.spec.Every, whole, "the period has no start to count from", "set timerstart"}
	case s.spec.Every != "":
		var err error
		s.every, err = parseEvery(s.spec.Every, s.startMs, s.zone)
		return err
	}
	p, err := parseCron(s.spec.Cron, s.spec.ID, s.spec.Days)
	if err != nil {
		return err
	}
	s.cron, s.warnings = &p.cron, p.warnings
	if p.hashed {
		s.resolved = strings.Join(p.resolved, " ")
	}
	return nil
}

// parseExclusion compiles the excluded calendars.
func (s *Schedule) parseExclusion(elapsed bool) error {
	var by shift
	switch text := s.spec.ExcludeShift; text {
	case "", "skip":
	case "next", "previous":
		if elapsed {
			return &Error{attrShift, text, whole, "an elapsed period has no time of day to keep on another date", "write skip, or a period of days or longer such as P1D"}
		}
		if by = shiftNext; text == "previous" {
			by = shiftPrevious
		}
	default:
		return &Error{attrShift, text, whole, "not a rule", "write skip, next or previous"}
	}
	if x := s.spec.Exclude; x != nil && len(x.calendars) > MaxCalendars {
		return &Error{attrExclude, "", whole, fmt.Sprintf("%d calendars; the limit is %d", len(x.calendars), MaxCalendars), "join some of them"}
	}
	s.exclude = newExclusion(s.spec.Exclude, by)
	return nil
}

// Next returns the first nominal time after an instant, both in Unix milliseconds. It returns
// false if none is left before the end of the schedule.
func (s *Schedule) Next(afterMs int64) (nominalMs int64, ok bool) {
	q := search{Schedule: s}
	f, ok := q.after(afterMs)
	return f.atMs, ok && f.atMs <= s.endMs
}

// Prev returns the last nominal time before an instant. It returns false if there is none at or
// after the start of the schedule.
//
// Prev uses only Next: it looks back, each time twice as far, until it finds a run, and then
// halves the interval in which a later one may be. A daily schedule takes about 20 calls of
// Next.
func (s *Schedule) Prev(beforeMs int64) (nominalMs int64, ok bool) {
	if s.endMs < MaxMs {
		beforeMs = min(beforeMs, s.endMs+1)
	}
	beforeMs = min(beforeMs, MaxMs)
	lowest := max(s.startMs, MinMs)
	last, low := int64(0), beforeMs
	for back := int64(secondMs); !ok; back *= 2 {
		if low <= lowest {
			return 0, false
		}
		low = max(beforeMs-back, lowest)
		last, ok = s.nextBefore(low-1, beforeMs)
	}
	for high := beforeMs - 1; last < high; { // the answer is last, or in (last, high]
		next, more := s.nextBefore(last, beforeMs)
		if !more {
			break
		}
		last = next
		if middle := last + (high-last)/2; middle > last {
			if next, more = s.nextBefore(middle, beforeMs); more {
				last = next
			} else {
				high = middle
			}
		}
	}
	return last, true
}

// nextBefore is Next with an exclusive end.
func (s *Schedule) nextBefore(afterMs, endMs int64) (int64, bool) {
	at, ok := s.Next(afterMs)
	return at, ok && at < endMs
}

// Between iterates over the nominal times from fromMs to toMs, both inclusive, in order. The
// caller bounds their number by leaving the loop.
func (s *Schedule) Between(fromMs, toMs int64) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for at, ok := s.Next(fromMs - 1); ok && at <= toMs; at, ok = s.Next(at) {
			if !yield(at) {
				return
			}
		}
	}
}

// DueMs returns when the run of a nominal time is due: the nominal time plus jitter. Jitter is
// derived from the timer ID and the nominal time. It is less than the specified jitter and
// less than the time until the next run, whether or not the schedule ends before that run.
func (s *Schedule) DueMs(nominalMs int64) int64 {
	if s.jitterMs == 0 {
		return nominalMs
	}
	window := s.jitterMs
	q := search{Schedule: s}
	if next, ok := q.after(nominalMs); ok {
		window = min(window, next.atMs-nominalMs)
	}
	return nominalMs + int64(hashID(s.spec.ID, nominalMs)%uint64(window))
}

// Resolved returns the cron expression with each H replaced by its values, or "" if it has no H.
func (s *Schedule) Resolved() string { return s.resolved }

// Warnings returns sentences about parts of the specification that may mean something else
// than the user expects.
func (s *Schedule) Warnings() []string { return slices.Clone(s.warnings) }

// zoneHints maps zone names that are refused, or that do not exist, to the names to write.
var zoneHints = map[string]string{
	"EST": "America/New_York", "EDT": "America/New_York", "EST5EDT": "America/New_York", "CST": "America/Chicago", "CDT": "America/Chicago", "CST6CDT": "America/Chicago",
	"MST": "America/Denver", "MDT": "America/Denver", "MST7MDT": "America/Denver", "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles", "PST8PDT": "America/Los_Angeles",
	"HST": "Pacific/Honolulu", "CET": "Europe/Berlin", "CEST": "Europe/Berlin", "MET": "Europe/Berlin", "EET": "Europe/Helsinki", "EEST": "Europe/Helsinki", "WET": "Europe/Lisbon", "WEST": "Europe/Lisbon",
	"GMT": "Europe/London, or UTC", "BST": "Europe/London", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "Z": "UTC",
}

// Zones returns the zone data of the schedule.
func (s *Schedule) Zones() *ZoneData { return s.spec.Zones }

// parseZone finds a zone by its IANA name.
func parseZone(name string, data *ZoneData) (*zone, error) {
	fail := func(reason, instead string) (*zone, error) {
		return nil, &Error{attrZone, name, whole, reason, instead}
	}
	hint, refused := zoneHints[name]
	switch {
	case refused:
		return fail("an abbreviation does not say which rules apply", "write the name of a place, for example "+hint)
	case strings.EqualFold(name, "local"):
		return fail("the zone of a host is not the same on every node", "write the name of a place, for example Europe/Berlin")
	case isOffset(name):
		return fail("an offset has no rules for daylight saving", "write the name of a place, for example Europe/Berlin, or UTC")
	}
	switch z, err := data.load(cmp.Or(name, "UTC")); {
	case err != nil:
		return fail("this build cannot use the data of the zone: "+err.Error(), "write another zone, and report this error")
	case z != nil:
		return z, nil
	}
	if similar := similarZone(name); similar != "" {
		return fail("no such zone", "write "+similar)
	}
	return fail("no such zone in the IANA data "+data.release, "write the name of a place, for example Europe/Berlin")
}

// isOffset reports whether a name is +02:00, -5, UTC+2, GMT-3 or the like.
func isOffset(name string) bool {
	rest := strings.TrimPrefix(strings.TrimPrefix(strings.ToUpper(name), "UTC"), "GMT")
	return rest != "" && strings.ContainsAny(rest[:1], "+-0123456789") && strings.Trim(rest, "+-:0123456789") == ""
}

// similarZone returns the zone whose name, or whose place, has the same letters; "" for none.
func similarZone(name string) string {
	want := letters(name)
	if want == "" {
		return ""
	}
	for _, zone := range ZoneNames() {
		if letters(zone) == want {
			return zone
		}
	}
	for _, zone := range ZoneNames() {
		if letters(zone[strings.LastIndexByte(zone, '/')+1:]) == want {
			return zone
		}
	}
	return ""
}

// letters keeps the letters of a name, in lower case.
func letters(name string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsLetter(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, name)
}

// formatUTC is RFC 3339 in UTC, with milliseconds only if they are not 0.
func formatUTC(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.999Z07:00")
}

// Local returns the local time of an instant with its offset, as RFC 3339.
func (s *Schedule) Local(ms int64) string {
	g := &s.zone.segments[s.zone.at(ms)]
	return Occurrence{NominalMs: ms, OffsetSeconds: int(g.offsetMs / secondMs)}.Local()
}

// Period returns the first and the last instant of a date in the schedule's zone such as
// 2027-03-28, of a local time to the minute or second such as 2027-03-28T02:30, or of an RFC 3339
// time. For a local time that occurs twice, the period goes from the first occurrence to the
// last. For a local time in a gap, it is the first instant after the gap. ok is false for any
// other text.
func (s *Schedule) Period(text string) (fromMs, toMs int64, ok bool) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UnixMilli(), at.UnixMilli(), true
	}
	for _, f := range [...]struct {
		layout string
		length int64
	}{{time.DateOnly, dayMs}, {"2006-01-02T15:04", minuteMs}, {"2006-01-02T15:04:05", secondMs}} {
		local, err := time.Parse(f.layout, text)
		if err != nil {
			continue
		}
		first := local.UnixMilli()
		return s.zone.firstInstant(first), max(s.zone.lastInstant(first+f.length-1), s.zone.firstInstant(first)), true
	}
	return 0, 0, false
}
