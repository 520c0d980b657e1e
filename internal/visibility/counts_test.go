package visibility

import (
	"testing"
	"time"
)

// TestCountsOfAllTime: numbers of ten thousand years are read at once. Their buckets are no multiple of an hour, so minutes are
// added, and there are some 5 billion minutes. The counters at both ends count, and one outside does not.
func TestCountsOfAllTime(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	from, to := time.Date(2, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	s.dict.services = append(s.dict.services, service{"", "a"}, service{"", "b"})
	count := func(at time.Time, number int) {
		t.Helper()
		if _, err := s.conn.ExecContext(t.Context(), "INSERT INTO counters(width, at, service, added, fired, due, success, fail, cancelled, completed) VALUES (1, ?, ?, 1, 0, 0, 0, 0, 0, 0)",
			at.UnixMilli()/minuteMs, number); err != nil {
			t.Fatal(err)
		}
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
