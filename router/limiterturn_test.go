package router

import (
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
)

// TestReservedTimes: only adds of the stream that are not admitted reserve times. Adds of callers that are
// refused beside them take neither times of the plan nor places of adds that wait.
func TestReservedTimes(t *testing.T) {
	t.Parallel()
	st, err := store.Open(t.Context(), natstest.Run(t).Connect(), store.Config{Node: "test", Timeout: time.Minute}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	clock := fixedTime(time.Now().UnixMilli())
	now := clock.LatestNs()
	set := (&store.FlowSet{}).With(store.FlowLimit{Pattern: "adds:orders", Rev: 1, Limit: flow.Limit{Rate: flow.Rate{Count: 10, Per: time.Second}, Burst: 8}})
	limit := set.AddLimits("orders")[0]
	l := newLimiter(&Service{engine: &engine{o: Options{Store: st, Time: clock}}})
	// take asks for adds of callers, new adds of the stream and returned ones, in this order.
	take := func(callers, fresh, returned int) flow.Taken {
		var batch []*Add
		for range callers {
			batch = append(batch, &Add{})
		}
		for range fresh {
			batch = append(batch, &Add{Seq: 1})
		}
		for range returned {
			batch = append(batch, &Add{Seq: 1, Returned: true})
		}
		inTurn(batch)
		for i, a := range batch {
			if a.Returned != (i < returned) || (a.Seq != 0) != (i < returned+fresh) {
				t.Fatalf("add %d of %d is in the wrong place", i, len(batch))
			}
		}
		taken, _, err := l.take(t.Context(), set, limit, batch)
		if err != nil {
			t.Fatal(err)
		}
		return taken
	}
	plan := func() int64 {
		t.Helper()
		st, err := st.FlowState(t.Context(), limit.Key)
		if err != nil {
			t.Fatal(err)
		}
		return st.State.PlanNs
	}
	if got := take(20, 0, 5); got.Returned != 5 || got.Reserved != 0 || plan() > now || l.room(now) != maxHeld {
		t.Errorf("returned adds beside adds of callers: %+v, the plan is %d ns ahead, and %d places are free", got, plan()-now, l.room(now))
	}
	if got := take(20, 20, 0); got.Reserved != 20-got.New || plan() != got.NextNs+int64(got.Reserved)*got.StepNs || l.room(now) != maxHeld-got.Reserved {
		t.Errorf("new adds of the stream beside adds of callers: %+v, the plan is %d ns ahead, and %d places are free", got, plan()-now, l.room(now))
	}
}
