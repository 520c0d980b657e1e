package visibility

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// fillCounters writes a counter with one added timer for each of a number of minutes from one on, and each of the services with the
// numbers first to last.
func fillCounters(t *testing.T, s *sqlStore, from int64, minutes, first, last int) {
	t.Helper()
	if _, err := s.conn.ExecContext(t.Context(), "WITH RECURSIVE m(at) AS (SELECT ?1 UNION ALL SELECT at + 1 FROM m WHERE at < ?2), s(n) AS (SELECT ?3 UNION ALL SELECT n + 1 FROM s WHERE n < ?4) "+
		"INSERT INTO counters(width, at, service, added, fired, due, success, fail, cancelled, completed) SELECT 1, at, n, 1, 0, 0, 0, 0, 0, 0 FROM m, s", from, from+int64(minutes)-1, first, last); err != nil {
		t.Fatal(err)
	}
}

// TestServiceBuckets: an answer by service has a bounded number of buckets.
func TestServiceBuckets(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	const services, minutes, most = 20, 24 * 60, 5000
	s.serviceBuckets = most
	fillCounters(t, s, base/minuteMs, minutes, 1, services)
	for i := range services {
		s.dict.services = append(s.dict.services, service{"", fmt.Sprint("s", i)})
	}
	from := time.UnixMilli(base)
	for _, c := range []struct {
		name    string
		q       CountsQuery
		buckets int // 0 for an error
	}{
		{"a day of minutes of all services", CountsQuery{ByService: true, From: from, To: from.Add(24 * time.Hour)}, 0},
		{"one bucket more than there may be", CountsQuery{ByService: true, From: from, To: from.Add((most/services + 1) * time.Minute)}, 0},
		{"as many as there may be", CountsQuery{ByService: true, From: from, To: from.Add(most / services * time.Minute)}, most},
		{"one service", CountsQuery{ByService: true, Service: "s7", From: from, To: from.Add(24 * time.Hour)}, minutes},
		{"wider buckets", CountsQuery{ByService: true, Bucket: 6 * time.Minute, From: from, To: from.Add(24 * time.Hour)}, services * minutes / 6},
	} {
		counts, err := s.Counts(t.Context(), c.q)
		if len(counts.Buckets) != c.buckets || (schemas.CodeOf(err) == schemas.CodeBadRequest) != (c.buckets == 0) {
			t.Errorf("%s: got %d buckets and error %v, want %d", c.name, len(counts.Buckets), err, c.buckets)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := 0
	err := s.reads(ctx, func(tx *reading) error {
		return tx.each("SELECT at FROM counters", nil, func(func(...any) error) error {
			read++
			cancel()
			return nil
		})
	})
	if !errors.Is(err, schemas.ErrUnavailable) || read >= rowsBetweenChecks {
		t.Errorf("a cancelled read of %d rows: error %v", read, err)
	}
}

// TestCounterColumns: counters has a column for every final state, in their order.
func TestCounterColumns(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	var got []string
	err := eachRow(t.Context(), s.read, "SELECT name FROM pragma_table_info('counters')", func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		got = append(got, name)
		return err
	})
	want := []string{"width", "at", "service", "added", "fired", "due"}
	for _, state := range finalStates {
		want = append(want, state.String())
	}
	if err != nil || !slices.Equal(got, want) || len(want) != 3+columns {
		t.Errorf("got columns %v and error %v, want %v", got, err, want)
	}
	for _, state := range slices.Concat(openStates, finalStates) {
		if state >= maxStates {
			t.Errorf("state %s has number %d, want less than %d", state, state, maxStates)
		}
	}
}

// TestCountsOfAllTime: numbers of ten thousand years are read at once. Their buckets are no multiple of an hour, so minutes are
// added, and there are some 5 billion minutes. The counters at both ends count, and one outside does not.
func TestCountsOfAllTime(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	from, to := time.Date(2, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	s.dict.services = append(s.dict.services, service{"", "a"}, service{"", "b"})
	count := func(at time.Time, number int) {
		t.Helper()
		fillCounters(t, s, at.UnixMilli()/minuteMs, 1, number, number)
	}
	const a, b = 1, 2
	for i := range 100 {
		count(time.UnixMilli(base).Add(time.Duration(i)*time.Minute), a)
	}
	count(time.UnixMilli(base).Add(time.Hour), b)
	count(time.Date(9998, 12, 31, 0, 0, 0, 0, time.UTC), a)
	count(time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC), a)
	const bucket = 5_000_001 * time.Minute
	for _, c := range []struct {
		service string
		want    int64
	}{{"a", 101}, {"b", 1}, {"c", 0}} {
		counts, err := s.Counts(t.Context(), CountsQuery{Service: c.service, From: from, To: to, Bucket: bucket})
		if err != nil {
			t.Fatal(err)
		}
		var got int64
		for _, b := range counts.Buckets {
			got += b.Added
		}
		if got != c.want {
			t.Errorf("service %s: %d timers added, want %d", c.service, got, c.want)
		}
	}
}

// TestCountsEndWithTheirContext: a read of the numbers of a service ends with its context, also in periods in which only others
// have numbers.
func TestCountsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	const minutes = 3 * rowsBetweenChecks
	s.dict.services = append(s.dict.services, service{"", "a"}, service{"", "b"})
	fillCounters(t, s, base/minuteMs, minutes, 1, 1)
	for number := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		rows := 0
		err := s.reads(ctx, func(tx *reading) error {
			return tx.each(oneCounter, []any{1, base / minuteMs, base/minuteMs + minutes, number + 1}, func(func(...any) error) error {
				rows++
				cancel()
				return nil
			})
		})
		cancel()
		if !errors.Is(err, schemas.ErrUnavailable) || rows == 0 || rows >= rowsBetweenChecks {
			t.Errorf("service %d: %d rows of a cancelled read, error %v", number+1, rows, err)
		}
	}
	from := time.UnixMilli(base)
	if counts, err := s.Counts(t.Context(), CountsQuery{Service: "b", From: from, To: from.Add(minutes * time.Minute), Bucket: 1001 * time.Minute}); err != nil || len(counts.Buckets) != 0 {
		t.Errorf("a service without numbers: %d buckets, error %v", len(counts.Buckets), err)
	}
}

// TestCountsOfAnIDUsedAgain: a timer that ended stays counted when a later one has its id. A change of the same timer moves its
// counts.
func TestCountsOfAnIDUsedAgain(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	const day = 24 * time.Hour
	at := func(days int) int64 { return base + int64(days)*day.Milliseconds() }
	revision := uint64(0)
	change := func(added int64, state schemas.State, done int64) Change {
		revision++
		rec := schemas.Record{
			Definition: schemas.Definition{AddedMs: added, Service: "orders", Source: "/a", EventID: "daily", Type: "x"},
			RunState:   schemas.RunState{State: state, Run: 1, DueMs: added + 1000, DoneMs: done},
		}
		return Change{ID: schemas.NewTimerID("/a", "daily"), Revision: revision, StoredMs: max(added, done), Record: rec}
	}
	for days := range 3 {
		write(t, s, change(at(days), schemas.StatePending, 0))
		write(t, s, change(at(days), schemas.StateSuccess, at(days)+2000))
	}
	write(t, s, change(at(3), schemas.StatePending, 0))
	counts, err := s.Counts(t.Context(), CountsQuery{From: time.UnixMilli(base), To: time.UnixMilli(at(4)), Bucket: day})
	if err != nil {
		t.Fatal(err)
	}
	var added, done, due int64
	for _, b := range counts.Buckets {
		added, done, due = added+b.Added, done+b.Done[schemas.StateSuccess], due+b.Due
	}
	if added != 4 || done != 3 || due != 1 {
		t.Errorf("%d added, %d succeeded, %d due; want 4, 3, 1: %+v", added, done, due, counts.Buckets)
	}
	if len(counts.Totals) != 1 || counts.Totals[0].Entries != 1 {
		t.Errorf("totals %+v, want one entry", counts.Totals)
	}
}
