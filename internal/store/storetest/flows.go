package storetest

import (
	"errors"
	"sync"
	"testing"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
)

// flowStates: a state is read as it was written, a compare-and-set of an old revision fails,
// and of writers at the same time exactly one wins.
func flowStates(t *testing.T, s Store) {
	ctx := t.Context()
	none := must[store.FlowKeyState](t)(s.FlowState(ctx, "api.example.com"))
	if none.Rev != 0 || none.Key != "api.example.com" || none.State.GateNs != 0 {
		t.Fatalf("a key without a state: got %+v", none)
	}
	one := none
	one.State = flow.State{Generation: 7, GateNs: 1 << 60, PlanNs: -3, TookNs: 5, Leases: []flow.Lease{{Node: "a", Slots: 2, UntilNs: 9}}, Turns: []flow.Turn{{Node: "b", SinceNs: 4, UntilNs: 8}}}
	one.Rev = must[uint64](t)(s.PutFlowState(ctx, one, 0))
	got := must[store.FlowKeyState](t)(s.FlowState(ctx, "api.example.com"))
	if got.Rev != one.Rev || !got.State.Equal(&one.State) {
		t.Fatalf("got %+v, want %+v", got, one)
	}
	if _, err := s.PutFlowState(ctx, none, 0); !errors.Is(err, store.ErrRevision) {
		t.Fatalf("create of a state that exists: got error %v, want ErrRevision", err)
	}
	if other := must[store.FlowKeyState](t)(s.FlowState(ctx, "API.example.com")); other.Rev != 0 {
		t.Fatalf("another key has a state: %+v", other)
	}
	for range 20 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var won []uint64
		for i := range 4 {
			wg.Go(func() {
				mine := got
				mine.State.TookNs = int64(i)
				rev, err := s.PutFlowState(ctx, mine, 0)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won = append(won, rev)
				case !errors.Is(err, store.ErrRevision):
					t.Errorf("got error %v, want ErrRevision", err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Fatalf("%d of 4 writers of one revision won", len(won))
		}
		got.Rev = won[0]
	}
}
