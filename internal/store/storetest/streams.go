package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

func tail(t *testing.T, s Store) {
	g := s.Geometry()
	due := NowMs(t, s) + 60_000
	ids := IDsOf(g, 0, 300)
	write := func(ids []schemas.TimerID) []uint64 {
		var writes []store.Write
		for _, id := range ids {
			writes = append(writes, store.Write{ID: id, Record: Pending(due)})
		}
		return CreateAll(t, s, writes)
	}
	revs := write(ids[:100])
	got := make(chan store.Timer, 1000)
	after := revs[49]
	tl := must[*store.Tail](t)(s.Tail(t.Context(), 0, after, func(tm store.Timer) { got <- tm }))
	revs = append(revs, write(ids[100:])...)
	last := must[uint64](t)(s.Update(t.Context(), store.Write{ID: ids[0], Rev: revs[0], Record: Delivered(*Pending(due))}))
	seq, n := after, 0
	for seq < last {
		select {
		case tm := <-got:
			if tm.Rev <= seq {
				t.Fatalf("the tail delivered revision %d after %d", tm.Rev, seq)
			}
			seq = tm.Rev
			n++
		case <-time.After(60 * time.Second):
			t.Fatalf("the tail has delivered up to revision %d; want %d", seq, last)
		}
	}
	if want := 300 - 50 + 1; n != want {
		t.Fatalf("the tail delivered %d records; want %d", n, want)
	}
	tl.Stop()
	tl.Stop()
	write(IDsOf(g, 0, 301)[300:])
	if len(got) != 0 {
		t.Fatal("a stopped tail still delivers")
	}
}

func list(t *testing.T, s Store) {
	due := NowMs(t, s) + 60_000
	var writes []store.Write
	for i := range 250 {
		r := Pending(due)
		if i%5 == 0 {
			r.Service = "billing"
		}
		if i%50 == 0 {
			r.Group = "rare"
		}
		writes = append(writes, store.Write{ID: ID(i), Record: r})
	}
	revs := CreateAll(t, s, writes)
	for i := range 20 {
		must[uint64](t)(s.Update(t.Context(), store.Write{ID: ID(i), Rev: revs[i], Record: Success(*writes[i].Record), TTL: time.Hour}))
	}
	count := func(q store.ListQuery) int {
		t.Helper()
		seen := map[schemas.TimerID]bool{}
		for pages := 0; ; pages++ {
			p := must[store.ListPage](t)(s.List(t.Context(), q))
			for _, tm := range p.Timers {
				if seen[tm.ID] {
					t.Fatalf("timer %s is listed twice", tm.ID)
				}
				seen[tm.ID] = true
			}
			if q.Limit > 0 && len(p.Timers) > q.Limit {
				t.Fatalf("a page of %d; the limit is %d", len(p.Timers), q.Limit)
			}
			if p.Cursor == "" {
				return len(seen)
			}
			if pages > 1000 {
				t.Fatal("the list does not end")
			}
			q.Cursor = p.Cursor
		}
	}
	for _, c := range []struct {
		q    store.ListQuery
		want int
	}{
		{store.ListQuery{}, 250},
		{store.ListQuery{Limit: 7}, 250},
		{store.ListQuery{Limit: 250}, 250},
		{store.ListQuery{States: []schemas.State{schemas.StateSuccess}}, 20},
		{store.ListQuery{States: []schemas.State{schemas.StateSuccess, schemas.StatePending}, Limit: 50}, 250},
		{store.ListQuery{Service: "billing", Limit: 3}, 50},
		{store.ListQuery{Group: "rare"}, 5},
		{store.ListQuery{Service: "billing", Group: "g", States: []schemas.State{schemas.StatePending}}, 42},
		{store.ListQuery{Service: "nobody"}, 0},
	} {
		if n := count(c.q); n != c.want {
			t.Errorf("%+v: %d; want %d", c.q, n, c.want)
		}
	}
	for _, q := range []store.ListQuery{{Limit: -1}, {Limit: store.MaxListLimit + 1}, {Cursor: "x"}, {Cursor: "99.1"}, {Cursor: "-1.1"}} {
		if _, err := s.List(t.Context(), q); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

func publishTwice(t *testing.T, s Store) {
	m := func(id string) store.Msg {
		return store.Msg{Subject: schemas.SubjectFired("orders"), Header: jet.Header{"X": {"y"}}, Data: []byte("e"), MsgID: id}
	}
	seq, dup, err := s.Publish(t.Context(), m("a.1"))
	if err != nil || dup || seq == 0 {
		t.Fatalf("first publish: sequence %d, duplicate %v, %v", seq, dup, err)
	}
	again, dup, err := s.Publish(t.Context(), m("a.1"))
	if err != nil || !dup || again != seq {
		t.Fatalf("second publish: sequence %d, duplicate %v, %v; want a duplicate of %d", again, dup, err, seq)
	}
	var wg sync.WaitGroup
	var stored atomic.Int64
	wg.Add(200)
	for i := range 200 {
		s.PublishAsync(m(fmt.Sprintf("b.%d", i/2)), func(_ uint64, dup bool, err error) {
			if err != nil {
				t.Error(err)
			}
			if !dup {
				stored.Add(1)
			}
			wg.Done()
		})
	}
	wg.Wait()
	if stored.Load() != 100 {
		t.Fatalf("%d messages with 100 ids were stored", stored.Load())
	}
	if _, _, err := s.Publish(t.Context(), store.Msg{Subject: "timers.nobody.listens"}); !errors.Is(err, schemas.ErrUnavailable) {
		t.Fatalf("publish to a subject without a stream: %v; want ErrUnavailable", err)
	}
}

func fired(t *testing.T, s Store) {
	backlog := func(svc string) store.FiredBacklog {
		t.Helper()
		return must[store.FiredBacklog](t)(s.FiredBacklog(t.Context(), svc))
	}
	if b := backlog("orders"); b != (store.FiredBacklog{}) {
		t.Fatalf("the backlog of an empty stream is %+v", b)
	}
	before := time.UnixMilli(NowMs(t, s) - 1)
	ids := map[string]struct{}{}
	for i := range 50 {
		for _, subject := range []string{schemas.SubjectFired("orders"), schemas.SubjectFired("billing"), schemas.SubjectRetry("orders")} {
			id := fmt.Sprintf("%s.%d", subject, i)
			if _, _, err := s.Publish(t.Context(), store.Msg{Subject: subject, MsgID: id, Data: []byte("e")}); err != nil {
				t.Fatal(err)
			}
			if i%10 == 0 {
				ids[id] = struct{}{}
			}
		}
	}
	ids["missing"] = struct{}{}
	all := backlog("orders")
	if all.Oldest.Before(before) || all.Floor != 0 {
		t.Fatalf("backlog %+v; published after %s, and nobody has acknowledged", all, before)
	}
	if other := backlog("nobody"); other != (store.FiredBacklog{}) {
		t.Fatalf("a service without events has the backlog %+v", other)
	}
	subjects := []string{schemas.SubjectFired("orders"), schemas.SubjectRetry("orders")}
	start := time.Now()
	found := must[map[string]struct{}](t)(s.FiredSince(t.Context(), subjects, before, ids))
	if len(found) != 10 {
		t.Fatalf("found %d of 10 published ids: %v", len(found), found)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Fatalf("the search took %s", took)
	}
	// The events of one service in one stream: all, those of a time, those after a floor.
	last := schemas.SubjectFired("orders") + ".40"
	for _, c := range []struct {
		backlog store.FiredBacklog
		since   time.Time
		want    int
	}{
		{all, before, 5}, {all, time.Now().Add(time.Hour), 0}, {store.FiredBacklog{Floor: 1}, time.Now().Add(time.Hour), 4},
		{store.FiredBacklog{Floor: 1 << 40}, before, 0},
	} {
		found := must[map[string]struct{}](t)(s.FindInBacklog(t.Context(), "orders", c.backlog, c.since, ids))
		if _, there := found[last]; len(found) != c.want || there != (c.want > 0) {
			t.Fatalf("found %v in %+v since %s, want %d ids", found, c.backlog, c.since, c.want)
		}
	}
	found = must[map[string]struct{}](t)(s.FiredSince(t.Context(), []string{schemas.SubjectFired("nobody")}, before, ids))
	if len(found) != 0 {
		t.Fatalf("found %v on a subject without events", found)
	}
	// Overdue events have a stream of their own, with a dedup window.
	overdue := store.Msg{Subject: schemas.SubjectOverdue("orders"), MsgID: "overdue", Data: []byte("{}")}
	for again := range 2 {
		if _, duplicate, err := s.Publish(t.Context(), overdue); err != nil || duplicate != (again > 0) {
			t.Fatalf("overdue event %d: duplicate %v, %v", again, duplicate, err)
		}
	}
	ids["overdue"] = struct{}{}
	found = must[map[string]struct{}](t)(s.FiredSince(t.Context(), []string{overdue.Subject}, before, ids))
	if _, there := found["overdue"]; !there || len(found) != 1 {
		t.Fatalf("found %v, want the overdue event", found)
	}
}

func clock(t *testing.T, s Store) {
	now := NowMs(t, s)
	c, rev, err := s.ReadClock(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if c.Owner != "" || c.Epoch != 0 || c.Tail != 0 || c.TimeMs > now || c.TimeMs < now-60_000 {
		t.Fatalf("first clock: %+v at %d", c, now)
	}
	want := store.Clock{TimeMs: now, Owner: "a", Epoch: 1, Tail: 7, Seen: 8, SweptMs: 9, Pending: 10}
	next := must[uint64](t)(s.WriteClock(t.Context(), 1, want, rev))
	if _, err := s.WriteClock(t.Context(), 1, want, rev); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("write over an old revision of the clock: %v; want ErrRevision", err)
	}
	got, rev, err := s.ReadClock(t.Context(), 1)
	want.Version, want.Needs = got.Version, got.Needs // the real store raises Needs
	if err != nil || rev != next || got != want {
		t.Fatalf("read clock %+v, revision %d, %v; want %+v, revision %d", got, rev, err, want, next)
	}
	if other, _, err := s.ReadClock(t.Context(), 0); err != nil || other.Owner != "" {
		t.Fatalf("the clock of the other shard is %+v, %v", other, err)
	}
	if _, _, err := s.ReadClock(t.Context(), 99); !errors.Is(err, schemas.ErrNotFound) {
		t.Fatalf("clock of an absent shard: %v; want ErrNotFound", err)
	}
}

func beat(t *testing.T, s Store) {
	var last store.Stamp
	for range 20 {
		st := must[store.Stamp](t)(s.Beat(t.Context()))
		if st.ServerNs < last.ServerNs || st.Received.Before(st.Sent) || st.Sent.Before(last.Received) {
			t.Fatalf("heartbeat %+v after %+v: times go back", st, last)
		}
		last = st
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := s.Beat(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func services(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, b, retries := store.Feed{Service: "a"}, store.Feed{Service: "b"}, store.Feed{Service: "b", Kind: store.KindRetry}
	wake := func(f store.Feed) {
		t.Helper()
		if err := s.WakeService(ctx, f); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := s.RegisterService(ctx, "known"); err != nil { // must not wake it
			t.Fatal(err)
		}
		wake(a)
	}
	ch := must[<-chan store.ServiceChange](t)(s.WatchServices(ctx))
	seen := map[store.Feed]bool{}
	wait := func(f store.Feed) {
		t.Helper()
		for !seen[f] {
			select {
			case got, ok := <-ch:
				if !ok {
					t.Fatal("the channel is closed")
				}
				seen[got.Feed] = seen[got.Feed] || got.Awake
			case <-time.After(60 * time.Second):
				t.Fatalf("the watch did not report feed %v", f)
			}
		}
	}
	wait(a)
	wake(b)
	wait(b)
	if seen[retries] {
		t.Error("the retries of b were woken with its events")
	}
	wake(retries)
	wait(retries)
	if seen[store.Feed{Service: "known"}] {
		t.Error("a service that is only known is awake")
	}
	for _, bad := range []string{"", "a.b", "*", ">", "ü", "a b"} {
		if s.RegisterService(ctx, bad) == nil || s.WakeService(ctx, store.Feed{Service: bad}) == nil {
			t.Errorf("service %q was registered, or woken", bad)
		}
	}
	cancel()
	waittest.Until(t, "the channel to be closed", func() bool {
		select {
		case _, ok := <-ch:
			return !ok
		default:
			return false
		}
	})
}

func deadLetters(t *testing.T, s Store) {
	publish := func(subject, id string) uint64 {
		seq, _, err := s.Publish(t.Context(), store.Msg{Subject: subject, MsgID: id, Data: []byte(id)})
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	var seqs []uint64
	for i := range 30 {
		svc := []string{"orders", "billing", "mail"}[i%3]
		seqs = append(seqs, publish(schemas.SubjectDead(svc), ID(i).String()+".1.3.dead"))
	}
	for i := range 5 { // rejected adds are not dead letters
		publish(schemas.SubjectRejected, "add."+strconv.Itoa(i))
	}
	rejected := 0
	for q := (store.RejectedQuery{Limit: 2}); ; {
		p := must[store.RejectedPage](t)(s.RejectedList(t.Context(), q))
		for _, m := range p.Adds {
			if want := "add." + strconv.Itoa(rejected); string(m.Data) != want {
				t.Errorf("rejected add %d is %s", rejected, m.Data)
			}
			rejected++
		}
		if q.Cursor = p.Cursor; q.Cursor == "" {
			break
		}
	}
	if rejected != 5 {
		t.Errorf("%d rejected adds are listed, not 5", rejected)
	}
	for _, q := range []store.RejectedQuery{{Limit: -1}, {Cursor: "x"}} {
		if _, err := s.RejectedList(t.Context(), q); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
	count := func(q store.DeadQuery) (n int) {
		t.Helper()
		for {
			p := must[store.DeadPage](t)(s.DeadList(t.Context(), q))
			n += len(p.Letters)
			if p.Cursor == "" {
				return n
			}
			q.Cursor = p.Cursor
		}
	}
	for _, c := range []struct {
		q    store.DeadQuery
		want int
	}{
		{store.DeadQuery{}, 30}, {store.DeadQuery{Limit: 7}, 30}, {store.DeadQuery{Limit: 30}, 30}, {store.DeadQuery{Service: "mail", Limit: 4}, 10},
		{store.DeadQuery{TimerID: ID(4)}, 1}, {store.DeadQuery{TimerID: ID(4), Run: 1}, 1}, {store.DeadQuery{TimerID: ID(4), Run: 2}, 0}, {store.DeadQuery{Service: "orders", TimerID: ID(4)}, 0}, {store.DeadQuery{Service: "nobody"}, 0},
	} {
		if n := count(c.q); n != c.want {
			t.Errorf("%+v: %d; want %d", c.q, n, c.want)
		}
	}
	all := must[store.DeadPage](t)(s.DeadList(t.Context(), store.DeadQuery{})).Letters
	since, until := all[10].Stored, all[20].Stored
	for _, q := range []store.DeadQuery{{Since: since}, {Until: until}, {Since: since, Until: until, Limit: 3}, {Since: since, Service: "mail"}, {Since: all[29].Stored.Add(time.Millisecond)}} {
		want := 0
		for _, m := range all {
			if q.Selects(m) && (q.Service == "" || m.Subject == schemas.SubjectDead(q.Service)) {
				want++
			}
		}
		if n := count(q); n != want {
			t.Errorf("%+v: %d; want %d", q, n, want)
		}
	}
	one := must[store.DeadPage](t)(s.DeadList(t.Context(), store.DeadQuery{TimerID: ID(3)})).Letters
	if len(one) != 1 || one[0].Sequence != seqs[3] || string(one[0].Data) != ID(3).String()+".1.3.dead" || one[0].Subject != schemas.SubjectDead("orders") || one[0].Stored.IsZero() {
		t.Fatalf("the list by timer id has %+v; want the letter with sequence %d", one, seqs[3])
	}
	for range 2 {
		if err := s.DeadDelete(t.Context(), seqs[3]); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(store.DeadQuery{}); n != 29 {
		t.Fatalf("%d dead letters are left after a delete; want 29", n)
	}
	for _, q := range []store.DeadQuery{{Limit: -1}, {Cursor: "x"}, {Service: "a.b"}} {
		if _, err := s.DeadList(t.Context(), q); schemas.CodeOf(err) != schemas.CodeBadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
