package store_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// TestFiredAfter: FiredAfter continues after a sequence. If the sequence is 0, or not in this
// stream, it starts at the time.
func TestFiredAfter(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc)
	publish := func(svc, id string) {
		t.Helper()
		if _, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired(svc), MsgID: id, Data: []byte("e")}); err != nil {
			t.Fatal(err)
		}
	}
	begin := storetest.NowMs(t, s) - 1
	read := func(after uint64, sinceMs int64, want ...string) uint64 {
		t.Helper()
		var got []string
		now := storetest.NowMs(t, s)
		after, err := s.FiredAfter(t.Context(), nil, after, time.UnixMilli(sinceMs), func(id string, atMs int64) bool {
			if atMs < begin || atMs > now {
				t.Errorf("event %s is of %d; want %d to %d", id, atMs, begin, now)
			}
			got = append(got, id)
			return id != "last.1"
		})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q %v; want %q", got, err, want)
		}
		return after
	}
	read(0, begin)
	read(7, begin) // a sequence of an earlier stream
	publish("a", "1.1")
	publish("b", "2.1")
	at := read(0, begin, "1.1", "2.1")
	read(0, storetest.NowMs(t, s)+60_000)
	read(at, begin)
	publish("a", "3.1")
	at = read(at, begin, "3.1")
	read(at+1, begin, "1.1", "2.1", "3.1")
	publish("a", "last.1")
	publish("a", "4.1")
	at = read(at, begin, "last.1")
	read(at, begin, "4.1")
}

// TestFindFired: an event is found by its message id among those of its service since a time, also after
// more events than one answer has.
func TestFindFired(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc)
	begin := time.UnixMilli(storetest.NowMs(t, s) - 1)
	var last uint64
	for i := range store.FindFiredBatch + 2 {
		seq, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("a"), MsgID: strconv.Itoa(i) + ".1", Data: []byte("e")})
		if err != nil {
			t.Fatal(err)
		}
		last = seq
	}
	id := strconv.Itoa(store.FindFiredBatch+1) + ".1"
	later := time.UnixMilli(storetest.NowMs(t, s)) // the first event is older
	for _, c := range []struct {
		service, id string
		since       time.Time
		want        uint64
	}{{"a", id, begin, last}, {"a", "0.1", begin, last - store.FindFiredBatch - 1}, {"b", id, begin, 0}, {"a", "none.1", begin, 0}, {"a", "0.1", later, 0},
		{"a", id, begin.Add(time.Hour), 0},
	} {
		if got, err := s.FindFired(t.Context(), c.service, c.id, c.since); err != nil || got != c.want {
			t.Errorf("FindFired(%s, %s, %s): got %d, %v, want %d", c.service, c.id, c.since, got, err, c.want)
		}
	}
	ahead := open(t, nc, func(c *store.Config) { c.Moved = func(at time.Time) time.Time { return at.Add(time.Hour) } })
	if got, err := ahead.FindFired(t.Context(), "a", id, begin.Add(time.Hour)); err != nil || got != last {
		t.Errorf("by a clock that is an hour ahead: got %d, %v, want %d", got, err, last)
	}
}

// TestFiredBacklog: the floor of a backlog is that of the feed's consumer or, while the feed rests, that of its key.
// A floor beyond the end of the stream is ignored.
func TestFiredBacklog(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).Connect())
	feed := store.Feed{Service: "a"}
	var seqs []uint64
	for i := range 3 {
		seq, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("a"), MsgID: strconv.Itoa(i) + ".1", Data: []byte("e")})
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, seq)
	}
	want := func(what string, floor uint64, waits bool) {
		t.Helper()
		b, err := s.FiredBacklog(t.Context(), "a")
		if err != nil || b.Floor != floor || b.Oldest.IsZero() == waits {
			t.Errorf("%s: backlog %+v, %v; want floor %d, and an oldest event: %v", what, b, err, floor, waits)
		}
	}
	read := func(floor uint64) *store.FeedReader {
		t.Helper()
		r, err := s.ReadFeed(t.Context(), feed, store.FeedOptions{Floor: floor, AckWait: time.Hour, MaxAckPending: 10, Most: 3})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	ack := func(d *store.Delivery) {
		t.Helper()
		if err := d.AckConfirmed(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	rest := func(floor uint64) {
		t.Helper()
		if err := s.WakeService(t.Context(), feed); err != nil {
			t.Fatal(err)
		}
		st, err := s.ServiceState(t.Context(), feed)
		if err == nil {
			err = s.RestService(t.Context(), feed, st.Rev, floor)
		}
		if err == nil {
			err = s.DropService(t.Context(), feed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want("without consumer and key", 0, true)
	r := read(0)
	if err := r.Request(3); err != nil {
		t.Fatal(err)
	}
	var all []*store.Delivery
	for range seqs {
		d, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	ack(all[1])
	want("the oldest event is not acknowledged", 0, true)
	ack(all[0])
	want("two events are acknowledged", seqs[1], true)
	ack(all[2])
	want("all events are acknowledged", seqs[2], false)
	rest(seqs[2])
	want("at rest", seqs[2], false)
	read(seqs[2])
	want("a new consumer", seqs[2], false)
	rest(seqs[2] + 100)
	want("at rest since an earlier stream", 0, true)
}
