package visibility

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// benchRowsEnv is the number of entries of BenchmarkSearch, 20,000 by default.
const benchRowsEnv = "BELFRY_VISIBILITY_ROWS"

// benchChange returns the change of one of many timers: nine of ten are done, one of fifty failed.
func benchChange(r *rand.Rand, i int) Change {
	rec := schemas.Record{Definition: schemas.Definition{
		AddedMs: base + int64(i)*10, Service: fmt.Sprintf("svc%d", i%20), Source: fmt.Sprintf("/shop/%d", i%7), EventID: fmt.Sprintf("order-%d", i), Type: []string{"order.due", "cart.due"}[i%2],
		Group: fmt.Sprintf("group-%d", i%5000), Callback: fmt.Sprintf("https://host%d.example/hook", i%10),
	}}
	rec.State, rec.Run, rec.MaxAttempt, rec.DueMs = schemas.StateSuccess, 1, 5, base+r.Int64N(7*24*3_600_000)
	switch {
	case i%10 == 0:
		rec.State = schemas.StatePending
	case i%50 == 1:
		rec.State = schemas.StateFail
	}
	rec.ScheduledMs = rec.DueMs
	if rec.State.Final() {
		rec.FiredMs, rec.DoneMs = rec.DueMs+2, rec.DueMs+40
		out := schemas.Outcome{Code: 200}
		if rec.State == schemas.StateFail {
			out = schemas.Outcome{Code: 503, Error: fmt.Sprintf("HTTP %d from host%d", 500+i%4, i%10)}
		}
		rec.AddAttempt(rec.DueMs+2, 38*time.Millisecond, out)
	}
	c := Change{Shard: i % 4, ID: schemas.NewTimerID(rec.Source, rec.EventID), Revision: uint64(i + 1), StoredMs: rec.DueMs, Record: rec}
	if i%4 == 0 {
		c.Attributes = map[string]string{"customer": strconv.Itoa(i % 100_000)}
	}
	return c
}

// BenchmarkSearch fills a store and reports the time of a page of 100 for each filter, and what a row
// costs.
func BenchmarkSearch(b *testing.B) {
	rows := 20_000
	if text := os.Getenv(benchRowsEnv); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	s := openTest(b, b.TempDir())
	r := rand.New(rand.NewPCG(1, 1))
	begun := time.Now()
	batch := make([]Change, 0, 10_000)
	for i := range rows {
		if batch = append(batch, benchChange(r, i)); len(batch) == cap(batch) || i == rows-1 {
			write(b, s, batch...)
			batch = batch[:0]
		}
	}
	took := time.Since(begun)
	bytes, err := s.used(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%d rows: %.1f µs and %d bytes a row", rows, float64(took.Microseconds())/float64(rows), bytes/int64(rows))
	at := func(hours int64) time.Time { return time.UnixMilli(base + hours*3_600_000) }
	for _, q := range []struct {
		name  string
		query Query
	}{
		{"all", Query{}}, {"order", Query{Text: "order-17"}}, {"prefix", Query{IDPrefix: "order-1"}}, {"source", Query{Source: "/shop/3"}}, {"type", Query{Type: "cart.due"}},
		{"service", Query{Service: "svc3"}}, {"group", Query{Group: "group-3"}}, {"host", Query{Host: "host3.example"}}, {"state", Query{States: []schemas.State{schemas.StateFail}}},
		{"due", Query{DueFrom: at(80), DueTo: at(81)}}, {"done", Query{Sort: SortDone, DoneFrom: at(80), DoneTo: at(81)}}, {"error", Query{Error: "503 from"}},
		{"attribute", Query{Attributes: map[string]string{"customer": "4"}}}, {"service-fail", Query{Service: "svc1", States: []schemas.State{schemas.StateFail}, Sort: SortDone, Descending: true}},
		{"error-service", Query{Error: "503", Service: "svc1"}},
	} {
		b.Run(q.name, func(b *testing.B) {
			q.query.Limit = MaxLimit
			times := make([]time.Duration, 0, b.N)
			found := 0
			for b.Loop() {
				t := time.Now()
				page, err := s.Search(b.Context(), q.query)
				if err != nil {
					b.Fatal(err)
				}
				found, times = len(page.Entries), append(times, time.Since(t))
			}
			slices.Sort(times)
			b.ReportMetric(float64(found), "entries")
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
	b.Run("counts", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Counts(b.Context(), CountsQuery{From: at(0), To: at(168), Bucket: time.Hour}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
