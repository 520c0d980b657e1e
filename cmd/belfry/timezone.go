package main

import (
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
)

// zone is the time zone of the times in text output. JSON has all times in UTC. The zero value is UTC. It
// is the value of the flag --time-zone.
type zone struct{ loc *time.Location }

// String implements pflag.Value.
func (z *zone) String() string { return z.location().String() }

// Type implements pflag.Value.
func (*zone) Type() string { return "zone" }

// Set implements pflag.Value.
func (z *zone) Set(name string) error {
	if name == "Local" {
		z.loc = time.Local
		return nil
	}
	loc, err := calendar.ProcessZones().Location(name)
	if err != nil {
		return fmt.Errorf("no time zone: give UTC, Local or an IANA name such as Europe/Berlin")
	}
	z.loc = loc
	return nil
}

func (z *zone) location() *time.Location {
	if z.loc == nil {
		return time.UTC
	}
	return z.loc
}

// show formats a time in RFC 3339 with milliseconds, and the zero time as "".
func (z *zone) show(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.In(z.location()).Format("2006-01-02T15:04:05.000Z07:00")
}

// text is show for a time that the JSON of a command has as text.
func (z *zone) text(rfc3339 string) string {
	t, err := time.Parse(time.RFC3339, rfc3339)
	if err != nil {
		return rfc3339 // none, or a local time
	}
	return z.show(t)
}

// clock formats the time of day with milliseconds and the zone's offset.
func (z *zone) clock(t time.Time) string { return t.In(z.location()).Format("15:04:05.000Z07:00") }

// width is the number of characters of show, and clockWidth that of clock: the time ends in Z or in an
// offset.
func (z *zone) width() int { return len("2026-01-02") + 1 + z.clockWidth() }

func (z *zone) clockWidth() int {
	if z.location() == time.UTC {
		return len("15:04:05.000Z")
	}
	return len("15:04:05.000+01:00")
}
