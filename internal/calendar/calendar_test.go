package calendar_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
)

func ms(t testing.TB, rfc3339 string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, rfc3339)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

// nextLocal returns n nominal times after an instant, in local time with offset.
func nextLocal(t testing.TB, s *calendar.Schedule, from string, n int) []string {
	t.Helper()
	var list []string
	for _, o := range s.Explain(ms(t, from)+1, calendar.MaxMs, n) {
		if !o.Skipped {
			list = append(list, o.Local())
		}
	}
	return list
}

// TestKnownIncidents has the dates at which other implementations skipped, doubled or shifted
// runs, or did not return.
func TestKnownIncidents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, cron, zone, from string
		want                   []string
	}{
		{"Berlin, gap", "30 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"}},
		{"Berlin, gap, several times", "0,15,30,45 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T03:00:00+02:00", "2027-03-29T02:00:00+02:00"}},
		{"Berlin, gap, a time at its end", "30 2,3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T03:00:00+02:00", "2027-03-28T03:30:00+02:00"}},
		{"Berlin, gap, the shifted time is one of its own", "0,30 2,3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T03:00:00+02:00", "2027-03-28T03:30:00+02:00", "2027-03-29T02:00:00+02:00"}},
		{"Berlin, overlap", "30 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", []string{"2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"}},
		{"Berlin, before the overlap", "30 1 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", []string{"2027-10-31T01:30:00+02:00", "2027-11-01T01:30:00+01:00"}},
		{"Berlin, wildcard in the gap", "*/15 * * * *", "Europe/Berlin", "2027-03-28T00:30:00Z", []string{"2027-03-28T01:45:00+01:00", "2027-03-28T03:00:00+02:00"}},
		{"Berlin, wildcard in the overlap", "*/15 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", []string{
			"2027-10-31T02:00:00+02:00", "2027-10-31T02:15:00+02:00", "2027-10-31T02:30:00+02:00", "2027-10-31T02:45:00+02:00",
			"2027-10-31T02:00:00+01:00", "2027-10-31T02:15:00+01:00", "2027-10-31T02:30:00+01:00", "2027-10-31T02:45:00+01:00", "2027-11-01T02:00:00+01:00"}},
		{"New York, gap", "30 2 * * *", "America/New_York", "2027-03-13T12:00:00Z", []string{"2027-03-14T03:00:00-04:00", "2027-03-15T02:30:00-04:00"}},
		{"New York, overlap", "30 1 * * *", "America/New_York", "2027-11-06T12:00:00Z", []string{"2027-11-07T01:30:00-04:00", "2027-11-08T01:30:00-05:00"}},
		{"Lord Howe, gap of 30 min", "15 2 * * *", "Australia/Lord_Howe", "2027-10-02T12:00:00Z", []string{"2027-10-03T02:30:00+11:00", "2027-10-04T02:15:00+11:00"}},
		{"Lord Howe, overlap of 30 min", "45 1 * * *", "Australia/Lord_Howe", "2027-04-03T12:00:00Z", []string{"2027-04-04T01:45:00+11:00", "2027-04-05T01:45:00+10:30"}},
		{"Lord Howe, wildcard in the overlap", "*/15 1 * * *", "Australia/Lord_Howe", "2027-04-03T14:20:00Z", []string{"2027-04-04T01:30:00+11:00", "2027-04-04T01:45:00+11:00", "2027-04-04T01:30:00+10:30", "2027-04-04T01:45:00+10:30"}},
		{"Santiago, midnight gap", "0 0 * * *", "America/Santiago", "2027-09-04T12:00:00Z", []string{"2027-09-05T01:00:00-03:00", "2027-09-06T00:00:00-03:00"}},
		{"Santiago, @daily is the same", "@daily", "America/Santiago", "2027-09-04T12:00:00Z", []string{"2027-09-05T01:00:00-03:00"}},
		{"Apia, missing day", "0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", []string{"2012-12-30T12:00:00+14:00", "2013-12-30T12:00:00+14:00"}},
		{"Apia, daily", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z", []string{"2011-12-29T12:00:00-10:00", "2011-12-31T12:00:00+14:00"}},
		{"29 February, 2100 is no leap year", "0 0 29 2 *", "UTC", "2096-02-29T00:00:00Z", []string{"2104-02-29T00:00:00+00:00", "2108-02-29T00:00:00+00:00"}},
		{"31 December of a leap year", "30 12 31 12 *", "Europe/Berlin", "2028-12-31T00:00:00Z", []string{"2028-12-31T12:30:00+01:00", "2029-12-31T12:30:00+01:00"}},
		{"every second across the gap", "59 59 1,3 28 3 *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T01:59:59+01:00", "2027-03-28T03:59:59+02:00"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := mustNew(t, calendar.Spec{Cron: c.cron, Zone: c.zone})
			if got := nextLocal(t, s, c.from, len(c.want)); !slices.Equal(got, c.want) {
				t.Errorf("%q in %s:\n got %v\nwant %v", c.cron, c.zone, got, c.want)
			}
		})
	}
}

// TestRefusals has every refused form: where the mistake is and what to write instead.
func TestRefusals(t *testing.T) {
	t.Parallel()
	cron := func(s string) calendar.Spec { return calendar.Spec{Cron: s} }
	every := func(s string) calendar.Spec { return calendar.Spec{Every: s, StartMs: 1} }
	daily := func(change func(*calendar.Spec)) calendar.Spec {
		s := calendar.Spec{Cron: "@daily"}
		change(&s)
		return s
	}
	zone := func(name string) calendar.Spec { return calendar.Spec{Cron: "@daily", Zone: name} }
	for _, c := range []struct {
		spec    calendar.Spec
		offset  int
		message string // a part of it
	}{
		// Forms of other systems.
		{cron("0 0 12 ? * MON 2027"), 15, "there is no year field; write at most 6 fields, seconds first, and bound the schedule by timerstart and timerend"},
		{cron("0 12 1 1 * 2027"), 11, "there is no year field: of 6 fields the first is seconds and the last is the day of week; drop the year"},
		{cron("0 12 1 1 * 2027-2030"), 11, "no year field"},
		{cron("* * * * * * * *"), 10, "8 fields; write 5 fields"},
		{cron("CRON_TZ=Europe/Berlin 30 2 * * *"), 0, `write timertz Europe/Berlin and timercron "30 2 * * *"`},
		{cron("TZ=UTC 30 2 * * *"), 0, `write timertz UTC and timercron "30 2 * * *"`},
		{cron("@reboot"), 0, "add a one-shot timer with timerafter when your service starts"},
		{cron("@every 5m"), 0, "write timerevery 5m"},
		{cron("@every"), 0, "write timerevery and a period"},
		{cron("@fortnightly"), 0, "write @hourly, @daily"},
		{cron("@daily 5"), 0, "write @daily alone"},
		{cron("cron(0 12 * * ? *)"), 0, "write the fields alone, without a year"},
		{cron("rate(5 minutes)"), 0, "write timerevery and a period"},
		// Numbers of fields.
		{cron(""), -1, "the expression is empty; write 5 fields: minute, hour, day of month, month, day of week"},
		{cron("30 2 * *"), -1, "4 fields; write 5 fields: minute, hour, day of month, month, day of week; or 6 with seconds first"},
		{cron(strings.Repeat("1,", 200) + "1 * * * *"), 256, "split it into several schedules"},
		// Steps.
		{cron("*/90 * * * *"), 2, "the step 90 is larger than the minute field, which has 60 values; for every 90 write timerevery PT90M"},
		{cron("0 */36 * * *"), 4, "for every 36 write timerevery PT36H"},
		{cron("0 0 */45 * *"), 6, "for every 45 write timerevery P45D"},
		{cron("0 0 1 */18 *"), 8, "for every 18 write timerevery P18M"},
		{cron("*/90 * * * * *"), 2, "for every 90 write timerevery PT90S"},
		{cron("H/90 * * * *"), 2, "timerevery PT90M"},
		{cron("*/0 * * * *"), 2, "the step is 0; write a number of 1 or more"},
		{cron("*/x * * * *"), 2, `"x" is not a step`},
		{cron("*/ * * * *"), 2, `"" is not a step`},
		// Values.
		{cron("60 * * * *"), 0, "minute 60 does not exist; write 0, or another value of 0-59"},
		{cron("0 24 * * *"), 2, "hour 24 does not exist; write 0"},
		{cron("0 5-25 * * *"), 4, "hour 25 does not exist; write 0-23"},
		{cron("0 0 0 * *"), 4, "day of month 0 does not exist; write 1-31"},
		{cron("0 0 32 * *"), 4, "day of month 32 does not exist; write 1-31"},
		{cron("0 0 * 13 *"), 6, "month 13 does not exist; write 1-12 or JAN-DEC"},
		{cron("0 0 * * 8"), 8, "day of week 8 does not exist"},
		{cron("0 0 * * MONDAY"), 8, `"MONDAY" is not a name of a day of week; write MON`},
		{cron("0 0 * * MOO"), 8, `"MOO" is not a day of week; write 0-7 or SUN-SAT`},
		{cron("0 0 * MON *"), 6, `"MON" is not a month; write 1-12 or JAN-DEC`},
		{cron("0 -5 * * *"), 2, "a value is missing in the hour field"},
		{cron("0 5- * * *"), 4, "a value is missing in the hour field"},
		{cron("0 1,,2 * * *"), 4, "an empty item in the hour field"},
		{cron("1-2-3 * * * *"), 2, `"2-3" is not a minute`},
		{cron("0 ? * * *"), 2, "? stands alone in the day of month or the day of week; write *"},
		{cron("0 L * * *"), 2, `"L" is for days`},
		// Days.
		{cron("0 0 13 * FRI"), 9, "some implementations read as AND and others as OR; write MON#1 for the first Monday of the month, or two schedules for either day, or set timerdays to \"and\" or \"or\""},
		{cron("0 0 30 2 *"), 4, "no date matches, so it would never run; write L for the last day of the month"},
		{cron("0 0 31 4,6,9,11 *"), 4, "no date matches"},
		{calendar.Spec{Cron: "0 0 L-30 2 *"}, 4, "no date matches"},
		{calendar.Spec{Cron: "0 0 1 * MON#2", Days: "and"}, 4, "no date matches"},
		{cron("0 0 * * L"), 8, "write SAT for Saturdays, or FRIL"},
		{cron("0 0 * * MON#6"), 12, `"6" is not the number of a week; write #1 to #5`},
		{cron("0 0 * * FRI#L"), 8, "write FRIL"},
		{cron("0 0 MON#1 * *"), 4, "is for the day of week"},
		{cron("0 0 * * 15W"), 8, "is for the day of month"},
		{cron("0 0 WL * *"), 4, "write LW"},
		{cron("0 0 L-31 * *"), 6, "write L-0 to L-30"},
		{cron("0 0 32W * *"), 4, "write 1W to 31W, or LW"},
		// H.
		{cron("H(0-29 * * * *"), 0, "write H, H/15, H(0-29) or H(0-29)/10"},
		{cron("H(50-10) * * * *"), 2, "write the smaller value first"},
		{cron("H(0-99) * * * *"), 4, "minute 99 does not exist"},
		{calendar.Spec{Cron: "@daily", Days: "xor"}, -1, `write "and" or "or"`},
		// Periods.
		{calendar.Spec{Every: "1h"}, -1, "set timerstart"},
		{calendar.Spec{Every: "1h", StartMs: 1, Cron: "@daily"}, -1, "timercron is set too"},
		{every("500ms"), -1, "the period is shorter than 1s; write 1s or more"},
		{every("PT0S"), -1, "the period is shorter than 1s"},
		{every("-5m"), 0, "the period is negative"},
		{every("60"), 2, "a number without a unit; write 60s for seconds or 60m for minutes"},
		{every("1d"), 1, "write P1D for steps on the wall clock, or 24h for elapsed time"},
		{every("2w"), 1, "write P2W for steps on the wall clock, or 336h for elapsed time"},
		{every("1y"), 1, "write P1Y for steps on the wall clock, or a number of hours such as 24h for elapsed time"},
		{every("p1d"), 0, "write P1D"},
		{every("P1DT12H"), 3, "write PT36H for elapsed time, or P1D and the time of day in timerstart"},
		{every("P1M15D"), -1, "months and days cannot be one period"},
		{every("P1.5D"), 1, "whole numbers"},
		{every("P0D"), -1, "the period is empty"},
		{every("P"), -1, "the period is empty"},
		{every("PD"), 1, "not an ISO 8601 duration"},
		{every("P5H"), 2, `"H" is not a unit`},
		{every("P200Y"), -1, "longer than 100 years"},
		{every("900000h"), -1, "longer than 100 years"},
		{every("1s1us"), -1, "finer than a millisecond"},
		{every("*/5 * * * *"), -1, "write it in timercron"},
		{every("soon"), -1, "write a duration such as 90m or PT90M"},
		{every("PT5MS"), -1, "not a duration"},
		{every(strings.Repeat("1h", 60)), -1, "longer than 64 characters"},
		{calendar.Spec{Every: "P1D", StartMs: 1, Days: "or"}, -1, "remove timerdays"},
		// Zones.
		{zone("CET"), -1, "write the name of a place, for example Europe/Berlin"},
		{zone("EST5EDT"), -1, "for example America/New_York"},
		{zone("GMT"), -1, "Europe/London, or UTC"},
		{zone("IST"), -1, "Asia/Kolkata"},
		{zone("Local"), -1, "the zone of a host is not the same on every node"},
		{zone("+02:00"), -1, "an offset has no rules for daylight saving"},
		{zone("UTC+2"), -1, "an offset has no rules"},
		{zone("GMT-03:30"), -1, "an offset has no rules"},
		{zone("europe/berlin"), -1, "no such zone; write Europe/Berlin"},
		{zone("Berlin"), -1, "no such zone; write Europe/Berlin"},
		{zone("new york"), -1, "no such zone; write America/New_York"},
		{zone("../../etc/passwd"), -1, "no such zone in the IANA data"},
		{zone("Europe/Atlantis"), -1, "no such zone in the IANA data"},
		// Bounds, jitter, daylight saving, exclusion.
		{daily(func(s *calendar.Spec) { s.StartMs, s.EndMs = 2000, 1000 }), -1, "the end is before the start"},
		{daily(func(s *calendar.Spec) { s.StartMs = -1 }), -1, "outside 1970 to 2199"},
		{daily(func(s *calendar.Spec) { s.EndMs = calendar.MaxMs + 1 }), -1, "outside 1970 to 2199"},
		{daily(func(s *calendar.Spec) { s.Jitter = -time.Second }), -1, "a run is never early"},
		{daily(func(s *calendar.Spec) { s.Jitter = 25 * time.Hour }), -1, "write at most PT24H"},
		{daily(func(s *calendar.Spec) { s.Jitter = time.Microsecond }), -1, "finer than a millisecond"},
		{daily(func(s *calendar.Spec) { s.DST = "both" }), 0, `"both" is not a rule; write auto, or gap=shift|skip and overlap=first|last|both`},
		{daily(func(s *calendar.Spec) { s.DST = "gap=skip,gap=shift" }), 9, `duplicate rule "gap"`},
		{daily(func(s *calendar.Spec) { s.DST = "gap=skip,overlap=never" }), 9, `"overlap=never" is not a rule`},
		{calendar.Spec{Every: "1h", StartMs: 1, DST: "gap=skip"}, -1, "an elapsed period follows real time"},
		{daily(func(s *calendar.Spec) { s.ExcludeShift = "nearest" }), -1, "write skip, next or previous"},
		{calendar.Spec{Every: "1h", StartMs: 1, ExcludeShift: "next"}, -1, "an elapsed period has no time of day to keep on another date"},
		{daily(func(s *calendar.Spec) { s.Exclude = calendar.Join(make([]calendar.Dates, calendar.MaxCalendars+1)...) }), -1, "9 calendars; the limit is 8"},
	} {
		_, err := calendar.New(c.spec)
		var e *calendar.Error
		switch {
		case !errors.As(err, &e):
			t.Errorf("%+v: got %v, want an *Error", c.spec, err)
		case !strings.Contains(err.Error(), c.message) || e.Offset != c.offset || e.Instead == "":
			t.Errorf("%+v: got offset %d and %q, want offset %d and %q", c.spec, e.Offset, err, c.offset, c.message)
		}
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	_, err := calendar.New(calendar.Spec{Cron: "0 0 ä * *"})
	want := `timercron "0 0 ä * *": at character 5: "ä" is not a day of month; write 1-31`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestAccepted has forms that are accepted, each with an equal expression.
func TestAccepted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cron, same string }{
		{"@yearly", "0 0 1 1 *"}, {"@annually", "0 0 1 JAN ?"}, {"@monthly", "0 0 1 * *"}, {"@weekly", "0 0 * * SUN"},
		{"@midnight", "@daily"}, {"@Daily", "0 0 0 * * *"}, {"@hourly", "0 0-23 * * *"},
		{"  0\t9  *   * mon-Fri ", "0 9 * * 1-5"}, {"0 22-2 * * *", "0 22,23,0,1,2 * * *"}, {"0 0 * * SAT-MON", "0 0 * * 6,7,1"},
		{"5/20 * * * *", "5,25,45 * * * *"}, {"0 0 * * 5-7", "0 0 * * FRI,SAT,SUN"}, {"0 0 * * 7/2", "0 0 * * */2"},
		{"0 0 1-31 * MON", "0 0 * * MON"}, {"0 0 l * ?", "0 0 L * *"}, {"0 0 ? * ?", "@daily"}, {"0 0 L-0 * *", "0 0 L * *"}, {"0 */24 * * *", "@daily"},
	} {
		a, b := mustNew(t, calendar.Spec{Cron: c.cron}), mustNew(t, calendar.Spec{Cron: c.same})
		at := ms(t, "2027-01-01T00:00:00Z")
		for range 100 {
			x, _ := a.Next(at)
			y, ok := b.Next(at)
			if x != y || !ok {
				t.Fatalf("%q: %s, and %q: %s", c.cron, text(x), c.same, text(y))
			}
			at = x
		}
	}
}

// TestHash: the values of H depend on the ID alone, stay in their range, and spread. They must
// never change between versions, or existing schedules would move.
func TestHash(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cron, want string }{
		{"H H * * *", "13 10 * * *"},
		{"H/15 * * * *", "13-59/15 * * * *"},
		{"H(0-29)/10 H(1-5) H H H", "3-29/10 2 12 10 6"},
		{"H H H * * *", "29 13 10 * * *"},
	} {
		s := mustNew(t, calendar.Spec{Cron: c.cron, ID: "order-17", Days: "and"})
		if s.Resolved() != c.want {
			t.Errorf("%q resolves to %q, want %q", c.cron, s.Resolved(), c.want)
		}
		same := mustNew(t, calendar.Spec{Cron: s.Resolved(), Days: "and"})
		at := ms(t, "2027-01-01T00:00:00Z")
		for range 20 {
			x, _ := s.Next(at)
			if y, _ := same.Next(at); x != y {
				t.Fatalf("%q and %q differ: %s, %s", c.cron, s.Resolved(), text(x), text(y))
			}
			at = x
		}
	}
	minutes := map[int]int{}
	const ids = 6000
	for i := range ids {
		at, _ := mustNew(t, calendar.Spec{Cron: "H * * * *", ID: fmt.Sprint(i)}).Next(0)
		minutes[time.UnixMilli(at).UTC().Minute()]++
	}
	for m := range 60 {
		if n := minutes[m]; n < ids/60/2 || n > ids/60*2 {
			t.Errorf("%d of %d IDs run at minute %d", n, ids, m)
		}
	}
}

// TestBounds: start and end are inclusive, for Next, Prev and Between.
func TestBounds(t *testing.T) {
	t.Parallel()
	start, end := ms(t, "2027-01-01T09:00:00Z"), ms(t, "2027-01-03T09:00:00Z")
	s := mustNew(t, calendar.Spec{Cron: "0 9 * * *", StartMs: start, EndMs: end})
	if at, ok := s.Next(0); !ok || at != start {
		t.Errorf("the first run is %s, %t", text(at), ok)
	}
	if at, ok := s.Prev(calendar.MaxMs); !ok || at != end {
		t.Errorf("the last run is %s, %t", text(at), ok)
	}
	if at, ok := s.Next(end); ok {
		t.Errorf("a run after the end: %s", text(at))
	}
	if at, ok := s.Prev(start); ok {
		t.Errorf("a run before the start: %s", text(at))
	}
	if got := slices.Collect(s.Between(start, end)); len(got) != 3 {
		t.Errorf("%d runs, want 3", len(got))
	}
	if got := slices.Collect(s.Between(start+1, end-1)); len(got) != 1 {
		t.Errorf("%d runs between, want 1", len(got))
	}
	for range s.Between(start, end) {
		break // the iterator stops when its caller does
	}
	every := mustNew(t, calendar.Spec{Cron: "* * * * *"})
	if at, ok := every.Next(calendar.MaxMs - 1); ok {
		t.Errorf("a run after MaxMs: %s", text(at))
	}
	if at, ok := every.Next(-1 << 62); !ok || at != calendar.MinMs {
		t.Errorf("the first run of all is %s, %t", text(at), ok)
	}
	if at, ok := every.Prev(1 << 62); !ok || at != calendar.MaxMs-60_000 {
		t.Errorf("the last run of all is %s, %t", text(at), ok)
	}
	if at, ok := every.Prev(-1 << 62); ok {
		t.Errorf("a run before MinMs: %s", text(at))
	}
}

// TestPrevVisitsTheSameInstants: Prev is Next backwards, for many kinds of schedules.
func TestPrevVisitsTheSameInstants(t *testing.T) {
	t.Parallel()
	dates, err := calendar.NewDates("x", "2027-03-28", "2027-03-29", "2027-10-31")
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []calendar.Spec{
		{Cron: "* * * * * *"}, {Cron: "*/7 * * * *"}, {Cron: "30 2 * * *"}, {Cron: "0 0 29 2 *"}, {Cron: "*/15 2 * * *"}, {Cron: "30 2 LW 3,10 *"},
		{Every: "90m", StartMs: 1_800_000_000_123}, {Every: "P1M", StartMs: 1_800_000_000_123}, {Cron: "30 2 * * *", DST: "overlap=both"},
		{Cron: "30 2 * * *", Exclude: calendar.Join(dates), ExcludeShift: "next"}, {Cron: "0 */6 * * *", Exclude: calendar.Join(dates)},
	} {
		spec.Zone = "Europe/Berlin"
		s := mustNew(t, spec)
		var list []int64
		for at := range s.Between(ms(t, "2027-03-27T00:00:00Z"), calendar.MaxMs) {
			if list = append(list, at); len(list) == 300 {
				break
			}
		}
		for i := len(list) - 1; i > 0; i-- {
			for _, before := range []int64{list[i], list[i-1] + 1, (list[i] + list[i-1] + 1) / 2} {
				if got, ok := s.Prev(before); !ok || got != list[i-1] {
					t.Fatalf("%+v: before %s: got %s, %t, want %s", spec, text(before), text(got), ok, text(list[i-1]))
				}
			}
		}
	}
}

// TestJitter: jitter is at least 0 and less than its limit and the next run, depends on ID and
// nominal time alone, and spreads.
func TestJitter(t *testing.T) {
	t.Parallel()
	spec := calendar.Spec{ID: "order-17", Cron: "* * * * *", Jitter: 5 * time.Minute}
	s, other := mustNew(t, spec), mustNew(t, calendar.Spec{ID: "order-18", Cron: "* * * * *", Jitter: 5 * time.Minute})
	at, same, greatest := ms(t, "2027-01-01T00:00:00Z"), 0, int64(0)
	for range 1000 {
		next, _ := s.Next(at)
		late := s.DueMs(at) - at
		if late < 0 || late >= next-at {
			t.Fatalf("%s is due %d ms later, and the next run is %d ms later", text(at), late, next-at)
		}
		greatest = max(greatest, late)
		if other.DueMs(at)-at == late {
			same++
		}
		at = next
	}
	if greatest < 58_000 || same > 10 {
		t.Errorf("jitter does not spread: at most %d ms, equal for two IDs in %d of 1000 runs", greatest, same)
	}
	// The value must never change between versions, nor with the end of the schedule.
	at = ms(t, "2027-01-01T00:00:00Z")
	spec.EndMs = at
	for _, s := range []*calendar.Schedule{s, mustNew(t, spec)} {
		if late := s.DueMs(at) - at; late != 9601 {
			t.Errorf("jitter of %s is %d ms", text(at), late)
		}
	}
	short := mustNew(t, calendar.Spec{ID: "a", Cron: "@daily", Jitter: 2 * time.Second})
	for at := range short.Between(at, at+100*86_400_000) {
		if late := short.DueMs(at) - at; late < 0 || late >= 2000 {
			t.Errorf("jitter of %d ms, with a limit of 2 s", late)
		}
	}
}
