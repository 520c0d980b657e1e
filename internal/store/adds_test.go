package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestRemoveAdds: removeAdds removes only the given adds, from the beginning of the stream.
// The routers' consumer then does not wait for their acknowledgement.
func TestRemoveAdds(t *testing.T) {
	t.Parallel()
	for name, srv := range map[string]*natstest.Server{"synced": natstest.Run(t, natstest.SyncAlways), "not synced": natstest.Run(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testRemoveAdds(t, open(t, srv.InProcess(), func(*store.Config) {}))
		})
	}
}

func testRemoveAdds(t *testing.T, s *store.Store) {
	const n = 300
	ctx := t.Context()
	cons := addConsumer(t, s)
	deliver := func(from, to uint64) (msgs []jetstream.Msg) {
		t.Helper()
		for seq := from; seq <= to; seq++ {
			if _, err := s.JetStream().Publish(ctx, schemas.SubjectAdd, []byte(fmt.Sprint(seq))); err != nil {
				t.Fatal(err)
			}
		}
		for len(msgs) < int(to-from+1) {
			b, err := cons.Fetch(int(to-from+1)-len(msgs), jetstream.FetchMaxWait(10*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			for m := range b.Messages() {
				// On a slow machine some adds are delivered again.
				if meta, err := m.Metadata(); err == nil && meta.NumDelivered == 1 {
					msgs = append(msgs, m)
				}
			}
		}
		return msgs
	}
	remove := func(want uint64, seqs ...uint64) {
		t.Helper()
		through, err := s.RemoveAdds(ctx, seqs)
		if err != nil || through != want {
			t.Fatalf("removed through %d, %v; not %d", through, err, want)
		}
	}
	holds := func(first, msgs uint64) {
		t.Helper()
		stream, err := s.JetStream().Stream(ctx, schemas.StreamAdd)
		if err != nil {
			t.Fatal(err)
		}
		if st := stream.CachedInfo().State; st.Msgs != msgs || st.FirstSeq != first {
			t.Fatalf("%d adds are left, the first is %d; not %d and %d", st.Msgs, st.FirstSeq, msgs, first)
		}
	}
	upTo := func(from, to uint64, but ...uint64) (seqs []uint64) {
	next:
		for seq := from; seq <= to; seq++ {
			for _, b := range but {
				if b == seq {
					continue next
				}
			}
			seqs = append(seqs, seq)
		}
		return seqs
	}

	msgs := deliver(1, n)
	remove(0, upTo(2, n)...) // another router has the first add
	remove(0, upTo(1, 5)...) // too few
	holds(1, n)
	remove(99, upTo(1, n, 100)...)
	holds(100, n-99)
	remove(99, upTo(1, n, 100)...) // the adds before 100 are removed already; too few follow
	holds(100, n-99)
	if err := msgs[99].DoubleAck(ctx); err != nil {
		t.Fatal(err)
	}
	remove(n-1, upTo(1, n-1)...)
	holds(n, 1)
	remove(n-1, upTo(1, n-1)...)

	// The consumer waits only for the acknowledgement of the last add, and delivers new adds.
	info, err := cons.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if info.NumAckPending != 1 || info.NumPending != 0 || info.AckFloor.Stream != n-1 {
		t.Errorf("the consumer waits for %d, has %d to come, and its floor is %d", info.NumAckPending, info.NumPending, info.AckFloor.Stream)
	}
	more := deliver(n+1, 2*n)
	meta, err := more[0].Metadata()
	if err != nil {
		t.Fatal(err)
	}
	if meta.Sequence.Stream != n+1 {
		t.Errorf("%d is delivered next, not %d", meta.Sequence.Stream, n+1)
	}
	remove(2*n, upTo(n, 2*n)...)
	holds(2*n+1, 0)
	if got := deliver(2*n+1, 2*n+50); len(got) != 50 {
		t.Errorf("%d delivered after all were removed", len(got))
	}
}

// TestRemoveNewestAdd: no add is lost if the newest adds are removed one by one, as cancels do, and the adds before them are
// purged together, so that the stream is empty (work-around 22).
func TestRemoveNewestAdd(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	r := readHolding(t, s)
	last := uint64(0)
	stream, err := s.JetStream().Stream(t.Context(), schemas.StreamAdd)
	if err != nil {
		t.Fatal(err)
	}
	state := func() jetstream.StreamState {
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State
	}
	for _, newest := range []uint64{1, 2, 40, 150} {
		for _, adds := range []uint64{1, 200} {
			held := r.take(int(adds))
			last += adds
			for _, a := range held {
				a.Done()
			}
			for n := range min(newest, adds) {
				if err := s.RemoveAdd(t.Context(), last-n); err != nil {
					t.Fatal(err)
				}
			}
			waittest.Until(t, "finished adds leave the stream", func() bool { return state().Msgs == 0 })
		}
		// The same with an add after the removed ones.
		open := r.take(200)
		last += 200
		for _, a := range open[:199] {
			a.Done()
		}
		for n := range newest {
			if err := s.RemoveAdd(t.Context(), last-1-n); err != nil {
				t.Fatal(err)
			}
		}
		waittest.Until(t, "all but the last add leave the stream", func() bool { return state().FirstSeq == last })
		open[199].Done()
		const more = 6000
		held := r.take(more)
		last += more
		for i := range 3 {
			for _, a := range held[i*more/3 : (i+1)*more/3] {
				a.Done()
			}
			waittest.Until(t, "a part of them leaves the stream", func() bool { return state().FirstSeq >= last-uint64(2-i)*more/3 })
			if got := state(); got.LastSeq != last || got.Msgs != got.LastSeq-got.FirstSeq+1 {
				t.Fatalf("the stream has %d adds from %d to %d, want all up to %d", got.Msgs, got.FirstSeq, got.LastSeq, last)
			}
		}
		waittest.Until(t, "these leave the stream", func() bool { return state().Msgs == 0 })
	}
}

// TestRemoveAddsOfTenants: adds of tenants and others share the stream. Each router removes its finished adds, whatever is
// between them, and nothing else.
func TestRemoveAddsOfTenants(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess(), func(c *store.Config) { c.Tenants = true })
	tenants := readDoor(t, s, s.OpenTenantInbox)
	publish := func(subject string, n int) {
		t.Helper()
		for range n {
			if _, err := s.JetStream().PublishAsync(subject, []byte("x"), jetstream.WithStallWait(waittest.Bound)); err != nil {
				t.Fatal(err)
			}
		}
	}
	account := func(n int) string { return strings.Replace(schemas.SubjectTenantAdd, "*", fmt.Sprint("A", n), 1) }
	const rounds, run = 20, 300
	stream, err := s.JetStream().Stream(t.Context(), schemas.StreamAdd)
	if err != nil {
		t.Fatal(err)
	}
	left := func(want, last uint64) func() bool {
		return func() bool {
			info, err := stream.Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return info.State.Msgs == want && info.State.LastSeq == last
		}
	}
	// Adds of tenants alone, which are purged.
	for n := range rounds {
		publish(account(n%3), run)
	}
	waittest.Until(t, "the adds of tenants are stored", left(rounds*run, rounds*run))
	waittest.Until(t, "they are read", func() bool { return tenants.holds(rounds * run) })
	for _, a := range tenants.takeHeld() {
		a.Done()
	}
	waittest.Until(t, "these adds are removed", left(0, rounds*run))
	// The adds of both doors, in turns.
	r := readHolding(t, s)
	r.settle()
	for n := range rounds {
		publish(account(n%3), run)
		publish(schemas.SubjectAdd, run)
	}
	waittest.Until(t, "the adds of tenants are left", left(rounds*run, 3*rounds*run))
	tenants.settle()
	waittest.Until(t, "all adds are removed", left(0, 3*rounds*run))
}

// TestRemoveAddsInAnyOrder: whatever adds are removed together and one by one, the stream has the others, and the server
// counts them right. It does so with the filter of each door, and if purges that leave many adds of tenants have none.
func TestRemoveAddsInAnyOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		tenants    bool
		unfiltered uint64
	}{
		{"timers.add", false, store.ManyLeft},
		{"tenants", true, store.ManyLeft},
		{"tenants, without a filter if 40 are left", true, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testRemoveAddsInAnyOrder(t, c.tenants, c.unfiltered)
		})
	}
}

func testRemoveAddsInAnyOrder(t *testing.T, tenants bool, unfiltered uint64) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	s := open(t, natstest.Run(t).InProcess(), func(c *store.Config) { c.Tenants = tenants })
	s.PurgeWithoutFilterFrom(unfiltered)
	cons, publish, remove := addConsumer(t, s), publishAdds, s.RemoveAdds
	if tenants {
		cons = tenantConsumer(t, s)
		publish = func(t *testing.T, s *store.Store, n, size int) {
			publishAddsOn(t, s, strings.Replace(schemas.SubjectTenantAdd, "*", fmt.Sprint("A", rng.IntN(3)), 1), n, size)
		}
		remove = s.RemoveTenantAdds
	}
	var held []uint64 // the adds that are in the stream
	last := uint64(0)
	for step := range testsize.Choose(t, "steps", 150, 500, 2000) {
		var what string
		switch k := rng.IntN(4); {
		case k == 0 || len(held) == 0:
			n := 1 + rng.IntN(120)
			size := 1 + rng.IntN(300)
			if rng.IntN(4) == 0 {
				size *= 100 // the stream begins further files
			}
			publish(t, s, n, size)
			for range n {
				last++
				held = append(held, last)
			}
			what = fmt.Sprintf("%d adds", n)
		case k == 1: // the newest, or any
			i := len(held) - 1
			if rng.IntN(3) == 0 {
				i = rng.IntN(len(held))
			}
			what = fmt.Sprintf("add %d is removed", held[i])
			if err := s.RemoveAdd(t.Context(), held[i]); err != nil {
				t.Fatal(err)
			}
			held = slices.Delete(held, i, i+1)
		default: // a run from the first add on, with what is removed already
			first, n := held[0], 1+rng.IntN(len(held))
			if rng.IntN(3) > 0 {
				n = len(held)
			}
			to := held[n-1]
			if n == len(held) && rng.IntN(2) == 0 {
				to = last
			}
			var seqs []uint64
			for seq := first; seq <= to; seq++ {
				seqs = append(seqs, seq)
			}
			through, err := remove(t.Context(), seqs)
			if err != nil {
				t.Fatal(err)
			}
			what = fmt.Sprintf("adds %d to %d are purged, through %d", first, to, through)
			if through != 0 && through != to || through == 0 && len(seqs) >= store.MinPurge {
				t.Fatalf("seed %d, step %d: %s", seed, step, what)
			}
			held = slices.DeleteFunc(held, func(seq uint64) bool { return seq <= through })
		}
		stream, err := s.JetStream().Stream(t.Context(), schemas.StreamAdd)
		if err != nil {
			t.Fatal(err)
		}
		first := last + 1
		if len(held) > 0 {
			first = held[0]
		}
		if got := stream.CachedInfo().State; got.Msgs != uint64(len(held)) || got.FirstSeq != first || got.LastSeq != last {
			t.Fatalf("seed %d, step %d, %s: the stream has %d adds from %d to %d, want %d from %d to %d", seed, step, what, got.Msgs, got.FirstSeq, got.LastSeq, len(held), first, last)
		}
	}
	for end := time.Now().Add(waittest.Bound); len(held) > 0; {
		b, err := cons.Fetch(min(len(held), 500), jetstream.FetchMaxWait(store.RouterAckWait))
		if err != nil {
			t.Fatal(err)
		}
		for m := range b.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			if meta.NumDelivered > 1 { // the machine is slow
				continue
			}
			end = time.Now().Add(waittest.Bound)
			if meta.Sequence.Stream != held[0] {
				t.Fatalf("seed %d: add %d is delivered, want %d", seed, meta.Sequence.Stream, held[0])
			}
			held = held[1:]
		}
		if time.Now().After(end) {
			t.Fatalf("seed %d: %d adds from %d on are not delivered: %v", seed, len(held), held[0], b.Error())
		}
	}
}

// TestPurgeFilter: only a purge of tenants' adds that leaves a large backlog has no filter.
func TestPurgeFilter(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	for left, want := range map[uint64]string{0: schemas.SubjectTenantAdd, store.ManyLeft - 1: schemas.SubjectTenantAdd, store.ManyLeft: ""} {
		if plain, tenants := s.PurgeFilters(left); plain != schemas.SubjectAdd || tenants != want {
			t.Errorf("a purge that leaves %d messages has the filters %q and %q, want %q and %q", left, plain, tenants, schemas.SubjectAdd, want)
		}
	}
}
