package store_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestTTLsOnDisk reads the TTLs that the server has stored: an index entry expires IndexKeep
// after its tick is due, however late that is, and a record has a TTL only if it is final.
// TTLs are rounded up to whole seconds.
func TestTTLsOnDisk(t *testing.T) {
	t.Parallel()
	const keep = 30 * time.Minute
	const slack = time.Minute // between the test's clock and the write
	s := open(t, natstest.Run(t).InProcess(), func(c *store.Config) { c.IndexKeep = keep })
	g := s.Geometry()
	now := storetest.NowMs(t, s)
	ahead := []time.Duration{time.Second, time.Hour, 30 * 24 * time.Hour, 365 * 24 * time.Hour}
	id := 0
	next := func() int { id++; return id }
	for _, d := range ahead {
		due := now + d.Milliseconds()
		record := func(due int64) store.Write {
			r := storetest.Pending(due)
			r.AddedMs = now
			return store.Write{ID: storetest.IDOf(g, 0, next()), Record: r}
		}
		// One timer with its own entry, three that share one, a timer that is moved to the
		// tick, and an entry without a record.
		storetest.CreateAll(t, s, []store.Write{record(due)})
		storetest.CreateAll(t, s, []store.Write{record(due), record(due), record(due)})
		w := record(now + 1000)
		w.Rev = storetest.CreateAll(t, s, []store.Write{w})[0]
		w.Record.DueMs = due
		if _, err := s.Update(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if err := s.PutIndex(t.Context(), storetest.IDOf(g, 0, next()), g.Tick(due)); err != nil {
			t.Fatal(err)
		}
	}
	final := store.Write{ID: storetest.IDOf(g, 0, next()), Record: storetest.Pending(now)}
	final.Rev = storetest.CreateAll(t, s, []store.Write{final})[0]
	final.Record, final.TTL = storetest.Success(*final.Record), 2*time.Hour+time.Millisecond
	if _, err := s.Update(t.Context(), final); err != nil {
		t.Fatal(err)
	}

	counts := map[time.Duration]int{}
	for _, m := range messages(t, s, "KV_timers_0", "$KV.timers_0.slot.>") {
		ttl, err := time.ParseDuration(m.Headers().Get(jetstream.MsgTTLHeader))
		if err != nil {
			t.Fatalf("%s has TTL %q: %v", m.Subject(), m.Headers().Get(jetstream.MsgTTLHeader), err)
		}
		for _, d := range ahead {
			if off := ttl - (d + keep); off > -slack && off < slack {
				counts[d]++
			}
		}
	}
	for _, d := range ahead {
		// The four entries made above. The first entries of moved timers count for 1 s, too.
		least := 4
		if counts[d] < least {
			t.Errorf("%d index entries of timers due in %s live until then and %s longer; want %d (all: %v)", counts[d], d, keep, least, counts)
		}
	}
	for _, m := range messages(t, s, "KV_timers_0", "$KV.timers_0.timer.*") {
		ttl := m.Headers().Get(jetstream.MsgTTLHeader)
		if isFinal := m.Subject() == "$KV.timers_0.timer."+final.ID.String(); isFinal != (ttl != "") || isFinal && ttl != "7201s" {
			t.Errorf("record %s has TTL %q", m.Subject(), ttl)
		}
	}
}

// TestTTLOfAddsAhead: if an add has a time ahead of the store's clock, the TTL of its index entry counts from
// the store's clock. So does that of a far entry and of its mark.
func TestTTLOfAddsAhead(t *testing.T) {
	t.Parallel()
	const keep, slack, ahead = 30 * time.Minute, time.Minute, 2 * time.Hour
	s := open(t, natstest.Run(t).InProcess(), func(c *store.Config) { c.IndexKeep = keep })
	waittest.Until(t, "far entries to be written", s.SharesFar)
	g := s.Geometry()
	write := func(n int, due int64) store.Write {
		r := storetest.Pending(due)
		r.AddedMs = storetest.NowMs(t, s) + ahead.Milliseconds()
		return store.Write{ID: storetest.IDOf(g, 0, n), Record: r}
	}
	ttl := func(filter string) (out []time.Duration) {
		for _, m := range messages(t, s, "KV_timers_0", "$KV.timers_0."+filter) {
			d, err := time.ParseDuration(m.Headers().Get(jetstream.MsgTTLHeader))
			if err != nil {
				t.Fatalf("%s has TTL %q: %v", m.Subject(), m.Headers().Get(jetstream.MsgTTLHeader), err)
			}
			out = append(out, d)
		}
		return out
	}

	now := storetest.NowMs(t, s)
	storetest.CreateAll(t, s, []store.Write{write(0, now+(3*time.Hour).Milliseconds())})
	if got := ttl("slot.>"); len(got) != 1 || (got[0]-3*time.Hour-keep).Abs() > slack {
		t.Errorf("due in 3h: entries with TTLs %v", got)
	}
	var far []store.Write
	first := storetest.FarPeriod(g, now)
	for n := range 4 {
		far = append(far, write(n+1, g.TickStart(first+int64(n))))
	}
	storetest.CreateAll(t, s, far)
	end := time.Duration(g.TickStart(first+int64(time.Hour/g.SlotWidth))-now) * time.Millisecond
	for _, filter := range []string{"far.*.>", "far.*"} {
		if got := ttl(filter); len(got) != 1 || (got[0]-end-keep).Abs() > slack {
			t.Errorf("the period ends in %s: %s with TTLs %v", end, filter, got)
		}
	}
}

// messages returns all messages of a stream that match a filter.
func messages(t *testing.T, s *store.Store, stream, filter string) []jetstream.Msg {
	t.Helper()
	c, err := s.JetStream().OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		t.Fatal(err)
	}
	info, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	it, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Stop()
	var out []jetstream.Msg
	for range info.NumPending {
		m, err := it.Next(jetstream.NextMaxWait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}
