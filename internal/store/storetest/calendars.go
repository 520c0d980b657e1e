package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

// holidays is the calendar of most tests.
const holidays = "holidays"

// putDates puts calendar holidays.
func putDates(t testing.TB, s Store, rev uint64, dates ...string) uint64 {
	t.Helper()
	return must[uint64](t)(s.PutCalendar(t.Context(), store.Calendar{Name: holidays, Dates: dates, By: "alice", AtMs: 5}, rev))
}

func copyOfCalendars(t testing.TB, s Store) *store.CalendarSet {
	t.Helper()
	return must[*store.CalendarSet](t)(s.RefreshCalendars(t.Context()))
}

// calendars: a calendar is made, changed, deleted and made again, each by compare-and-set. A
// copy does not change afterwards.
func calendars(t *testing.T, s Store) {
	testsize.NotShort(t, "it waits until changes are in force")
	none := copyOfCalendars(t, s)
	if got := none.Names(); len(got) > 0 {
		t.Fatalf("an empty store has the calendars %q", got)
	}
	if _, err := none.Exclusions([]string{holidays}); schemas.CodeOf(err) != schemas.CodeInvalidAttribute {
		t.Fatalf("a calendar that does not exist: %v", err)
	}
	conflict := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, store.ErrRevision) {
			t.Fatalf("%s: %v; want ErrRevision", what, err)
		}
	}
	put := func(rev uint64) error {
		_, err := s.PutCalendar(t.Context(), store.Calendar{Name: holidays, Dates: []string{"2027-01-01"}}, rev)
		return err
	}
	conflict("a put of a revision that does not exist", put(3))
	first := putDates(t, s, 0, "2027-12-26", "2027-12-25", "*-01-01", "2027-12-25")
	conflict("a put that must make the calendar", put(0))
	conflict("a put of another revision", put(first+1))
	one := copyOfCalendars(t, s)
	got, ok := one.Get(holidays)
	if want := []string{"*-01-01", "2027-12-25", "2027-12-26"}; !ok || got.Rev != first || !slices.Equal(got.Dates, want) || got.By != "alice" || got.AtMs != 5 || got.Name != holidays {
		t.Fatalf("the calendar is %+v, %v; want revision %d with %q", got, ok, first, want)
	}
	x := must[*calendar.Exclusions](t)(one.Exclusions([]string{holidays}))
	if again := must[*calendar.Exclusions](t)(one.Exclusions([]string{holidays})); again != x {
		t.Error("two schedules with the same calendars do not share them")
	}
	if x.Revision != first || x.SinceMs == 0 {
		t.Errorf("revision %d since %d; want revision %d, and the time at which it was stored", x.Revision, x.SinceMs, first)
	}
	second := putDates(t, s, first, "2028-01-01")
	if second <= first {
		t.Fatalf("revision %d after %d", second, first)
	}
	conflict("a put of the first revision", put(first))
	if got, _ := one.Get(holidays); len(got.Dates) != 3 {
		t.Fatalf("an older copy has changed to %+v", got)
	}
	two := copyOfCalendars(t, s)
	if y := must[*calendar.Exclusions](t)(two.Exclusions([]string{holidays})); y.Revision != second || y.SinceMs < x.SinceMs {
		t.Errorf("revision %d since %d, after revision %d since %d; want revision %d", y.Revision, y.SinceMs, first, x.SinceMs, second)
	}
	if got, _ := two.Get(holidays); got.Rev != second || !slices.Equal(got.Dates, []string{"2028-01-01"}) {
		t.Fatalf("the calendar is %+v", got)
	}
	remove := func(rev uint64) error {
		_, err := s.DeleteCalendar(t.Context(), store.Calendar{Name: holidays}, rev)
		return err
	}
	conflict("a deletion of the first revision", remove(first))
	if err := remove(second); err != nil {
		t.Fatal(err)
	}
	conflict("a deletion of a deleted calendar", remove(second))
	gone := copyOfCalendars(t, s)
	if _, ok := gone.Get(holidays); ok || len(gone.Names()) > 0 {
		t.Fatalf("the deleted calendar is there: %q", gone.Names())
	}
	if _, err := gone.Exclusions([]string{holidays}); schemas.CodeOf(err) != schemas.CodeInvalidAttribute {
		t.Fatalf("a deleted calendar: %v", err)
	}
	if third := putDates(t, s, 0, "2029-01-01"); third <= second {
		t.Fatalf("revision %d after %d", third, second)
	}
}

// calendarRace: of several writers that replace one revision, one succeeds.
func calendarRace(t *testing.T, s Store) {
	rev := putDates(t, s, 0, "2027-01-01")
	var won atomic.Int64
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			_, err := s.PutCalendar(t.Context(), store.Calendar{Name: holidays, Dates: []string{"2027-01-02"}, By: fmt.Sprint(n)}, rev)
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, store.ErrRevision):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Fatalf("%d writers succeeded", won.Load())
	}
}

// calendarLimits: names, dates and their numbers are checked before anything is written.
func calendarLimits(t *testing.T, s Store) {
	testsize.NotShort(t, "it waits until changes are in force")
	var many []string
	for d := range 4001 {
		many = append(many, time.Unix(0, 0).UTC().AddDate(0, 0, d).Format(time.DateOnly))
	}
	for what, c := range map[string]store.Calendar{
		"no name":        {Dates: []string{"2027-01-01"}},
		"a name":         {Name: "a.b", Dates: []string{"2027-01-01"}},
		"a long name":    {Name: strings.Repeat("x", schemas.MaxServiceLength+1), Dates: []string{"2027-01-01"}},
		"a date":         {Name: holidays, Dates: []string{"2027-02-29"}},
		"too many dates": {Name: holidays, Dates: many},
	} {
		if _, err := s.PutCalendar(t.Context(), c, 0); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%s: %v; want bad_request", what, err)
		}
	}
	if got := copyOfCalendars(t, s).Names(); len(got) > 0 {
		t.Fatalf("%q was stored", got)
	}
	putDates(t, s, 0, many[:4000]...)
	var wg sync.WaitGroup
	for n := range store.MaxStoredCalendars - 1 {
		wg.Go(func() {
			if _, err := s.PutCalendar(t.Context(), store.Calendar{Name: fmt.Sprint("c", n), Dates: []string{"2027-01-01"}}, 0); err != nil {
				t.Errorf("calendar %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	set := copyOfCalendars(t, s)
	if got := set.Names(); len(got) != store.MaxStoredCalendars || !slices.IsSorted(got) {
		t.Fatalf("%d calendars", len(got))
	}
	if _, err := s.PutCalendar(t.Context(), store.Calendar{Name: "more", Dates: []string{"2027-01-01"}}, 0); schemas.CodeOf(err) != schemas.CodeBadRequest || !strings.Contains(err.Error(), "200 calendars") {
		t.Errorf("one more calendar: %v", err)
	}
	old, _ := set.Get("c0")
	must[uint64](t)(s.PutCalendar(t.Context(), store.Calendar{Name: "c0", Dates: []string{"2027-01-02"}}, old.Rev))
}

// calendarDamage: a calendar that cannot be read has an error of its own, and hides no other. A
// damaged one can be put again; one of a newer format cannot be changed.
func calendarDamage(t *testing.T, s Store) {
	testsize.NotShort(t, "it waits until changes are in force")
	putDates(t, s, 0, "2027-01-01")
	for name, c := range map[string]struct {
		value string
		err   error
	}{
		"rubbish":  {"rubbish", schemas.ErrDamaged},
		"unsummed": {`{"v":1,"dates":["2027-01-01"],"at":1}`, schemas.ErrDamaged},
		"wrong":    {`{"v":1,"dates":["2027-01-01"],"at":1,"sum":1}`, schemas.ErrDamaged},
		"newer":    {`{"v":2,"rules":[1,2,3],"sum":1}`, schemas.ErrNewer},
	} {
		Overwrite(t, s, "KV_calendars", name, []byte(c.value))
		set := copyOfCalendars(t, s)
		if got, ok := set.Get(name); ok || !errors.Is(set.Err(name), c.err) || !slices.Contains(set.Names(), name) {
			t.Errorf("%s: got %+v, %v, %v; want %v", name, got, ok, set.Err(name), c.err)
		}
		if _, err := set.Exclusions([]string{holidays, name}); !errors.Is(err, c.err) {
			t.Errorf("%s: a schedule that excludes it: %v; want %v", name, err, c.err)
		}
		if _, err := set.Exclusions([]string{holidays}); err != nil || set.Err(holidays) != nil {
			t.Errorf("%s: a schedule that excludes another one: %v", name, err)
		}
		again, _ := set.Get(name)
		_, err := s.PutCalendar(t.Context(), store.Calendar{Name: name, Dates: []string{"2027-01-02"}}, again.Rev)
		set = copyOfCalendars(t, s)
		switch got, ok := set.Get(name); {
		case errors.Is(c.err, schemas.ErrNewer) && (!errors.Is(err, schemas.ErrNewer) || ok):
			t.Errorf("%s: put: %v, and it is %+v", name, err, got)
		case errors.Is(c.err, schemas.ErrDamaged) && (err != nil || !ok || got.Dates[0] != "2027-01-02"):
			t.Errorf("%s: put again: %v, and it is %+v", name, err, got)
		}
	}
}

// calendarInForce: a change is acknowledged only when no copy without it is fresh.
func calendarInForce(t *testing.T, s Store) {
	before := time.Now()
	old := copyOfCalendars(t, s)
	if set, fresh := s.CalendarsNow(); set == nil || !fresh && time.Since(before) < store.CalendarFresh {
		t.Fatal("the copy is not fresh after it was refreshed")
	}
	sent := time.Now()
	rev := putDates(t, s, 0, "2027-01-01")
	if took := time.Since(sent); took < store.CalendarFresh {
		t.Errorf("acknowledged after %s; copies may be used for %s", took, store.CalendarFresh)
	}
	set, _ := s.CalendarsNow()
	if got, ok := set.Get(holidays); !ok || got.Rev != rev || set.Seq < rev || set == old {
		t.Errorf("after the acknowledgement the copy has %+v, %v, sequence %d", got, ok, set.Seq)
	}
}
