package functions

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
)

// countedStates counts how often the state of a flow key is read.
type countedStates struct {
	*store.Store
	reads atomic.Int32
}

func (s *countedStates) FlowState(ctx context.Context, key string) (store.FlowKeyState, error) {
	s.reads.Add(1)
	return s.Store.FlowState(ctx, key)
}

// TestFlowSlotsReturned: a node whose events wait while another node holds every slot reads the
// state again, so that it notices the return of a slot before the lease of the other node ends.
func TestFlowSlotsReturned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	key := c.host(t)
	generation := r.limit(key, flow.Limit{Parallel: 1})
	held := store.FlowKeyState{Key: key, State: flow.State{
		Generation: generation, Leases: []flow.Lease{{Node: "other", Slots: 1, UntilNs: time.Now().Add(flow.LeaseFor).UnixNano()}},
	}}
	if _, err := r.store.PutFlowState(t.Context(), held, 0); err != nil {
		t.Fatal(err)
	}
	s := &countedStates{Store: r.store}
	r.start(func(o *Options) { o.Store, o.AckWait = s, DefaultAckWait })
	r.fire(timer{callback: c.URL})
	waittest.Until(t, "the node reads the state again", func() bool { return s.reads.Load() > 2 })
	if n := c.count(); n != 0 {
		t.Errorf("got %d calls while another node holds the slot, want 0", n)
	}
	for { // the other node returns its slot
		state, err := r.store.FlowState(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		state.State.Hold("other", 0, time.Now().UnixNano())
		if _, err = r.store.PutFlowState(t.Context(), state, 0); err == nil {
			break
		}
	}
	waittest.Until(t, "the call", func() bool { return c.count() == 1 })
}

// TestFlowLongCall: while the first call runs, its duration so far determines how long events wait.
func TestFlowLongCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	key := c.host(t)
	r.limit(key, flow.Limit{Parallel: 1})
	r.start(func(o *Options) { o.AckWait = DefaultAckWait })
	for range 2 {
		r.fire(timer{callback: c.URL})
	}
	waittest.Until(t, "the state has the duration of the call that runs", func() bool {
		s, err := r.store.FlowState(t.Context(), key)
		return err == nil && s.State.TookNs == int64(time.Second)
	})
	if n := c.count(); n != 1 {
		t.Errorf("got %d calls, want 1", n)
	}
}

// TestFlowTurns: a node leaves a slot that is reserved for another node whose turn it is, and is next.
func TestFlowTurns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	key := c.host(t)
	generation := r.limit(key, flow.Limit{Parallel: 1})
	now := time.Now()
	other := flow.Turn{Node: "other", SinceNs: now.Add(-2 * flow.TurnFor).UnixNano(), UntilNs: now.Add(time.Hour).UnixNano()}
	reserved := store.FlowKeyState{Key: key, State: flow.State{Generation: generation, Turns: []flow.Turn{other}}}
	if _, err := r.store.PutFlowState(t.Context(), reserved, 0); err != nil {
		t.Fatal(err)
	}
	r.start(func(o *Options) { o.AckWait = DefaultAckWait })
	r.fire(timer{callback: c.URL})
	waittest.Until(t, "the node waits for its turn", func() bool {
		calls := c.count()
		s, err := r.store.FlowState(t.Context(), key)
		if err != nil || len(s.State.Turns) < 2 {
			return false
		}
		if calls != 0 || len(s.State.Leases) != 0 || s.State.Turns[0].Node != "other" {
			t.Errorf("got %d calls and the state %+v, want no call before the turn of the other node", calls, s.State)
		}
		return true
	})
	// The other node does not ask any more: its turn ends.
	waittest.Until(t, "the call", func() bool { return c.count() == 1 })
}
