package bench

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

// runOn measures a system other than Belfry with a workload, and checks the topology that it has by default.
func runOn(t *testing.T, system System, on Topology, name string, change func(*Config)) *Result {
	t.Helper()
	r := run(t, name, func(c *Config) {
		c.System = system
		change(c)
	})
	if r.Settings["system"] != string(system) || r.Settings["on"] != string(on) {
		t.Errorf("got settings %v, want %s on %s", r.Settings, system, on)
	}
	return r
}

// peer measures the message schedules of nats-server with a workload.
func peer(t *testing.T, name string, change func(*Config)) *Result {
	t.Helper()
	return runOn(t, NATSSchedules, OnServer, name, change)
}

func TestPeerAdd(t *testing.T) {
	t.Parallel()
	for via, profile := range map[string]app.Profile{ViaPublish: app.ProfileFast, ViaBatch: app.ProfileSafe} {
		t.Run(via, func(t *testing.T) {
			t.Parallel()
			r := peer(t, "add", func(c *Config) { c.Count, c.Via, c.Profile = 1200, via, profile })
			if r.Verified.Found != 1200 || figure(t, r, "adds acknowledged") <= 0 || figure(t, r, apartFigure) <= 0 {
				t.Errorf("got %+v, want 1,200 timers, a rate, and the CPU of the server", r)
			}
		})
	}
}

func TestPeerSingles(t *testing.T) {
	t.Parallel()
	r := peer(t, "singles", func(c *Config) { c.Count = 300 })
	if l := r.latency("answer to an add"); r.Verified.Found != 300 || l == nil || l.Count() != 300 || r.Settings["via"] != ViaSingle {
		t.Errorf("got %+v, want 300 timers with their answers", r)
	}
}

func TestPeerSteady(t *testing.T) {
	t.Parallel()
	for _, ahead := range []bool{false, true}[:testsize.Choose(t, "loads", 1, 1, 2)] {
		r := peer(t, "steady", func(c *Config) { c.Rate, c.Seconds, c.Ahead, c.Lead = 200, 2, ahead, 5*time.Second })
		if l := r.latency(latenessAtSubscriber); r.Verified.Found != 400 || r.Verified.Unseen != 0 || l == nil || l.Count() != 400 {
			t.Errorf("ahead %t: got %+v, want 400 timers with their lateness, all seen by the subscriber", ahead, r)
		}
	}
}

func TestPeerBurst(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "TestBurst and TestPeerSteady run its parts")
	r := peer(t, "burst", func(c *Config) { c.Count, c.Lead = 500, 5*time.Second })
	if r.Verified.Found != 500 || figure(t, r, "first, at the subscriber") > figure(t, r, "last, at the subscriber") {
		t.Errorf("got %+v, want 500 timers, and the first no later than the last", r)
	}
}

func TestPeerCancel(t *testing.T) {
	t.Parallel()
	r := peer(t, "cancel", func(c *Config) { c.Count, c.Callers = 300, 5 })
	if r.Verified.Found != 300 || figure(t, r, "cancels") <= 0 || r.Latencies[0].Count() != 300 {
		t.Errorf("got %+v, want 300 cancelled timers with their answers", r)
	}
}

// TestPeerPending: the timers survive SIGKILL.
func TestPeerPending(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "TestPending has its steps, and a server is started four times")
	r := peer(t, "pending", func(c *Config) { c.Count, c.Seconds, c.Settle = 1000, 1, time.Second })
	if r.Verified.Found != 1001 || figure(t, r, restartFigure) <= 0 || figure(t, r, "memory, settled after the adds") <= 0 {
		t.Errorf("got %+v, want 1,000 timers and the one of the restart, and the memory", r)
	}
}

// TestPeerFaults: a timer that is lost, fires twice or is not cancelled makes the run fail, as with
// Belfry.
func TestPeerFaults(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for events that do not come")
	e := started(t, func(c *Config) { c.System, c.On, c.InProcess = NATSSchedules, OnServer, false })
	ctx, sut := t.Context(), schedulesPeer{e}
	a, err := e.NewAdder("bench_faults")
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := sut.follow(ctx, a, 10, schemas.StatePending)
	if err != nil {
		t.Fatal(err)
	}
	// Timers 0 to 4 fire; 5 to 9 wait, of which 8 and 9 are lost or fire twice.
	due := make([]int64, 10)
	for n := range due {
		due[n] = time.Now().UnixMilli()
	}
	w, err := e.Watch(ctx, a, due)
	if err != nil {
		t.Fatal(err)
	}
	far := time.Now().Add(farAhead).UnixMilli()
	if err := a.Add(ctx, 10, func(n int) int64 {
		if n < 5 {
			return due[n]
		}
		return far
	}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := sut.cancel(ctx, e.js.Conn(), a, 8); err != nil {
		t.Fatal(err)
	}
	if err := sut.cancel(ctx, e.js.Conn(), a, 8); err == nil {
		t.Error("cancel of a timer that is not pending: got no error, want one")
	}
	arrived(t, w, 5)
	stream, subject := sut.fired("bench_faults")
	for range 2 {
		if _, err := e.js.Publish(ctx, subject, []byte(`{"id":"`+a.ID(9)+`"}`), jetstream.WithExpectStream(stream)); err != nil {
			t.Fatal(err)
		}
	}
	acc, err := w.accountPatient(ctx, e.progress(), storedPatience)
	if err != nil {
		t.Fatal(err)
	}
	if acc.Found != 6 || acc.Duplicates != 1 || acc.Missing != 4 || acc.Why["pending still"] != 3 || acc.Why["neither pending nor fired"] != 1 {
		t.Errorf("got account %+v, want 6 fired, one of them twice, 3 pending and 1 lost", acc.Verified)
	}
	var v Verified
	if err := ledger.account(ctx, e.progress(), &v); err != nil {
		t.Fatal(err)
	}
	if v.Found != 4 || v.Missing != 6 || !errors.Is(v.Err(), ErrUnsound) {
		t.Errorf("got %+v, want 4 pending timers and 6 missing", v)
	}
	if v = (Verified{}); (&peerLedger{sut, a, 10, schemas.StateCancelled}).account(ctx, e.progress(), &v) != nil || v.Wrong != 4 || !strings.Contains(v.Err().Error(), "4 pending, not cancelled") {
		t.Errorf("got %+v, want 4 timers that were not cancelled", v)
	}
}

func TestPeerHasOnlyItsWorkloads(t *testing.T) {
	t.Parallel()
	if _, err := Run(t.Context(), dayWorkload{}, Config{System: NATSSchedules}, 1); err == nil || !strings.Contains(err.Error(), "is not available for system nats-schedules") {
		t.Errorf("day on the peer: got %v, want an error that it is not available", err)
	}
}
