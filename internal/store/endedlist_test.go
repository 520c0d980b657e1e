package store_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const hourMs, dayMs = 3_600_000, 24 * 3_600_000

// TestEndedChunk: a chunk is decoded as it was encoded. A changed byte is damage, a higher version with a right checksum a
// newer format.
func TestEndedChunk(t *testing.T) {
	t.Parallel()
	want := []store.EndedTimer{
		{ID: storetest.ID(1), Rev: 1, StoredMs: 2, AddedMs: 3, UntilMs: 4},
		{ID: storetest.ID(2), Rev: math.MaxUint64, StoredMs: math.MinInt64, AddedMs: -1, UntilMs: math.MaxInt64},
	}
	for _, timers := range [][]store.EndedTimer{{}, want[:1], want} {
		b := store.EncodeEnded(timers)
		if got, err := store.DecodeEnded(b); err != nil || !slices.Equal(got, timers) {
			t.Errorf("decoded %v, %v; want %v", got, err, timers)
		}
		for i := range b {
			bad := slices.Clone(b)
			bad[i] ^= 1
			if _, err := store.DecodeEnded(bad); !errors.Is(err, schemas.ErrDamaged) {
				t.Errorf("byte %d of %d changed: %v", i, len(b), err)
			}
			if _, err := store.DecodeEnded(b[:i]); !errors.Is(err, schemas.ErrDamaged) {
				t.Errorf("%d of %d bytes: %v", i, len(b), err)
			}
		}
	}
	sealed := func(b []byte) []byte {
		sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
		return append(b, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	}
	for b, want := range map[string]error{"\x02 of a newer version": schemas.ErrNewer, "\x00": schemas.ErrDamaged, "\x01 no timer": schemas.ErrDamaged} {
		if _, err := store.DecodeEnded(sealed([]byte(b))); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", b, err, want)
		}
	}
}

// endedTimers returns n timers of a shard for the list, with their time until ms.
func endedTimers(s *store.Store, shard, n int, untilMs int64) (timers []store.EndedTimer) {
	for i, id := range storetest.IDsOf(s.Geometry(), shard, n) {
		timers = append(timers, store.EndedTimer{ID: id, Rev: uint64(1000 + i), StoredMs: 1, AddedMs: 2, UntilMs: untilMs})
	}
	return timers
}

// settledList is list, once the replaced revisions of the chunks are gone.
func settledList(t *testing.T, s *store.Store, shard int) (all []store.EndedTimer, chunks int) {
	t.Helper()
	stream := shardStream(t, s, shard)
	waittest.Until(t, "one revision of each chunk", func() bool {
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV."+schemas.BucketTimers(shard)+".ended.>"))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range info.State.Subjects {
			if n != 1 {
				return false
			}
		}
		return true
	})
	return list(t, s, shard)
}

// list returns the list of a shard, sorted by revision.
func list(t *testing.T, s *store.Store, shard int) (all []store.EndedTimer, chunks int) {
	t.Helper()
	all, chunks, err := s.Ended(t.Context(), shard)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b store.EndedTimer) int { return cmp.Or(int(a.Rev)-int(b.Rev), bytes.Compare(a.ID[:], b.ID[:])) })
	// A replaced revision of a chunk may still exist.
	return slices.CompactFunc(all, func(a, b store.EndedTimer) bool { return a.Rev == b.Rev && a.ID == b.ID }), chunks
}

// TestAddEnded: the list has each timer once, in as few chunks as possible, of which one revision each exists. A rewrite drops
// the timers whose time has passed, and chunks expire after their timers.
func TestAddEnded(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	const shard, most = 0, 10
	s.SetMostEnded(most)
	now := storetest.NowMs(t, s)
	add := func(passedMs int64, timers ...store.EndedTimer) {
		t.Helper()
		if err := s.AddEnded(t.Context(), shard, now, passedMs, timers); err != nil {
			t.Fatal(err)
		}
	}
	want := endedTimers(s, shard, 24, now+hourMs)
	add(now, want[:4]...)
	add(now, want[2:7]...) // two of them again
	add(now, want[7:]...)
	add(now)
	all, chunks := settledList(t, s, shard)
	if !slices.Equal(all, want) || chunks != 3 {
		t.Fatalf("%d timers in %d chunks, want %d in 3", len(all), chunks, len(want))
	}
	if _, chunks = list(t, s, 1); chunks != 0 {
		t.Error("another shard has a list")
	}
	// The open chunk has four timers. Two of them are dropped.
	want[20].UntilMs, want[21].UntilMs = now+1, now+2
	later := endedTimers(s, shard, 25, now+hourMs)[24]
	add(now, store.EndedTimer{ID: later.ID, Rev: 1, UntilMs: now + 3})
	add(now+3, later)
	if all, chunks = settledList(t, s, shard); chunks != 3 || len(all) != 25 || slices.ContainsFunc(all, func(e store.EndedTimer) bool { return e.Rev == 1 }) {
		t.Fatalf("%d timers in %d chunks after one has passed, want 25 in 3", len(all), chunks)
	}
	// Each class has chunks of its own.
	var classes []store.EndedTimer
	for i, days := range []int64{2, 9, 65} {
		e := endedTimers(s, shard, 1, now+days*dayMs)[0]
		e.Rev = uint64(2000 + i)
		classes = append(classes, e)
	}
	add(now, classes...)
	if all, chunks = settledList(t, s, shard); chunks != 6 || !slices.Equal(all[len(all)-3:], classes) {
		t.Errorf("%d timers in %d chunks of four classes", len(all), chunks)
	}
	stream := shardStream(t, s, shard)
	prefix := "$KV." + schemas.BucketTimers(shard) + ".ended."
	for key, days := range map[string]int64{"1.0": 2, "3.0": 65} {
		m, err := stream.GetLastMsgForSubject(t.Context(), prefix+key)
		if err != nil {
			t.Fatal(err)
		}
		if ttl := jet.TTL(&jet.Msg{Header: m.Header}); ttl < time.Duration(days+1)*24*time.Hour || ttl > time.Duration(days+2)*24*time.Hour {
			t.Errorf("chunk %s has TTL %s, want a day more than %d days", key, ttl, days)
		}
	}
}

// TestAddEndedTogether: nodes that write the same list at the same time lose no timer.
func TestAddEndedTogether(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	const shard, writers, each = 0, 4, 25
	var want []store.EndedTimer
	var wg sync.WaitGroup
	for n := range writers {
		s := open(t, srv.InProcess(), func(c *store.Config) { c.Node = fmt.Sprint("n", n) })
		s.SetMostEnded(30)
		now := storetest.NowMs(t, s)
		timers := endedTimers(s, shard, writers*each, now+hourMs)
		want = timers
		wg.Go(func() {
			for _, e := range timers[n*each : (n+1)*each] {
				for s.AddEnded(t.Context(), shard, now, now, []store.EndedTimer{e}) != nil {
					if t.Context().Err() != nil {
						return
					}
				}
			}
		})
	}
	wg.Wait()
	s := open(t, srv.InProcess())
	all, _ := list(t, s, shard)
	if len(all) != len(want) || !slices.EqualFunc(all, want, func(a, b store.EndedTimer) bool { return a.ID == b.ID && a.Rev == b.Rev }) {
		t.Errorf("the list has %d timers, want %d", len(all), len(want))
	}
}

// TestAddEndedAfterDamage: a chunk that is damaged, of a newer format, or not of Belfry stays as it is, and the list continues in another
// one. It also continues after a chunk was deleted.
func TestAddEndedAfterDamage(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	const shard = 0
	now := storetest.NowMs(t, s)
	timers := endedTimers(s, shard, 4, now+hourMs)
	newer := []byte{2, 0, 0, 0, 0, 0}
	sum := crc32.Checksum(newer[:2], crc32.MakeTable(crc32.Castagnoli))
	newer = append(newer[:2], byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	bucket := "$KV." + schemas.BucketTimers(shard)
	for i, broken := range []nats.Msg{
		{Subject: bucket + ".ended.0.0", Data: []byte("damaged")},
		{Subject: bucket + ".ended.0.1", Data: newer},
		{Subject: bucket + ".ended.0.other", Data: []byte("of another program")},
		{Subject: bucket + ".ended.0.2", Header: nats.Header{"KV-Operation": {"DEL"}}}, // replaced like a chunk
	} {
		ack, err := s.JetStream().PublishMsg(t.Context(), &broken)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.AddEnded(t.Context(), shard, now, now, timers[i:i+1]); err != nil {
			t.Fatal(err)
		}
		m, err := shardStream(t, s, shard).GetMsg(t.Context(), ack.Sequence)
		if broken.Header == nil && (err != nil || !slices.Equal(m.Data, broken.Data)) {
			t.Errorf("%s was changed: %v", broken.Subject, err)
		}
	}
	if all, _ := list(t, s, shard); !slices.Equal(all[1:], timers[1:]) || len(all) != 4 {
		t.Errorf("the list has %v, want %v", all, timers)
	}
}

// TestRemoveVoid: open revisions that the list shows to be void are deleted, and every other revision is left.
func TestRemoveVoid(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	const shard = 0
	now := storetest.NowMs(t, s)
	due := now + hourMs
	pending := storetest.Pending(due)
	paused, retrying := *pending, *storetest.Delivered(*pending)
	paused.State, paused.Queued = schemas.StatePaused, false
	retrying.State, retrying.Queued = schemas.StateRetrying, true
	tests := []struct {
		name      string
		revisions []*schemas.Record // nil is damaged
		late      bool              // the revisions are after the count's
		foreign   bool
		change    func(e *store.EndedTimer) // e is after the revisions; nil: the timer is not in the list
		waits     bool
		left      uint64
	}{
		{name: "not in the list", revisions: []*schemas.Record{pending}, waits: true, left: 1},
		{name: "pending", revisions: []*schemas.Record{pending}, change: func(*store.EndedTimer) {}},
		{name: "paused", revisions: []*schemas.Record{&paused}, change: func(*store.EndedTimer) {}},
		{name: "waits for a retry", revisions: []*schemas.Record{&retrying}, change: func(*store.EndedTimer) {}},
		{name: "pending, after the count's revision", late: true, revisions: []*schemas.Record{pending}, change: func(*store.EndedTimer) {}},
		{name: "two revisions", revisions: []*schemas.Record{pending, pending}, change: func(*store.EndedTimer) {}},
		{name: "final", revisions: []*schemas.Record{storetest.Success(*pending)}, change: func(*store.EndedTimer) {}, left: 1},
		{name: "added again", revisions: []*schemas.Record{pending}, change: func(e *store.EndedTimer) { e.Rev = 1 }, waits: true, left: 1},
		{name: "the final record is after the list", revisions: []*schemas.Record{pending}, change: func(e *store.EndedTimer) { e.Rev += 100 }, waits: true, left: 1},
		{name: "of another add", revisions: []*schemas.Record{pending}, change: func(e *store.EndedTimer) { e.AddedMs++ }, waits: true, left: 1},
		{name: "restored later", revisions: []*schemas.Record{pending}, change: func(e *store.EndedTimer) { e.StoredMs = now - 1 }, waits: true, left: 1},
		{name: "another program wrote it", foreign: true, revisions: []*schemas.Record{pending}, change: func(*store.EndedTimer) {}, waits: true, left: 1},
		{name: "damaged", revisions: []*schemas.Record{pending, nil}, change: func(*store.EndedTimer) {}, waits: true, left: 2},
	}
	ids := storetest.IDsOf(s.Geometry(), shard, len(tests))
	subject := func(i int) string { return fmt.Sprintf("$KV.%s.timer.%s", schemas.BucketTimers(shard), ids[i]) }
	newest := make([]uint64, len(ids))
	through := uint64(0)
	for _, late := range []bool{false, true} {
		for i, tt := range tests {
			if tt.late != late {
				continue
			}
			for _, r := range tt.revisions {
				m := &nats.Msg{Subject: subject(i), Header: nats.Header{}, Data: []byte("damaged")}
				if r != nil {
					m.Data = r.Append(nil)
				}
				if !tt.foreign {
					m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, fmt.Sprint(newest[i]))
				}
				ack, err := s.JetStream().PublishMsg(t.Context(), m)
				if err != nil {
					t.Fatal(err)
				}
				newest[i] = ack.Sequence
			}
		}
		if !late {
			through = slices.Max(newest)
		}
	}
	// Where the final records were.
	if _, err := s.JetStream().Publish(t.Context(), "$KV."+schemas.BucketTimers(shard)+".expired", nil); err != nil {
		t.Fatal(err)
	}
	var ended []store.EndedTimer
	var want []uint64
	stored := storetest.NowMs(t, s) + 1000
	for i, tt := range tests {
		if tt.waits {
			want = append(want, store.CountKey(ids[i]))
		}
		if e := (store.EndedTimer{ID: ids[i], Rev: slices.Max(newest) + 1, StoredMs: stored, AddedMs: pending.AddedMs, UntilMs: due}); tt.change != nil {
			tt.change(&e)
			ended = append(ended, e)
		}
	}
	if err := s.AddEnded(t.Context(), shard, now, now, ended); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	removed, err := s.RemoveVoid(t.Context(), shard)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range tests {
		v := store.VoidRecord{ID: ids[i], Rev: newest[i]}
		if got, want := slices.Contains(removed, v), tt.left == 0; got != want {
			t.Errorf("%s: removed %v, want %v", tt.name, got, want)
		}
	}
	c, err := s.CountPending(t.Context(), shard, through)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Waiting, want) {
		t.Errorf("%d timers wait, want %d", len(c.Waiting), len(want))
	}
	if len(c.Late) > 0 {
		t.Errorf("%d records have later revisions", len(c.Late))
	}
	for i, tt := range tests {
		left := revisionsOf(t, s, shard, subject(i))
		if left != tt.left {
			t.Errorf("%s: %d revisions are left, want %d", tt.name, left, tt.left)
		}
		if left > 0 {
			continue
		}
		// The owner may have loaded the record before the count. Its claim must be refused.
		claim := store.Write{ID: ids[i], Rev: newest[i], Record: storetest.Delivered(*pending)}
		if _, err := s.Update(t.Context(), claim); !errors.Is(err, store.ErrRevision) {
			t.Errorf("%s: the claim of a deleted revision returned %v", tt.name, err)
		}
	}
}

// TestVoidIsCheckedFirst: a void revision is deleted only if its sequence still has the same message. After a power loss the
// server may give the sequence to another one.
func TestVoidIsCheckedFirst(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	const shard = 0
	ids := storetest.IDsOf(s.Geometry(), shard, 3)
	pending := storetest.Pending(storetest.NowMs(t, s) + hourMs)
	stream := shardStream(t, s, shard)
	for i, there := range []bool{false, true, true} {
		rev := storetest.CreateAll(t, s, []store.Write{{ID: ids[i], Record: pending}})[0]
		m, err := stream.GetMsg(t.Context(), rev)
		if err != nil {
			t.Fatal(err)
		}
		v := &jet.Msg{Subject: m.Subject, Sequence: rev, Time: m.Time}
		switch i {
		case 1:
			v.Time = v.Time.Add(-time.Nanosecond)
		case 2:
			v.Subject += "x"
		}
		if err := s.DeleteVoid(t.Context(), shard, v); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), ids[i]); (err == nil) != there {
			t.Errorf("record %d: %v; it must be there: %v", i, err, there)
		}
	}
}

// TestKilledEnded: a server that is killed brings pending revisions of timers back whose final records have expired. They
// are deleted if the timers are in the list.
func TestKilledEnded(t *testing.T) {
	t.Parallel()
	k := newKilledWindow(t, true, 512)
	// As in TestKilledCount.
	const shard, large, more, small, ttl = 0, 200, 45, 1500, 15 * time.Second
	ids := storetest.IDsOf(k.s.Geometry(), shard, large+more+small)
	now := storetest.NowMs(t, k.s)
	pending := storetest.Pending(now + hourMs)
	revs := make([]uint64, large+more)
	create := func(first, last int) { k.createLarge(ids, revs, pending, first, last) }
	var ended []store.EndedTimer
	cancel := func(i int) {
		r := *pending
		r.State, r.Queued, r.DoneMs, r.Body = schemas.StateCancelled, false, storetest.NowMs(t, k.s), schemas.Body{}
		rev := k.update(ids[i], revs[i], &r, ttl)
		ended = append(ended, store.EndedTimer{ID: ids[i], Rev: rev, StoredMs: storetest.NowMs(t, k.s), AddedMs: r.AddedMs, UntilMs: r.DueMs})
	}
	create(0, large)
	for i := 60; i < 110; i++ {
		cancel(i)
	}
	create(large, large+more)
	for i := large; i < large+more; i++ {
		cancel(i)
	}
	writes := make([]store.Write, small)
	for i := range writes {
		writes[i] = store.Write{ID: ids[large+more+i], Record: pending}
	}
	through := slices.Max(storetest.CreateAll(t, k.s, writes))
	if err := k.s.AddEnded(t.Context(), shard, now, now, ended); err != nil {
		t.Fatal(err)
	}
	open := len(ids) - len(ended)
	waittest.Until(t, "the final records to expire", func() bool { return len(k.states()) == open })
	k.kill()
	if n := len(k.states()); n == open {
		t.Fatal("no revision of an ended timer has returned: this test shows nothing")
	} else {
		t.Logf("%d cancelled timers are pending again", n-open)
	}
	if _, err := k.s.RemoveVoid(t.Context(), shard); err != nil {
		t.Fatal(err)
	}
	c, err := k.s.CountPending(t.Context(), shard, through)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(k.states()); len(c.Waiting) != open || n != open {
		t.Errorf("%d timers wait, and %d have records, want %d", len(c.Waiting), n, open)
	}
}
