package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
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

// TestPlansWhatFollowedAnOlderCopy: a router adds a schedule by a copy of the calendars that is
// older than the owner's, after the owner has planned the shard by its own. The owner plans the
// schedule again.
func TestPlansWhatFollowedAnOlderCopy(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits until changes are in force")
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: 1e9, WheelSize: 1000}}
	setup := open(t, srv.Connect(), "setup", cfg)
	// next is the first run without an excluded date.
	next := recurring(t, "next", 0, func(r *schemas.Record) {
		r.Schedule.Every, r.Schedule.Cron, r.Schedule.Zone = "", "30 12 * * *", "UTC"
	}).Record.Schedule.NextMs
	rev, before := putCalendar(t, setup, 0, schemas.FormatTime(next)[:len("2027-01-01")])
	rev, _ = putCalendar(t, setup, rev, "2031-01-01")
	start(t, srv, "n1", cfg, nil)
	waittest.Until(t, "the owner has planned the shard by the newer calendars", func() bool {
		c, _, err := setup.ReadClock(t.Context(), 0)
		return err == nil && c.Basis == basisOf(rev)
	})
	w := timer("s", 0)
	w.Record.Schedule = &schemas.Schedule{Recurrence: schemas.Recurrence{Cron: "30 12 * * *", Zone: "UTC", Exclude: []string{"c"}, Misfire: schemas.MisfireAll}}
	planBy(t, w, before)
	if w.Record.Schedule.NextMs <= next {
		t.Fatalf("the older copy plans %s, want a run after the excluded one", schemas.FormatTime(w.Record.Schedule.NextMs))
	}
	create(t, setup, w)
	untilNext(t, setup, w.ID, next)
}

// TestPlansOfNewerFormat: a calendar changes while the owner cannot read the record of a schedule
// that excludes it. The owner keeps the old basis in the clock, and asks for a node that reads
// the record although it is not due. That node plans the schedule.
func TestPlansOfNewerFormat(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits until changes are in force")
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: 1e9, WheelSize: 1000}}
	setup := open(t, srv.Connect(), "setup", cfg)
	daily := func(exclude ...string) func(*schemas.Record) {
		return func(r *schemas.Record) {
			r.Schedule.Recurrence = schemas.Recurrence{Cron: "30 12 * * *", Zone: "UTC", Exclude: exclude, Misfire: schemas.MisfireAll}
		}
	}
	next := recurring(t, "next", 0, daily()).Record.Schedule.NextMs
	rev, before := putCalendar(t, setup, 0, schemas.FormatTime(next)[:len("2027-01-01")])
	w := timer("s", 0)
	w.Record.Schedule = &schemas.Schedule{}
	daily("c")(w.Record)
	planBy(t, w, before)
	if w.Record.Schedule.NextMs <= next {
		t.Fatalf("planned for %s, want a run after the excluded one", schemas.FormatTime(w.Record.Schedule.NextMs))
	}
	create(t, setup, w)
	overwriteNewer(t, setup, w)
	c, clockRev, err := setup.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if c.Tail, err = setup.LastSeq(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	c.Seen, c.Basis = c.Tail, basisOf(rev)
	if _, err := setup.WriteClock(t.Context(), 0, c, clockRev); err != nil {
		t.Fatal(err)
	}
	rev, _ = putCalendar(t, setup, rev, "2031-01-01")
	start(t, srv, "old", store.Config{}, nil)
	waittest.Until(t, "the owner to ask for a node that reads the record", func() bool {
		c, _, err := setup.ReadClock(t.Context(), 0)
		if err == nil && c.Basis == basisOf(rev) {
			t.Fatal("the owner states that all schedules are planned by the new calendar")
		}
		return err == nil && c.Needs == store.LevelTest
	})
	reader := start(t, srv, "next", store.Config{Level: store.LevelTest}, nil)
	untilNext(t, reader.store, w.ID, next)
	waittest.Until(t, "the clock to state the new basis", func() bool {
		c, _, err := setup.ReadClock(t.Context(), 0)
		return err == nil && c.Basis == basisOf(rev) && c.Owner == "next"
	})
}

// putCalendar stores the calendar c with one date over a revision. It returns the revision and a
// copy of the calendars.
func putCalendar(t *testing.T, s *store.Store, rev uint64, date string) (uint64, *store.CalendarSet) {
	t.Helper()
	rev, err := s.PutCalendar(t.Context(), store.Calendar{Name: "c", Dates: []string{date}}, rev)
	if err != nil {
		t.Fatal(err)
	}
	set, err := s.RefreshCalendars(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rev, set
}

// planBy plans the first run of a schedule by a copy of the calendars.
func planBy(t *testing.T, w store.Write, cals *store.CalendarSet) {
	t.Helper()
	w.Record.Schedule.AnchorMs = w.Record.AddedMs
	plan, err := recurrence.Compile(w.ID, &w.Record.Schedule.Recurrence, w.Record.AddedMs, cals)
	if err == nil {
		err = plan.Begin(w.Record)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// basisOf returns the basis of this build's zone data and a revision of the calendars.
func basisOf(rev uint64) string {
	return fmt.Sprintf("zones=%s;calendars=%d", calendar.ZoneDataVersion, rev)
}
