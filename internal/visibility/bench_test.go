package visibility

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// benchRowsEnv is the number of entries of BenchmarkSearch, 20,000 by default.
	benchRowsEnv = "BELFRY_VISIBILITY_ROWS"
	// benchFolderEnv is a folder in which BenchmarkSearch keeps its file. Another run uses the entries
	// that are in it.
	benchFolderEnv = "BELFRY_VISIBILITY_FOLDER"

	// benchSpan is the time in which the timers of a benchmark are added, in milliseconds.
	benchSpan = 7 * 24 * hourMs
	// benchFill is the number of changes of one transaction that fills a file, benchBatch that of
	// one transaction whose time is reported.
	benchFill, benchBatch = 250_000, 1000
	// benchCache is the cache of the connection that fills a file, in KiB.
	benchCache = 1 << 20
)

// measureCPU starts to measure the CPU time of an iteration, where the system tells it.
var measureCPU = func(*testing.B) (report func()) { return func() {} }

// benchTimers makes the changes of many timers, which are added within benchSpan, one after the other.
type benchTimers struct {
	r    *rand.Rand
	rows int
}

// errorsOf are the errors of the timers that failed, with a number.
var benchErrors = []string{"HTTP 503 from host%d", "HTTP 500 Internal Server Error (request %d)", "dial tcp 10.0.0.%d:443: connect: connection refused", "no answer within %ds", "HTTP 404: order %d does not exist"}

// change returns the last change of timer i: nine of ten are done, and of these one of fifty failed. A
// quarter of the timers are of ten tenants.
func (b *benchTimers) change(i int) Change {
	tenant := ""
	if i%4 == 0 {
		tenant = fmt.Sprintf("tenant%d", i/4%10)
	}
	added := int64(base + float64(i)/float64(b.rows)*benchSpan)
	rec := schemas.Record{Definition: schemas.Definition{
		AddedMs: added, Service: schemas.TenantService(tenant, fmt.Sprintf("svc%d", i%20)), Source: fmt.Sprintf("/shop/%d", i%7), EventID: fmt.Sprintf("order-%d", i),
		Type: []string{"order.due", "cart.due"}[i/20%2], Group: fmt.Sprintf("group-%d", i%5000), Callback: fmt.Sprintf("https://host%d.example/hooks/%d?key=0123456789abcdef", i%10, i%1000),
	}}
	rec.State, rec.Run, rec.MaxAttempt, rec.DueMs = schemas.StateSuccess, 1, 5, added+b.r.Int64N(2*hourMs)
	switch k := b.r.IntN(500); {
	case k < 50:
		rec.State, rec.DueMs = schemas.StatePending, base+benchSpan+b.r.Int64N(30*24*hourMs)
	case k < 59:
		rec.State = schemas.StateFail
	case k < 64:
		rec.State = schemas.StateCancelled
	}
	b.finish(&rec, i)
	c := Change{Shard: i % 4, ID: schemas.NewTenantTimerID(tenant, rec.Source, rec.EventID), Revision: uint64(i + 1), StoredMs: rec.DueMs, Record: rec}
	if i%4 == 1 {
		c.Attributes = map[string]string{"customer": strconv.Itoa(i % 100_000)}
	}
	return c
}

// finish sets what a record in a final state has.
func (b *benchTimers) finish(rec *schemas.Record, i int) {
	rec.ScheduledMs = rec.DueMs
	switch rec.State {
	case schemas.StateSuccess:
		rec.AddAttempt(rec.DueMs+2, 38*time.Millisecond, schemas.Outcome{Code: 200, Response: []byte(`{"accepted":true}`)})
	case schemas.StateFail:
		for n := range int64(5) {
			rec.AddAttempt(rec.DueMs+2+n*1000, 38*time.Millisecond, schemas.Outcome{Code: 503, Error: fmt.Sprintf(benchErrors[i%len(benchErrors)], i%100), Response: []byte("try again later")})
		}
	case schemas.StateCancelled:
		rec.DoneMs = rec.AddedMs + 1000
		return
	default:
		return
	}
	rec.FiredMs, rec.DoneMs = rec.DueMs+2, rec.DueMs+40
}

// fill writes the changes of timers from..to-1 in transactions of size changes, and reports the time of a
// change.
func (b *benchTimers) fill(t testing.TB, s *sqlStore, from, to, size int, change func(int) Change) (each time.Duration) {
	t.Helper()
	batch := make([]Change, 0, size)
	var took time.Duration
	for i := from; i < to; i++ {
		if batch = append(batch, change(i)); len(batch) < size && i < to-1 {
			continue
		}
		// As the follower does it.
		slices.SortFunc(batch, func(a, b Change) int { return int(a.Record.DueMs - b.Record.DueMs) })
		begun := time.Now()
		if err := s.Write(context.WithoutCancel(t.Context()), Batch{Changes: pointers(batch)}); err != nil {
			t.Fatal(err)
		}
		took += time.Since(begun)
		batch = batch[:0]
	}
	return took / time.Duration(max(to-from, 1))
}

// setCache sets the cache of the writer, in KiB.
func setCache(t testing.TB, s *sqlStore, kib int) {
	t.Helper()
	if _, err := s.conn.ExecContext(t.Context(), fmt.Sprintf("PRAGMA cache_size = -%d", kib)); err != nil {
		t.Fatal(err)
	}
}

// benchQueries are the queries of BenchmarkSearch.
func benchQueries() []struct {
	name  string
	query Query
} {
	at := func(hours int64) time.Time { return time.UnixMilli(base + hours*hourMs) }
	tenant, other := "tenant3", ""
	done, fail, pending := SortDone, []schemas.State{schemas.StateFail}, []schemas.State{schemas.StatePending}
	return []struct {
		name  string
		query Query
	}{
		{"all", Query{}},
		{"all, done, latest", Query{Sort: done, Descending: true}},
		{"event id", Query{Text: "order-170000"}},
		{"event id alone", Query{ID: "order-1700"}},
		{"start of an event id", Query{IDPrefix: "order-1"}},
		{"start of an event id, fail", Query{IDPrefix: "order-12", States: fail}},
		{"start of an event id, pending", Query{IDPrefix: "order-12", States: pending}},
		{"start of an event id, service", Query{IDPrefix: "order-12", Service: "svc3"}},
		{"source", Query{Source: "/shop/3"}},
		{"type", Query{Type: "cart.due"}},
		{"service", Query{Service: "svc3"}},
		{"service, done, latest", Query{Service: "svc3", Sort: done, Descending: true}},
		{"group", Query{Group: "group-3"}},
		{"host", Query{Host: "host3.example"}},
		{"tenant", Query{Tenant: &tenant}},
		{"default tenant", Query{Tenant: &other}},
		{"state fail", Query{States: fail}},
		{"due within an hour", Query{DueFrom: at(12), DueTo: at(13)}},
		{"done within an hour", Query{Sort: done, DoneFrom: at(12), DoneTo: at(13)}},
		{"part of an error", Query{Error: "refused"}},
		{"part of an error, latest", Query{Error: "503 from", Sort: done, Descending: true}},
		{"attribute", Query{Attributes: map[string]string{"customer": "4001"}}},
		{"service and pending, by due", Query{Service: "svc1", States: pending}},
		{"service and fail, latest", Query{Service: "svc1", States: fail, Sort: done, Descending: true}},
		{"tenant and fail, by due", Query{Tenant: &tenant, States: fail}},
		{"tenant and fail, by done", Query{Tenant: &tenant, States: fail, Sort: done, Descending: true}},
		{"default tenant and fail, by done", Query{Tenant: &other, States: fail, Sort: done, Descending: true}},
		{"tenant, within an hour", Query{Tenant: &tenant, DueFrom: at(12), DueTo: at(13)}},
		{"host and fail", Query{Host: "host3.example", States: fail}},
		{"group and fail", Query{Group: "group-3", States: fail}},
		{"group and tenant", Query{Group: "group-4", Tenant: &tenant}},
		{"numbers in an error, no match", Query{Error: "10.0.0.777"}},
		{"error and service", Query{Error: "503", Service: "svc1"}},
		{"error and service, no match", Query{Error: "404", Service: "svc0"}},
		{"error and tenant", Query{Error: "refused", Tenant: &tenant}},
		{"done within an hour, by due", Query{DoneFrom: at(12), DoneTo: at(13)}},
		{"done within an hour, service, by due", Query{DoneFrom: at(12), DoneTo: at(13), Service: "svc3"}},
		{"due within an hour, by done", Query{DueFrom: at(12), DueTo: at(13), Sort: done}},
		{"schedules", Query{Schedule: new(true)}},
	}
}

// deepPages is the number of pages that are passed before the deep pages of BenchmarkSearch.
const deepPages = 50

// BenchmarkSearch fills a store and reports the time of the first and of a deep page of 100 for each
// filter, and what a change costs.
func BenchmarkSearch(b *testing.B) {
	rows := 20_000
	if text := os.Getenv(benchRowsEnv); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	folder := os.Getenv(benchFolderEnv)
	if folder == "" {
		folder = b.TempDir()
	}
	s := openTest(b, folder)
	timers := &benchTimers{rand.New(rand.NewPCG(1, 1)), rows}
	if have, _ := s.Size(); have == 0 {
		setCache(b, s, benchCache)
		b.Logf("%d changes: %s each", rows, timers.fill(b, s, 0, rows, benchFill, timers.change))
		setCache(b, s, writeCache)
	}
	bytes, err := s.used(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	have, _ := s.Size()
	b.Logf("%d entries of %d bytes", have, bytes/have)
	for _, q := range benchQueries() {
		b.Run(q.name, func(b *testing.B) { benchPages(b, s, q.query, 0) })
		b.Run(q.name+", deep", func(b *testing.B) { benchPages(b, s, q.query, deepPages) })
	}
	at := func(hours int64) time.Time { return time.UnixMilli(base + hours*hourMs) }
	tenant := "tenant3"
	for _, q := range []struct {
		name  string
		query CountsQuery
	}{
		{"totals", CountsQuery{}},
		{"a week by hour", CountsQuery{From: at(0), To: at(168), Bucket: time.Hour}},
		{"a day by minute", CountsQuery{From: at(12), To: at(36)}},
		{"a day by minute, one service", CountsQuery{From: at(12), To: at(36), Service: "svc3"}},
		{"a day by minute, one tenant", CountsQuery{From: at(12), To: at(36), Tenant: &tenant}},
		{"a day by 15 minutes and service", CountsQuery{From: at(12), To: at(36), Bucket: 15 * time.Minute, ByService: true}},
		{"an hour by minute and service", CountsQuery{From: at(12), To: at(13), ByService: true}},
		{"a month by 6 hours and service", CountsQuery{From: at(160), To: at(160 + 720), Bucket: 6 * time.Hour, ByService: true}},
	} {
		b.Run("counts, "+q.name, func(b *testing.B) {
			times := make([]time.Duration, 0, b.N)
			report := measureCPU(b)
			for b.Loop() {
				begun := time.Now()
				if _, err := s.Counts(b.Context(), q.query); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(begun))
			}
			report()
			reportTimes(b, times)
		})
	}
}

// benchPages reports the time of the page of a query after a number of other pages.
func benchPages(b *testing.B, s *sqlStore, q Query, after int) {
	q.Limit = MaxLimit
	for range after {
		page, err := s.Search(b.Context(), q)
		if err != nil {
			b.Fatal(err)
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			b.Skip("there are not as many pages")
		}
	}
	times := make([]time.Duration, 0, b.N)
	found := 0
	report := measureCPU(b)
	for b.Loop() {
		begun := time.Now()
		page, err := s.Search(b.Context(), q)
		if err != nil {
			b.Fatal(err)
		}
		found, times = len(page.Entries), append(times, time.Since(begun))
	}
	report()
	reportTimes(b, times)
	b.ReportMetric(float64(found), "entries")
}

// reportTimes reports the least, the median and the greatest of some times, instead of their mean.
func reportTimes(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ms(times[0]), "min-ms")
	b.ReportMetric(ms(times[len(times)/2]), "median-ms")
	b.ReportMetric(ms(times[len(times)-1]), "max-ms")
}

// BenchmarkWrite reports the time of a change in transactions of benchBatch changes: a new timer, and its
// end. With benchFolderEnv it writes to the file of BenchmarkSearch, which is larger afterwards.
func BenchmarkWrite(b *testing.B) {
	folder := os.Getenv(benchFolderEnv)
	if folder == "" {
		folder = b.TempDir()
	}
	s := openTest(b, folder)
	have, _ := s.Size()
	timers := &benchTimers{rand.New(rand.NewPCG(2, 2)), max(int(have), benchBatch)}
	revision := uint64(have)
	changes := make([]Change, 0, b.N*benchBatch)
	for i := range b.N * benchBatch {
		c := timers.change(int(have) + i)
		revision++
		c.Revision, c.Record.State, c.Record.DoneMs, c.Record.FiredMs = revision, schemas.StatePending, 0, 0
		c.Record.Outcome, c.Record.Attempts = schemas.Outcome{}, nil
		changes = append(changes, c)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(timers.fill(b, s, 0, len(changes), benchBatch, func(i int) Change { return changes[i] }).Nanoseconds())/1000, "µs/new")
	ends := func(i int) Change {
		c := changes[i]
		c.Revision += uint64(len(changes))
		c.Record.State = schemas.StateSuccess
		timers.finish(&c.Record, i)
		return c
	}
	b.ReportMetric(float64(timers.fill(b, s, 0, len(changes), benchBatch, ends).Nanoseconds())/1000, "µs/end")
}
