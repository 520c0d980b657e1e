package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// TestCalendarCommands: a calendar is stored, a schedule excludes it, why names it, and it
// cannot be deleted while the schedule exists.
func TestCalendarCommands(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	file := filepath.Join(t.TempDir(), "dates")
	if err := os.WriteFile(file, []byte("# public holidays\n2031-12-24 # Wednesday\n\n*-12-25\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := n.client(t, "calendar", "put", "holidays", "--file", file, "--date", "2031-01-01,2031-01-06"); r.code != exitOK || !strings.Contains(r.out, "dates            4\n") {
		t.Fatalf("put: got %v, want 4 dates", r)
	}
	n.client(t, "calendar", "put", "holidays", "--date", "2031-01-01", "--revision", "999999").oneLine(t, exitRefused, "revision")
	if r := n.client(t, "calendar", "ls"); r.code != exitOK || !strings.Contains(r.out, "holidays  4 dates") {
		t.Errorf("ls: got %v, want holidays with 4 dates", r)
	}
	if r := n.client(t, "calendar", "get", "holidays"); r.code != exitOK || !strings.Contains(r.out, "2031-12-24") || !strings.Contains(r.out, "*-12-25") {
		t.Errorf("get: got %v, want the dates", r)
	}
	n.client(t, "add", "--cron", "0 9 * * *", "--exclude", "missing", "--id", "m", "--source", "/r").oneLine(t, exitRefused, "missing")
	id := schemas.NewTimerID("/r", "mornings").String()
	if r := n.client(t, "add", "--cron", "0 9 * * *", "--exclude", "holidays", "--id", "mornings", "--source", "/r"); r.code != exitOK {
		t.Fatalf("add: got %v", r)
	}
	if r := n.client(t, "why", id, "--at", "2031-12-25"); r.code != exitOK || !strings.Contains(r.out, "holidays") {
		t.Errorf("why: got %v, want the calendar", r)
	}
	if r := n.client(t, "calendar", "put", "holidays", "--date", "2031-01-01", "--dry-run"); r.code != exitOK || !strings.Contains(r.out, "schedules        1\n") {
		t.Errorf("dry run: got %v, want 1 schedule", r)
	}
	n.client(t, "calendar", "rm", "holidays").oneLine(t, exitRefused, "mornings")
	if r := n.client(t, "cancel", id); r.code != exitOK {
		t.Fatalf("cancel: got %v", r)
	}
	if r := n.client(t, "calendar", "rm", "holidays"); r.code != exitOK {
		t.Errorf("rm: got %v", r)
	}
	n.client(t, "calendar", "get", "holidays").oneLine(t, exitNotFound, "holidays")
	n.stop(t)
}

// TestCalendarUsage: wrong arguments end with exit code 2, before any request.
func TestCalendarUsage(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"calendar put x": "--date", "calendar put": "usage", "calendar put x --date 2031-13-01": "2031-13-01", "calendar put x --file /nowhere": "--file",
		"calendar put a/b --date 2031-01-01": "a/b", "calendar get": "usage", "calendar rm": "usage", "calendar ls x": "usage",
		"calendar wrong":          "wrong",
		"add --in 1h --exclude x": "--exclude belongs to a schedule",
	} {
		belfryRun(t, strings.Fields(line)...).oneLine(t, exitUsage, want)
	}
}
