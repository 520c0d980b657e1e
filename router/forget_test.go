package router_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestCancelForgetsTheAdd: a router stored adds and died before it acknowledged them. A
// redelivered add of a cancelled timer must not be stored again after the cancelled
// record has expired.
func TestCancelForgetsTheAdd(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	const n = 300 // more than one request looks up, many of one millisecond
	f.publishAll(n, func(i int) []byte { return add(fmt.Sprint(i), `"timerafter":"1h"`) })
	seqs := map[string]uint64{}
	for _, a := range f.storeOnly(n) {
		seqs[a.spec.EventID] = a.seq
	}
	if len(seqs) != n {
		t.Fatalf("%d of %d adds were delivered", len(seqs), n)
	}
	stream, err := f.js.Stream(t.Context(), schemas.StreamAdd)
	if err != nil {
		t.Fatal(err)
	}
	f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	for _, id := range []string{"0", "150", fmt.Sprint(n - 1)} {
		var info schemas.TimerInfo
		if code := f.request("cancel", fmt.Appendf(nil, `{"id":%q,"source":"/test"}`, id), &info); code != "" || info.State != schemas.StateCancelled {
			t.Fatalf("cancel %s: %s %+v", id, code, info)
		}
		if _, err := stream.GetMsg(t.Context(), seqs[id]); !errors.Is(err, jetstream.ErrMsgNotFound) {
			t.Errorf("the add of %s is in the stream after its cancel was acknowledged: %v", id, err)
		}
	}
	// The same holds for a timer that is moved to an earlier time, and only for that: it
	// may fire and expire before the due time in its add.
	for id, after := range map[string]string{"98": "2h", "99": "1m"} {
		if code := f.request("reschedule", fmt.Appendf(nil, `{"id":%q,"source":"/test","after":%q}`, id, after), new(schemas.TimerInfo)); code != "" {
			t.Fatalf("reschedule %s: %s", id, code)
		}
		if _, err := stream.GetMsg(t.Context(), seqs[id]); errors.Is(err, jetstream.ErrMsgNotFound) != (id == "99") {
			t.Errorf("moved to %s: reading its add: %v", after, err)
		}
	}
	if got := f.waiting(); got != n-4 {
		t.Errorf("%d adds are in the stream, want the %d that were neither cancelled nor moved to an earlier time", got, n-4)
	}
	// The other adds are redelivered, recognised as duplicates, and removed.
	waittest.Until(f.t, "every add is acknowledged", func() bool { return f.waiting() == 0 })
	// From then on a cancel needs only the record.
	if code := f.request("cancel", []byte(`{"id":"7","source":"/test"}`), new(schemas.TimerInfo)); code != "" {
		t.Error(code)
	}
}

// TestFailedCancelKeepsTheTimer: a router stored an add, lost its index entry and died. A
// cancel that fails must not remove the add unless the timer is found when it is due.
func TestFailedCancelKeepsTheTimer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	f.publish(nil, add("1", `"timerafter":"1h"`))
	stored := f.storeOnly(1)
	if len(stored) != 1 {
		t.Fatalf("%d adds were delivered, want 1", len(stored))
	}
	spec := stored[0].spec
	geo := f.store.Geometry()
	bucket, err := f.js.Stream(t.Context(), "KV_"+schemas.BucketTimers(geo.Shard(spec.Timer)))
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.DeleteMsg(t.Context(), stored[0].rev-1); err != nil { // the index entry precedes its record
		t.Fatal(err)
	}
	f.startWith(router.Options{Time: f.clock, Log: zerolog.Nop(), Store: &faulty{Store: f.store, change: func(w store.Write) error {
		if w.Record.State == schemas.StateCancelled {
			return schemas.ErrUnavailable
		}
		return nil
	}}})
	if code := f.request("cancel", []byte(`{"id":"1","source":"/test"}`), nil); code != string(schemas.CodeUnavailable) {
		t.Fatalf("the cancel is answered with %q", code)
	}
	waittest.Until(f.t, "the timer is indexed", func() bool {
		load, err := f.store.LoadTicks(t.Context(), geo.Shard(spec.Timer), []int64{geo.Tick(spec.DueMs)}, 10, 0, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		return len(load.Timers) == 1
	})
}

// storedAdd is an add whose record is stored and that is not acknowledged.
type storedAdd struct {
	spec     *schemas.Spec
	seq, rev uint64 // of the add, and of its record
}

// storeOnly does what a router does that dies before it acknowledges: it reads up to n
// adds and stores their records.
func (f *fixture) storeOnly(n int) []storedAdd {
	f.t.Helper()
	inbox, err := f.store.OpenInbox(f.t.Context()) // creates the consumer
	if err != nil {
		f.t.Fatal(err)
	}
	inbox.Close()
	cons, err := f.js.Consumer(f.t.Context(), schemas.StreamAdd, store.RouterConsumer)
	if err != nil {
		f.t.Fatal(err)
	}
	batch, err := cons.Fetch(n, jetstream.FetchMaxWait(bound))
	if err != nil {
		f.t.Fatal(err)
	}
	var out []storedAdd
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			f.t.Fatal(err)
		}
		added := meta.Timestamp.Add(time.Millisecond - 1).UnixMilli()
		rec, spec, err := recurrence.ParseAdd(m.Headers(), m.Data(), added, schemas.Limits{}, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		res := f.store.Create(f.t.Context(), []store.Write{{ID: spec.Timer, Record: &rec}})
		if res[0].Err != nil {
			f.t.Fatal(res[0].Err)
		}
		out = append(out, storedAdd{spec: &spec, seq: meta.Sequence.Stream, rev: res[0].Rev})
	}
	return out
}
