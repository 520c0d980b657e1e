package store_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestRepair: Repair reports each kind of damage, changes nothing without apply, and repairs
// everything with it.
func TestRepair(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc)
	g := s.Geometry()
	ids := storetest.IDsOf(g, 0, 6)
	due := storetest.NowMs(t, s) + 3_600_000
	var writes []store.Write
	for _, id := range ids {
		writes = append(writes, store.Write{ID: id, Record: storetest.Pending(due)})
	}
	storetest.CreateAll(t, s, writes)
	js := s.JetStream()
	bucket, err := js.Stream(t.Context(), "KV_timers_0")
	if err != nil {
		t.Fatal(err)
	}
	key := func(i int) string { return "$KV.timers_0.timer." + ids[i].String() }
	remove := func(subject string) {
		t.Helper()
		if err := bucket.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
			t.Fatal(err)
		}
	}
	overwrite := func(i int) {
		storetest.Overwrite(t, s, "KV_timers_0", "timer."+ids[i].String(), []byte(storetest.PubAck))
	}
	// A start removes superseded revisions, but must keep the revision that another client has
	// overwritten.
	overwrite(0)
	second := open(t, nc)
	// Wait until both stores have written the layout, so that neither restores it below.
	waittest.Until(t, "both stores to write records of format 2", func() bool {
		return s.RecordFormat() == schemas.RecordFormat2 && second.RecordFormat() == schemas.RecordFormat2
	})
	// Timer 0 has its previous revision, timer 1 its event, and timer 2 neither. Timer 3 has
	// lost its index entry. Timer 5 has its previous revision, which is pending, and an event
	// of a later claim.
	waiting, err := s.Get(t.Context(), ids[5])
	if err != nil {
		t.Fatal(err)
	}
	overwrite(5)
	body := fmt.Appendf(nil, `{"specversion":"1.0","id":"1","source":"/test","type":"t","timersvc":"orders","timerat":%q,"timerscheduled":%q,"timerfired":%q,"timerrun":1,"timerattempt":1}`,
		schemas.FormatTime(due), schemas.FormatTime(due), schemas.FormatTime(due))
	for i, rev := range map[int]uint64{1: 0, 5: waiting.Rev + 1} {
		claim := schemas.Claim{Timer: ids[i], Revision: rev, Run: 1, MaxAttempt: 3, AddedMs: due - 1000, FiredMs: due, Epoch: 1}
		hdr := nats.Header{schemas.HeaderClaim: []string{claim.String()}}
		if _, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("orders"), Header: hdr, Data: body, MsgID: ids[i].MsgID(1)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{1, 2} {
		remove(key(i))
		overwrite(i)
	}
	remove("$KV.timers_0.slot.>")
	for _, id := range []schemas.TimerID{ids[0], ids[4]} {
		if err := s.PutIndex(t.Context(), id, g.Tick(due)); err != nil {
			t.Fatal(err)
		}
	}
	storetest.Overwrite(t, s, "KV_clock", "clock.1", []byte("x"))
	storetest.Overwrite(t, s, "KV_clock", "clock.stranger", []byte("x"))
	storetest.Overwrite(t, s, "KV_clock", "clock.77", []byte(storetest.PubAck))
	storetest.Overwrite(t, s, "KV_clock", "node.stranger", []byte(storetest.PubAck))
	// A key that belongs to no timer, and the key of a timer in the bucket of another shard.
	storetest.Overwrite(t, s, "KV_timers_0", "timer.short", []byte(storetest.PubAck))
	storetest.Overwrite(t, s, "KV_timers_1", "timer."+ids[1].String(), []byte(storetest.PubAck))
	storetest.Overwrite(t, s, "KV_clock", "meta", []byte("x"))

	run := func(apply bool) (found []string) {
		t.Helper()
		look, err := store.Look(nc, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer look.Close()
		if err := look.Repair(t.Context(), apply, func(f store.RepairFinding) error {
			t.Logf("apply %v: %s %s: %s -> %s (%v %s)", apply, f.Kind, f.Key, f.Problem, f.Repair, f.Applied, f.Error)
			if f.Applied != apply {
				t.Errorf("%s %s: applied %v: %s", f.Kind, f.Key, f.Applied, f.Error)
			}
			found = append(found, f.Kind+" "+f.Key[strings.LastIndexByte(f.Key, '.')+1:])
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(found)
		return found
	}
	want := []string{"clock 1", "index " + ids[3].String(), "key 77", "key stranger", "key stranger", "layout meta", "record short", "record " + ids[1].String(), "record " + ids[0].String(), "record " + ids[1].String(), "record " + ids[2].String(), "record " + ids[5].String()}
	slices.Sort(want)
	for _, apply := range []bool{false, false, true} {
		if got := run(apply); !slices.Equal(got, want) {
			t.Fatalf("apply %v: found %v; want %v", apply, got, want)
		}
	}
	if got := run(false); len(got) > 0 {
		t.Fatalf("found after the repair: %v", got)
	}
	if r, err := s.Get(t.Context(), ids[0]); err != nil || r.Record.State != schemas.StatePending || r.Record.DueMs != due {
		t.Errorf("timer 0, from its previous revision: %+v, %v", r.Record, err)
	} else if r.Record.Moves == 0 {
		t.Error("timer 0, from its previous revision, is a new timer for the shard's owner, which has counted it")
	}
	for _, i := range []int{1, 5} {
		if r, err := s.Get(t.Context(), ids[i]); err != nil || r.Record.State != schemas.StateSuccess || r.Record.EventID != "1" {
			t.Errorf("timer %d, from its event: %+v, %v", i, r.Record, err)
		}
	}
	if _, err := s.Get(t.Context(), ids[2]); !errors.Is(err, schemas.ErrNotFound) {
		t.Errorf("timer 2, which has no source: %v", err)
	}
	stream, err := js.Stream(t.Context(), schemas.StreamRejected)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.GetLastMsgForSubject(t.Context(), schemas.SubjectRejected); err != nil || string(m.Data) != storetest.PubAck || m.Header.Get(schemas.HeaderErrorCode) != "damaged" {
		t.Errorf("the bytes of timer 2 on %s: %+v, %v", schemas.SubjectRejected, m, err)
	}
	load, err := s.LoadTicks(t.Context(), 0, []int64{g.Tick(due)}, 1000, 0, 0, nil)
	if err != nil || len(load.Timers) != 3 {
		t.Errorf("the index names %d timers, %v", len(load.Timers), err)
	}
	open(t, nc) // the layout can be read
}

// repairAll repairs a store. The test fails if a finding cannot be repaired.
func repairAll(t *testing.T, nc *nats.Conn) {
	t.Helper()
	look, err := store.Look(nc, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	if err := look.Repair(t.Context(), true, func(f store.RepairFinding) error {
		if f.Error != "" {
			t.Errorf("%s %s: %s", f.Kind, f.Key, f.Error)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRepairDelivered: a run whose callback has no result has an index entry for the sweeper after
// the repair. Its old entry may have expired, or the sweeper may have passed it.
func TestRepairDelivered(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc)
	id, now := storetest.IDsOf(s.Geometry(), 0, 1)[0], storetest.NowMs(t, s)
	delivered := storetest.Pending(now - 3_600_000)
	delivered.State, delivered.Queued, delivered.Callback, delivered.FiredMs = schemas.StateDelivered, false, "https://example.com/", delivered.DueMs
	if _, err := s.Update(t.Context(), store.Write{ID: id, Record: delivered}); err != nil {
		t.Fatal(err)
	}
	storetest.Overwrite(t, s, "KV_timers_0", "timer."+id.String(), []byte(storetest.PubAck))
	repairAll(t, nc)
	var ticks []int64
	for tick := s.Geometry().Tick(now); tick <= s.Geometry().Tick(storetest.NowMs(t, s)); tick++ {
		ticks = append(ticks, tick)
	}
	load, err := s.LoadTicks(t.Context(), 0, ticks, 1000, 0, 0, nil)
	if err != nil || len(load.Timers) != 1 || load.Timers[0].Record.State != schemas.StateDelivered {
		t.Errorf("the ticks of the repair have the records %+v, %v; want the repaired one", load.Timers, err)
	} else if load.Timers[0].Record.Moves == 0 {
		t.Error("the repaired record is not marked as moved: the shard's owner would count its claim twice")
	}
}

// TestRepairFromEvent: a record with a callback that is rebuilt from its event is delivered, and marked as
// moved: it is neither a new timer nor a new claim.
func TestRepairFromEvent(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc)
	id, now := storetest.IDsOf(s.Geometry(), 0, 2)[1], storetest.NowMs(t, s) // the first id is zero: that of no schedule
	at := schemas.FormatTime(now)
	body := fmt.Appendf(nil, `{"specversion":"1.0","id":"1","source":"/test","type":"t","timersvc":"orders","timercallback":"https://example.com/","timerat":%q,"timerscheduled":%q,"timerfired":%q,"timerrun":1,"timerattempt":1}`, at, at, at)
	claim := schemas.Claim{Timer: id, Revision: 1, Run: 1, MaxAttempt: 3, AddedMs: now - 1000, FiredMs: now, Epoch: 1}
	hdr := nats.Header{schemas.HeaderClaim: []string{claim.String()}}
	if _, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("orders"), Header: hdr, Data: body, MsgID: id.MsgID(1)}); err != nil {
		t.Fatal(err)
	}
	storetest.Overwrite(t, s, "KV_timers_0", "timer."+id.String(), []byte(storetest.PubAck))
	repairAll(t, nc)
	if r, err := s.Get(t.Context(), id); err != nil || r.Record.State != schemas.StateDelivered || r.Record.Moves == 0 {
		t.Errorf("the record is %+v, %v; want a delivered one with moves", r.Record, err)
	}
}

// TestRepairDeletedRecord: a damaged record that a KV client has deleted is not damaged any
// more.
func TestRepairDeletedRecord(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc)
	id := storetest.IDsOf(s.Geometry(), 0, 1)[0]
	storetest.CreateAll(t, s, []store.Write{{ID: id, Record: storetest.Pending(storetest.NowMs(t, s) + 3_600_000)}})
	key := "timer." + id.String()
	storetest.Overwrite(t, s, "KV_timers_0", key, []byte(storetest.PubAck))
	if err := bucket(t, s, schemas.BucketTimers(0)).Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	look, err := store.Look(nc, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	if err := look.Repair(t.Context(), false, func(f store.RepairFinding) error {
		if f.Kind != "index" { // its index entry is still there
			t.Errorf("%s %s: %s -> %s", f.Kind, f.Key, f.Problem, f.Repair)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
