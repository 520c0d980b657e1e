package calendar_test

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
)

// TestPeriod: dates and local times around the changes of 2027 in Berlin, as instants.
func TestPeriod(t *testing.T) {
	t.Parallel()
	s := mustNew(t, calendar.Spec{Cron: "30 2 * * *", Zone: "Europe/Berlin"})
	for _, c := range []struct{ text, from, to string }{
		{"2027-03-28", "2027-03-27T23:00:00Z", "2027-03-28T21:59:59.999Z"}, // 23 hours
		{"2027-10-31", "2027-10-30T22:00:00Z", "2027-10-31T22:59:59.999Z"}, // 25 hours
		{"2027-03-28T01:59", "2027-03-28T00:59:00Z", "2027-03-28T00:59:59.999Z"},
		{"2027-03-28T02:30", "2027-03-28T01:00:00Z", "2027-03-28T01:00:00Z"}, // in the gap
		{"2027-03-28T03:00:00", "2027-03-28T01:00:00Z", "2027-03-28T01:00:00.999Z"},
		{"2027-10-31T02:30", "2027-10-31T00:30:00Z", "2027-10-31T01:30:59.999Z"}, // both passes
		{"2027-10-31T02:30:00+01:00", "2027-10-31T01:30:00Z", "2027-10-31T01:30:00Z"},
		{"2027-07-01T12:00:00.5Z", "2027-07-01T12:00:00.5Z", "2027-07-01T12:00:00.5Z"},
	} {
		from, to, ok := s.Period(c.text)
		got := [2]string{time.UnixMilli(from).UTC().Format(time.RFC3339Nano), time.UnixMilli(to).UTC().Format(time.RFC3339Nano)}
		if want := [2]string{c.from, c.to}; !ok || got != want {
			t.Errorf("%s is %v, %v; want %v", c.text, got, ok, want)
		}
	}
	for _, text := range []string{"", "tomorrow", "2027-02-30", "2027-03-28 02:30", "2027-03"} {
		if _, _, ok := s.Period(text); ok {
			t.Errorf("%q is a period", text)
		}
	}
	if got := s.Local(time.Date(2027, 3, 28, 1, 0, 0, 0, time.UTC).UnixMilli()); got != "2027-03-28T03:00:00+02:00" {
		t.Errorf("local time %s", got)
	}
}
