package functions

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestFollowForgets: a node remembers the changes that are in the store, and no others, however many flow keys had a
// hold before. The same change keeps its state; a later one of the same name begins with a new state.
func TestFollowForgets(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	kept := relief{name: "kept", generation: 1}
	known := follow(nil, []relief{kept}, begin)
	known["kept"].done = true
	for i := range 100 {
		known = follow(known, []relief{kept, {name: fmt.Sprint("hold ", i), generation: 1}}, begin.Add(time.Second))
	}
	if len(known) != 2 {
		t.Errorf("%d changes are remembered, want the 2 in the store", len(known))
	}
	if k := known["kept"]; !k.done || !k.seen.Equal(begin) {
		t.Errorf("got %+v, want the state from the beginning", k)
	}
	kept.generation++
	if k := follow(known, []relief{kept}, begin.Add(time.Minute))["kept"]; k.done || k.generation != 2 || k.seen.Equal(begin) {
		t.Errorf("got %+v for a later change, want a new state", k)
	}
}

// TestReplanOfStoppedKey: more events than a node moves at a time wait for a key that has stopped again. The
// events of other keys get new slots, and the work ends.
func TestReplanOfStoppedKey(t *testing.T) {
	t.Parallel()
	const key, most, events = "job:*", 2, 6
	r := newRig(t)
	c := httpCallee(t, ok)
	slow := flow.Limit{Rate: flow.Rate{Count: 1, Per: 10 * time.Minute}, Burst: 1}
	r.limit(key, slow)
	f := r.start(nil)
	ids := map[string][]schemas.TimerID{}
	for range events {
		for _, key := range []string{"job:stopped", "job:free"} {
			id := r.fire(timer{callback: c.URL, attributes: map[string]string{"timerflow": key}})
			r.awaitDeferredOrCalled(id)
			if rec := r.get(id).Record; rec.Deferred() {
				ids[key] = append(ids[key], id)
			}
		}
	}
	if err := f.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := r.get(ids["job:stopped"][0]).Record.Deferral.Generation
	stopped, fast := slow, slow
	stopped.Paused, fast.Rate.Per = true, time.Minute
	r.limit("job:stopped", stopped)
	raised := r.limit(key, fast)
	if _, err := r.store.RefreshFlows(t.Context()); err != nil {
		t.Fatal(err)
	}
	flows := newFlowControl(f)
	flows.maxReplan = most
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Bound)
	defer cancel()
	if done, err := flows.replanOne(ctx, relief{name: key, key: key, generation: raised}); err != nil || !done {
		t.Fatalf("got done %t and error %v, want the end of the work", done, err)
	}
	for key, want := range map[string]uint64{"job:stopped": before, "job:free": raised} {
		if len(ids[key]) <= most {
			t.Fatalf("%d events of %s wait, want more than %d", len(ids[key]), key, most)
		}
		for _, id := range ids[key] {
			if got := r.get(id).Record.Deferral.Generation; got != want {
				t.Errorf("an event of %s has a slot of generation %d, want %d", key, got, want)
			}
		}
	}
}
