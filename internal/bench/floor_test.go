package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// floor measures the floor with a workload.
func floor(t *testing.T, name string, change func(*Config)) *Result {
	t.Helper()
	return runOn(t, Floor, OnEmbedded, name, change)
}

// TestFloorAdd: each add is two stored messages and at most one index entry, also in the batches of the safe profile. How
// many timers share an entry depends on how fast they are added; see TestFloorEntries.
func TestFloorAdd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		via     string
		profile app.Profile
	}{{ViaPublish, app.ProfileFast}, {ViaBatch, app.ProfileSafe}} {
		t.Run(c.via, func(t *testing.T) {
			t.Parallel()
			const adds = 20_000
			r := floor(t, "add", func(conf *Config) { conf.Count, conf.Via, conf.Profile = adds, c.via, c.profile })
			if r.Verified.Found != adds || figure(t, r, "timers stored") <= 0 || figure(t, r, apartFigure) <= 0 {
				t.Errorf("got %+v, want %d timers, a rate, and the CPU of the process", r, adds)
			}
			if stored := figure(t, r, "messages stored a timer"); stored <= 2 || stored > 3 {
				t.Errorf("a timer stored %v messages, want 2 and an index entry or a part of one", stored)
			}
		})
	}
}

// TestFloorEntries: an index entry has timers of one shard that are due in the same second, or of many that are far ahead in
// the same hour.
func TestFloorEntries(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0) // the start of an hour
	timer := func(shard int, due time.Duration) *floorTimer {
		return &floorTimer{shard: shard, dueMs: now.Add(due).UnixMilli()}
	}
	var many []*floorTimer
	for n := range 200 {
		many = append(many, timer(0, time.Second+time.Duration(n)*time.Millisecond))
	}
	var far []*floorTimer
	for n := range 300 {
		far = append(far, timer(0, 5*time.Hour+time.Duration(n)*time.Second))
	}
	for _, c := range []struct {
		name  string
		group []*floorTimer
		want  []int // timers of each entry
	}{
		{"one", []*floorTimer{timer(0, time.Minute)}, []int{1}},
		{"two seconds", []*floorTimer{timer(0, time.Second), timer(0, 2*time.Second), timer(0, time.Second+999*time.Millisecond)}, []int{2, 1}},
		{"two shards", []*floorTimer{timer(0, time.Second), timer(1, time.Second)}, []int{1, 1}},
		{"many in a second", many, []int{64, 64, 64, 8}},
		{"few far ahead", far[:3], []int{1, 1, 1}},
		{"many far ahead", far, []int{128, 128, 44}},
		{"many in an hour that is near", []*floorTimer{timer(0, time.Hour), timer(0, time.Hour+time.Second), timer(0, time.Hour+2*time.Second), timer(0, time.Hour+3*time.Second)}, []int{1, 1, 1, 1}},
	} {
		var got []int
		for _, e := range floorEntries(c.group, now) {
			got = append(got, len(e.timers))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got entries of %v timers, want %v", c.name, got, c.want)
		}
	}
}

// TestFloorLinger: in the safe profile adds wait for others if many arrive. An add that is due soon does not wait.
func TestFloorLinger(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the adds that wait are not stored
	f := &floorAdds{n: &floorNode{fail: func(error) {}}}
	defer f.flushes.Wait()
	now := time.Now()
	for _, step := range []struct {
		after time.Duration // since the first step
		adds  int
		due   time.Duration
		ready int // adds that are stored at once
	}{
		{0, 10, time.Hour, 10}, // few
		{20 * time.Millisecond, 10, time.Hour, 0},
		{40 * time.Millisecond, 7, time.Second / 2, 7},
		{60 * time.Millisecond, 600, time.Hour, 512}, // 98 are left
		{150 * time.Millisecond, 1, time.Hour, 0},    // many in the previous period
		{time.Second, 3, time.Hour, 3},
	} {
		group := make([]*floorTimer, step.adds)
		for i := range group {
			group[i] = &floorTimer{dueMs: now.Add(step.after + step.due).UnixMilli()}
		}
		if got := len(f.pass(ctx, group, now.Add(step.after))); got != step.ready {
			t.Errorf("after %s: %d of %d adds are stored at once, want %d", step.after, got, step.adds, step.ready)
		}
	}
}

// TestFloorMessages: the messages of the floor are those of the data model.
func TestFloorMessages(t *testing.T) {
	t.Parallel()
	for _, profile := range []app.Profile{app.ProfileFast, app.ProfileSafe} {
		t.Run(string(profile), func(t *testing.T) {
			t.Parallel()
			e := started(t, func(c *Config) { c.System, c.InProcess, c.Profile = Floor, false, profile })
			nc := e.js.Conn()
			a, err := e.NewAdder("bench_messages")
			if err != nil {
				t.Fatal(err)
			}
			run := strings.TrimSuffix(a.prefix, "-") // the timers of the warm-up have another one
			var mu sync.Mutex
			// By subject or message id, because the client sends a batch again that the server has refused.
			claims, events, concluded, entries := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
			if _, err := nc.Subscribe("bench.floor.>", func(m *nats.Msg) {
				mu.Lock()
				defer mu.Unlock()
				expires := m.Header.Get(jetstream.MsgTTLHeader) != ""
				switch {
				case strings.HasPrefix(m.Subject, "bench.floor.index.") && expires:
					entries[m.Subject] = true
				case strings.HasPrefix(m.Subject, floorFired) && strings.Contains(m.Header.Get(jetstream.MsgIDHeader), run):
					events[m.Header.Get(jetstream.MsgIDHeader)] = true
				case !strings.Contains(m.Subject, run):
				case bytes.HasPrefix(m.Data, []byte(floorClaimed)) && m.Header.Get(jetstream.MsgRollup) != "" && bytes.Contains(m.Data, []byte(`"specversion"`)):
					claims[m.Subject] = true
				case string(m.Data) == floorConcluded && m.Header.Get(jetstream.MsgRollup) != "" && expires:
					concluded[m.Subject] = true
				}
			}); err != nil {
				t.Fatal(err)
			}
			const adds = 100
			due := time.Now().Add(3 * time.Second).Truncate(time.Second).UnixMilli()
			for n := range adds {
				if _, err := e.js.PublishMsg(t.Context(), (floorSystem{e}).add(a, n, due)); err != nil {
					t.Fatal(err)
				}
			}
			waittest.Until(t, "all are concluded", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(concluded) == adds
			}, func() string {
				mu.Lock()
				defer mu.Unlock()
				return fmt.Sprint(len(claims), " are claimed, ", len(events), " published and ", len(concluded), " concluded")
			})
			if err := (floorSystem{e}).concluded(t.Context()); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(claims) != adds || len(events) != adds || len(entries) == 0 {
				t.Errorf("got %d claims with the event, %d events with a message id and %d index entries, want %d, %d and some", len(claims), len(events), len(entries), adds, adds)
			}
			// A concluded timer without an event.
			if _, err := e.js.Publish(t.Context(), floorKey(0, "x-0"), []byte(floorConcluded)); err != nil {
				t.Fatal(err)
			}
			if err := (floorSystem{e}).concluded(t.Context()); !errors.Is(err, ErrUnsound) {
				t.Errorf("a concluded timer without an event: got %v, want %v", err, ErrUnsound)
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
				t.Errorf("a timer stored %v messages, want 5 and an index entry at most", stored)
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
