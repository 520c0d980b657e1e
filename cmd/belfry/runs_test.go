package main

import (
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// TestHistoryLine: the name that a caller states is marked as not verified; an operation of
// Belfry itself is not, and no caller can state such a name.
func TestHistoryLine(t *testing.T) {
	t.Parallel()
	at := schemas.TimeOf(0)
	for by, want := range map[string]string{
		"":                                     "cancel at 1970-01-01T00:00:00.000Z",
		"ann":                                  "cancel at 1970-01-01T00:00:00.000Z, by ann (name not verified)",
		schemas.ByBelfry + "replaced by run 2": "cancel at 1970-01-01T00:00:00.000Z, by belfry: replaced by run 2",
	} {
		if got := (&cli{}).historyLine(schemas.OperationInfo{Op: "cancel", At: at, By: by}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if err := schemas.CheckBy("belfry:x"); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("a caller named belfry:x: %v", err)
	}
	if err := schemas.CheckBy("belfry"); err != nil {
		t.Error(err)
	}
}

// TestRunNote: the note says what is known of a run without a record.
func TestRunNote(t *testing.T) {
	t.Parallel()
	own := schemas.NewTimerID("/s", "1")
	for want, r := range map[string]belfry.ScheduleRun{
		"no callback":            {State: schemas.StateSuccess},
		"its record has expired": {Fired: time.Now()},
		"manual; no callback":    {State: schemas.StateSuccess, Trigger: "manual"},
		"":                       {State: schemas.StateSuccess, Timer: own},
	} {
		if got := runNote(r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := runNote(belfry.ScheduleRun{Missed: 2}); !strings.Contains(got, "also for 2 missed") {
		t.Errorf("got %q", got)
	}
}
