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

// TestCountFindsReturned: of a record with several revisions, a count counts the newest one only, and has the others
// deleted. It keeps them if another program wrote the newest one, or if that is damaged.
func TestCountFindsReturned(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	const shard, filler = 0, 50
	due := storetest.NowMs(t, s) + 3_600_000
	pending := storetest.Pending(due).Append(nil)
	delivered := storetest.Delivered(*storetest.Pending(due)).Append(nil)
	success := storetest.Success(*storetest.Delivered(*storetest.Pending(due))).Append(nil)
	damaged := []byte("damaged")
	tests := []struct {
		name      string
		revisions [][]byte
		late      []byte // the newest revision, which is after the count's
		foreign   bool   // another program wrote the newest one
		waits     bool
		left      int // revisions
	}{
		{name: "pending", revisions: [][]byte{pending}, waits: true, left: 1},
		{name: "success", revisions: [][]byte{success}, left: 1},
		{name: "a pending revision before a success", revisions: [][]byte{pending, success}, left: 1},
		{name: "all three revisions", revisions: [][]byte{pending, delivered, success}, left: 1},
		{name: "a claim before a success", revisions: [][]byte{delivered, success}, left: 1},
		{name: "pending again after a success", revisions: [][]byte{success, pending}, waits: true, left: 1},
		{name: "pending again after a success, then claimed", revisions: [][]byte{success, pending}, late: delivered, waits: true, left: 1},
		{name: "moved", revisions: [][]byte{pending, pending}, waits: true, left: 1},
		{name: "moved twice, then a success", revisions: [][]byte{pending, pending, pending, success}, left: 1},
		{name: "another program wrote the success", revisions: [][]byte{pending, success}, foreign: true, left: 2},
		{name: "the newest one is damaged", revisions: [][]byte{pending, success, damaged}, waits: true, left: 3},
	}
	ids := storetest.IDsOf(s.Geometry(), shard, len(tests)+filler)
	subject := func(i int) string { return fmt.Sprintf("$KV.%s.timer.%s", schemas.BucketTimers(shard), ids[i]) }
	newest := make([]uint64, len(ids))
	write := func(i int, data []byte, foreign bool) {
		t.Helper()
		m := &nats.Msg{Subject: subject(i), Header: nats.Header{}, Data: data}
		if !foreign {
			m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, fmt.Sprint(newest[i]))
		}
		ack, err := s.JetStream().PublishMsg(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		newest[i] = ack.Sequence
	}
	for i, tt := range tests {
		for n, data := range tt.revisions {
			write(i, data, tt.foreign && n == len(tt.revisions)-1)
		}
	}
	for i := len(tests); i < len(ids); i++ {
		write(i, [][]byte{success, pending}[i%2], false)
	}
	through := slices.Max(newest)
	for i, tt := range tests {
		if tt.late != nil {
			write(i, tt.late, false)
		}
	}
	stream := shardStream(t, s, shard)
	for _, again := range []bool{false, true} { // the second count finds nothing more
		var want []uint64
		for i, id := range ids {
			waits := i%2 == 1
			if i < len(tests) {
				// After the first count a late record is the only one of its timer.
				waits = tests[i].waits && (!again || tests[i].late == nil)
			}
			if waits {
				want = append(want, store.CountKey(id))
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
		for i, tt := range tests {
			var left uint64
			waittest.Until(t, tt.name+": older revisions are gone", func() bool {
				left = revisionsOf(t, s, shard, subject(i))
				return left <= uint64(tt.left)
			})
			if m, err := stream.GetLastMsgForSubject(t.Context(), subject(i)); err != nil || m.Sequence != newest[i] || left != uint64(tt.left) {
				t.Errorf("%s: %d revisions are left, want %d and the newest one (%v)", tt.name, left, tt.left, err)
			}
		}
	}
}

// TestKilledCount: a server that is killed brings revisions of cancelled timers back. A count does not count these timers,
// and has the revisions deleted.
func TestKilledCount(t *testing.T) {
	t.Parallel()
	// The search for leftovers looks at the last 1,024 sequences only, twice the window.
	k := newKilledWindow(t, true, 512)
	// A block of the shard's file has 83 of the large timers, each after its index entry.
	const shard, large, more, small = 0, 200, 45, 1500
	ids := storetest.IDsOf(k.s.Geometry(), shard, large+more+small)
	pending := storetest.Pending(storetest.NowMs(t, k.s) + 3_600_000)
	revs := make([]uint64, large+more)
	create := func(first, last int) { k.createLarge(ids, revs, pending, first, last) }
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
	// The server compacts blocks when it commits a batch.
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
