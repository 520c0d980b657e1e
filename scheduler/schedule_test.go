package scheduler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// recurring returns a schedule that fires limit runs, one a second.
func recurring(t *testing.T, id string, limit uint32, change func(*schemas.Record)) store.Write {
	t.Helper()
	w := timer(id, 0)
	w.Record.Schedule = &schemas.Schedule{Recurrence: schemas.Recurrence{Every: "1s", Limit: limit, Misfire: schemas.MisfireAll}}
	w.Record.Schedule.AnchorMs = w.Record.AddedMs
	if change != nil {
		change(w.Record)
	}
	plan, err := recurrence.Compile(w.ID, &w.Record.Schedule.Recurrence, w.Record.Schedule.AnchorMs, nil)
	if err == nil {
		err = plan.Begin(w.Record)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// callback gives a schedule a callback, whose runs may overlap.
func callback(r *schemas.Record) {
	r.Callback, r.MaxAttempt = "nats:nobody", 3
	r.Schedule.Overlap = schemas.OverlapAllow
}

// checkRuns checks that each run of a schedule of recurring fired once, in order and at its
// nominal time, and that the schedule is completed.
func checkRuns(t *testing.T, s *store.Store, w store.Write, limit int, got map[string][]jetstream.Msg) {
	t.Helper()
	var before uint64
	for n := 1; n <= limit; n++ {
		ms := got[w.ID.MsgID(uint32(n))]
		if len(ms) != 1 {
			t.Errorf("run %d of %s is in the stream %d times", n, w.Record.EventID, len(ms))
			continue
		}
		meta, err := ms[0].Metadata()
		if err != nil {
			t.Fatal(err)
		}
		_, _, f, err := schemas.ParseFired(ms[0].Headers(), ms[0].Data())
		if err != nil {
			t.Fatal(err)
		}
		nominal := w.Record.Schedule.AnchorMs + int64(n)*1000
		if f.Run != uint32(n) || f.ScheduledMs != nominal || f.FiredMs < nominal || meta.Timestamp.UnixMilli() < nominal {
			t.Errorf("run %d of %s, nominal time %d, fired as %+v at %d", n, w.Record.EventID, nominal, f, meta.Timestamp.UnixMilli())
		}
		if meta.Sequence.Stream < before {
			t.Errorf("run %d of %s fired before the one before it", n, w.Record.EventID)
		}
		before = meta.Sequence.Stream
	}
	final := await(t, s, w.ID, schemas.StateCompleted)
	d := final.Record.Schedule.Decisions
	if len(d) != 1 || d[0].Kind != schemas.DecisionFired || d[0].Count != uint32(limit) || final.Record.Body.Mode == schemas.ModeNone {
		t.Errorf("%s ended as %+v, decisions %+v", w.Record.EventID, final.Record.RunState, d)
	}
}

// TestSchedules: schedules with and without a callback fire each nominal time once, in order,
// and are completed. Their owners die again and again.
func TestSchedules(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	cfg := store.Config{Geometry: schemas.Geometry{Shards: 2, SlotWidth: 1e9, WheelSize: 1000}}
	setup := open(t, srv.Connect(), "setup", cfg)
	const limit, each = 12, 5
	var all []store.Write
	for i := range each {
		all = append(all, recurring(t, fmt.Sprint("plain ", i), limit, nil), recurring(t, fmt.Sprint("called ", i), limit, callback))
	}
	n := start(t, srv, "n0", cfg, nil)
	create(t, setup, all...)
	stream, err := natstest.JetStream(t, srv.Connect()).Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	for kill := range 3 {
		waittest.Until(t, "more runs fire", func() bool {
			info, err := stream.Info(t.Context())
			return err == nil && info.State.Msgs > uint64((kill+1)*2*each)
		})
		n.nc.Close() // no release of its shards
		n = start(t, srv, fmt.Sprint("n", kill+1), cfg, nil)
	}
	got := fired(t, srv.Connect(), limit*len(all))
	for _, w := range all {
		checkRuns(t, setup, w, limit, got)
	}
	for run := uint32(1); run <= limit; run++ {
		r := await(t, setup, schemas.RunTimer(all[1].ID, run), schemas.StateDelivered)
		if o := r.Record.Origin; o == nil || o.Schedule != all[1].ID || r.Record.Run != run {
			t.Errorf("the record of run %d is %+v", run, r.Record)
		}
	}
	if v := metrictest.Sum(t, n.reg, "belfry_missed_timers_total"); v != 0 {
		t.Errorf("the sweeper found %v missed timers", v)
	}
}

// dyingStore is a store whose process dies before it publishes or, with creates, before it
// writes the record of a run.
type dyingStore struct {
	scheduler.Store
	dying, creates bool
	reached        atomic.Bool
}

func (s *dyingStore) PublishAsync(m store.Msg, done func(seq uint64, duplicate bool, err error)) {
	if s.dying {
		s.reached.Store(true)
		return
	}
	s.Store.PublishAsync(m, done)
}

func (s *dyingStore) Create(ctx context.Context, timers []store.Write) []store.Result {
	if s.dying && s.creates {
		s.reached.Store(true)
		<-ctx.Done()
		return nil
	}
	return s.Store.Create(ctx, timers)
}

// TestRunOfADeadOwner: the owner dies after it has claimed a run, before the run's event is
// published, and before or after the run's record is written. The next owner publishes the
// run, and the schedule goes on.
func TestRunOfADeadOwner(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		creates bool
		limit   uint32
		change  func(*schemas.Record)
	}{
		"no callback":                {false, 3, nil},
		"last run, no callback":      {false, 1, nil},
		"callback, no record yet":    {true, 3, callback},
		"callback, record":           {false, 3, callback},
		"last run, callback":         {true, 1, callback},
		"last run, callback, record": {false, 1, callback},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t)
			cfg := store.Config{Geometry: schemas.Geometry{Shards: 1, SlotWidth: 1e9, WheelSize: 1000}}
			dead := &dyingStore{dying: true, creates: test.creates}
			n := start(t, srv, "n1", cfg, func(o *scheduler.Options) {
				dead.Store = o.Store
				o.Store = dead
			})
			w := recurring(t, "s", test.limit, test.change)
			setup := open(t, srv.Connect(), "setup", cfg)
			create(t, setup, w)
			waittest.Until(t, "run 1 is claimed", dead.reached.Load)
			n.nc.Close()
			start(t, srv, "n2", cfg, nil)
			checkRuns(t, setup, w, int(test.limit), fired(t, srv.Connect(), int(test.limit)))
		})
	}
}
