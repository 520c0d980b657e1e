package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
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
	remove(2*n-1, upTo(n, 2*n)...) // the last one stays, see work-around 22
	holds(2*n, 1)
	if got := deliver(2*n+1, 2*n+50); len(got) != 50 {
		t.Errorf("%d delivered after all but the last were removed", len(got))
	}
}
