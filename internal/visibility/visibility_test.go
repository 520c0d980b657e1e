package visibility_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// node is a node with the embedded server.
type node struct {
	*app.App
	o app.Options
}

func options(t *testing.T) app.Options {
	return app.Options{
		Data: t.TempDir(), NATSListen: "127.0.0.1:0", HTTP: app.NoHTTP, Profile: app.ProfileFast, Shards: 2,
		AllowLoopback: true, HistoryAttributes: []string{"customer"}, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
	}
}

// start starts a node, and stops it with the test.
func start(t *testing.T, o app.Options) *node {
	t.Helper()
	a, err := app.New(o)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{a, o}
	t.Cleanup(func() { n.stop(t) })
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.Stop(ctx); err != nil {
		t.Errorf("Stop: got error %v, want none", err)
	}
}

// add adds a timer by an event in structured mode.
func (n *node) add(t *testing.T, id, attributes string) schemas.TimerID {
	t.Helper()
	event := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/shop","type":"order.due","timersvc":"orders",%s}`, id, attributes)
	var reply schemas.AddReply
	var err error
	waittest.Available(t, "the add of "+id, func() bool {
		reply, err = n.Router().Add(t.Context(), nil, []byte(event))
		return errors.Is(err, schemas.ErrUnavailable)
	}, func() string { return fmt.Sprint(err) })
	if err != nil {
		t.Fatal(err)
	}
	return reply.Timer
}

// search returns all entries that a query selects.
func (n *node) search(t *testing.T, q visibility.Query) (entries []visibility.Entry) {
	t.Helper()
	q.Limit = visibility.MaxLimit
	for {
		page, err := n.Visibility().Search(t.Context(), q)
		if err != nil {
			if errors.Is(err, schemas.ErrUnavailable) {
				return nil // not open yet
			}
			t.Fatal(err)
		}
		entries = append(entries, page.Entries...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return entries
		}
	}
}

// find waits until a query selects exactly one entry, in a state, and returns it.
func (n *node) find(t *testing.T, q visibility.Query, state schemas.State) (e visibility.Entry) {
	t.Helper()
	var got []visibility.Entry
	waittest.Until(t, fmt.Sprintf("one entry of %+v in state %s", q, state), func() bool {
		got = n.search(t, q)
		return len(got) == 1 && got[0].Timer.State == state
	}, func() string { return fmt.Sprintf("%+v %+v", got, n.Visibility().Progress()) })
	return got[0]
}

// current waits until the index has every change up to now.
func (n *node) current(t *testing.T) {
	t.Helper()
	newest := int64(0)
	for shard := range n.Store().Geometry().Shards {
		waittest.Available(t, fmt.Sprint("the newest change of shard ", shard), func() bool {
			st, err := n.Store().Newest(t.Context(), shard)
			if err != nil && !errors.Is(err, schemas.ErrUnavailable) {
				t.Fatal(err)
			}
			newest = max(newest, st.AtMs)
			return err != nil
		})
	}
	waittest.Until(t, "an index that is up to date", func() bool {
		p := n.Visibility().Progress()
		return p.AsOf.UnixMilli() >= newest && !p.CatchingUp && !p.CountsOnly
	}, func() string { return fmt.Sprintf("%+v", n.Visibility().Progress()) })
}

// TestAsOfUnderLoad: as_of follows the time while all shards change all the time, so that the index never has all changes.
func TestAsOfUnderLoad(t *testing.T) {
	t.Parallel()
	n := start(t, options(t))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for adder := range 4 {
		wg.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond) // slow enough for the index
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				event := fmt.Sprintf(`{"specversion":"1.0","id":"%d-%d","source":"/load","type":"order.due","timersvc":"orders","timerafter":"PT1H"}`, adder, i)
				if _, err := n.Router().Add(t.Context(), nil, []byte(event)); err != nil && !errors.Is(err, schemas.ErrUnavailable) {
					t.Error(err)
					return
				}
			}
		})
	}
	defer wg.Wait()
	defer close(stop)
	began := time.Now()
	waittest.Until(t, "an as_of 4 s after the load began", func() bool {
		return n.Visibility().Progress().AsOf.Sub(began) >= 4*time.Second
	}, func() string {
		return fmt.Sprintf("%s after the load began: %+v", time.Since(began), n.Visibility().Progress())
	})
}

// TestFindByOrder: what became of order 17, by its id alone: while it waits, and after it has fired.
func TestFindByOrder(t *testing.T) {
	t.Parallel()
	n := start(t, options(t))
	n.add(t, "order-16", `"timerafter":"PT1H"`)
	n.add(t, "order-17", `"timerafter":"PT1H","customer":"c9","data":{"secret":1}`)
	n.add(t, "order-18", `"timerafter":"PT0.1S"`)
	e := n.find(t, visibility.Query{Text: "order-17"}, schemas.StatePending)
	if e.Timer.Service != "orders" || e.Attributes["customer"] != "c9" {
		t.Errorf("got %+v", e)
	}
	n.find(t, visibility.Query{Attributes: map[string]string{"customer": "c9"}}, schemas.StatePending)
	n.find(t, visibility.Query{Text: "order-18"}, schemas.StateSuccess)
	n.cancel(t, "order-17", "ann")
	e = n.find(t, visibility.Query{Attributes: map[string]string{"customer": "c9"}}, schemas.StateCancelled)
	if len(e.Timer.History) != 1 || e.Timer.History[0].By != "ann" {
		t.Errorf("got history %+v, want a cancel by ann", e.Timer.History)
	}
}

// TestHistoryOutlivesRecord: an entry that is done stays when its record expires.
func TestHistoryOutlivesRecord(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Retention = time.Second
	n := start(t, o)
	id := n.add(t, "short", `"timerafter":"PT0.1S"`)
	n.find(t, visibility.Query{ID: "short"}, schemas.StateSuccess)
	waittest.Until(t, "a record that has expired", func() bool {
		_, err := n.Store().Get(t.Context(), id)
		return errors.Is(err, schemas.ErrNotFound)
	})
	if e, err := n.Visibility().Get(t.Context(), id); err != nil || e.Timer.State != schemas.StateSuccess {
		t.Errorf("got %+v and error %v, want the entry", e, err)
	}
}

// TestRuns: the runs of a schedule with a callback are entries, found by their schedule.
func TestRuns(t *testing.T) {
	t.Parallel()
	n := start(t, options(t))
	callee := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusGone) }))
	t.Cleanup(callee.Close)
	id := n.add(t, "tick", `"timerevery":"PT1S","timerlimit":2,"timermaxattempts":1,"timercallback":"`+callee.URL+`/none"`)
	yes := true
	n.find(t, visibility.Query{Text: "tick", Schedule: &yes}, schemas.StateCompleted)
	var runs []visibility.Entry
	waittest.Until(t, "two failed runs", func() bool {
		runs = n.search(t, visibility.Query{RunsOf: id, States: []schemas.State{schemas.StateFail}, Error: "410"})
		return len(runs) == 2
	}, func() string { return fmt.Sprintf("%+v", n.search(t, visibility.Query{})) })
	if e := runs[0]; len(e.Timer.LastAttempts) != 1 || "http://"+e.Host != callee.URL || e.Timer.Origin == nil {
		t.Errorf("got %+v, want a run with one attempt", e)
	}
}

// TestRestart: an index that was behind continues where it ended, also after it was deleted.
func TestRestart(t *testing.T) {
	t.Parallel()
	o := options(t)
	n := start(t, o)
	n.add(t, "one", `"timerafter":"PT1H"`)
	n.find(t, visibility.Query{ID: "one"}, schemas.StatePending)
	n.stop(t)
	o.Roles = app.SharedRoles()
	without := start(t, o)
	if without.Visibility() != nil {
		t.Error("a node without the role has an index")
	}
	without.add(t, "two", `"timerafter":"PT1H"`)
	without.cancel(t, "one", "")
	without.stop(t)
	o.Roles = nil
	again := start(t, o)
	again.find(t, visibility.Query{ID: "one"}, schemas.StateCancelled)
	again.find(t, visibility.Query{ID: "two"}, schemas.StatePending)
	again.stop(t)
	if err := os.Remove(filepath.Join(o.Data, "visibility", "history.db")); err != nil {
		t.Fatal(err)
	}
	rebuilt := start(t, o)
	rebuilt.find(t, visibility.Query{ID: "one"}, schemas.StateCancelled)
	rebuilt.find(t, visibility.Query{ID: "two"}, schemas.StatePending)
}

// cancel cancels a timer of source /shop.
func (n *node) cancel(t *testing.T, id, by string) {
	t.Helper()
	var err error
	waittest.Available(t, "the cancel of "+id, func() bool {
		_, err = n.Router().Cancel(t.Context(), schemas.CancelRequest{TimerRef: schemas.TimerRef{ID: id, Source: "/shop"}, By: by}, schemas.Caller{})
		return errors.Is(err, schemas.ErrUnavailable)
	}, func() string { return fmt.Sprint(err) })
	if err != nil {
		t.Fatal(err)
	}
}

// reschedule moves a timer of source /shop.
func (n *node) reschedule(t *testing.T, id, after string) {
	t.Helper()
	var err error
	waittest.Available(t, "the reschedule of "+id, func() bool {
		_, err = n.Router().Reschedule(t.Context(), schemas.RescheduleRequest{TimerRef: schemas.TimerRef{ID: id, Source: "/shop"}, After: after}, schemas.Caller{})
		return errors.Is(err, schemas.ErrUnavailable)
	}, func() string { return fmt.Sprint(err) })
	if err != nil {
		t.Fatal(err)
	}
}

// added returns how many timers count as added in the last hour.
func (n *node) added(t *testing.T) (added int64) {
	t.Helper()
	counts, err := n.Visibility().Counts(t.Context(), visibility.CountsQuery{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range counts.Buckets {
		added += b.Added
	}
	return added
}

// TestAwayForLong: an open entry whose record has ended and expired while the index was away is
// removed. A timer that was rescheduled meanwhile counts as added once.
func TestAwayForLong(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "three nodes, one after another")
	o := options(t)
	o.Retention = 2 * time.Second
	n := start(t, o)
	gone := n.add(t, "gone", `"timerafter":"PT1H"`)
	n.add(t, "stays", `"timerafter":"PT1H"`)
	n.add(t, "moved", `"timerafter":"PT1H"`)
	n.find(t, visibility.Query{ID: "gone"}, schemas.StatePending)
	n.find(t, visibility.Query{ID: "moved"}, schemas.StatePending)
	n.find(t, visibility.Query{ID: "stays"}, schemas.StatePending)
	n.current(t)
	n.stop(t)
	o.Roles = app.SharedRoles()
	without := start(t, o)
	without.cancel(t, "gone", "")
	without.reschedule(t, "moved", "PT2H")
	waittest.Until(t, "a record that has expired", func() bool {
		_, err := without.Store().Get(t.Context(), gone)
		return errors.Is(err, schemas.ErrNotFound)
	})
	without.stop(t)
	o.Roles = nil
	again := start(t, o)
	again.current(t)
	if got := again.search(t, visibility.Query{}); len(got) != 2 || got[0].Timer.ID != "stays" || got[1].Timer.ID != "moved" {
		t.Errorf("got %+v, want the timer that stays and the rescheduled timer", got)
	}
	if added := again.added(t); added != 3 {
		t.Errorf("%d timers count as added, want 3", added)
	}
}

// TestPassesDamage: a damaged record, or the marker of a removed one, that is the newest of its shard does not keep the index
// behind.
func TestPassesDamage(t *testing.T) {
	t.Parallel()
	n := start(t, options(t))
	nc, err := n.Connect("damage")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	for _, m := range []nats.Msg{{Data: []byte("damaged")}, {Header: nats.Header{"KV-Operation": {"PURGE"}}}} {
		id := n.add(t, fmt.Sprint("damaged", len(m.Header)), `"timerafter":"PT1H"`)
		shard := n.Store().Geometry().Shard(id)
		last, err := n.Store().LastSeq(t.Context(), shard)
		if err != nil {
			t.Fatal(err)
		}
		m.Subject = fmt.Sprintf("$KV.%s.timer.%s", schemas.BucketTimers(shard), id)
		if _, err := nc.RequestMsg(&m, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		waittest.Until(t, "an index that is up to date", func() bool {
			more, err := n.Store().HasNext(t.Context(), shard, last)
			p := n.Visibility().Progress()
			return err == nil && more && p.Behind == 0 && !p.CatchingUp && time.Since(p.AsOf) < 10*time.Second
		}, func() string { return fmt.Sprintf("%+v", n.Visibility().Progress()) })
	}
}

// TestOtherBuckets: an index of another Belfry, and an index that has seen more than the buckets have, is
// deleted and built again.
func TestOtherBuckets(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "three nodes, one after another")
	o := options(t)
	n := start(t, o)
	n.add(t, "theirs", `"timerafter":"PT1H"`)
	n.find(t, visibility.Query{ID: "theirs"}, schemas.StatePending)
	n.current(t)
	n.stop(t)
	other := options(t)
	if err := os.Rename(filepath.Join(o.Data, "visibility"), filepath.Join(other.Data, "visibility")); err != nil {
		t.Fatal(err)
	}
	m := start(t, other)
	m.add(t, "ours", `"timerafter":"PT1H"`)
	m.find(t, visibility.Query{ID: "ours"}, schemas.StatePending)
	m.current(t)
	if got := m.search(t, visibility.Query{}); len(got) != 1 {
		t.Errorf("got %+v, want only ours", got)
	}
}

// TestEqualsBuckets: after random operations have ended, the index has what a scan of the buckets
// finds.
func TestEqualsBuckets(t *testing.T) {
	t.Parallel()
	o := options(t)
	n := start(t, o)
	r := rand.New(rand.NewPCG(11, 3))
	for i := range 300 {
		id := fmt.Sprintf("e%d", r.IntN(120))
		ref := schemas.TimerRef{ID: id, Source: "/shop"}
		operation, due := r.IntN(6), []string{"PT0.05S", "PT1H", "PT0.5S"}[r.IntN(3)]
		waittest.Available(t, "an operation on "+id, func() bool { // a repeated request is the same operation
			var err error
			switch operation {
			case 0:
				_, err = n.Router().Cancel(t.Context(), schemas.CancelRequest{TimerRef: ref}, schemas.Caller{})
			case 1:
				_, err = n.Router().Reschedule(t.Context(), schemas.RescheduleRequest{TimerRef: ref, After: "PT0.2S"}, schemas.Caller{})
			case 2:
				_, err = n.Router().Pause(t.Context(), schemas.PauseRequest{TimerRef: ref}, schemas.Caller{})
			case 3:
				_, err = n.Router().Resume(t.Context(), schemas.ResumeRequest{TimerRef: ref}, schemas.Caller{})
			default:
				event := fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/shop","type":"t","timersvc":"s%d","timerafter":%q}`, id, i%3, due)
				_, err = n.Router().Add(t.Context(), nil, []byte(event))
			}
			return errors.Is(err, schemas.ErrUnavailable)
		})
	}
	far := []schemas.State{schemas.StatePending, schemas.StatePaused}
	waittest.Until(t, "no timer that is due soon", func() bool {
		due := n.search(t, visibility.Query{States: far[:1], DueTo: time.Now().Add(30 * time.Minute)})
		return len(due) == 0 && len(n.search(t, visibility.Query{States: []schemas.State{schemas.StateDelivered}})) == 0
	})
	equalsBuckets(t, n)
	n.stop(t)
	equalsBuckets(t, start(t, o))
}

// equalsBuckets compares the index with a scan of the buckets.
func equalsBuckets(t *testing.T, n *node) {
	t.Helper()
	n.current(t)
	var got, want map[string]string
	waittest.Until(t, "an index that equals the buckets", func() bool {
		got, want = map[string]string{}, map[string]string{}
		for _, e := range n.search(t, visibility.Query{}) {
			got[e.Timer.ID] = text(&e.Timer)
		}
		for cursor, more := "", true; more; {
			page, err := n.Router().List(t.Context(), schemas.ListRequest{Cursor: cursor})
			if errors.Is(err, schemas.ErrUnavailable) {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range page.Timers {
				want[page.Timers[i].ID] = text(&page.Timers[i])
			}
			cursor, more = page.Cursor, page.Cursor != ""
		}
		return maps.Equal(got, want)
	}, func() string { return fmt.Sprintf("got %v, want %v", got, want) })
	if len(want) == 0 {
		t.Error("there are no timers")
	}
}

func text(i *schemas.TimerInfo) string { return string(i.Append(nil)) }
