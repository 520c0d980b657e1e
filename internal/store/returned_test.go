package store_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestCountFindsReturned: of a record with several revisions, a count counts the newest one only. It has the others deleted
// if the newest one does not wait, and another program did not write that.
func TestCountFindsReturned(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	js := s.JetStream()
	const shard, filler = 0, 50
	pending := storetest.Pending(storetest.NowMs(t, s) + 3_600_000)
	delivered := storetest.Delivered(*pending)
	success := storetest.Success(*delivered)
	tests := []struct {
		name    string
		records []*schemas.Record // the revisions, oldest first
		foreign bool              // another program wrote the newest one
		waits   bool
		left    int // revisions
	}{
		{"pending", []*schemas.Record{pending}, false, true, 1},
		{"success", []*schemas.Record{success}, false, false, 1},
		{"a pending revision before a success", []*schemas.Record{pending, success}, false, false, 1},
		{"all three revisions", []*schemas.Record{pending, delivered, success}, false, false, 1},
		{"a claim before a success", []*schemas.Record{delivered, success}, false, false, 1},
		{"pending again after a success", []*schemas.Record{success, pending}, false, true, 1},
		{"moved", []*schemas.Record{pending, pending}, false, true, 2},
		{"another program wrote the success", []*schemas.Record{pending, success}, true, false, 2},
	}
	ids := storetest.IDsOf(s.Geometry(), shard, len(tests)+filler)
	subject := func(i int) string { return fmt.Sprintf("$KV.%s.timer.%s", schemas.BucketTimers(shard), ids[i]) }
	var through uint64
	var want []uint64
	write := func(i int, r *schemas.Record, prev uint64, foreign bool) uint64 {
		t.Helper()
		m := &nats.Msg{Subject: subject(i), Header: nats.Header{}, Data: r.Append(nil)}
		if !foreign {
			m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, fmt.Sprint(prev))
		}
		ack, err := js.PublishMsg(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		through = ack.Sequence
		return ack.Sequence
	}
	for i, tt := range tests {
		var prev uint64
		for n, r := range tt.records {
			prev = write(i, r, prev, tt.foreign && n == len(tt.records)-1)
		}
		if tt.waits {
			want = append(want, store.CountKey(ids[i]))
		}
	}
	for i := range filler {
		write(len(tests)+i, []*schemas.Record{pending, success}[i%2], 0, false)
		if i%2 == 0 {
			want = append(want, store.CountKey(ids[len(tests)+i]))
		}
	}
	slices.Sort(want)
	c, err := s.CountPending(t.Context(), shard, through)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Waiting, want) {
		t.Errorf("%d timers wait, want %d", len(c.Waiting), len(want))
	}
	stream := shardStream(t, s, shard)
	for i, tt := range tests {
		revisions := func() int {
			info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(subject(i)))
			if err != nil {
				t.Fatal(err)
			}
			return int(info.State.Subjects[subject(i)])
		}
		waittest.Until(t, tt.name, func() bool { return revisions() <= tt.left })
		m, err := stream.GetLastMsgForSubject(t.Context(), subject(i))
		if err != nil || revisions() != tt.left || decode(t, m.Data).State != tt.records[len(tt.records)-1].State {
			t.Errorf("%s: %d revisions are left, want %d, the newest one %v", tt.name, revisions(), tt.left, err)
		}
	}
	// A count that finds nothing more.
	if c, err := s.CountPending(t.Context(), shard, through); err != nil || !slices.Equal(c.Waiting, want) {
		t.Errorf("the second count: %d timers wait, want %d (%v)", len(c.Waiting), len(want), err)
	}
}

// TestKilledCount: a server that is killed brings revisions of cancelled timers back. A count does not count these timers,
// and has the revisions deleted.
func TestKilledCount(t *testing.T) {
	t.Parallel()
	k := newKilled(t, true)
	// A block of the shard's file has 83 of the large timers, each after its index entry.
	const shard, large, more, small = 0, 200, 45, 4200
	ids := storetest.IDsOf(k.s.Geometry(), shard, large+more+small)
	pending := storetest.Pending(storetest.NowMs(t, k.s) + 3_600_000)
	revs := make([]uint64, large+more)
	create := func(first, last int) {
		t.Helper()
		for i := first; i < last; i++ {
			r := *pending
			r.Body.Data = make([]byte, 100_000)
			revs[i] = storetest.CreateAll(t, k.s, []store.Write{{ID: ids[i], Record: &r}})[0]
		}
	}
	cancelled := 0
	cancel := func(i int) {
		r := *pending
		r.State, r.Queued = schemas.StateCancelled, false
		k.update(ids[i], revs[i], &r, journalTTL)
		cancelled++
	}
	create(0, large)
	for i := 60; i < 110; i++ {
		cancel(i) // One of them is the first one of block 2. The marks of their removals are in block 3.
	}
	create(large, large+more)
	for i := large; i < large+more; i++ {
		cancel(i) // Block 3 is now more than half empty.
	}
	// The server compacts blocks when it commits a batch. The search for leftovers does not reach back so far.
	writes := make([]store.Write, small)
	for i := range writes {
		writes[i] = store.Write{ID: ids[large+more+i], Record: pending}
	}
	through := slices.Max(storetest.CreateAll(t, k.s, writes))
	if n := k.superseded(); n != 0 {
		t.Fatalf("%d replaced revisions exist before the kill", n)
	}
	k.kill()
	if k.superseded() == 0 {
		t.Fatal("no replaced revision has returned: this test shows nothing")
	}
	c, err := k.s.CountPending(t.Context(), shard, through)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(ids) - cancelled; len(c.Waiting) != want {
		t.Errorf("%d timers wait, want %d", len(c.Waiting), want)
	}
	waittest.Until(t, "no replaced revision exists", func() bool { return k.superseded() == 0 })
}
