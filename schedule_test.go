package belfry_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestScheduleOperations operates schedules and timers that a node fires meanwhile.
func TestScheduleOperations(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for runs of schedules")
	c := connect(t)
	ctx := t.Context()

	// A paused timer does not fire when it is due, and fires at once after the resume.
	one, err := c.Add(ctx, newEvent("one"), belfry.After(time.Hour), belfry.WithGroup("g"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := c.Pause(ctx, one.Timer, "not yet", belfry.By("ann")); err != nil || p.State != belfry.StatePaused || p.PauseNote != "not yet" || p.History[0].By != "ann" {
		t.Fatalf("got %+v, %v", p, err)
	}
	if p, err := c.Reschedule(ctx, one.Timer, belfry.After(0)); err != nil || p.State != belfry.StatePaused {
		t.Fatalf("got %+v, %v", p, err)
	}

	// A schedule of every second fires, and not while it is paused.
	many, err := c.Add(ctx, newEvent("many"), belfry.Every("1s"), belfry.WithGroup("g"))
	if err != nil {
		t.Fatal(err)
	}
	fired := func(n uint32) func() bool {
		return func() bool {
			s, err := c.Get(ctx, many.Timer)
			if err != nil {
				t.Fatal(err)
			}
			return s.Schedule.Fired >= n
		}
	}
	waittest.Until(t, "two runs fire", fired(2))
	paused, err := c.Pause(ctx, many.Timer, "")
	if err != nil {
		t.Fatal(err)
	}
	// The run that was asked for fires after at least one nominal time of the pause has passed.
	if !time.Now().After(paused.Schedule.Next) {
		waittest.Until(t, "a nominal time of the pause passes", func() bool { return time.Now().After(paused.Schedule.Next) })
	}
	if _, err := c.Trigger(ctx, many.Timer, belfry.AllowOverlap()); err != nil {
		t.Fatal(err)
	}
	var now belfry.Timer
	waittest.Until(t, "the run that was asked for fires", func() bool {
		if now, err = c.Get(ctx, many.Timer); err != nil {
			t.Fatal(err)
		}
		return now.Schedule.Last.Trigger == "manual"
	})
	if now.State != belfry.StatePaused || now.Schedule.Fired != paused.Schedule.Fired || now.Run != paused.Run+1 {
		t.Errorf("paused with %d runs, and now %+v of %+v", paused.Schedule.Fired, now.Schedule, now)
	}
	if got, err := c.Get(ctx, one.Timer); err != nil || got.State != belfry.StatePaused || !got.Fired.IsZero() {
		t.Errorf("the paused timer: %+v, %v", got, err)
	}
	if n, err := c.ResumeGroup(ctx, "g", belfry.CatchUpOne); err != nil || n != 2 {
		t.Fatalf("%d were resumed, %v", n, err)
	}
	waittest.Until(t, "the timer fires after the resume", func() bool {
		got, err := c.Get(ctx, one.Timer)
		return err == nil && got.State == belfry.StateSuccess
	})
	waittest.Until(t, "the schedule fires after the resume", fired(paused.Schedule.Fired+2))

	// What fired can be listed and explained.
	runs := uint32(0)
	for r, err := range c.Runs(ctx, many.Timer) {
		if err != nil || r.Scheduled.IsZero() || !strings.HasPrefix(r.ID, many.Timer.String()+".") {
			t.Fatalf("got %+v, %v", r, err)
		}
		runs = max(runs, r.Run)
	}
	decisions, err := c.Decisions(ctx, many.Timer)
	if err != nil || runs < 4 || len(decisions) < 3 {
		t.Errorf("%d runs, decisions %+v, %v", runs, decisions, err)
	}
	if w, err := c.Why(ctx, many.Timer, paused.Schedule.Last.Scheduled.Format(time.RFC3339Nano)); err != nil || len(w.Answers) != 1 || w.Answers[0].Fate != "fired" || w.Answers[0].Run != paused.Schedule.Last.Run {
		t.Errorf("why: %+v, %v", w, err)
	}

	// An update at a known revision.
	if _, err := c.Update(ctx, newEvent("many"), []belfry.AddOption{belfry.Cron("0 3 * * *")}, belfry.IfRevision(1)); !errors.Is(err, belfry.ErrConflict) {
		t.Errorf("an update of another revision: %v", err)
	}
	u, err := c.Update(ctx, newEvent("many"), []belfry.AddOption{belfry.Cron("0 3 * * *")})
	if err != nil || len(u.After) != 5 || u.After[0].Hour() != 3 || u.Timer.Run <= runs-1 {
		t.Fatalf("got %+v, %v", u, err)
	}
	if p, err := c.Preview(ctx, many.Timer, time.Time{}, 5); err != nil || len(p.Runs) != 5 || !p.Runs[0].At.Equal(u.After[0]) {
		t.Errorf("got %+v, %v", p, err)
	}

	// A backfill of the day before.
	to := time.Now().Add(-time.Hour)
	period := belfry.BackfillPeriod{From: to.Add(-48 * time.Hour), To: to, DryRun: true}
	dry, err := c.Backfill(ctx, many.Timer, period)
	if err != nil || dry.Count != 2 || len(dry.Times) != 2 {
		t.Fatalf("got %+v, %v", dry, err)
	}
	period.DryRun = false
	if b, err := c.Backfill(ctx, many.Timer, period); err != nil || b.Count != 2 {
		t.Fatalf("got %+v, %v", b, err)
	}
	waittest.Until(t, "the backfill is done", func() bool {
		got, err := c.Get(ctx, many.Timer)
		return err == nil && got.Schedule.Backfill == nil && got.Schedule.Last.Trigger == "backfill" && got.Schedule.Last.Scheduled.Equal(dry.Times[1])
	})
	if done, err := c.Cancel(ctx, many.Timer); err != nil || done.State != belfry.StateCancelled {
		t.Errorf("got %+v, %v", done, err)
	}
	if _, err := c.Trigger(ctx, many.Timer); !errors.Is(err, belfry.ErrAlreadyDone) {
		t.Errorf("a run of a cancelled schedule: %v", err)
	}
}

// TestPreviewEventOfTypes: a preview of an event takes attributes of every type, as an add does.
func TestPreviewEventOfTypes(t *testing.T) {
	t.Parallel()
	c := connect(t)
	e := newEvent("typed")
	e.SetExtension("timerlimit", 3)
	p, err := c.PreviewEvent(t.Context(), e, []belfry.AddOption{belfry.Every("PT1H")}, time.Time{}, 10)
	if err != nil || len(p.Runs) != 3 {
		t.Errorf("%d runs, want the 3 of timerlimit: %v", len(p.Runs), err)
	}
}
