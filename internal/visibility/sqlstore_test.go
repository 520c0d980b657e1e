package visibility

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

// base is the time of the tests' entries, in Unix milliseconds.
const base = 1_800_000_000_000

// openTest opens a store in a folder.
func openTest(t testing.TB, folder string) *sqlStore {
	t.Helper()
	s, _, err := OpenSQL(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.(*sqlStore)
}

// write writes changes.
func write(t testing.TB, s Store, changes ...Change) {
	t.Helper()
	if err := s.Write(context.WithoutCancel(t.Context()), Batch{Changes: pointers(changes)}); err != nil {
		t.Fatal(err)
	}
}

func pointers(changes []Change) []*Change {
	all := make([]*Change, len(changes))
	for i := range changes {
		all[i] = &changes[i]
	}
	return all
}

// randomChange returns a change of one of n timers.
func randomChange(r *rand.Rand, n int, revision uint64) Change {
	i := r.IntN(n)
	pick := func(values ...string) string { return values[i%len(values)] }
	event := fmt.Sprintf("order-%d", i/3) // several entries have one event id
	tenant := pick("", "", "blue", "green")
	states := slices.Concat(openStates, finalStates)
	rec := schemas.Record{
		Definition: schemas.Definition{
			AddedMs: base + int64(i)*7001, Service: schemas.TenantService(tenant, pick("orders", "mail", "orders", "bills", "mail")), Source: pick("/a", "/b", "/c"), EventID: event, Type: pick("x", "y"),
			Group: pick("", "", "g1", "g2", "", "g3", ""), Callback: pick("https://user:secret@a.example/hook?key=1", "", "http://B.example:8080/x", "nats:orders.do", "/path", "nats:Orders.Do"),
		},
		RunState: schemas.RunState{State: states[r.IntN(len(states))], Run: 1, DueMs: base + int64(r.IntN(40))*60_000, MaxAttempt: 5},
	}
	rec.ScheduledMs = rec.DueMs
	if rec.State.Final() {
		rec.DoneMs = rec.DueMs + int64(r.IntN(5))*30_000
		rec.FiredMs = rec.DueMs
	}
	if rec.State == schemas.StateFail || rec.State == schemas.StateRetrying {
		rec.AddAttempt(rec.DueMs, time.Second, schemas.Outcome{Code: 503, Error: []string{"HTTP 503 Unavailable", "dial tcp 10.0.0.7:443: connection refused", "timeout after 10s"}[r.IntN(3)], Response: []byte("busy")})
	}
	id := schemas.NewTenantTimerID(tenant, rec.Source, fmt.Sprint(event, i))
	if i%11 == 0 {
		rec.Origin = &schemas.Origin{Schedule: schemas.NewTimerID("/s", fmt.Sprint(i%22))}
	}
	c := Change{Shard: i % 4, ID: id, Revision: revision, StoredMs: rec.DueMs + 1, Record: rec}
	if i%5 == 0 {
		c.Attributes = map[string]string{"customer": pick("c1", "c2", "c3"), "subject": "s"}
	}
	return c
}

// entryOf is the entry that a change makes.
func entryOf(c Change) Entry {
	rec := c.Record
	e := Entry{Shard: c.Shard, Epoch: rec.Epoch, Host: hostOf(rec.Callback), Attributes: c.Attributes, Stored: schemas.TimeOf(c.StoredMs)}
	e.Timer = schemas.FromRecord(c.ID, &rec, c.Revision)
	return e
}

// queries are queries of every field, in both orders and directions.
func queries() (all []Query) {
	blue, own, yes, no := "blue", "", true, false
	at := func(minute int) time.Time { return time.UnixMilli(base + int64(minute)*60_000) }
	for _, q := range []Query{
		{}, {Text: "order-7"}, {Text: "/b"}, {Text: "y"}, {Text: "order-1*"}, {ID: "order-3"}, {IDPrefix: "order-2", States: []schemas.State{schemas.StateFail}},
		{Source: "/a"}, {Type: "x", Source: "/c"}, {Service: "orders"}, {Group: "g1"}, {Group: "g2", Service: "mail"}, {Tenant: &blue}, {Tenant: &own, Text: "order-7"},
		{Tenant: &blue, IDPrefix: "order-"}, {States: []schemas.State{schemas.StateFail}}, {States: []schemas.State{schemas.StatePending, schemas.StateSuccess}, Service: "bills"},
		{DueFrom: at(5), DueTo: at(9)}, {DoneFrom: at(5), DoneTo: at(20)}, {Service: "mail", DueFrom: at(10), DoneTo: at(30)},
		{Host: "A.example"}, {Host: "b.example:8080"}, {Host: "nats:orders.do"}, {Host: "nats:Orders.Do"}, {Error: "REFUSED"}, {Error: "503", Service: "orders"}, {Error: "10.0.0.7"}, {Error: "no such error"},
		{Attributes: map[string]string{"customer": "c2"}}, {Attributes: map[string]string{"customer": "c1", "subject": "s"}, Service: "orders"},
		{RunsOf: schemas.NewTimerID("/s", "11")}, {Schedule: &no, Text: "order-7"}, {Schedule: &yes},
		{IDPrefix: "order-1", Service: "mail"}, {IDPrefix: "order-1", Error: "503"}, {IDPrefix: "order-", States: []schemas.State{schemas.StatePending}, DueTo: at(20)},
		{IDPrefix: "order-", DoneFrom: at(8), DueTo: at(12)}, {Group: "g2", States: []schemas.State{schemas.StateFail}}, {Group: "g1", Tenant: &own}, {Error: "refused", Tenant: &blue},
		{Error: "503", States: []schemas.State{schemas.StateFail}, Host: "a.example"}, {Text: "y", Service: "mail", States: []schemas.State{schemas.StateCancelled}},
		{DoneFrom: at(8), DoneTo: at(9), Service: "orders"}, {DoneTo: at(12), DueFrom: at(11)}, {DoneFrom: at(30), Error: "503"}, {DueFrom: at(38), DoneTo: at(1)},
	} {
		for _, order := range []Sort{SortDue, SortDone} {
			for _, down := range []bool{false, true} {
				q.Sort, q.Descending = order, down
				all = append(all, q)
			}
		}
	}
	return all
}

// expect returns the entries that a query selects, in order.
func expect(entries map[schemas.TimerID]Entry, q Query) []Entry {
	if err := q.complete(); err != nil {
		panic(err)
	}
	var want []Entry
	for _, e := range entries {
		if q.selects(&e) && (q.Sort == SortDue || !e.Timer.Done.IsZero()) {
			want = append(want, e)
		}
	}
	slices.SortFunc(want, func(a, b Entry) int { return compareEntries(&q, &a, &b) })
	return want
}

// compareEntries orders entries by the order of a query, without the rows that distinguish equal ones.
func compareEntries(q *Query, a, b *Entry) int {
	var c int
	switch {
	case q.IDPrefix != "":
		c = strings.Compare(a.Timer.ID, b.Timer.ID)
	case q.Sort == SortDone:
		c = a.Timer.Done.Compare(b.Timer.Done)
	default:
		c = a.Timer.Due.Compare(b.Timer.Due)
	}
	if q.Descending {
		return -c
	}
	return c
}

// TestStoreEqualsScan: after random changes, in random order, every query answers what a look at
// all entries finds, page by page, and the counts are theirs.
func TestStoreEqualsScan(t *testing.T) {
	testsize.NotRace(t, "one goroutine reads and writes")
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 1))
	s := openTest(t, t.TempDir())
	entries, changes := map[schemas.TimerID]Entry{}, []Change{}
	for revision := range uint64(1500) {
		changes = append(changes, randomChange(r, 400, revision+1))
	}
	for _, c := range changes { // in the order of revisions
		old, ok := entries[c.ID]
		if c.Attributes == nil && ok {
			c.Attributes = old.Attributes
		}
		entries[c.ID] = entryOf(c)
	}
	for len(changes) > 0 { // a batch has the last change of each timer, and may be repeated
		n := min(len(changes), 1+r.IntN(300))
		batch := map[schemas.TimerID]Change{}
		for _, c := range changes[:n] {
			batch[c.ID] = c
		}
		write(t, s, slices.Collect(maps.Values(batch))...)
		if r.IntN(3) == 0 {
			write(t, s, slices.Collect(maps.Values(batch))...)
		}
		changes = changes[n:]
	}
	for _, bounds := range searchBounds {
		s.work, s.few = bounds[0], bounds[1]
		for i, q := range queries() {
			want := expect(entries, q)
			var got []Entry
			q.Limit = 1 + i%29
			for pages := 0; ; pages++ {
				page, err := s.Search(t.Context(), q)
				if err != nil {
					t.Fatalf("%+v: %v", q, err)
				}
				got = append(got, page.Entries...)
				if q.Cursor = page.Cursor; q.Cursor == "" {
					break
				}
				if pages > 500 {
					t.Fatalf("%+v: no end", q)
				}
			}
			checkEntries(t, q, got, want)
		}
	}
	checkCounts(t, s, entries)
	checkSums(t, s)
}

// searchBounds are values of sqlStore.work and sqlStore.few: those of a node, and others with which few entries are
// as many are there.
var searchBounds = [][2]int64{{maxWork, maxFew}, {maxWork, 0}, {150, 0}}

func checkEntries(t *testing.T, q Query, got, want []Entry) {
	t.Helper()
	if err := q.complete(); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("%+v: got %d entries, want %d", q, len(got), len(want))
		return
	}
	byID := map[schemas.TimerID]Entry{}
	for i := range got {
		if compareEntries(&q, &got[i], &want[i]) != 0 {
			t.Errorf("%+v: entry %d is due %s and done %s, want %s and %s", q, i, got[i].Timer.Due, got[i].Timer.Done, want[i].Timer.Due, want[i].Timer.Done)
			return
		}
		byID[got[i].Timer.Timer] = got[i]
	}
	for _, e := range want {
		if g := byID[e.Timer.Timer]; fmt.Sprintf("%+v", printable(g)) != fmt.Sprintf("%+v", printable(e)) {
			t.Errorf("%+v: got %+v, want %+v", q, printable(g), printable(e))
			return
		}
	}
}

// printable is an entry as text, without pointers.
func printable(e Entry) string {
	b, err := e.Timer.MarshalJSON()
	return fmt.Sprint(string(b), err, e.Shard, e.Epoch, e.Host, e.Attributes, e.Stored)
}

func checkCounts(t *testing.T, s *sqlStore, entries map[schemas.TimerID]Entry) {
	t.Helper()
	totals, due, done := map[string]int64{}, map[string]int64{}, map[string]int64{}
	var added int64
	for _, e := range entries {
		i := &e.Timer
		totals[fmt.Sprint(i.Tenant, "/", i.Service, "/", i.State)]++
		if i.Schedule == nil {
			added++
			if i.State.Final() {
				done[fmt.Sprint(i.Done.Truncate(time.Minute), i.Service, i.State)]++
			} else {
				due[fmt.Sprint(i.Due.Truncate(time.Minute), i.Service)]++
			}
		}
	}
	c, err := s.Counts(t.Context(), CountsQuery{From: time.UnixMilli(base), To: time.UnixMilli(base + 100*60_000), ByService: true})
	if err != nil {
		t.Fatal(err)
	}
	gotTotals, gotDue, gotDone := map[string]int64{}, map[string]int64{}, map[string]int64{}
	var gotAdded int64
	for _, n := range c.Totals {
		gotTotals[fmt.Sprint(n.Tenant, "/", n.Service, "/", n.State)] = n.Entries
	}
	for _, b := range c.Buckets {
		gotAdded += b.Added
		if b.Due > 0 {
			gotDue[fmt.Sprint(b.Start, b.Service)] += b.Due
		}
		for state, n := range b.Done {
			gotDone[fmt.Sprint(b.Start, b.Service, state)] += n
		}
	}
	if !maps.Equal(gotTotals, totals) {
		t.Errorf("got totals %v, want %v", gotTotals, totals)
	}
	if !maps.Equal(gotDue, due) {
		t.Errorf("got due %v, want %v", gotDue, due)
	}
	if !maps.Equal(gotDone, done) {
		t.Errorf("got done %v, want %v", gotDone, done)
	}
	if gotAdded != added {
		t.Errorf("got %d added, want %d", gotAdded, added)
	}
	hours, err := s.Counts(t.Context(), CountsQuery{From: time.UnixMilli(base), To: time.UnixMilli(base + 100*60_000), Bucket: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var inHours int64
	for _, b := range hours.Buckets {
		inHours += b.Added
	}
	if inHours < added {
		t.Errorf("the hours have %d added, want %d", inHours, added)
	}
}

// checkSums compares the counters of all services, of tenants and of one service with those by service.
func checkSums(t *testing.T, s *sqlStore) {
	t.Helper()
	own, blue := "", "blue"
	for _, q := range []CountsQuery{{}, {Tenant: &own}, {Tenant: &blue}, {Service: "mail"}, {Tenant: &own, Service: "orders"}, {Tenant: &blue, Service: "none"}} {
		for _, q.Bucket = range []time.Duration{time.Minute, 7 * time.Minute, time.Hour} {
			q.From, q.To = time.UnixMilli(base), time.UnixMilli(base+100*60_000)
			got, err := s.Counts(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			apart := q
			apart.ByService = true
			by, err := s.Counts(t.Context(), apart)
			if err != nil {
				t.Fatal(err)
			}
			var want []Bucket
			for _, b := range by.Buckets {
				b.Tenant, b.Service = "", ""
				last := len(want) - 1
				if last < 0 || !want[last].Start.Equal(b.Start) {
					want = append(want, b)
					continue
				}
				w := &want[last]
				w.Added, w.Fired, w.Due = w.Added+b.Added, w.Fired+b.Fired, w.Due+b.Due
				for state, n := range b.Done {
					w.Done[state] += n
				}
			}
			if fmt.Sprint(got.Buckets) != fmt.Sprint(want) || len(want) == 0 && q.Service != "none" {
				t.Errorf("%+v: got %v, want %v", q, got.Buckets, want)
			}
		}
	}
}

// TestSearchByHost: the case of a subject matters, that of a host does not.
func TestSearchByHost(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	for i, callback := range []string{"nats:Orders.Do", "https://Shop.example/hook"} {
		r := recordAt(callback, schemas.StatePending, base)
		r.Callback = callback
		write(t, s, Change{ID: schemas.NewTimerID("/q", callback), Revision: uint64(i) + 1, StoredMs: base, Record: r})
	}
	for host, want := range map[string]int{"nats:Orders.Do": 1, "nats:orders.do": 0, "shop.example": 1, "SHOP.example": 1} {
		if got := all(t, s, Query{Host: host}); len(got) != want {
			t.Errorf("host %s: got %d entries, want %d", host, len(got), want)
		}
	}
}

// TestFailedReload: if the dictionary cannot be read after a transaction has failed, the next one reads it first.
func TestFailedReload(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := openTest(t, folder)
	r := rand.New(rand.NewPCG(3, 9))
	first := randomChange(r, 1, 1)
	write(t, s, first)
	later, other := first, randomChange(r, 1000, 2)
	later.Revision, later.Record.Service = 3, "new"
	broken := errors.New("no room")
	if err := s.transact(t.Context(), func(w *writing) error { return errors.Join(w.changeOne(&other), broken) }); !errors.Is(err, broken) {
		t.Fatalf("got error %v, want %v", err, broken)
	}
	was := s.read
	var err error
	if s.read, err = openDB(filepath.Join(t.TempDir(), "none", fileName), false); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(t.Context(), Batch{Changes: []*Change{&later}}); err == nil {
		t.Error("a write without a dictionary succeeded")
	}
	if rows, _ := s.Size(); rows != 1 {
		t.Errorf("the dictionary counts %d entries, want 1", rows)
	}
	if err := s.read.Close(); err != nil {
		t.Error(err)
	}
	s.read = was
	write(t, s, later, other)
	again := openTest(t, folder) // what is stored has the same numbers
	if got, want := all(t, again, Query{}), all(t, s, Query{}); len(got) != 2 || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestNothingLeft: of timers that were rescheduled, cancelled or removed no empty counters are left.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	r := rand.New(rand.NewPCG(1, 2))
	c := randomChange(r, 1, 1)
	c.Record.FiredMs = 0
	for revision := range uint64(5) {
		c.Revision, c.Record.State, c.Record.DoneMs, c.Record.DueMs = revision+1, schemas.StatePending, 0, base+int64(revision)*hourMs
		write(t, s, c)
	}
	var rows int
	if err := s.read.QueryRowContext(t.Context(), "SELECT count(*) FROM counters WHERE at >= ?", base/minuteMs+30).Scan(&rows); err != nil || rows != 4 {
		t.Errorf("got %d rows of counters and error %v, want those of a minute and an hour, of a service and of all", rows, err)
	}
	c.Revision, c.Record.State, c.Record.DoneMs = 6, schemas.StateCancelled, base
	write(t, s, c)
	if err := s.read.QueryRowContext(t.Context(), "SELECT count(*) FROM counters WHERE at >= ?", base/minuteMs+30).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("got %d rows of counters and error %v, want none", rows, err)
	}
}

// TestShortPages: a search without a match ends after a bounded number of rows, with a cursor.
func TestShortPages(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	s.work, s.few = 100, 0
	r := rand.New(rand.NewPCG(1, 2))
	timers := &benchTimers{r, 2000}
	var changes []Change
	for i := range timers.rows {
		changes = append(changes, timers.change(i))
	}
	write(t, s, changes...)
	for _, q := range []Query{{IDPrefix: "order-1", Group: "none"}} {
		pages := 0
		for {
			page, err := s.Search(t.Context(), q)
			if err != nil || len(page.Entries) > 0 {
				t.Fatalf("%+v: got %d entries and error %v, want none", q, len(page.Entries), err)
			}
			if q.Cursor = page.Cursor; q.Cursor == "" {
				break
			}
			pages++
		}
		if pages < 2 {
			t.Errorf("%+v: got %d pages before the last, want more", q, pages)
		}
	}
}

// TestPlans: every statement of every search reads an index in its order: no scan, and no sorting but of few entries.
func TestPlans(t *testing.T) {
	testsize.NotRace(t, "one goroutine reads and writes")
	t.Parallel()
	s := openTest(t, t.TempDir())
	r := rand.New(rand.NewPCG(1, 2))
	for revision := range uint64(500) {
		write(t, s, randomChange(r, 100, revision+1))
	}
	seen := map[string]bool{}
	covered := 0
	for _, s.few = range []int64{0, maxFew} {
		for _, q := range queries() {
			p, err := s.plan(q)
			if err != nil {
				t.Fatal(err)
			}
			for i := range p.sources {
				src := &p.sources[i]
				for _, after := range []*position{nil, {event: "order-2", key: base, n: 5}} {
					query, args := p.statement(src, after)
					plan := explain(t, s, query, append(args, 10))
					if seen[query] = true; !isSearch(plan, src.sorts) {
						t.Errorf("%s: %s", query, plan)
					}
					switch {
					case src.sorts:
					case src.byEvent && after != nil:
						if !strings.Contains(plan, ")>(?") && !strings.Contains(plan, ")<(?") {
							t.Errorf("%s: %s, want it to begin at the position", query, plan)
						}
					case !src.byEvent && !src.apart && !q.Descending && !seeksBound(t, s, query, append(args, 10)):
						t.Errorf("%s: it does not begin at the lower bound of its key", query)
					}
					if !src.apart && p.covered(src) {
						if covered++; !src.sorts && !strings.Contains(plan, "COVERING") {
							t.Errorf("%s: %s, want a covering index", query, plan)
						}
					}
				}
			}
		}
	}
	if len(seen) < 30 || covered < 30 {
		t.Errorf("only %d statements were explained, and %d of covering indexes", len(seen), covered)
	}
	for _, query := range []string{"SELECT record FROM timers WHERE id = ?", allCounters, "SELECT state, least, most FROM spans WHERE sort = ? AND hour >= ? AND hour <= ?"} {
		if plan := explain(t, s, query, []any{1, 2, 3}[:strings.Count(query, "?")]); !isSearch(plan, false) {
			t.Errorf("%s: %s", query, plan)
		}
	}
	if plan := explain(t, s, oneCounter, []any{1, 2, 3, 4}); !strings.Contains(plan, "SEARCH c USING PRIMARY KEY (width=? AND at=? AND service=?)") ||
		strings.Count(plan, "USING PRIMARY KEY (width=? AND at>? AND at<?)") != 2 || strings.Contains(plan, "TEMP B-TREE") {
		t.Errorf("%s: %s", oneCounter, plan)
	}
}

// isSearch reports whether a plan only searches an index, and sorts only if it may.
func isSearch(plan string, sorts bool) bool {
	for step := range strings.Lines(plan) {
		if !strings.HasPrefix(step, "SEARCH ") && (!sorts || !strings.Contains(step, "TEMP B-TREE FOR")) {
			return false
		}
	}
	return true
}

// seeksBound reports whether a query seeks a bound with ">=", and not that of a partial index, which is ">".
func seeksBound(t *testing.T, s *sqlStore, query string, args []any) bool {
	t.Helper()
	rows, err := s.read.QueryContext(t.Context(), "EXPLAIN "+query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	var seeks []string
	err = scanAll(rows, func(scan func(...any) error) error {
		var address, p1, p2, p3, p5 int
		var opcode string
		var p4, comment any
		err := scan(&address, &opcode, &p1, &p2, &p3, &p4, &p5, &comment)
		if strings.HasPrefix(opcode, "SeekG") {
			seeks = append(seeks, opcode)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return slices.Equal(seeks, []string{"SeekGE"})
}

// explain returns the plan of a query, a line for each step.
func explain(t *testing.T, s *sqlStore, query string, args []any) string {
	t.Helper()
	var plan strings.Builder
	rows, err := s.read.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	err = scanAll(rows, func(scan func(...any) error) error {
		var id, parent, unused int
		var detail string
		err := scan(&id, &parent, &unused, &detail)
		plan.WriteString(detail + "\n")
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return plan.String()
}

// TestCursorIsOfItsQuery: a cursor of another query, or a changed cursor, is refused.
func TestCursorIsOfItsQuery(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	r := rand.New(rand.NewPCG(1, 2))
	for revision := range uint64(50) {
		write(t, s, randomChange(r, 50, revision+1))
	}
	page, err := s.Search(t.Context(), Query{Limit: 2})
	if err != nil || page.Cursor == "" {
		t.Fatalf("got cursor %q and error %v, want a cursor", page.Cursor, err)
	}
	for _, q := range []Query{{Cursor: page.Cursor, Service: "mail"}, {Cursor: page.Cursor, Descending: true}, {Cursor: "AAAA"}, {Cursor: "%"}, {Limit: 101}, {Limit: -1}, {Text: "*"}, {Text: "a\x00"}, {States: []schemas.State{99}}} {
		if _, err := s.Search(t.Context(), q); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%+v: got error %v, want bad_request", q, err)
		}
	}
}

// TestNoSecretsNoPayload: an entry has no credentials of the callback, and nothing of the event's
// data.
func TestNoSecretsNoPayload(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := openTest(t, folder)
	c := randomChange(rand.New(rand.NewPCG(1, 2)), 1, 1)
	c.Record.Callback = "https://user:secretword@a.example/hook?key=secretword"
	c.Record.Body = schemas.Body{Mode: schemas.ModeStructured, Data: []byte("secretword")}
	write(t, s, c)
	e, err := s.Get(t.Context(), c.ID)
	if err != nil || e.Host != "a.example" {
		t.Fatalf("got host %q and error %v", e.Host, err)
	}
	for _, name := range []string{fileName, fileName + "-wal"} {
		b, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "secretword") {
			t.Errorf("%s has a secret", name)
		}
	}
}

// TestPrune: old entries go, and when the store is too large the oldest; open ones stay.
func TestPrune(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	r := rand.New(rand.NewPCG(3, 4))
	entries := map[schemas.TimerID]Entry{}
	for revision := range uint64(600) {
		c := randomChange(r, 300, revision+1)
		if c.Attributes == nil {
			c.Attributes = entries[c.ID].Attributes
		}
		write(t, s, c)
		entries[c.ID] = entryOf(c)
	}
	before := int64(base + 15*60_000)
	if _, more, err := s.Prune(t.Context(), before, 1<<40); err != nil || more {
		t.Fatalf("got more %v, error %v", more, err)
	}
	maps.DeleteFunc(entries, func(_ schemas.TimerID, e Entry) bool {
		return !e.Timer.Done.IsZero() && e.Timer.Done.UnixMilli() < before
	})
	if rows, _ := s.Size(); rows != int64(len(entries)) {
		t.Errorf("got %d entries, want %d", rows, len(entries))
	}
	checkEntries(t, Query{}, all(t, s, Query{}), expect(entries, Query{}))
	at := func(minute int) time.Time { return time.UnixMilli(base + int64(minute)*60_000) }
	for _, q := range []Query{
		{Attributes: map[string]string{"customer": "c2"}}, {Attributes: map[string]string{"subject": "s"}, Sort: SortDone},
		{DoneFrom: at(10), DoneTo: at(25)}, {DueTo: at(30), Sort: SortDone}, {Error: "503", Service: "orders"},
	} {
		checkEntries(t, q, all(t, s, q), expect(entries, q))
	}
	for more := true; more; {
		var err error
		if _, more, err = s.Prune(t.Context(), before, 1); err != nil {
			t.Fatal(err)
		}
	}
	maps.DeleteFunc(entries, func(_ schemas.TimerID, e Entry) bool { return !e.Timer.Done.IsZero() })
	checkEntries(t, Query{}, all(t, s, Query{}), expect(entries, Query{}))
}

// all returns all entries of a query.
func all(t *testing.T, s searcher, q Query) (entries []Entry) {
	t.Helper()
	q.Limit = MaxLimit
	for {
		page, err := s.Search(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, page.Entries...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return entries
		}
	}
}

// searcher is a Store or a Reader.
type searcher interface {
	Search(context.Context, Query) (Page, error)
}

// TestReconcile: it removes the open entries of one shard that are not kept.
func TestReconcile(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	r := rand.New(rand.NewPCG(5, 4))
	entries := map[schemas.TimerID]Entry{}
	for revision := range uint64(400) {
		c := randomChange(r, 300, revision+1)
		write(t, s, c)
		entries[c.ID] = entryOf(c)
	}
	removed, err := s.Reconcile(t.Context(), 2, 350, func(_ schemas.TimerID, revision uint64) bool { return revision%2 == 0 })
	if err != nil {
		t.Fatal(err)
	}
	was := len(entries)
	maps.DeleteFunc(entries, func(_ schemas.TimerID, e Entry) bool {
		return e.Shard == 2 && e.Timer.Done.IsZero() && e.Timer.Revision <= 350 && e.Timer.Revision%2 == 1
	})
	if removed == 0 || removed != was-len(entries) {
		t.Errorf("removed %d entries, want %d", removed, was-len(entries))
	}
	if got := all(t, s, Query{}); len(got) != len(entries) {
		t.Errorf("got %d entries, want %d", len(got), len(entries))
	}
}

// TestReopen: a file is used again; a file of another schema, and a file that is no database, is made
// again.
func TestReopen(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	open := func() (*sqlStore, bool) {
		s, made, err := OpenSQL(t.Context(), folder)
		if err != nil {
			t.Fatal(err)
		}
		return s.(*sqlStore), made
	}
	s, made := open()
	if !made {
		t.Error("a new store is not new")
	}
	c := randomChange(rand.New(rand.NewPCG(5, 4)), 300, 9)
	offset := Offset{Stream: "x", Revision: 9, AsOfMs: base}
	if err := s.Write(t.Context(), Batch{Changes: []*Change{&c}, Offsets: map[int]Offset{2: offset}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, made = open()
	offsets, err := s.Offsets(t.Context())
	if made || err != nil || offsets[2] != offset {
		t.Errorf("got new %v, offsets %v, error %v", made, offsets, err)
	}
	if rows, bytes := s.Size(); rows != 1 || bytes == 0 {
		t.Errorf("got %d entries of %d bytes, want 1", rows, bytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, fileName), []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	s, made = open()
	if !made {
		t.Error("a damaged file was kept")
	}
	if _, err := s.conn.ExecContext(t.Context(), "PRAGMA user_version = 999"); err != nil {
		t.Fatal(err)
	}
	write(t, s, c)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, made = open(); !made {
		t.Error("a file of another schema was kept")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSpans: among entries of a hundred hours, a page sorted by due of the entries that were done in an hour begins near
// that hour, and a page sorted by done of the entries that were due in an hour, too.
func TestSpans(t *testing.T) {
	t.Parallel()
	s := openTest(t, t.TempDir())
	s.work, s.few = 200, 0
	r := rand.New(rand.NewPCG(8, 1))
	entries, changes := map[schemas.TimerID]Entry{}, []Change{}
	for i := range 2000 {
		c := randomChange(r, 1<<30, uint64(i+1))
		rec := &c.Record
		rec.DueMs = base + int64(i)*hourMs/20
		rec.State, rec.DoneMs = schemas.StateSuccess, rec.DueMs+r.Int64N(minuteMs)
		if i%10 == 0 {
			rec.State, rec.DoneMs = schemas.StateCancelled, rec.DueMs-r.Int64N(50*hourMs)
		}
		changes = append(changes, c)
		entries[c.ID] = entryOf(c)
	}
	write(t, s, changes...)
	at := func(hour int64) time.Time { return time.UnixMilli(base + hour*hourMs) }
	success := []schemas.State{schemas.StateSuccess}
	for _, q := range []Query{
		{DoneFrom: at(60), DoneTo: at(61), States: success}, {DueFrom: at(60), DueTo: at(61), States: success, Sort: SortDone},
		{DoneFrom: at(60), DoneTo: at(61), Service: "mail", States: success, Descending: true}, {DoneFrom: at(60), DoneTo: at(61)}, {DoneFrom: at(200)}, {DueFrom: at(60), DueTo: at(61), Sort: SortDone},
	} {
		q.Limit = 3
		page, err := s.Search(t.Context(), q)
		if err != nil || len(q.States) > 0 && len(page.Entries) == 0 {
			t.Errorf("%+v: the first page has %d entries, error %v", q, len(page.Entries), err)
		}
		checkEntries(t, q, all(t, s, q), expect(entries, q))
	}
}

// TestInsertAll: pending timers, of which some have a row of an older, the same or a later revision, have one row each
// with the latest revision, and count once.
func TestInsertAll(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	first, _, err := OpenSQL(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	s := first.(*sqlStore)
	change := func(i int, revision uint64) Change {
		rec := schemas.Record{Definition: schemas.Definition{AddedMs: base, Service: "s", Source: "/i", EventID: fmt.Sprint(i), Type: "t"}}
		rec.State, rec.DueMs, rec.ScheduledMs = schemas.StatePending, base+int64(revision)*minuteMs, base
		return Change{ID: schemas.NewTimerID("/i", fmt.Sprint(i)), Revision: revision, StoredMs: base, Record: rec}
	}
	entries := map[schemas.TimerID]Entry{}
	check := func(what string) {
		t.Helper()
		checkEntries(t, Query{}, all(t, s, Query{}), expect(entries, Query{}))
		c, err := s.Counts(t.Context(), CountsQuery{From: time.UnixMilli(base), To: time.UnixMilli(base + hourMs)})
		if err != nil {
			t.Fatal(err)
		}
		var added, due int64
		for _, b := range c.Buckets {
			added, due = added+b.Added, due+b.Due
		}
		if rows, _ := s.Size(); rows != int64(len(entries)) || added != rows || due != rows {
			t.Errorf("%s: %d rows, %d counted as added and %d as due, want %d", what, rows, added, due, len(entries))
		}
	}
	put := func(changes ...Change) {
		for _, c := range changes {
			if old, ok := entries[c.ID]; !ok || old.Timer.Revision < c.Revision {
				entries[c.ID] = entryOf(c)
			}
		}
		write(t, s, changes...)
	}
	var changes []Change
	for i := range 2*rowsAtOnce + 3 {
		changes = append(changes, change(i, 5))
	}
	put(changes...)
	check("new timers")
	if err := s.Close(); err != nil { // the next writer has inserted nothing yet
		t.Fatal(err)
	}
	s = openTest(t, folder)
	put(changes...)
	check("the same again")
	changes = changes[:0]
	for i := range 4 * rowsAtOnce {
		changes = append(changes, change(i, uint64(4+i%3)))
	}
	put(changes...)
	check("older, equal and later revisions, and new timers")
}

// TestWriteBetween: Write calls Between between the slices of a batch, within the transaction.
func TestWriteBetween(t *testing.T) {
	t.Parallel()
	s, _, err := OpenSQL(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	rng := rand.New(rand.NewPCG(1, 2))
	b := Batch{Changes: make([]*Change, 0, 4*sliceRows)}
	for i := range cap(b.Changes) {
		c := randomChange(rng, 1000, uint64(i)+1)
		c.ID = schemas.NewTimerID("/between", fmt.Sprint(i))
		b.Changes = append(b.Changes, &c)
	}
	calls := 0
	b.Between = func(rows int) {
		calls++
		page, err := s.Search(t.Context(), Query{})
		if rows != sliceRows || err != nil || len(page.Entries) != 0 {
			t.Errorf("call %d: after %d rows, %d entries are visible, error %v", calls, rows, len(page.Entries), err)
		}
	}
	if err := s.Write(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if calls != 3 {
		t.Errorf("%d calls for %d changes, want 3", calls, len(b.Changes))
	}
	if rows, _ := s.Size(); rows != int64(len(b.Changes)) {
		t.Errorf("%d entries of %d", rows, len(b.Changes))
	}
}
