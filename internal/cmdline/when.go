package cmdline

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// leadingDays matches the weeks and days with which a duration such as 2w, 3d or 1d12h begins.
var leadingDays = regexp.MustCompile(`^(?:([0-9]{1,5})w)?(?:([0-9]{1,6})d)?`)

// day is the length of a day in a duration. A duration is elapsed time: a change of daylight
// saving does not change it.
const day = 24 * time.Hour

// ParseDuration parses the durations of schemas.ParseDuration, and durations that begin with
// weeks or days: 2w, 3d, 1w2d, 1d12h.
func ParseDuration(s string) (time.Duration, error) {
	m := leadingDays.FindStringSubmatch(s)
	malformed := func() error {
		return schemas.Errorf(schemas.CodeInvalidAttribute, "not a duration such as 2w, 3d, 1d12h, 1h30m or PT10S; days and weeks are whole numbers")
	}
	if m[0] == "" {
		d, err := schemas.ParseDuration(s)
		if err != nil && strings.ContainsAny(s, "dw") {
			return 0, malformed()
		}
		return d, err
	}
	// The expression bounds both numbers, so that Atoi does not fail and nothing overflows.
	weeks, _ := strconv.Atoi(m[1])
	days, _ := strconv.Atoi(m[2])
	total := weeks*7 + days
	if total > int(math.MaxInt64/day) {
		return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "out of range")
	}
	whole := time.Duration(total) * day
	rest := s[len(m[0]):]
	if rest == "" {
		return whole, nil
	}
	d, err := schemas.ParseDuration(rest)
	if err != nil || rest[0] < '0' || rest[0] > '9' {
		return 0, malformed()
	}
	if d > math.MaxInt64-whole {
		return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "out of range")
	}
	return whole + d, nil
}

// timeForms is the end of the message about a time that ParseTime does not understand.
const timeForms = "write a time such as 2026-12-24T18:00:00Z, 2026-12-24 18:00, 18:00, tomorrow 9:00 or in 15m"

// localTime matches a time without a zone: an optional date, today or tomorrow, and a time of day.
var localTime = regexp.MustCompile(`^(?:([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]|(today|tomorrow) +)?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?$`)

// ParseTime parses a time as people type it:
//
//   - RFC 3339: 2026-12-24T18:00:00Z
//   - a date and a time of day in the zone of now: 2026-12-24 18:00, 2026-12-24T18:00:30
//   - today 18:00 and tomorrow 9:00, and 18:00 for the next time that clocks show it
//   - in 15m: a duration from now; see ParseDuration
//
// interpreted is true if the text was not RFC 3339: show the user the result. A local time that
// a change of daylight saving skips or repeats is an error.
func ParseTime(text string, now time.Time) (t time.Time, interpreted bool, err error) {
	if ms, err := schemas.ParseTime(text); err == nil {
		return time.UnixMilli(ms), false, nil
	}
	if after, ok := strings.CutPrefix(text, "in "); ok {
		d, err := ParseDuration(strings.TrimSpace(after))
		switch {
		case err != nil:
			return t, false, err
		case d < 0:
			return t, false, fmt.Errorf("the duration is negative")
		}
		return now.Add(d), true, nil
	}
	m := localTime.FindStringSubmatch(text)
	if m == nil {
		return t, false, fmt.Errorf("not a time: %s", timeForms)
	}
	hour, second := m[3], m[5]
	if len(hour) == 1 {
		hour = "0" + hour
	}
	if second == "" {
		second = "00"
	}
	onDate := func(date string) (time.Time, error) {
		wall, err := time.Parse("2006-01-02 15:04:05", date+" "+hour+":"+m[4]+":"+second)
		if err != nil {
			return t, fmt.Errorf("there is no such date or time of day: %s", timeForms)
		}
		return atWallClock(wall, now.Location())
	}
	switch {
	case m[1] != "":
		t, err = onDate(m[1])
	case m[2] == "tomorrow":
		t, err = onDate(now.AddDate(0, 0, 1).Format(time.DateOnly))
	default:
		t, err = onDate(now.Format(time.DateOnly))
		if err == nil && m[2] == "" && !t.After(now) {
			t, err = onDate(now.AddDate(0, 0, 1).Format(time.DateOnly))
		}
	}
	return t, true, err
}

// atWallClock returns the instant at which clocks in a zone show what wall shows in UTC.
func atWallClock(wall time.Time, zone *time.Location) (time.Time, error) {
	var found []time.Time
	// No zone changes its offset more than once in the two days around an instant.
	for _, from := range []time.Duration{-day, 0, day} {
		_, offset := wall.Add(from).In(zone).Zone()
		t := wall.Add(-time.Duration(offset) * time.Second).In(zone)
		same := t.Format(time.DateTime) == wall.Format(time.DateTime)
		if same && !slices.ContainsFunc(found, t.Equal) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return time.Time{}, fmt.Errorf("clocks in %s skip %s: write the time with its offset from UTC", zone, wall.Format(time.DateTime))
	}
	return time.Time{}, fmt.Errorf("clocks in %s show %s twice: write %s or %s", zone, wall.Format(time.DateTime), found[0].Format(time.RFC3339), found[1].Format(time.RFC3339))
}
