package cmdline

import (
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"2w": 14 * day, "3d": 3 * day, "1w2d": 9 * day, "1d12h": 36 * time.Hour, "2d30m5s": 2*day + 30*time.Minute + 5*time.Second,
		"106751d": 106751 * day, "0d": 0, "90m": 90 * time.Minute, "PT10S": 10 * time.Second, "P1D": day, "-5s": -5 * time.Second,
	} {
		if d, err := ParseDuration(text); err != nil || d != want {
			t.Errorf("%q: %s, %v, want %s", text, d, err, want)
		}
	}
	for text, want := range map[string]string{
		"106752d": "out of range", "106751d24h": "out of range", "99999w999999d": "out of range", "1d-2h": "not a duration", "1dPT2H": "not a duration", "d": "not a duration",
		"2d1w": "not a duration", "1.5d": "1h30m or PT10S; days and weeks are whole numbers", "-1d": "not a duration", "1d2": "not a duration", "1000000d": "not a duration", "1D": "not a duration", "": "not a duration", "10": "without a unit",
	} {
		if d, err := ParseDuration(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want an error with %q", text, d, err, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2027, 3, 27, 12, 0, 0, 0, berlin) // the day before the clocks go forward
	for text, want := range map[string]string{
		"2027-05-01T10:00:00Z": "2027-05-01T10:00:00Z", "2027-05-01 18:00": "2027-05-01T18:00:00+02:00", "2027-05-01T18:00:30": "2027-05-01T18:00:30+02:00",
		"18:00": "2027-03-27T18:00:00+01:00", "9:00": "2027-03-28T09:00:00+02:00", "12:00": "2027-03-28T12:00:00+02:00",
		"today 9:00": "2027-03-27T09:00:00+01:00", "tomorrow 9:00": "2027-03-28T09:00:00+02:00", "tomorrow 00:00": "2027-03-28T00:00:00+01:00",
		"in 15m": "2027-03-27T12:15:00+01:00", "in 1d": "2027-03-28T13:00:00+02:00",
	} {
		got, interpreted, err := ParseTime(text, now)
		at, parseErr := time.Parse(time.RFC3339, want)
		if parseErr != nil {
			t.Fatal(parseErr)
		}
		if err != nil || !got.Equal(at) || interpreted != (text != want) {
			t.Errorf("%q: %s, interpreted %t, %v, want %s", text, got.Format(time.RFC3339), interpreted, err, want)
		}
	}
	for text, want := range map[string]string{
		"2027-03-28 02:30": "clocks in Europe/Berlin skip 2027-03-28 02:30:00", "tomorrow 2:30": "skip",
		"2027-10-31 02:30": "twice: write 2027-10-31T02:30:00+02:00 or 2027-10-31T02:30:00+01:00",
		"2027-02-30 10:00": "no such date or time of day", "24:00": "no such date or time of day", "9:60": "no such date or time of day",
		"tomorrow": "not a time", "2027-05-01": "not a time", "9": "not a time", "yesterday 9:00": "not a time", "": "not a time", "in 5": "without a unit", "in -5s": "negative",
	} {
		if got, _, err := ParseTime(text, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v, want an error with %q", text, got, err, want)
		}
	}
}
