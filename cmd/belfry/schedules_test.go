package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestScheduleCommands operates a schedule on the command line.
func TestScheduleCommands(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	const id = "nightly --source /reports"
	a := ok[added](t, n, "add", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--svc", "reports", "--id", "nightly", "--source", "/reports", "--group", "g")[0]
	run := func(line string) []schemas.TimerInfo { return ok[schemas.TimerInfo](t, n, strings.Fields(line)...) }
	if p := run("pause " + id + " --note broken")[0]; p.State != schemas.StatePaused || p.PauseNote != "broken" || p.History[0].By != whoami() {
		t.Errorf("paused %+v", p)
	}
	if r := n.client(t, "ls", "--schedule"); !strings.Contains(r.out, "paused") || !strings.Contains(r.out, "nightly (paused: broken)") {
		t.Errorf("ls: %q", r.out)
	}
	if r := n.client(t, "get", a.Timer.String()); !strings.Contains(r.out, "broken\n") || !strings.Contains(r.out, "30 2 * * *") || !strings.Contains(r.out, "Europe/Berlin") {
		t.Errorf("get: %q", r.out)
	}
	if r := run("resume " + id + " --catchup one")[0]; r.State != schemas.StatePending || r.PauseNote != "" {
		t.Errorf("resumed %+v", r)
	}
	run("add --in 1h --id one --group g")
	for _, c := range []struct{ line, out string }{{"pause --group g", "paused  2\n"}, {"pause --group g", "paused  0\n"}, {"resume --group g", "resumed  2\n"}} {
		if r := n.client(t, strings.Fields(c.line)...); r.code != exitOK || r.out != c.out {
			t.Errorf("%s: %d %q %q", c.line, r.code, r.out, r.err)
		}
	}
	if l := run("ls --schedule=false"); len(l) != 1 || l[0].ID != "one" {
		t.Errorf("listed %+v", l)
	}

	// The same runs, stored or not.
	stored := n.client(t, strings.Fields("preview "+id+" --from 2027-03-27T00:00:00Z -n 3 -o json")...)
	offline := belfryRun(t, "preview", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2027-03-27T00:00:00Z", "-n", "3", "-o", "json")
	if stored.code != exitOK || stored.out != offline.out || strings.Count(stored.out, "gap-shifted") != 1 {
		t.Errorf("preview: %d %s\noffline: %s", stored.code, stored.out+stored.err, offline.out)
	}
	if r := n.client(t, strings.Fields("preview "+id+" -n 2")...); r.code != exitOK || !strings.Contains(r.out, "At 02:30") {
		t.Errorf("preview: %d %q %q", r.code, r.out, r.err)
	}

	u := ok[schemas.UpdateReply](t, n, "update", "nightly", "--cron", "0 6 * * *", "--tz", "Europe/Berlin", "--source", "/reports", "--svc", "reports", "--by", "ann")[0]
	if len(u.Before) != schemas.UpdateTimes || len(u.After) != schemas.UpdateTimes || u.Before[0].Equal(u.After[0]) || u.Timer.Schedule.Cron != "0 6 * * *" {
		t.Errorf("updated %+v", u)
	}
	n.client(t, "update", "--cron", "0 7 * * *", "--id", "nightly", "--source", "/reports", "--revision", fmt.Sprint(u.Timer.Revision-1)).oneLine(t, exitRefused, "revision")

	if w := ok[schemas.Answer](t, n, strings.Fields("why "+id+" --at 2031-03-30")...); len(w) != 1 || w[0].Fate != schemas.FatePlanned || w[0].Local != "2031-03-30T06:00:00+02:00" {
		t.Errorf("why: %+v", w)
	}
	if w := ok[schemas.Answer](t, n, "why", "one", "--source", "belfry-cli"); len(w) != 1 || !strings.HasPrefix(w[0].Text, "Planned for ") {
		t.Errorf("why of a one-shot timer: %+v", w)
	}
	if r := n.client(t, strings.Fields("why "+id+" --at 2031-03-30T05:00")...); r.code != exitOK || !strings.Contains(r.out, "2031-03-30T05:00:00+02:00  Not a time of the schedule.") {
		t.Errorf("why: %d %q %q", r.code, r.out, r.err)
	}

	const period = " --from 2026-01-01T00:00:00Z --to 2026-01-03T00:00:00Z"
	if r := n.client(t, strings.Fields("backfill "+id+period+" --dry-run")...); r.out != "runs  2\n2026-01-01T05:00:00.000Z\n2026-01-02T05:00:00.000Z\n" {
		t.Errorf("backfill: %d %q %q", r.code, r.out, r.err)
	}
	for _, line := range []string{"runs " + id, "runs " + id + " --decisions"} {
		if r := n.client(t, strings.Fields(line)...); r.code != exitOK || r.out != "" {
			t.Errorf("%s: %d %q %q", line, r.code, r.out, r.err)
		}
	}
	if tr := run("trigger " + id + " --allow")[0]; tr.Schedule == nil || tr.Schedule.Triggered != 1 {
		t.Errorf("triggered %+v", tr)
	}

	// The run of a one-shot timer is in the timer's record; a run of a schedule has its own.
	one := ok[added](t, n, "add", "--in", "1h")[0].Timer.String()
	for _, line := range []string{"get ID.1", "reschedule ID.1 --in 2h", "pause ID.1", "resume ID.1", "cancel ID.1"} {
		if r := run(strings.ReplaceAll(line, "ID", one))[0]; r.Timer.String() != one {
			t.Errorf("%s: %+v", line, r)
		}
	}
	for line, text := range map[string]string{"cancel " + one + ".2": "is not a schedule, and its run is number 1", "cancel " + a.Timer.String() + ".9": "belfry runs " + a.Timer.String()} {
		if r := n.client(t, strings.Fields(line)...); r.code != exitNotFound || !strings.Contains(r.err, text) {
			t.Errorf("%s: %d %q", line, r.code, r.err)
		}
	}
	n.stop(t)
}

// TestScheduleUsage: wrong arguments end with exit code 2, before any request.
func TestScheduleUsage(t *testing.T) {
	t.Parallel()
	id := schemas.NewTimerID("/s", "1").String()
	for line, want := range map[string]string{
		"pause": "group", "pause " + id + " --group g": "group", "pause " + id + " --note " + strings.Repeat("n", 257): "--note",
		"resume " + id + " --catchup some": "--catchup", "trigger": "usage", "backfill " + id: "--from and --to", "backfill " + id + " --from x --to x": "--from",
		"backfill " + id + " --from 2026-01-01T00:00:00Z --to 2026-01-02T00:00:00Z --rate -1s": "--rate", "runs " + id + " -n -1": "--limit",
		"preview " + id + " --cron x": "--cron", "preview " + id + " -n 0": "-n", "preview " + id + " x": "usage", "preview " + id + " --from x": "--from",
		"update --cron x": "ID is required", "update a --id b --cron x": "once", "update --id x": "--cron", "update --id x --cron x": "timercron", "why " + id + " --at soon": "--at", "why --at 2027-03-28": "usage", "ls --state odd": "--state",
	} {
		belfryRun(t, strings.Fields(line)...).oneLine(t, exitUsage, want)
	}
}

// TestSchedulesWithoutServer: the commands say that no server can be reached.
func TestSchedulesWithoutServer(t *testing.T) {
	t.Parallel()
	id := schemas.NewTimerID("/s", "1").String()
	for _, line := range []string{"pause " + id, "resume --group g", "trigger " + id, "runs " + id, "why " + id + " --at 2027-03-28", "preview " + id, "update --id x --every 1h"} {
		belfryRun(t, append(strings.Fields(line), "--nats-url", "nats://127.0.0.1:1", "--timeout", (5*time.Second).String())...).oneLine(t, exitUnreachable)
	}
}
