package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

// floor measures the floor with a workload.
func floor(t *testing.T, name string, change func(*Config)) *Result {
	t.Helper()
	return runOn(t, Floor, OnEmbedded, name, change)
}

// TestFloorAdd: each add is two stored messages and a part of an index entry, also in the batches of the safe profile.
func TestFloorAdd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		via     string
		profile app.Profile
	}{{ViaPublish, app.ProfileFast}, {ViaBatch, app.ProfileSafe}} {
		t.Run(c.via, func(t *testing.T) {
			t.Parallel()
			r := floor(t, "add", func(conf *Config) { conf.Count, conf.Via, conf.Profile = 1200, c.via, c.profile })
			if r.Verified.Found != 1200 || figure(t, r, "timers stored") <= 0 || figure(t, r, apartFigure) <= 0 {
				t.Errorf("got %+v, want 1,200 timers, a rate, and the CPU of the process", r)
			}
			// Timers that are due in a month seldom share an entry. A batch stores a journal, too.
			if stored := figure(t, r, "messages stored a timer"); stored < 2.5 || stored > 3.1 {
				t.Errorf("a timer stored %v messages, want 3", stored)
			}
		})
	}
}

func TestFloorSingles(t *testing.T) {
	t.Parallel()
	r := floor(t, "singles", func(c *Config) { c.Count = 300 })
	if l := r.latency("answer to an add"); r.Verified.Found != 300 || l == nil || l.Count() != 300 {
		t.Errorf("got %+v, want 300 timers with their answers", r)
	}
}

// TestFloorSteady: a timer is five stored messages, the add, the message of its key three times, and the event, and a part of
// an index entry.
func TestFloorSteady(t *testing.T) {
	t.Parallel()
	for _, profile := range []app.Profile{app.ProfileFast, app.ProfileSafe} {
		t.Run(string(profile), func(t *testing.T) {
			t.Parallel()
			r := floor(t, "steady", func(c *Config) { c.Rate, c.Seconds, c.Profile = 200, 2, profile })
			if l := r.latency(latenessAtSubscriber); r.Verified.Found != 400 || r.Verified.Unseen != 0 || l == nil || l.Count() != 400 {
				t.Errorf("got %+v, want 400 timers with their lateness, all seen by the subscriber", r)
			}
			// The last timers may be concluded after the measurement.
			if stored := figure(t, r, "messages stored a timer"); stored < 4.5 || stored > 6 {
				t.Errorf("a timer stored %v messages, want 5 to 6", stored)
			}
		})
	}
}

func TestFloorBurst(t *testing.T) {
	t.Parallel()
	r := floor(t, "burst", func(c *Config) { c.Count, c.Lead = 500, 5*time.Second })
	if r.Verified.Found != 500 || figure(t, r, "first, at the subscriber") > figure(t, r, "last, at the subscriber") {
		t.Errorf("got %+v, want 500 timers, and the first no later than the last", r)
	}
}

func TestFloorCancel(t *testing.T) {
	t.Parallel()
	r := floor(t, "cancel", func(c *Config) { c.Count, c.Callers, c.Profile = 300, 5, app.ProfileFast })
	if r.Verified.Found != 300 || figure(t, r, "cancels") <= 0 || r.Latencies[0].Count() != 300 || figure(t, r, "messages stored a timer") != 1 {
		t.Errorf("got %+v, want 300 cancelled timers with their answers, with one message each", r)
	}
}

// breaksFloor adds timers after a stream of the floor is gone.
type breaksFloor struct{ addWorkload }

func (breaksFloor) Run(ctx context.Context, e *Env) (*Result, error) {
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	if err := e.js.DeleteStream(ctx, floorStream(0)); err != nil {
		return nil, err
	}
	a, err := e.NewAdder("bench_breaks")
	if err != nil {
		return nil, err
	}
	due := time.Now().Add(farAhead).UnixMilli()
	if err := a.Add(ctx, 1000, func(int) int64 { return due }, nil, nil); err != nil {
		return nil, err
	}
	_, err = e.drained(ctx, e.progress())
	return &Result{}, err
}

// TestFloorDies: the floor ends if a write fails. The run then ends, too, and says why.
func TestFloorDies(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.System = Floor
	_, err := Run(t.Context(), breaksFloor{}, c, 1)
	if err == nil || !strings.Contains(err.Error(), "the floor ended during the run") || !strings.Contains(err.Error(), "no responders") {
		t.Errorf("got %v, want an error that says why the process ended", err)
	}
}

// TestFloorFaults: a timer that is lost, or not cancelled, makes a run of the floor fail, too.
func TestFloorFaults(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for events that do not come")
	e := started(t, func(c *Config) { c.System, c.InProcess = Floor, false })
	ctx, sut := t.Context(), floorSystem{e}
	a, err := e.NewAdder("bench_faults")
	if err != nil {
		t.Fatal(err)
	}
	// Timers 0 to 4 fire; 5 to 9 wait, of which 8 is cancelled and 9 is removed.
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
	if _, err := e.drained(ctx, e.progress()); err != nil {
		t.Fatal(err)
	}
	if err := sut.cancel(ctx, e.js.Conn(), a, 8); err != nil {
		t.Fatal(err)
	}
	if err := sut.cancel(ctx, e.js.Conn(), a, 8); err == nil || !strings.Contains(err.Error(), "not pending") {
		t.Errorf("cancel of a timer that is not pending: got %v, want an error that says so", err)
	}
	arrived(t, w, 5)
	s, err := e.js.Stream(ctx, floorStream(floorShard(a.ID(9))))
	if err != nil {
		t.Fatal(err)
	}
	last, err := s.GetLastMsgForSubject(ctx, floorKey(floorShard(a.ID(9)), a.ID(9)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteMsg(ctx, last.Sequence); err != nil {
		t.Fatal(err)
	}
	acc, err := w.accountPatient(ctx, e.progress(), storedPatience)
	if err != nil {
		t.Fatal(err)
	}
	if acc.Found != 5 || acc.Missing != 5 || acc.Why["pending still"] != 3 || acc.Why[floorCancelled] != 1 || acc.Why["never stored"] != 1 {
		t.Errorf("got account %+v, want 5 fired, 3 pending, 1 cancelled and 1 lost", acc.Verified)
	}
	for want, wrong := range map[schemas.State]int{schemas.StatePending: 6, schemas.StateCancelled: 8} {
		v := ledgerOf(ctx, t, sut, a, want)
		if v.Found != 9 || v.Missing != 1 || v.Wrong != wrong || !errors.Is(v.Err(), ErrUnsound) {
			t.Errorf("want %s: got %+v, want 9 timers, 1 missing, %d in another state", want, v, wrong)
		}
	}
}

// ledgerOf accounts for ten timers.
func ledgerOf(ctx context.Context, t *testing.T, sut system, a *Adder, want schemas.State) Verified {
	t.Helper()
	l, err := sut.follow(ctx, a, 10, want)
	if err != nil {
		t.Fatal(err)
	}
	var v Verified
	if err := l.account(ctx, a.env.progress(), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestFloorHasOnlyItsWorkloads: workloads and settings without a meaning for the floor are refused.
func TestFloorHasOnlyItsWorkloads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		workload Workload
		config   Config
		want     string
	}{
		{pendingWorkload{}, Config{}, "is not available for system floor"},
		{addWorkload{}, Config{On: OnServer}, "leave out on"},
		{addWorkload{}, Config{Via: ViaClient}, "via client is for Belfry"},
	} {
		c.config.System = Floor
		if _, err := Run(t.Context(), c.workload, c.config, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %+v: got %v, want an error with %q", c.workload.Name(), c.config, err, c.want)
		}
	}
}

// TestFloorIsNeverTheBest: a comparison marks the best system without the floor.
func TestFloorIsNeverTheBest(t *testing.T) {
	t.Parallel()
	f := CompareFigures{Cells: []*Spread{{Name: "Belfry", Median: 1}, {Name: "NATS schedules", Median: 2}, {Name: "Floor", Median: 3}}}
	if got := f.best([]string{"Floor"}); got != 1 {
		t.Errorf("got cell %d, want that of the schedules", got)
	}
	if got := f.best(nil); got != 2 {
		t.Errorf("without a bound: got cell %d, want the last one", got)
	}
}
