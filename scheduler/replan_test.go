package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestPlansAgain: an owner moves the next runs of schedules that were planned with other zone
// data, of more schedules than it keeps in memory, and of a paused one. It states in the clock
// what the plans are based on.
func TestPlansAgain(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: 1e9, WheelSize: 1000}}
	setup := open(t, srv.Connect(), "setup", cfg)
	const hourMs = 3_600_000
	var all []store.Write
	for i := range 300 {
		w := recurring(t, fmt.Sprint(i), 0, func(r *schemas.Record) {
			r.Schedule.Every, r.Schedule.Cron, r.Schedule.Zone = "", "30 2 * * *", "Europe/Berlin"
		})
		// As if the zone had another offset.
		rec := w.Record
		rec.Schedule.Zones = "2024a"
		rec.Schedule.NextMs += hourMs
		rec.ScheduledMs, rec.DueMs, rec.Schedule.NextDueMs = rec.Schedule.NextMs, rec.Schedule.NextMs, rec.Schedule.NextMs
		if i == 7 {
			rec.State, rec.Queued = schemas.StatePaused, false
		}
		all = append(all, w)
	}
	create(t, setup, all...)
	c, rev, err := setup.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Basis = "zones=2024a"
	if _, err := setup.WriteClock(t.Context(), 0, c, rev); err != nil {
		t.Fatal(err)
	}
	start(t, srv, "n1", cfg, nil)
	waittest.Until(t, "the plans are based on the zone data of this build", func() bool {
		c, _, err := setup.ReadClock(t.Context(), 0)
		return err == nil && c.Basis == "zones="+calendar.ZoneDataVersion
	})
	for i, w := range all {
		got, err := setup.Get(t.Context(), w.ID)
		if err != nil {
			t.Fatal(err)
		}
		want := w.Record.Schedule.NextMs - hourMs
		if s := got.Record.Schedule; s.NextMs != want || s.NextDueMs != want || got.Record.ScheduledMs != want {
			t.Fatalf("schedule %d is planned for %s; want %s", i, schemas.FormatTime(s.NextMs), schemas.FormatTime(want))
		}
		if i == 7 && (got.Record.State != schemas.StatePaused || got.Record.Queued) {
			t.Errorf("the paused schedule is %s", got.Record.State)
		}
	}
}
