package scheduler

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// world is a shard's store and time for one core, driven by one seed: answers
// come late and out of order, fail before or after they took effect, and the
// core crashes and is resumed from its last written clock.
type world struct {
	t    *testing.T
	rng  *rand.Rand
	geo  schemas.Geometry
	now  int64
	seq  uint64
	recs map[schemas.TimerID]store.Timer
	slot map[int64]map[schemas.TimerID]bool
	log  []store.Timer // the stream, with overwritten revisions
	pub  map[string][]int64

	core     *Core
	clock    store.Clock
	tailPos  uint64
	pending  []answer
	faults   bool
	crashes  int
	finishes int
}

type answer struct {
	at int64
	ev func() Event
}

func newWorld(t *testing.T, seed uint64, geo schemas.Geometry) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), geo: geo, now: 1_800_000_000_000,
		recs: map[schemas.TimerID]store.Timer{}, slot: map[int64]map[schemas.TimerID]bool{}, pub: map[string][]int64{},
	}
	w.clock = store.Clock{TimeMs: geo.TickStart(geo.Tick(w.now))}
	w.boot()
	return w
}

func (w *world) boot() {
	w.clock.Epoch++
	w.core = NewCore(CoreConfig{Geometry: w.geo, HorizonMs: 5000, ScanBehindMs: 3_600_000, MaxLoaded: 200, MaxInflight: 16}, w.clock, w.clock.Epoch)
	w.tailPos = w.clock.Tail
	w.pending = nil
}

func (w *world) put(id schemas.TimerID, rec schemas.Record) uint64 {
	w.seq++
	t := store.Timer{ID: id, Rev: w.seq, Record: rec}
	w.recs[id] = t
	w.log = append(w.log, t)
	return w.seq
}

func (w *world) index(id schemas.TimerID, due int64) {
	s := w.geo.Slot(w.geo.Tick(due))
	if w.slot[s] == nil {
		w.slot[s] = map[schemas.TimerID]bool{}
	}
	w.slot[s][id] = true
}

func (w *world) add(n int, due int64, svc string) schemas.TimerID {
	id := schemas.NewTimerID("test", fmt.Sprint(n))
	w.index(id, due)
	w.put(id, schemas.Record{State: schemas.StatePending, Queued: true, Run: 1, DueMs: due, ScheduledMs: due, Service: svc,
		Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte(`{"specversion":"1.0","id":"1","source":"/t","type":"t","timerat":"2027-01-01T00:00:00Z"}`)}})
	return id
}

// cas writes if rev is the record's, as the store would.
func (w *world) cas(id schemas.TimerID, rev uint64, rec schemas.Record) (uint64, error) {
	if w.recs[id].Rev != rev {
		return 0, store.ErrRevision
	}
	if !w.recs[id].Record.State.CanBecome(rec.State) {
		w.t.Fatalf("illegal transition %s -> %s", w.recs[id].Record.State, rec.State)
	}
	return w.put(id, rec), nil
}

// fault decides whether a write fails, and whether it took effect all the same.
func (w *world) fault() (lost, applied bool) {
	if !w.faults || w.rng.IntN(8) != 0 {
		return false, true
	}
	return true, w.rng.IntN(2) == 0
}

func (w *world) answer(ev func() Event) {
	at := w.now
	if w.faults {
		at += w.rng.Int64N(40)
	}
	w.pending = append(w.pending, answer{at: at, ev: ev})
}

func (w *world) perform(actions []Action) {
	for _, a := range append([]Action(nil), actions...) {
		switch a := a.(type) {
		case ActClaim:
			rec := *a.Record
			if rec.DueMs > w.now {
				w.t.Fatalf("claimed %d ms early", rec.DueMs-w.now)
			}
			w.answer(func() Event {
				lost, applied := w.fault()
				var rev uint64
				err := error(schemas.ErrUnavailable)
				if applied {
					rev, err = w.cas(a.ID, a.Rev, rec)
				}
				if lost {
					rev, err = 0, schemas.ErrUnavailable
				}
				return EvClaimed{ID: a.ID, Rev: rev, Err: err}
			})
		case ActPublish:
			w.answer(func() Event {
				lost, applied := w.fault()
				if applied {
					w.pub[a.Msg.MsgID] = append(w.pub[a.Msg.MsgID], w.now)
				}
				if lost {
					return EvPublished{ID: a.ID, Err: schemas.ErrUnavailable}
				}
				return EvPublished{ID: a.ID, Duplicate: len(w.pub[a.Msg.MsgID]) > 1}
			})
		case ActFinish:
			if _, err := w.cas(a.ID, a.Rev, *a.Record); err == nil {
				w.finishes++
			}
		case ActLoad:
			// The store answers as of some time between the question and the answer.
			ev := w.load(a)
			early := w.rng.IntN(2) == 0
			w.answer(func() Event {
				if early {
					return ev
				}
				return w.load(a)
			})
		case ActScan:
			for _, t := range w.recs {
				if t.Record.DueMs <= a.ThroughMs && !t.Record.State.Final() {
					w.answer(func() Event { return EvScanned{Timer: t} })
				}
			}
			w.pending = append(w.pending, answer{at: w.now + 50, ev: func() Event { return EvScanDone{} }})
		case ActReread:
			w.answer(func() Event {
				if lost, _ := w.fault(); lost {
					return EvReread{ID: a.ID, Err: schemas.ErrUnavailable}
				}
				t, ok := w.recs[a.ID]
				if !ok {
					return EvReread{ID: a.ID, Err: schemas.ErrNotFound}
				}
				return EvReread{ID: a.ID, Timer: t}
			})
		case ActConfirm:
			w.answer(func() Event {
				if lost, _ := w.fault(); lost {
					return EvConfirmed{Err: schemas.ErrUnavailable}
				}
				found := map[string]struct{}{}
				for id := range a.IDs {
					if len(w.pub[id]) > 0 {
						found[id] = struct{}{}
					}
				}
				return EvConfirmed{Found: found}
			})
		}
	}
}

func (w *world) load(a ActLoad) Event {
	if lost, _ := w.fault(); lost {
		return EvLoaded{Err: schemas.ErrUnavailable}
	}
	var found []store.Timer
	for _, tick := range a.Ticks {
		for id := range w.slot[w.geo.Slot(tick)] {
			if t, ok := w.recs[id]; ok {
				found = append(found, t)
			}
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].Rev < found[j].Rev })
	const limit = 20
	if len(a.Ticks) > 1 {
		return EvLoaded{Load: store.Load{Timers: found, Complete: len(found) <= limit}}
	}
	var page []store.Timer
	for _, t := range found {
		if t.Rev <= a.After {
			continue
		}
		if page = append(page, t); len(page) == limit {
			return EvLoaded{Load: store.Load{Timers: page, Complete: true, Next: t.Rev}}
		}
	}
	return EvLoaded{Load: store.Load{Timers: page, Complete: true}}
}

// step advances time, delivers what is due to be delivered, and lets the clock
// be written or the core crash now and then.
func (w *world) step(ms int64) {
	w.now += ms
	for _, i := range w.rng.Perm(len(w.pending)) {
		if p := w.pending[i]; p.ev != nil && p.at <= w.now {
			w.pending[i].ev = nil
			w.perform(w.core.Step(w.now, p.ev()))
		}
	}
	kept := w.pending[:0]
	for _, p := range w.pending {
		if p.ev != nil {
			kept = append(kept, p)
		}
	}
	w.pending = kept
	for n := w.rng.IntN(8); n > 0 && w.core.WantsTail() && w.tailPos < w.seq; n-- {
		t := w.log[w.tailPos]
		w.tailPos++
		if w.recs[t.ID].Rev == t.Rev {
			w.perform(w.core.Step(w.now, EvTail{Timer: t}))
		}
	}
	w.perform(w.core.Step(w.now, EvTick{}))
	if w.rng.IntN(10) == 0 {
		before := w.clock
		w.core.Checkpoint(&w.clock)
		if w.clock.TimeMs < before.TimeMs || w.clock.Tail < before.Tail {
			w.t.Fatal("the clock went backwards")
		}
		w.checkMark()
	}
	if w.faults && w.rng.IntN(200) == 0 {
		w.crashes++
		w.boot()
	}
}

// checkMark states the low-water mark: nothing behind it waits, but for what a
// new owner's tail would bring.
func (w *world) checkMark() {
	for _, t := range w.recs {
		behind := t.Record.DueMs < w.clock.TimeMs && t.Rev <= w.clock.Tail
		if behind && (t.Record.Pending() || t.Record.State == schemas.StateDelivered && len(w.pub[t.ID.MsgID(1)]) == 0) {
			w.t.Fatalf("timer due %d at %d is %s behind the mark %d, tail %d", t.Record.DueMs, t.Rev, t.Record.State, w.clock.TimeMs, w.clock.Tail)
		}
	}
}
