package schemas

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Extension attributes that make an add a schedule. It has exactly one of AttrCron and
// AttrEvery, and neither AttrAt nor AttrAfter; the others are optional. Package
// internal/recurrence compiles AttrCron, AttrEvery, AttrZone, AttrDST and AttrDays.
const (
	AttrCron    = "timercron"    // cron expression
	AttrEvery   = "timerevery"   // period: elapsed time, or steps of the wall clock
	AttrZone    = "timertz"      // IANA time zone; UTC if absent
	AttrStart   = "timerstart"   // first possible run, RFC 3339, inclusive
	AttrEnd     = "timerend"     // last possible run, RFC 3339, inclusive
	AttrLimit   = "timerlimit"   // number of runs that fire, from 1
	AttrJitter  = "timerjitter"  // greatest delay of a run, a duration up to MaxJitter
	AttrDST     = "timerdst"     // rules for daylight saving
	AttrDays    = "timerdays"    // and, or: how day of month and day of week combine
	AttrMisfire = "timermisfire" // see Misfire
	AttrGrace   = "timergrace"   // a run that is later is skipped; a duration from MinGrace
	AttrOverlap = "timeroverlap" // see Overlap
	AttrExpect  = "timerexpect"  // a nominal time without success this long after it is overdue; a duration from MinExpect
	AttrExclude = "timerexclude" // names of calendars without runs, with commas between them
	// AttrExcludeShift says what happens to a run on an excluded date: skip, next or previous.
	AttrExcludeShift = "timerexcludeshift"
)

// Limits of the attributes of a schedule.
const (
	// MaxJitter is the greatest timerjitter.
	MaxJitter = 24 * time.Hour
	// MinGrace is the least timergrace. A shorter one would skip runs whenever a shard has a
	// new owner.
	MinGrace = time.Second
	// MinExpect is the least timerexpect, MaxExpect the greatest: records of runs that have
	// succeeded are kept that long.
	MinExpect = time.Second
	MaxExpect = 31 * 24 * time.Hour
	// MaxRecurrenceText bounds the text of each attribute of a schedule, in bytes.
	MaxRecurrenceText = 256
	// MaxScheduleBytes bounds an encoded Schedule. It depends on MaxRecurrenceText,
	// MaxDecisions, MaxManual, MaxRequests, MaxExpected, MaxOverdue and MaxPauseNote.
	MaxScheduleBytes = 6 << 10
	// MaxExclude bounds the calendars of one schedule. It must not exceed the 32 bits of
	// Decision.Run.
	MaxExclude = 8
)

// scheduleAttributes are the attributes of a schedule. Each has the sentence that refuses it
// in the add of a one-shot timer.
var scheduleAttributes = []struct{ name, advice string }{
	{AttrCron, ""}, {AttrEvery, ""},
	{AttrZone, "a one-shot timer has no time zone: write the offset in timerat, as in 2026-12-24T18:00:00+01:00"},
	{AttrStart, "a one-shot timer has no start: write the time in timerat"},
	{AttrEnd, "a one-shot timer has no end: remove it"},
	{AttrLimit, "a one-shot timer fires once: remove it"},
	{AttrJitter, "a one-shot timer has no jitter: add it to timerat or timerafter"},
	{AttrDST, "a one-shot timer is due at an instant, whatever the local clocks show: remove it"},
	{AttrDays, "a one-shot timer has no days to combine: remove it"},
	{AttrMisfire, "a one-shot timer that is late fires as soon as possible: remove it"},
	{AttrGrace, "a one-shot timer that is late fires as soon as possible: remove it"},
	{AttrOverlap, "a one-shot timer has no other run to overlap with: remove it"},
	{AttrExpect, "a one-shot timer has its dead letter: remove it"},
	{AttrExclude, "a one-shot timer fires at the time that it names: remove it"},
	{AttrExcludeShift, "a one-shot timer fires at the time that it names: remove it"},
}

func isScheduleAttribute(name string) bool {
	for i := range scheduleAttributes {
		if scheduleAttributes[i].name == name {
			return true
		}
	}
	return false
}

// recurrence reads the attributes of a schedule; p.recurs says that there are some. Its
// errors have CodeInvalidAttribute.
func (p *parsed) recurrence() (*Recurrence, error) {
	if err := p.checkRecurs(); err != nil {
		return nil, err
	}
	r := Recurrence{Cron: p.text(AttrCron), Every: p.text(AttrEvery), Zone: p.text(AttrZone), DST: p.text(AttrDST), Days: p.text(AttrDays)}
	for _, x := range [...]struct {
		name string
		ms   *int64
	}{{AttrStart, &r.StartMs}, {AttrEnd, &r.EndMs}} {
		a, ok := p.get(x.name)
		if !ok {
			continue
		}
		var err error
		switch *x.ms, err = ParseTime(a.text); {
		case err != nil:
			return nil, badAttribute(x.name, a.text, "%w", err)
		case *x.ms == 0:
			return nil, badAttribute(x.name, a.text, "a time before 1970-01-01T00:00:00.001Z")
		}
	}
	if r.StartMs != 0 && r.EndMs != 0 && r.EndMs < r.StartMs {
		return nil, badAttribute(AttrEnd, p.text(AttrEnd), "before timerstart, %s", FormatTime(r.StartMs))
	}
	if a, ok := p.get(AttrLimit); ok {
		n, err := strconv.ParseUint(a.text, 10, 32)
		if err != nil || n < 1 {
			return nil, badAttribute(AttrLimit, a.text, "must be a number from 1 to 4294967295; without it the schedule has no limit")
		}
		r.Limit = uint32(n)
	}
	for _, x := range [...]struct {
		name     string
		ms       *int64
		min, max time.Duration
	}{{AttrJitter, &r.JitterMs, 0, MaxJitter}, {AttrGrace, &r.GraceMs, MinGrace, 1<<63 - 1}, {AttrExpect, &r.ExpectMs, MinExpect, MaxExpect}} {
		a, ok := p.get(x.name)
		if !ok {
			continue
		}
		d, err := ParseDuration(a.text)
		switch {
		case err != nil:
			return nil, badAttribute(x.name, a.text, "%w", err)
		case d < x.min:
			return nil, badAttribute(x.name, a.text, "must be %s or more", x.min)
		case d > x.max:
			return nil, badAttribute(x.name, a.text, "must be %s or less", FormatDuration(x.max))
		case d%time.Millisecond != 0:
			return nil, badAttribute(x.name, a.text, "finer than a millisecond: round it")
		}
		*x.ms = d.Milliseconds()
	}
	if r.ExpectMs != 0 && r.ExpectMs <= r.JitterMs {
		return nil, badAttribute(AttrExpect, p.text(AttrExpect), "must be longer than timerjitter, which delays runs by up to %s", FormatDuration(time.Duration(r.JitterMs)*time.Millisecond))
	}
	if _, ok := p.get(AttrCallback); !ok && r.ExpectMs != 0 {
		return nil, badAttribute(AttrExpect, p.text(AttrExpect), "needs %s: without a callback nothing reports that a run succeeded", AttrCallback)
	}
	var err error
	if a, ok := p.get(AttrMisfire); ok {
		if r.Misfire, err = ParseMisfire(a.text); err != nil {
			return nil, badAttribute(AttrMisfire, a.text, "must be one, all or skip")
		}
	}
	if a, ok := p.get(AttrOverlap); ok {
		if r.Overlap, err = ParseOverlap(a.text); err != nil {
			return nil, badAttribute(AttrOverlap, a.text, "must be skip, queue, allow or replace")
		}
	}
	if r.Exclude, err = p.exclude(); err != nil {
		return nil, err
	}
	r.ExcludeMode = p.text(AttrExcludeShift)
	if r.ExcludeMode != "" && r.Exclude == nil {
		return nil, badAttribute(AttrExcludeShift, r.ExcludeMode, "without %s nothing is excluded: remove it, or name a calendar", AttrExclude)
	}
	return &r, nil
}

// exclude reads the names of the calendars that a schedule excludes.
func (p *parsed) exclude() ([]string, error) {
	a, ok := p.get(AttrExclude)
	if !ok {
		return nil, nil
	}
	var names []string
	for name := range strings.SplitSeq(a.text, ",") {
		name = strings.TrimSpace(name)
		switch {
		case !ValidService(name):
			return nil, badAttribute(AttrExclude, a.text, "%.80q is not the name of a calendar: write names of 1 to %d letters, digits, '-' or '_', with commas between them", name, MaxServiceLength)
		case slices.Contains(names, name):
			return nil, badAttribute(AttrExclude, a.text, "%s is named twice", name)
		case len(names) == MaxExclude:
			return nil, badAttribute(AttrExclude, a.text, "more than %d calendars, which is the limit: join some of them", MaxExclude)
		}
		names = append(names, name)
	}
	return names, nil
}

// checkRecurs checks that an add has one of timercron and timerevery, and that no attribute
// of the schedule is empty or too long.
func (p *parsed) checkRecurs() error {
	_, cron := p.get(AttrCron)
	_, every := p.get(AttrEvery)
	for i := range scheduleAttributes {
		x := &scheduleAttributes[i]
		a, ok := p.get(x.name)
		switch {
		case !ok:
		case !cron && !every:
			return badAttribute(x.name, a.text, "%s; for a schedule, set %s or %s, too", x.advice, AttrCron, AttrEvery)
		case strings.TrimSpace(a.text) == "" && x.name == AttrCron:
			return badAttribute(x.name, a.text, `empty; write an expression such as "30 2 * * *"`)
		case strings.TrimSpace(a.text) == "" && x.name == AttrEvery:
			return badAttribute(x.name, a.text, "empty; write a period such as PT15M or P1D")
		case strings.TrimSpace(a.text) == "":
			return badAttribute(x.name, a.text, "empty; leave it out")
		case len(a.text) > MaxRecurrenceText:
			return badAttribute(x.name, a.text, "%d bytes; the limit is %d", len(a.text), MaxRecurrenceText)
		}
	}
	var set []string
	for _, name := range [...]string{AttrAt, AttrAfter, AttrCron, AttrEvery} {
		if _, ok := p.get(name); ok {
			set = append(set, name)
		}
	}
	if len(set) > 1 {
		return bothSet(set[0], set[1])
	}
	return nil
}

func bothSet(a, b string) error {
	switch {
	case b == AttrEvery && a == AttrCron:
		return Errorf(CodeInvalidAttribute, "%s and %s are both set; set only one of them", a, b)
	case slices.Contains([]string{AttrCron, AttrEvery}, b):
		return Errorf(CodeInvalidAttribute, "%s and %s are both set; set only one of them: %s for a timer that fires once, %s for a schedule, which may begin at %s", a, b, a, b, AttrStart)
	}
	return Errorf(CodeInvalidAttribute, "%s and %s are both set; set only one of them", a, b)
}
