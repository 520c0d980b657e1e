package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

func started(t *testing.T, set ...func(*Config)) *Env {
	t.Helper()
	c := config(t)
	c.InProcess = true // the tests read what only a node of this process shows
	if err := c.setDefaults(); err != nil {
		t.Fatal(err)
	}
	for _, f := range set {
		f(&c)
	}
	e := &Env{Config: c}
	t.Cleanup(func() {
		if err := e.close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestAccountAsksTheStream: an event that the live subscriber missed, or received before
// it was stored, is not missing. A plain publish of the same event is a duplicate only if
// the stream has it twice. The record explains why an event is missing.
func TestAccountAsksTheStream(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for events that do not come")
	e := started(t)
	ctx := t.Context()
	a, err := e.NewAdder("bench_account")
	if err != nil {
		t.Fatal(err)
	}
	const fires, far, never = 40, 41, 42
	due := make([]int64, 43)
	for n := range due {
		due[n] = time.Now().Add(500 * time.Millisecond).UnixMilli()
	}
	w, err := e.Watch(ctx, a, due)
	if err != nil {
		t.Fatal(err)
	}
	err = a.Add(ctx, never, func(n int) int64 {
		if n == far {
			return time.Now().Add(time.Hour).UnixMilli()
		}
		return due[n]
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := e.progress()
	arrived(t, w, fires+1)
	// The subscriber misses one event and receives one twice.
	w.mu.Lock()
	w.at[3] = 0
	w.mu.Unlock()
	w.note([]byte(`{"id":"` + a.ID(5) + `"}`))
	acc, err := w.accountPatient(ctx, p, storedPatience)
	if err != nil {
		t.Fatal(err)
	}
	v := acc.Verified
	if v.Found != fires+1 || v.Missing != 2 || v.Duplicates != 0 || v.Early != 0 || v.Unseen != 1 || v.Repeated != 1 || v.Why["pending still"] != 1 || v.Why["never stored"] != 1 {
		t.Errorf("got account %+v, want %d found, 2 missing for different reasons, 1 unseen and 1 repeated", v, fires+1)
	}
	if sub, _ := acc.Lateness(); sub.Count() != fires+1 {
		t.Errorf("got the lateness of %d timers, want %d", sub.Count(), fires+1)
	}
	// A second copy in the stream is an error.
	if _, err := e.js.Publish(ctx, schemas.SubjectFired(a.service), []byte(`{"id":"`+a.ID(5)+`"}`), jetstream.WithMsgID("another")); err != nil {
		t.Fatal(err)
	}
	if acc, err = w.accountPatient(ctx, p, storedPatience); err != nil || acc.Duplicates != 1 {
		t.Errorf("with a second copy in the stream: got %+v (%v), want 1 duplicate", acc, err)
	}
	if err := acc.Err(); err == nil || !strings.Contains(err.Error(), "1 came twice") {
		t.Errorf("with a second copy in the stream: got error %v, want \"1 came twice\"", err)
	}
}

// storedPatience suffices when all events are stored: Account reads them at once.
const storedPatience = time.Second

// arrived waits until the subscriber has received n events, and the stream has stored as many since the watch began.
func arrived(t *testing.T, w *Watch, n int) {
	t.Helper()
	name, _ := w.adder.fired()
	waittest.Until(t, fmt.Sprintf("%d events at the subscriber and in the stream", n), func() bool {
		s, err := w.env.js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return w.Seen() == n && s.CachedInfo().State.LastSeq+1 >= w.first+uint64(n)
	})
}

// followed returns an adder, and a follower that waits until 30 of its timers succeed.
func followed(t *testing.T, e *Env) (*Adder, *follower) {
	t.Helper()
	a, err := e.NewAdder("bench_followed")
	if err != nil {
		t.Fatal(err)
	}
	f, err := e.followRecords(t.Context(), a, 30, schemas.StateSuccess)
	if err != nil {
		t.Fatal(err)
	}
	return a, f
}

func TestSettled(t *testing.T) {
	t.Parallel()
	e := started(t)
	ctx := t.Context()
	a, records := followed(t, e)
	now := time.Now().UnixMilli()
	if err := a.Add(ctx, 30, func(int) int64 { return now }, nil, nil); err != nil {
		t.Fatal(err)
	}
	st, err := records.settled(ctx, e.progress())
	if err != nil {
		t.Fatal(err)
	}
	var v Verified
	if records.verify(ctx, &v); v.Wrong != 0 || st.final != 30 {
		t.Errorf("got %+v and %d final records, want 30 and none wrong", v, st.final)
	}
	records.want = schemas.StateCancelled
	if records.verify(ctx, &v); v.Wrong != 30 || v.Why["success, not cancelled; success at the end"] != 30 {
		t.Errorf("with another wanted state: got %+v, want 30 wrong with the reason", v)
	}
}

// TestFollow: the tool reads records that expire before the end of a run. A run that read
// them too seldom reports it.
func TestFollow(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits until records expire")
	e := started(t, func(c *Config) { c.Retention, c.Warmup = 4*time.Second, -1 })
	ctx := t.Context()
	a, records := followed(t, e)
	late, err := e.followRecords(ctx, a, 30, schemas.StateSuccess)
	if err != nil {
		t.Fatal(err)
	}
	late.patience = time.Second
	records.beside(ctx)
	defer records.stop()
	now := time.Now().UnixMilli()
	if err := a.Add(ctx, 30, func(int) int64 { return now }, nil, nil); err != nil {
		t.Fatal(err)
	}
	most := 0
	waittest.Until(t, "30 records that have come and expired", func() bool {
		n, err := e.records(ctx)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
		return most == 30 && n == 0
	}, func() string { return fmt.Sprintf("there were %d at most", most) })
	st, err := records.settled(ctx, e.progress())
	if err != nil {
		t.Fatal(err)
	}
	var v Verified
	if records.verify(ctx, &v); v.Wrong != 0 || st.final != 30 {
		t.Errorf("got %+v and %d final records, want 30 and none wrong", v, st.final)
	}
	records.st.state[7] = schemas.StateDelivered
	if records.verify(ctx, &v); v.Why["delivered, not success; none at the end"] != 1 {
		t.Errorf("with one record not seen in its final state: got %+v, want 1 wrong with the reason", v)
	}
	if _, err := late.settled(ctx, e.progress()); err == nil || !strings.Contains(err.Error(), "give a longer retention") {
		t.Errorf("settled after the records expired: got error %v, want the advice to give a longer retention", err)
	}
	for _, bad := range []Config{{Retention: time.Second}, {Retention: -time.Minute}, {Retention: time.Minute, NATSURL: "nats://127.0.0.1:1"}} {
		if err := bad.setDefaults(); schemas.CodeOf(err) != schemas.CodeConfig {
			t.Errorf("setDefaults of %+v: got error %v, want code config", bad, err)
		}
	}
}

// TestAccountOfRemovedEvents: an event that the limit of its service has removed from the stream counts as found if the
// subscriber received it, and only as many as the stream has removed.
func TestAccountOfRemovedEvents(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for events that do not come")
	e := started(t)
	ctx := t.Context()
	a, err := e.NewAdder("bench_removed")
	if err != nil {
		t.Fatal(err)
	}
	const timers, kept = 40, 30
	due := make([]int64, timers)
	for n := range due {
		due[n] = time.Now().Add(500 * time.Millisecond).UnixMilli()
	}
	w, err := e.Watch(ctx, a, due)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Add(ctx, timers, func(n int) int64 { return due[n] }, nil, nil); err != nil {
		t.Fatal(err)
	}
	arrived(t, w, timers)
	stream, err := e.js.Stream(ctx, schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgsPerSubject = kept
	if _, err := e.js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	account := func() *Account {
		t.Helper()
		acc, err := w.accountPatient(ctx, e.progress(), storedPatience)
		if err != nil {
			t.Fatal(err)
		}
		return acc
	}
	acc := account()
	if v := acc.Verified; v.Found != timers || v.Removed != timers-kept || v.Missing != 0 || v.Early != 0 || v.Duplicates != 0 {
		t.Errorf("got account %+v, want %d found, of them %d removed", v, timers, timers-kept)
	}
	// The subscriber did not receive one of the removed events.
	lost := 0
	for acc.stored[lost] != 0 {
		lost++
	}
	w.mu.Lock()
	w.at[lost] = 0
	w.mu.Unlock()
	if v := account().Verified; v.Missing != 1 || v.Removed != timers-kept-1 || len(v.Why) != 1 {
		t.Errorf("with an event that nobody has seen: got account %+v, want 1 missing", v)
	}
	// More timers are not in the stream than it has removed.
	w.mu.Lock()
	w.at[lost] = time.Now().UnixNano()
	w.mu.Unlock()
	if stream, err = e.js.Stream(ctx, schemas.StreamFired); err != nil {
		t.Fatal(err)
	}
	w.removedBefore = removedEver(stream) - (timers - kept - 1)
	if v := account().Verified; v.Missing != 1 || v.Removed != timers-kept-1 {
		t.Errorf("with one removed event less: got account %+v, want 1 missing", v)
	}
}
