package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// TestCancelMany: reschedule moves what a filter selects, but no schedules. cancel takes several IDs, and a timer that has ended does not stop the others. With a filter it
// cancels what the filter selects and nothing else; a dry run cancels nothing.
func TestCancelMany(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	for i := range 3 {
		ok[added](t, n, "add", "--in", "1h", "--id", fmt.Sprint("o", i), "--svc", "orders", "--group", fmt.Sprint("g", i%2))
	}
	ok[added](t, n, "add", "--every", "1h", "--id", "s", "--svc", "orders", "--group", "g0")
	ok[added](t, n, "add", "--in", "1h", "--id", "other", "--svc", "others", "--group", "g0")
	ids := func(timers []schemas.TimerInfo) string {
		var all []string
		for _, info := range timers {
			all = append(all, info.ID+" "+info.State.String())
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	filter := []string{"cancel", "--svc", "orders", "--group", "g0"}
	if got := ids(ok[schemas.TimerInfo](t, n, append(filter, "--dry-run")...)); got != "o0 pending, o2 pending, s pending" {
		t.Errorf("dry run: %s", got)
	}
	if got := ids(ok[schemas.TimerInfo](t, n, append(filter, "--schedule", "--dry-run")...)); got != "s pending" {
		t.Errorf("dry run of schedules: %s", got)
	}
	move := []string{"reschedule", "--svc", "orders", "--group", "g0", "--at", "2031-01-01T00:00:00Z"}
	if got := ids(ok[schemas.TimerInfo](t, n, append(move, "--dry-run")...)); got != "o0 pending, o2 pending" {
		t.Errorf("dry run of reschedule: %s", got)
	}
	r := n.client(t, append(move, "-o", "json")...)
	moved := parseLines[schemas.TimerInfo](t, r.out)
	if got := ids(moved); r.code != exitOK || got != "o0 pending, o2 pending" || r.err != "rescheduled 2\n" || moved[0].Due.Year() != 2031 {
		t.Errorf("reschedule by filter: %v: %s", r, got)
	}
	r = n.client(t, append(filter, "-o", "json")...)
	if got := ids(parseLines[schemas.TimerInfo](t, r.out)); r.code != exitOK || got != "o0 cancelled, o2 cancelled, s cancelled" || r.err != "cancelled 3\n" {
		t.Errorf("cancel by filter: %v: %s", r, got)
	}
	if r := n.client(t, filter...); r.code != exitOK || r.out != "" || r.err != "the list is empty\n" {
		t.Errorf("nothing left: %v", r)
	}
	r = n.client(t, "cancel", "o1", "missing", "other")
	if r.code != exitNotFound || strings.Count(r.out, "cancelled") != 2 || !strings.Contains(r.err, "1 of 3 were not cancelled: missing: ") {
		t.Errorf("several IDs: %v", r)
	}
	if got := ids(ok[schemas.TimerInfo](t, n, "ls", "--state", "pending")); got != "" {
		t.Errorf("still pending: %s", got)
	}
	n.stop(t)
}

// TestCancelUsage: a cancel without a clear choice of timers ends before any request.
func TestCancelUsage(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"cancel": "name timers", "cancel a --svc s": "name timers", "cancel --dry-run": "name timers", "cancel a --dry-run": "--dry-run needs --svc or --group",
		"cancel a b --schedule": "--schedule needs", "cancel --svc s --source /s": "--source and --tenant belong to an ID", "cancel --group g --tenant t": "belong to an ID",
	} {
		belfryRun(t, strings.Fields(line)...).oneLine(t, exitUsage, want)
	}
}
