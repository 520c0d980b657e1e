package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
)

func putCalendar(t *testing.T, s *store.Store, rev uint64, date string) uint64 {
	t.Helper()
	rev, err := s.PutCalendar(t.Context(), store.Calendar{Name: "holidays", Dates: []string{date}}, rev)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// TestCalendarsOfTwoNodes: when a change is acknowledged, no other node has an older copy that
// is fresh. Every node reads the change by itself.
func TestCalendarsOfTwoNodes(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	one := open(t, srv.InProcess())
	two := open(t, srv.InProcess(), func(c *store.Config) { c.Node = "n2" })
	waittest.Until(t, "both nodes to know that there is no calendar", func() bool {
		a, _ := one.CalendarsNow()
		b, fresh := two.CalendarsNow()
		return a != nil && b != nil && fresh
	})
	for rev, n := uint64(0), 0; n < 3; n++ {
		date := time.Date(2027, 1, 1+n, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
		rev = putCalendar(t, one, rev, date)
		if set, fresh := two.CalendarsNow(); fresh {
			if got, _ := set.Get("holidays"); got.Rev != rev || got.Dates[0] != date {
				t.Errorf("after revision %d with %s was acknowledged, the other node uses %+v", rev, date, got)
			}
		}
		waittest.Until(t, "the other node to read the change", func() bool {
			set, fresh := two.CalendarsNow()
			return fresh && set.Seq >= rev
		})
	}
}

// TestCalendarsWithoutServer: a node that cannot reach the server has no fresh copy after
// CalendarFresh, and a fresh one again once it can.
func TestCalendarsWithoutServer(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := open(t, srv.Connect())
	rev := putCalendar(t, s, 0, "2027-01-01")
	srv.Stop()
	waittest.Until(t, "the copy to be too old", func() bool {
		set, fresh := s.CalendarsNow()
		if got, ok := set.Get("holidays"); !ok || got.Rev != rev {
			t.Fatalf("the copy is lost: %+v", got)
		}
		return !fresh
	})
	srv.Start()
	waittest.Until(t, "a fresh copy", func() bool {
		_, fresh := s.CalendarsNow()
		return fresh
	})
}

// TestCalendarsAfterRestore: a node notices that the bucket was emptied, as before a restore, and
// does not keep calendars that are gone.
func TestCalendarsAfterRestore(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	s := open(t, nc)
	putCalendar(t, s, 0, "2027-01-01")
	js := natstest.JetStream(t, nc)
	info, err := js.Stream(t.Context(), "KV_calendars")
	if err != nil {
		t.Fatal(err)
	}
	cfg := info.CachedInfo().Config
	if err := js.DeleteStream(t.Context(), cfg.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the calendar to be gone", func() bool {
		set, err := s.RefreshCalendars(context.WithoutCancel(t.Context()))
		if err != nil {
			return false
		}
		_, ok := set.Get("holidays")
		return !ok && set.Seq == 0
	})
	putCalendar(t, s, 0, "2028-01-01")
}
