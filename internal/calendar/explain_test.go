package calendar_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
)

// lines writes occurrences as a person reads them.
func lines(list []calendar.Occurrence) (out []string) {
	for _, o := range list {
		line := o.Local()
		if o.Skipped {
			line += " skipped"
		}
		for _, r := range o.Reasons {
			line += "; " + r.String()
		}
		out = append(out, line)
	}
	return out
}

func TestExplain(t *testing.T) {
	t.Parallel()
	dates, err := calendar.NewDates("de-holidays", "2027-12-25", "2027-12-26")
	if err != nil {
		t.Fatal(err)
	}
	holidays := []calendar.Dates{dates}
	for _, c := range []struct {
		name     string
		spec     calendar.Spec
		from, to string
		want     []string
	}{
		{"gap", calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin"}, "2027-03-28T00:00:00Z", "2027-03-28T23:00:00Z", []string{
			"2027-03-28T03:00:00+02:00; gap-shifted: 02:30 does not exist on 2027-03-28, when the clock goes from 02:00 to 03:00; runs at the first instant after the gap"}},
		{"gap skipped", calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin", DST: "gap=skip"}, "2027-03-28T00:00:00Z", "2027-03-28T23:00:00Z", []string{
			"2027-03-28T03:00:00+02:00 skipped; gap-skipped: 02:30 does not exist on 2027-03-28, when the clock goes from 02:00 to 03:00; no run"}},
		{"long gap", calendar.Spec{Cron: "0 12 * * *", Zone: "Pacific/Apia"}, "2011-12-30T00:00:00Z", "2011-12-31T12:00:00Z", []string{
			"2011-12-31T00:00:00+14:00 skipped; gap-skipped: 12:00 does not exist on 2011-12-30, when the clock goes from 2011-12-30 00:00 to 2011-12-31 00:00; no run, because the gap is longer than 3 h",
			"2011-12-31T12:00:00+14:00"}},
		{"wildcard minutes of a missing hour", calendar.Spec{Cron: "*/30 2 * * *", Zone: "Europe/Berlin"}, "2027-03-28T00:00:00Z", "2027-03-28T23:00:00Z", []string{
			"2027-03-28T03:00:00+02:00 skipped; gap-skipped: 02:00 does not exist on 2027-03-28, when the clock goes from 02:00 to 03:00; no run"}},
		{"wildcard in all hours", calendar.Spec{Cron: "30 * * * *", Zone: "Europe/Berlin"}, "2027-03-28T00:00:00Z", "2027-03-28T02:00:00Z", []string{
			"2027-03-28T01:30:00+01:00", "2027-03-28T03:30:00+02:00"}},
		{"overlap, first", calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin"}, "2027-10-31T00:00:00Z", "2027-10-31T23:00:00Z", []string{
			"2027-10-31T02:30:00+02:00; overlap-first: 02:30 occurs twice on 2027-10-31; runs in the first pass only, not at +01:00"}},
		{"overlap, last", calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin", DST: "overlap=last"}, "2027-10-31T00:00:00Z", "2027-10-31T23:00:00Z", []string{
			"2027-10-31T02:30:00+01:00; overlap-last: 02:30 occurs twice on 2027-10-31; runs in the last pass only, not at +02:00"}},
		{"overlap, both", calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin", DST: "overlap=both"}, "2027-10-31T00:00:00Z", "2027-10-31T23:00:00Z", []string{
			"2027-10-31T02:30:00+02:00; overlap-first: 02:30 occurs twice on 2027-10-31; this is the first pass",
			"2027-10-31T02:30:00+01:00; overlap-last: 02:30 occurs twice on 2027-10-31; this is the last pass"}},
		{"period that starts in the second pass", calendar.Spec{Every: "P1D", Zone: "Europe/Berlin", StartMs: ms(t, "2027-10-31T01:30:00Z")}, "2027-10-31T00:00:00Z", "2027-10-31T23:00:00Z", []string{
			"2027-10-31T02:30:00+01:00; overlap-last: 02:30 occurs twice on 2027-10-31; the start is in the last pass"}},
		{"elapsed", calendar.Spec{Every: "30m", Zone: "Europe/Berlin", StartMs: ms(t, "2027-10-31T00:30:00Z")}, "2027-10-31T00:00:00Z", "2027-10-31T01:00:00Z", []string{
			"2027-10-31T02:30:00+02:00", "2027-10-31T02:00:00+01:00"}},
		{"excluded", calendar.Spec{Cron: "0 9,15 * * *", Zone: "Europe/Berlin", Exclude: calendar.Join(holidays...)}, "2027-12-24T12:00:00Z", "2027-12-27T12:00:00Z", []string{
			"2027-12-24T15:00:00+01:00",
			"2027-12-25T09:00:00+01:00 skipped; excluded: 2027-12-25 is excluded by de-holidays",
			"2027-12-26T09:00:00+01:00 skipped; excluded: 2027-12-26 is excluded by de-holidays",
			"2027-12-27T09:00:00+01:00"}},
		{"moved", calendar.Spec{Cron: "0 9 25 * *", Exclude: calendar.Join(holidays...), ExcludeShift: "next"}, "2027-12-24T12:00:00Z", "2028-01-01T00:00:00Z", []string{
			"2027-12-27T09:00:00+00:00; excluded: moved from 2027-12-25, excluded by de-holidays"}},
		{"moved onto a run", calendar.Spec{Cron: "0 9 24,25 * *", Exclude: calendar.Join(holidays...), ExcludeShift: "previous"}, "2027-12-24T00:00:00Z", "2028-01-01T00:00:00Z", []string{
			"2027-12-24T09:00:00+00:00; excluded: also stands for 2027-12-25, excluded by de-holidays"}},
		{"month end", calendar.Spec{Every: "P1M", StartMs: ms(t, "2027-01-31T09:00:00Z")}, "2027-02-01T00:00:00Z", "2027-03-31T23:00:00Z", []string{
			"2027-02-28T09:00:00+00:00; month-end: February 2027 has no day 31", "2027-03-31T09:00:00+00:00"}},
		{"nearest weekday", calendar.Spec{Cron: "0 9 15W * *"}, "2027-05-01T00:00:00Z", "2027-06-30T23:00:00Z", []string{
			"2027-05-14T09:00:00+00:00; nearest-weekday: the 15th is a Saturday", "2027-06-15T09:00:00+00:00"}},
		{"jitter", calendar.Spec{ID: "order-17", Cron: "0 0 * * *", Jitter: time.Minute}, "2027-01-01T00:00:00Z", "2027-01-01T23:00:00Z", []string{
			"2027-01-01T00:00:00+00:00; jitter +9.601s"}},
		{"milliseconds", calendar.Spec{Every: "1500ms", StartMs: ms(t, "2027-01-01T00:00:00Z")}, "2027-01-01T00:00:01Z", "2027-01-01T00:00:02Z", []string{"2027-01-01T00:00:01.5+00:00"}},
		{"nothing", calendar.Spec{Cron: "0 9 25 12 *", Exclude: calendar.Join(holidays...), EndMs: ms(t, "2027-12-31T00:00:00Z")}, "2027-12-25T00:00:00Z", "2199-01-01T00:00:00Z", []string{
			"2027-12-25T09:00:00+00:00 skipped; excluded: 2027-12-25 is excluded by de-holidays"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := lines(mustNew(t, c.spec).Explain(ms(t, c.from), ms(t, c.to), 10))
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestExplainIsBounded: neither runs nor skips exceed MaxExplained.
func TestExplainIsBounded(t *testing.T) {
	t.Parallel()
	var dates []string
	for i := range calendar.MaxDates {
		dates = append(dates, time.UnixMilli(int64(i+20_000)*86_400_000).UTC().Format(time.DateOnly))
	}
	d, err := calendar.NewDates("x", dates...)
	if err != nil {
		t.Fatal(err)
	}
	s := mustNew(t, calendar.Spec{Cron: "* * * * *", Exclude: calendar.Join(d)})
	runs, skips := 0, 0
	for _, o := range s.Explain(20_000*86_400_000, calendar.MaxMs, 1<<30) {
		if o.Skipped {
			skips++
		} else {
			runs++
		}
	}
	if runs != calendar.MaxExplained || skips != calendar.MaxExplained {
		t.Errorf("%d runs and %d skips", runs, skips)
	}
}

// TestDescribe has a phrase for each form, with runs from 2027-01-01 that the phrase names.
func TestDescribe(t *testing.T) {
	t.Parallel()
	every := func(text, start string) calendar.Spec { return calendar.Spec{Every: text, StartMs: ms(t, start)} }
	cron := func(text string) calendar.Spec { return calendar.Spec{Cron: text} }
	for _, c := range []struct {
		spec calendar.Spec
		want string
		runs string // date and time of the first runs, separated by commas
	}{
		{cron("30 2 LW * *"), "At 02:30 on the last weekday of the month, UTC", "2027-01-29 02:30:00,2027-02-26 02:30:00"},
		{cron("0 9 * * 1-5"), "At 09:00 on Monday to Friday, UTC", "2027-01-01 09:00:00,2027-01-04 09:00:00"},
		{cron("0 9,12,15 * * SAT,SUN"), "At 09:00, 12:00 and 15:00 on Saturday and Sunday, UTC", "2027-01-02 09:00:00"},
		{cron("* * * * *"), "Every minute, UTC", "2027-01-01 00:00:00,2027-01-01 00:01:00"},
		{cron("* * * * * *"), "Every second, UTC", "2027-01-01 00:00:00,2027-01-01 00:00:01"},
		{cron("*/10 * * * * *"), "Every 10 seconds of every minute, UTC", "2027-01-01 00:00:00,2027-01-01 00:00:10"},
		{cron("*/15 * * * *"), "Every 15 minutes, UTC", "2027-01-01 00:00:00,2027-01-01 00:15:00"},
		{cron("*/7 * * * *"), "At minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour, UTC", "2027-01-01 00:00:00,2027-01-01 00:07:00"},
		{cron("5 * * * *"), "At minute 5 of every hour, UTC", "2027-01-01 00:05:00,2027-01-01 01:05:00"},
		{cron("*/15 9-17 * * *"), "Every 15 minutes of hours 9 to 17, UTC", "2027-01-01 09:00:00,2027-01-01 09:15:00"},
		{cron("0 */2 * * *"), "At minute 0 of every 2 hours, UTC", "2027-01-01 00:00:00,2027-01-01 02:00:00"},
		{cron("* 3 * * *"), "Every minute of hour 3, UTC", "2027-01-01 03:00:00,2027-01-01 03:01:00"},
		{cron("15 30 2 * * *"), "At 02:30:15, UTC", "2027-01-01 02:30:15"},
		{cron("0,30 30 2 * * *"), "Every 30 seconds of minute 30 of hour 2, UTC", "2027-01-01 02:30:00,2027-01-01 02:30:30"},
		{cron("0 0 1,15 * *"), "At 00:00 on the 1st and the 15th of the month, UTC", "2027-01-01 00:00:00,2027-01-15 00:00:00"},
		{cron("0 0 1-5 2,3 *"), "At 00:00 on the 1st to 5th of February and March, UTC", "2027-02-01 00:00:00,2027-02-02 00:00:00"},
		{cron("0 0 L-3 * *"), "At 00:00 on the 3rd day before the last day of the month, UTC", "2027-01-28 00:00:00"},
		{cron("0 0 L * *"), "At 00:00 on the last day of the month, UTC", "2027-01-31 00:00:00"},
		{cron("0 0 15W * *"), "At 00:00 on the weekday nearest to the 15th of the month, UTC", "2027-01-15 00:00:00"},
		{cron("0 0 * * MON#1,FRIL"), "At 00:00 on the first Monday and the last Friday of the month, UTC", "2027-01-04 00:00:00,2027-01-29 00:00:00"},
		{cron("0 0 * 6 *"), "At 00:00 on every day of June, UTC", "2027-06-01 00:00:00"},
		{cron("0 0 * JUN-AUG MON"), "At 00:00 on Monday in June to August, UTC", "2027-06-07 00:00:00"},
		{calendar.Spec{Cron: "0 0 13 * FRI", Days: "and"}, "At 00:00 on the 13th of the month if it is Friday, UTC", "2027-08-13 00:00:00"},
		{calendar.Spec{Cron: "0 0 13 * FRI", Days: "or"}, "At 00:00 on the 13th of the month or on Friday, UTC", "2027-01-01 00:00:00,2027-01-08 00:00:00,2027-01-13 00:00:00"},
		{calendar.Spec{Cron: "@daily", Zone: "Asia/Tokyo", StartMs: ms(t, "2027-02-01T00:00:00Z"), EndMs: ms(t, "2027-03-01T00:00:00Z"), Jitter: 90 * time.Second},
			"At 00:00, Asia/Tokyo; from 2027-02-01T00:00:00Z; until 2027-03-01T00:00:00Z; up to 1m30s later", "2027-02-01 15:00:00"},
		{every("90m", "2027-01-01T00:00:00Z"), "Every 1h30m of elapsed time from 2027-01-01T00:00:00Z, UTC", "2027-01-01 00:00:00,2027-01-01 01:30:00"},
		{every("P1D", "2027-01-04T09:00:00Z"), "Every day at 09:00 from 2027-01-04, UTC", "2027-01-04 09:00:00,2027-01-05 09:00:00"},
		{every("P2W", "2027-01-04T09:00:00Z"), "Every 2 weeks on Monday at 09:00 from 2027-01-04, UTC", "2027-01-04 09:00:00,2027-01-18 09:00:00"},
		{every("P3M", "2027-01-31T09:00:00Z"), "Every 3 months on the 31st, or the last day of a shorter month, at 09:00 from 2027-01-31, UTC", "2027-01-31 09:00:00,2027-04-30 09:00:00"},
		{every("P1Y", "2027-05-04T09:00:00Z"), "Every year on May 4 at 09:00 from 2027-05-04, UTC", "2027-05-04 09:00:00,2028-05-04 09:00:00"},
	} {
		s := mustNew(t, c.spec)
		if got := s.Describe(); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.spec, got, c.want)
		}
		var runs []string
		for at := range s.Between(ms(t, "2027-01-01T00:00:00Z"), calendar.MaxMs) {
			if runs = append(runs, time.UnixMilli(at).UTC().Format(time.DateTime)); len(runs) > strings.Count(c.runs, ",") {
				break
			}
		}
		if got := strings.Join(runs, ","); got != c.runs {
			t.Errorf("%q: got runs %s, want %s", c.want, got, c.runs)
		}
	}
	d, err := calendar.NewDates("de-holidays", "2027-01-01")
	if err != nil {
		t.Fatal(err)
	}
	s := mustNew(t, calendar.Spec{Cron: "@daily", Exclude: calendar.Join(d), ExcludeShift: "next"})
	if got, want := s.Describe(), "At 00:00, UTC; not on 1 date of de-holidays, then on the next date"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec calendar.Spec
		want string
	}{
		{calendar.Spec{Cron: "*/7 * * * *"}, `"*/7" is uneven: from minute 56 the next is 0, 4 later`},
		{calendar.Spec{Cron: "0 */5 * * *"}, `"*/5" is uneven: from hour 20 the next is 0, 4 later`},
		{calendar.Spec{Cron: "50/20 * * * *"}, `"50/20" in the minute field matches one value only`},
		{calendar.Spec{Cron: "H * * * *"}, "H and jitter are derived from the timer ID"},
		{calendar.Spec{Cron: "@daily", Jitter: time.Second}, "H and jitter are derived from the timer ID"},
		{calendar.Spec{Cron: "0 0 31 * *"}, "February has no day 31 in every year; L is the last day of every month"},
		{calendar.Spec{Cron: "0 0 29 2 *"}, "February has no day 29 in every year"},
		{calendar.Spec{Cron: "*/15 2 * * *", Zone: "Europe/Berlin"}, "runs follow real time: none in a gap, and both passes of an overlap"},
		{calendar.Spec{Cron: "*/15 4 * * *", Zone: "Europe/Berlin"}, ""},
		{calendar.Spec{Cron: "*/15 2 * * *", Zone: "Asia/Tokyo"}, ""},
		{calendar.Spec{Cron: "*/15 2 * * *", Zone: "Europe/Berlin", DST: "gap=skip,overlap=both"}, ""},
		{calendar.Spec{Cron: "*/15 * * * *"}, ""},
		{calendar.Spec{Cron: "0 0 31 12 *"}, ""},
		{calendar.Spec{Cron: "30 2 28 * *", Zone: "Europe/Berlin"}, ""},
	} {
		got := mustNew(t, c.spec).Warnings()
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%+v: got %q, want %q", c.spec, got, c.want)
		}
	}
	if got := fmt.Sprint(mustNew(t, calendar.Spec{Cron: "H * * * *", ID: "a"}).Warnings()); got != "[]" {
		t.Errorf("with an ID: %s", got)
	}
}
