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

// otherZones returns a schedule as a build with another release of the zone data has planned
// it, in which Berlin is an hour behind.
func otherZones(t *testing.T, id, release string) store.Write {
	const hourMs = 3_600_000
	w := recurring(t, id, 0, func(r *schemas.Record) {
		r.Schedule.Every, r.Schedule.Cron, r.Schedule.Zone = "", "30 2 * * *", "Europe/Berlin"
	})
	r, s := w.Record, w.Record.Schedule
	s.Zones = release
	s.NextMs += hourMs
	r.ScheduledMs, r.DueMs, s.NextDueMs = s.NextMs, s.NextMs, s.NextMs
	return w
}

// TestOlderZoneDataMovesNothing: an owner whose zone data is older than that of the plans
// leaves them as they are, and states its own in the clock.
func TestOlderZoneDataMovesNothing(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: 1e9, WheelSize: 1000}}
	setup := open(t, srv.Connect(), "setup", cfg)
	var all []store.Write
	for i := range 3 {
		all = append(all, otherZones(t, fmt.Sprint(i), "2999a"))
	}
	create(t, setup, all...)
	basis(t, setup, "zones=2999a")
	start(t, srv, "n1", cfg, nil)
	untilBasis(t, setup)
	for i, w := range all {
		got, err := setup.Get(t.Context(), w.ID)
		if err != nil {
			t.Fatal(err)
		}
		if s := got.Record.Schedule; s.NextMs != w.Record.Schedule.NextMs || s.Zones != "2999a" {
			t.Errorf("schedule %d moved to %s, planned with %s", i, schemas.FormatTime(s.NextMs), s.Zones)
		}
	}
}

// TestPlansWhatAnOlderRouterAdds: the owner moves the next run of a schedule that a router
// with older zone data adds, or updates, while the owner holds the shard.
func TestPlansWhatAnOlderRouterAdds(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: 1e9, WheelSize: 1000}}
	setup := open(t, srv.Connect(), "setup", cfg)
	start(t, srv, "n1", cfg, nil)
	untilBasis(t, setup)
	const hourMs = 3_600_000
	w := otherZones(t, "1", "2000a")
	want := w.Record.Schedule.NextMs - hourMs
	create(t, setup, w)
	s := untilNext(t, setup, w.ID, want)
	if s.Zones != calendar.ZoneDataVersion {
		t.Errorf("planned with %q", s.Zones)
	}
}

// untilNext waits until the next run of a schedule has moved to a time, and returns the schedule.
func untilNext(t *testing.T, st *store.Store, id schemas.TimerID, nextMs int64) (s *schemas.Schedule) {
	t.Helper()
	waittest.Until(t, "the next run has moved", func() bool {
		got, err := st.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		s = got.Record.Schedule
		return s.NextMs == nextMs
	}, func() string { return schemas.FormatTime(s.NextMs) + ", want " + schemas.FormatTime(nextMs) })
	return s
}

// basis writes what the plans of shard 0 are based on into its clock.
func basis(t *testing.T, s *store.Store, basis string) {
	t.Helper()
	c, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Basis = basis
	if _, err := s.WriteClock(t.Context(), 0, c, rev); err != nil {
		t.Fatal(err)
	}
}

// untilBasis waits until the owner of shard 0 states that the plans have the zone data of this
// build.
func untilBasis(t *testing.T, s *store.Store) {
	t.Helper()
	waittest.Until(t, "the plans have the zone data of this build", func() bool {
		c, _, err := s.ReadClock(t.Context(), 0)
		return err == nil && c.Basis == "zones="+calendar.ZoneDataVersion
	})
}
