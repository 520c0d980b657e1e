package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/doctest"
)

// noServer is an address without a server: preview must not connect.
var noServer = []string{"NATS_URL=nats://127.0.0.1:1", "BELFRY_NATS_URL=nats://127.0.0.1:1"}

// TestPreviewNeedsNoServer shows runs around a change to daylight saving time, as text
// and as JSON.
func TestPreviewNeedsNoServer(t *testing.T) {
	t.Parallel()
	args := []string{"preview", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2027-03-27T12:00:00Z", "-n", "2"}
	text := belfryEnv(t, noServer, "", args...)
	for _, want := range []string{"At 02:30, Europe/Berlin", calendar.ZoneDataVersion, "2027-03-28T01:00:00.000Z", "2027-03-28T03:00:00+02:00", "gap-shifted: 02:30 does not exist", "2027-03-29T02:30:00+02:00"} {
		if !strings.Contains(text.out, want) {
			t.Errorf("preview: got %s, want %q in it", text.out, want)
		}
	}
	r := belfryEnv(t, noServer, "", append(args, "-o", "json")...)
	list := parseLines[previewLine](t, r.out)
	if r.code != exitOK || r.err != "" || len(list) != 2 || list[0].At != "2027-03-28T01:00:00.000Z" || list[0].Local != "2027-03-28T03:00:00+02:00" ||
		len(list[0].Why) != 1 || list[0].Why[0].Code != calendar.GapShifted || list[1].Why == nil || len(list[1].Why) != 0 {
		t.Errorf("preview -o json: got exit code %d, stderr %q, %+v, want two runs, the first shifted by the gap", r.code, r.err, list)
	}
}

// TestPreviewFlags: every flag reaches the schedule.
func TestPreviewFlags(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "holidays.txt")
	if err := os.WriteFile(file, []byte("# two days\n2027-01-03\n\n 2027-01-04 # Monday\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{ // local times and skips, separated by spaces
		{"--cron @daily --start 2027-01-02T00:00:00Z --end 2027-01-03T00:00:00Z", "2027-01-02T00:00:00+00:00 2027-01-03T00:00:00+00:00"},
		{"--cron @daily --limit 1", "2027-01-01T00:00:00+00:00"},
		{"--every PT8H -n 2", "2027-01-01T00:00:00+00:00 2027-01-01T08:00:00+00:00"},
		{"--every P1M --start 2027-01-31T09:00:00Z -n 2", "2027-01-31T09:00:00+00:00 2027-02-28T09:00:00+00:00"},
		{"--cron 0_9_*_*_* --exclude 2027-01-02,2027-01-03 --exclude 2027-01-04 -n 2", "2027-01-01T09:00:00+00:00 -2027-01-02T09:00:00+00:00 -2027-01-03T09:00:00+00:00 -2027-01-04T09:00:00+00:00 2027-01-05T09:00:00+00:00"},
		{"--cron 0_9_3_*_* --exclude-file " + file + " --exclude-shift previous -n 1", "2027-01-02T09:00:00+00:00"},
		{"--cron 0_0_13_*_FRI --days and -n 1", "2027-08-13T00:00:00+00:00"},
		{"--cron 30_2_*_*_* --tz Europe/Berlin --from 2027-10-31T00:00:00Z --end 2027-10-31T12:00:00Z --dst overlap=both", "2027-10-31T02:30:00+02:00 2027-10-31T02:30:00+01:00"},
		{"--cron H_H_*_*_* --id order-17 -n 1", "2027-01-01T01:42:00+00:00"},
		{"--cron H_H_*_*_* --id order-17 --source /shop -n 1", "2027-01-01T12:29:00+00:00"},
	} {
		args := []string{"preview", "-o", "json"}
		for _, a := range strings.Fields(c.args) {
			args = append(args, strings.ReplaceAll(a, "_", " "))
		}
		if !slices.Contains(args, "--from") {
			args = append(args, "--from", "2027-01-01T00:00:00Z")
		}
		r := belfryEnv(t, noServer, "", args...)
		var got []string
		for _, line := range parseLines[previewLine](t, r.out) {
			if line.Skipped {
				line.Local = "-" + line.Local
			}
			got = append(got, line.Local)
		}
		if s := strings.Join(got, " "); s != c.want || r.err != "" {
			t.Errorf("preview %s: got %s, want %s; stderr %q", c.args, s, c.want, r.err)
		}
	}
	due := parseLines[previewLine](t, belfryEnv(t, noServer, "", "preview", "--cron", "@hourly", "--id", "a", "--jitter", "PT10M", "-n", "1", "-o", "json").out)[0]
	if at, err := time.Parse(time.RFC3339, due.Due); err != nil || due.Due <= due.At || at.Minute() >= 10 || due.Why[0].Code != calendar.Jitter {
		t.Errorf("preview with --jitter PT10M: got %+v, want a due time after the hour, by less than 10 minutes", due)
	}
	if r := belfryEnv(t, noServer, "", "preview", "--cron", "H * * * *", "-n", "1", "-o", "json"); !strings.HasPrefix(r.err, "belfry: warning: ") || r.code != exitOK {
		t.Errorf("preview of H without an id: got %v, want exit code 0 and a warning", r)
	}
	if r := belfryEnv(t, noServer, "", "preview", "--cron", "@daily", "--end", "1971-01-01T00:00:00Z"); !strings.Contains(r.out, "No further run before the end.") {
		t.Errorf("preview of a schedule that has ended: got %v, want \"No further run before the end.\"", r)
	}
}

// TestPreviewRefusals: a mistake gives exit code 2 and one line that says what to write
// instead.
func TestPreviewRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "give either --cron or --every"},
		{[]string{"--cron", "@daily", "--every", "5m"}, "give either --cron or --every"},
		{[]string{"--cron", "*/90 * * * *"}, "at character 3: the step 90 is larger than the minute field, which has 60 values; for every 90 write timerevery PT90M"},
		{[]string{"--cron", "0 0 30 2 *"}, "no date matches"},
		{[]string{"--cron", "CRON_TZ=UTC * * * * *"}, "write timertz UTC"},
		{[]string{"--every", "1d"}, "write P1D"},
		{[]string{"--cron", "@daily", "--tz", "CET"}, "Europe/Berlin"},
		{[]string{"--cron", "@daily", "--from", "tomorrow"}, "--from"},
		{[]string{"--cron", "@daily", "--start", "tomorrow"}, "--start"},
		{[]string{"--cron", "@daily", "--end", "tomorrow"}, "--end"},
		{[]string{"--cron", "@daily", "--exclude", "25.12.2027"}, "write year, month and day"},
		{[]string{"--cron", "@daily", "--exclude-file", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"--cron", "@daily", "--jitter", "soon"}, "jitter"},
		{[]string{"--cron", "@daily", "--limit", "-1"}, "--limit"},
		{[]string{"--cron", "@daily", "-n", "0"}, "1 to 1000"},
		{[]string{"--cron", "@daily", "-n", "1001"}, "1 to 1000"},
	} {
		belfryEnv(t, noServer, "", append([]string{"preview"}, c.args...)...).oneLine(t, exitUsage, c.want)
		belfryEnv(t, noServer, "", append([]string{"preview", "-o", "json"}, c.args...)...).oneLine(t, exitUsage, `"code":"usage"`)
	}
}

// TestScheduleExamples runs the previews of docs/schedules.md and compares what they print. It
// also holds the syntax tables: what they call accepted is accepted, and the rest is refused.
func TestScheduleExamples(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/schedules.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range doctest.Blocks(t, "cmd/belfry.TestScheduleExamples") {
		commands, shown := block.Commands()
		for i, line := range commands {
			var args []string
			for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(strings.TrimPrefix(line, "belfry "), -1) {
				args = append(args, strings.Trim(word, "'"))
			}
			r := belfryEnv(t, noServer, "", args...)
			got := regexp.MustCompile(`(?m) +$`).ReplaceAllString(r.out+r.err, "")
			if got != shown[i] {
				t.Errorf("%s: got\n%s\nwant, as in the documentation,\n%s", line, got, shown[i])
			}
		}
	}
	forms := 0
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]*)` \\|.*\\| (cron|every|tz|refused cron|refused every|refused tz) \\|$").FindAllStringSubmatch(string(b), -1) {
		forms++
		spec := calendar.Spec{ID: "x", StartMs: 1_800_000_000_000}
		switch kind := strings.TrimPrefix(row[2], "refused "); kind {
		case "cron":
			spec.Cron = row[1]
		case "every":
			spec.Every = row[1]
		case "tz":
			spec.Cron, spec.Zone = "@daily", row[1]
		}
		if _, err := calendar.New(spec); (err != nil) != strings.HasPrefix(row[2], "refused") {
			t.Errorf("%q is documented as %q, but New returned %v", row[1], row[2], err)
		}
	}
	if forms < 40 {
		t.Errorf("docs/schedules.md has %d forms, want at least 40", forms)
	}
}
