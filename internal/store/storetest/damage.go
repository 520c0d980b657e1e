package storetest

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// PubAck is the value that JetStream stores in a bucket if a client publishes a message whose
// reply subject is one of its keys.
const PubAck = `{"stream":"TIMERS_ADD","seq":1}`

// Overwrite stores bytes under a key of a bucket's stream, as another client would.
func Overwrite(t testing.TB, s Store, stream, key string, data []byte) {
	t.Helper()
	var err error
	if fake, ok := s.(interface {
		Overwrite(stream, subject string, data []byte) error
	}); ok {
		err = fake.Overwrite(stream, key, data)
	} else {
		_, _, err = s.Publish(t.Context(), store.Msg{Subject: "$KV." + strings.TrimPrefix(stream, "KV_") + "." + key, Data: data})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// damagedClock: a clock that cannot be decoded does not hide other clocks. It is returned with
// its revision, so that it can be replaced by compare-and-set, and with a state from which to
// resume the shard.
func damagedClock(t *testing.T, s Store) {
	now := NowMs(t, s)
	_, rev, err := s.ReadClock(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	good := store.Clock{TimeMs: now - 5000, Owner: "a", Epoch: 3, Tail: 7, Seen: 8}
	must[uint64](t)(s.WriteClock(t.Context(), 1, good, rev))
	look := func() store.ClockAt {
		t.Helper()
		got := must[store.Cluster](t)(s.ReadCluster(t.Context()))
		if len(got.Clocks) != s.Geometry().Shards || got.Clocks[0].Err != nil {
			t.Fatalf("a damaged clock hides others: %+v", got.Clocks)
		}
		return got.Clocks[1]
	}
	// The copy may be written later than the clock.
	waittest.Until(t, "the copy of the clock", func() bool {
		for _, data := range []string{PubAck, "x", "", `{"v":0}`, `{"v":1,"time":5,"tail":9,"seen":8}`, `{"v":1,"time":12,"sum":77}`} {
			Overwrite(t, s, "KV_clock", "clock.1", []byte(data))
			_, rev, err = s.ReadClock(t.Context(), 1)
			if !errors.Is(err, schemas.ErrDamaged) || rev == 0 {
				t.Fatalf("%q: read at revision %d: %v", data, rev, err)
			}
			at := look()
			if !errors.Is(at.Err, schemas.ErrDamaged) || at.Rev != rev || at.Clock.Owner != "" {
				t.Fatalf("%q: %+v", data, at)
			}
			if at.Clock.Epoch < uint64(now) || at.Clock.Tail > good.Tail {
				t.Fatalf("%q: resumes from %+v", data, at.Clock)
			}
		}
		c := look().Clock
		return c.TimeMs == good.TimeMs && c.Tail == good.Tail && c.Seen == good.Seen
	})
	if _, err := s.WriteClock(t.Context(), 1, good, rev-1); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("write over an older revision: %v", err)
	}
	next := must[uint64](t)(s.WriteClock(t.Context(), 1, good, rev))
	if at := look(); at.Err != nil || at.Rev != next || at.Clock.Owner != "a" {
		t.Fatalf("after the clock was replaced: %+v", at)
	}
	Overwrite(t, s, "KV_clock", "clock.1", []byte(`{"v":2,"time":12}`))
	if _, rev, err = s.ReadClock(t.Context(), 1); !errors.Is(err, schemas.ErrNewer) || rev <= next {
		t.Fatalf("a newer clock: revision %d, %v", rev, err)
	}
	if at := look(); !errors.Is(at.Err, schemas.ErrNewer) || at.Rev != rev {
		t.Fatalf("a newer clock: %+v", at)
	}
}

// newerRecord returns an intact record of a format that this version does not know.
func newerRecord() string {
	b := []byte("\x1flater")
	return string(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))))
}

// createDue creates n timers in shard 0 that are due in 3 s, and returns their ids and their
// due time in Unix milliseconds.
func createDue(t *testing.T, s Store, n int) (ids []schemas.TimerID, due int64) {
	t.Helper()
	ids, due = IDsOf(s.Geometry(), 0, n), NowMs(t, s)+3000
	writes := make([]store.Write, 0, n)
	for _, id := range ids {
		writes = append(writes, store.Write{ID: id, Record: Pending(due)})
	}
	CreateAll(t, s, writes)
	return ids, due
}

// damagedRecord: a record that cannot be decoded stops no load, scan or tail. Get distinguishes
// a damaged record from a record of a newer format.
func damagedRecord(t *testing.T, s Store) {
	g := s.Geometry()
	ids, due := createDue(t, s, 3)
	for _, c := range []struct {
		data string
		want error
	}{{PubAck, schemas.ErrDamaged}, {newerRecord(), schemas.ErrNewer}, {"x", schemas.ErrDamaged}} {
		Overwrite(t, s, "KV_timers_0", "timer."+ids[1].String(), []byte(c.data))
		if _, err := s.Get(t.Context(), ids[1]); !errors.Is(err, c.want) {
			t.Fatalf("%q: %v; want %v", c.data, err, c.want)
		}
	}
	want := []schemas.TimerID{ids[0], ids[2]}
	same := func(what string, timers []store.Timer) {
		t.Helper()
		got := make([]schemas.TimerID, 0, len(timers))
		for _, tm := range timers {
			got = append(got, tm.ID)
		}
		if len(got) != len(want) || !slices.Contains(got, want[0]) || !slices.Contains(got, want[1]) {
			t.Fatalf("%s: %v; want %v", what, got, want)
		}
	}
	same("load", must[store.Load](t)(s.LoadTicks(t.Context(), 0, []int64{g.Tick(due)}, 1000, 0, 0, nil)).Timers)
	var scanned []store.Timer
	if err := s.ScanQueued(t.Context(), 0, due, func(tm store.Timer) error {
		// A write of another client does not remove the revision before it, so the scan may
		// return that one.
		if tm.ID != ids[1] {
			scanned = append(scanned, tm)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	same("scan", scanned)
	newerRecords(t, s, ids[1], g.Tick(due))
}

// damageReport: WriteClock first records the damaged records that this process has read by a
// load, a get or the tail. A repaired record leaves the report.
func damageReport(t *testing.T, s Store) {
	g := s.Geometry()
	ids, due := createDue(t, s, 4)
	clock, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	after := must[uint64](t)(s.LastSeq(t.Context(), 0))
	last := ids[3]
	for n, read := range []func(){
		func() { must[store.Load](t)(s.LoadTicks(t.Context(), 0, []int64{g.Tick(due)}, 1000, 0, 0, nil)) },
		func() {
			if _, err := s.Get(t.Context(), ids[1]); !errors.Is(err, schemas.ErrDamaged) {
				t.Fatal(err)
			}
		},
		func() {
			tailed := make(chan store.Timer, 100)
			tail := must[*store.Tail](t)(s.Tail(t.Context(), 0, after, func(tm store.Timer) { tailed <- tm }))
			defer tail.Stop()
			// The tail delivers records after the damaged one.
			at := must[store.Timer](t)(s.Get(t.Context(), last))
			rev := must[uint64](t)(s.Update(t.Context(), store.Write{ID: last, Rev: at.Rev, Record: &at.Record}))
			waittest.Until(t, "the tail", func() bool {
				select {
				case tm := <-tailed:
					return tm.Rev == rev
				default:
					return false
				}
			})
		},
	} {
		Overwrite(t, s, "KV_timers_0", "timer."+ids[n].String(), []byte(PubAck))
		damaged := must[uint64](t)(s.LastSeq(t.Context(), 0))
		read()
		rev = must[uint64](t)(s.WriteClock(t.Context(), 0, clock, rev))
		found := must[[]store.ShardDamage](t)(s.ReadDamage(t.Context()))
		if len(found) != 1 || found[0].Shard != 0 || len(found[0].Records) != n+1 {
			t.Fatalf("%d: %+v", n, found)
		}
		if r := found[0].Records[n]; r.Timer != ids[n].String() || r.Revision != damaged || r.Newer || r.Reason == "" {
			t.Fatalf("%d: %+v", n, r)
		}
	}
	must[uint64](t)(s.Update(t.Context(), store.Write{ID: ids[1], Rev: after + 2, Record: Pending(due)}))
	in := must[store.Inspection](t)(s.Inspect(t.Context(), 0, 0, 0, nil))
	if n := in.Damage.Count(); n != 2 || in.Key != "" {
		t.Fatalf("after a repair, %d records are damaged: %+v", n, in)
	}
	if found := must[[]store.ShardDamage](t)(s.ReadDamage(t.Context())); len(found) != 1 || found[0].Count() != 2 {
		t.Fatalf("after a repair: %+v", found)
	}
}

// newerRecords: loads, scans, reads of schedules and tails return a record of a newer format with its identity,
// and loads also with the tick that names it. Lists count it.
func newerRecords(t *testing.T, s Store, id schemas.TimerID, tick int64) {
	critical := Pending(NowMs(t, s))
	critical.Ext = []schemas.Extension{{Type: 1001}}
	for _, data := range [][]byte{[]byte(newerRecord()), critical.AppendFormat(nil, schemas.RecordFormat2)} {
		Overwrite(t, s, "KV_timers_0", "timer."+id.String(), data)
		rev := must[uint64](t)(s.LastSeq(t.Context(), 0))
		load := must[store.Load](t)(s.LoadTicks(t.Context(), 0, []int64{tick - 1, tick}, 1000, 0, rev, nil))
		if want := []store.NewerRecord{{ID: id, Rev: rev, Tick: tick}}; !slices.Equal(load.Newer, want) {
			t.Fatalf("load: newer records %+v, want %+v", load.Newer, want)
		}
		seen := 0
		if err := s.ScanQueued(t.Context(), 0, 1<<62, func(tm store.Timer) error {
			if tm.ID == id && tm.Rev == rev && tm.Unread == store.UnreadOpen {
				seen++
			}
			return nil
		}); err != nil || seen != 1 {
			t.Fatalf("scan: a record of a newer format was returned %d times, %v", seen, err)
		}
		if page := must[store.ListPage](t)(s.List(t.Context(), store.ListQuery{Limit: store.MaxListLimit})); page.Unread == 0 {
			t.Fatal("list: a record of a newer format was not counted")
		}
		seen = 0
		if err := s.EachSchedule(t.Context(), 0, rev-1, func(tm store.Timer) (bool, error) {
			if tm.ID == id && tm.Rev == rev && tm.Unread == store.UnreadOpen {
				seen++
			}
			return true, nil
		}); err != nil || seen != 1 {
			t.Fatalf("schedules: a record of a newer format was returned %d times, %v", seen, err)
		}
		tailed := make(chan store.Timer, 100)
		tail := must[*store.Tail](t)(s.Tail(t.Context(), 0, rev-1, func(tm store.Timer) { tailed <- tm }))
		waittest.Until(t, "the tail to bring a record of a newer format", func() bool {
			select {
			case tm := <-tailed:
				return tm.ID == id && tm.Rev == rev && tm.Unread == store.UnreadOpen
			default:
				return false
			}
		})
		tail.Stop()
	}
}
