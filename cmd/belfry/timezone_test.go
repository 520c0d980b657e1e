package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// TestTimeZone: --time-zone chooses the zone of the times in text, whatever the command. JSON is in UTC.
func TestTimeZone(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	const zone = "Asia/Kolkata" // no summer time, and half an hour off
	for _, args := range [][]string{
		{"add", "--in", "1h", "--id", "a", "--source", "/zone", "--svc", "orders"},
		{"get", "a", "--source", "/zone"},
		{"ls", "--svc", "orders"},
		{"status"},
		{"preview", "--every", "1h", "--count", "2"},
		{"reschedule", "a", "--source", "/zone", "--at", "2030-01-02T03:04:05.678Z"},
	} {
		utc, shown := n.client(t, args...), n.client(t, append(args, "--time-zone", zone)...)
		if utc.code != exitOK || shown.code != exitOK {
			t.Fatalf("%v: %v, %v", args, utc, shown)
		}
		if !regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}Z`).MatchString(utc.out) || strings.Contains(utc.out, "+05:30") {
			t.Errorf("%v: got %s, want times in UTC", args, utc.out)
		}
		if !regexp.MustCompile(`\d\d:\d\d:\d\d\.\d{3}\+05:30`).MatchString(shown.out) {
			t.Errorf("%v: got %s, want times in %s", args, shown.out, zone)
		}
	}
	if r := n.client(t, "get", "a", "--source", "/zone", "--time-zone", zone); !strings.Contains(r.out, "2030-01-02T08:34:05.678+05:30") {
		t.Errorf("got %s, want the due time in %s", r.out, zone)
	}
	if got := ok[schemas.TimerInfo](t, n, "get", "a", "--source", "/zone", "--time-zone", zone)[0].Due; got.Format("15:04:05.000Z07:00") != "03:04:05.678Z" {
		t.Errorf("JSON has %s, want UTC", got)
	}
	for _, bad := range []string{"", "Mars/Base", "+05:30", "../etc/passwd"} {
		if r := n.client(t, "get", "a", "--source", "/zone", "--time-zone", bad); r.code != exitUsage || !strings.Contains(r.err, "--time-zone") || !strings.Contains(r.err, "Europe/Berlin") {
			t.Errorf("--time-zone %q: %v, want a usage error that names the flag", bad, r)
		}
	}
}
