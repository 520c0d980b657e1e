package main

import (
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestAddSchedule adds schedules on the command line, with every flag.
func TestAddSchedule(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	args := []string{"add", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--svc", "reports", "--id", "nightly", "--source", "/reports"}
	waittest.Until(t, "schedules are allowed", func() bool { return n.client(t, args...).code == exitOK })
	a := ok[struct {
		added
		Description string
	}](t, n, args...)[0]
	due, err := time.Parse(time.RFC3339, a.Due)
	if err != nil || !a.Duplicate || a.State != "pending" || a.Description != "At 02:30, Europe/Berlin" || due.Second() != 0 || time.Until(due) > 50*time.Hour {
		t.Errorf("added %+v, %v", a, err)
	}
	r := n.client(t, append(args, "--ext", "other=1")...)
	r.oneLine(t, exitRefused)
	r = n.client(t, "add", "--every", "P1D", "--tz", "Europe/Berlin", "--start", "2050-01-02T03:04:05Z", "--end", "2051-01-02T03:04:05Z", "--limit", "9", "--jitter", "1ms",
		"--dst", "gap=skip", "--misfire", "all", "--grace", "1h", "--overlap", "queue", "--svc", "sync", "--worker", "--id", "full", "--source", "/sync")
	if r.code != exitRefused || !strings.Contains(r.err, "further ahead than the limit") {
		t.Fatalf("beyond the server's max-ahead: %d %q %q", r.code, r.out, r.err)
	}
	start := time.Now().AddDate(0, 0, 3).UTC().Format("2006-01-02T15:04:05Z")
	r = n.client(t, "add", "--every", "P1D", "--tz", "Europe/Berlin", "--start", start, "--end", "2200-01-02T03:04:05Z", "--limit", "9", "--id", "long", "--source", "/sync")
	r.oneLine(t, exitUsage, "timerend")
	r = n.client(t, "add", "--every", "P1D", "--tz", "Europe/Berlin", "--start", start, "--end", "2099-01-02T03:04:05Z", "--limit", "9", "--jitter", "1ms",
		"--dst", "gap=skip", "--misfire", "all", "--grace", "1h", "--overlap", "queue", "--svc", "sync", "--worker", "--id", "full", "--source", "/sync")
	if r.code != exitOK || !strings.Contains(r.out, "schedule") || !strings.Contains(r.out, "until 2099-01-02T03:04:05Z") || !strings.Contains(r.out, start[:19]+".000Z") {
		t.Errorf("add: %d %q %q", r.code, r.out, r.err)
	}
	if r = n.client(t, "add", "--every", "15m", "--id", "period", "--source", "/sync"); r.code != exitOK || !strings.Contains(r.out, "schedule  Every 15m of elapsed time from 20") || !strings.Contains(r.out, "due") {
		t.Errorf("a period that counts from the add: %d %q %q", r.code, r.out, r.err)
	}
	r = n.client(t, "add", "--cron", "*/7 * * * *", "--id", "warned", "--source", "/sync")
	if r.code != exitOK || !strings.HasPrefix(r.err, "belfry: warning: ") {
		t.Errorf("an expression with a warning: %d %q %q", r.code, r.out, r.err)
	}
	info := ok[schemas.TimerInfo](t, n, "get", "full", "--source", "/sync")[0]
	if info.State != schemas.StatePending || info.Due.UTC().Format("2006-01-02T15:04:05Z") != start {
		t.Errorf("get: %+v", info)
	}
}

// TestAddScheduleUsage: mistakes in a schedule that the program finds without a server. Each
// answer says what to write.
func TestAddScheduleUsage(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{ // _ stands for a blank in an argument
		"--in 1s --every 1h":                           "one of --in, --at, --cron and --every",
		"--cron @daily --every 1h":                     "one of --in, --at, --cron and --every",
		"--tz Europe/Berlin":                           "one of --in, --at, --cron and --every",
		"--in 1s --tz Europe/Berlin":                   "--tz belongs to a schedule",
		"--in 1s --overlap skip":                       "--overlap belongs to a schedule",
		"--cron 0_9_*_*":                               "timercron",
		"--cron CRON_TZ=UTC_0_9_*_*_*":                 "timertz",
		"--cron @every_5m":                             "timerevery 5m",
		"--cron @reboot":                               "timerafter",
		"--cron 0_0_30_2_*":                            "timercron",
		"--cron 0_9_1_*_MON":                           "timerdays",
		"--cron */90_*_*_*_*":                          "timerevery",
		"--cron @daily --tz CET":                       "Europe/Berlin",
		"--cron @daily --tz +02:00":                    "Europe/Berlin",
		"--cron @daily --tz europeberlin":              "Europe/Berlin",
		"--cron @daily --start tomorrow":               "RFC 3339",
		"--cron @daily --limit 0":                      "1 to 4294967295",
		"--cron @daily --jitter 25h":                   "24h or less",
		"--cron @daily --jitter 30":                    "10s",
		"--cron @daily --dst never":                    "write auto",
		"--cron @daily --days both":                    `"and" or "or"`,
		"--cron @daily --misfire none":                 "one, all or skip",
		"--cron @daily --grace 1ms":                    "1s or more",
		"--cron @daily --overlap none":                 "skip, queue, allow or replace",
		"--every 1d":                                   "P1D",
		"--every 10":                                   "10s",
		"--every P1DT1H":                               "PT36H",
		"--every 1h --end 2020-01-01T00:00:00Z":        "write a later end",
		"--every 1h --callback ftp://example.com/x":    "timercallback",
		"--every 1h --start 2030-01-01 --id x --svc s": "RFC 3339",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			args := []string{"add"}
			for _, a := range strings.Fields(line) {
				args = append(args, strings.ReplaceAll(strings.ReplaceAll(a, "CRON_TZ", "CRON\x00TZ"), "_", " "))
			}
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "\x00", "_")
			}
			belfryEnv(t, noServer, "", args...).oneLine(t, exitUsage, want)
		})
	}
}
