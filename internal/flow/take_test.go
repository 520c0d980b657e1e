package flow

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// takeNode is a node of the simulation of Take, which remembers the state that it knew last.
type takeNode struct {
	state State
	rev   int
}

// TestTakeSimulation: several nodes admit adds by one shared state, with conflicts, writes whose
// answer is lost, clocks that differ and limits that change. In no window are more admitted than the
// rate and the burst permit, and adds that come back at their reserved times are admitted.
func TestTakeSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		rate := Rate{1 + rng.IntN(500), time.Second}
		l := Limit{Rate: rate, Burst: rate.DefaultBurst() + rng.IntN(50)}
		bound := l
		differ := []time.Duration{0, 0, 50 * time.Millisecond}[rng.IntN(3)]
		nodes := make([]takeNode, 1+rng.IntN(3))
		apart := make([]int64, len(nodes))
		for i := range apart {
			apart[i] = rng.Int64N(int64(differ) + 1)
		}
		var shared State
		rev, generation := 0, uint64(1)
		now := int64(1_800_000_000) * int64(time.Second)
		var admitted, back []int64
		for range 600 {
			now += rng.Int64N(int64(20 * time.Millisecond))
			i := rng.IntN(len(nodes))
			n := &nodes[i]
			if rng.IntN(300) == 0 {
				l.Rate.Count = 1 + rng.IntN(rate.Count)
				l.Burst = max(l.Rate.minBurst(), min(l.Burst, bound.Burst))
				bound.Burst = max(bound.Burst, l.Burst)
				generation++
			}
			due := 0
			for _, at := range back {
				if at <= now {
					due++
				}
			}
			s := n.state
			clock := now + apart[i]
			asked := Asked{Returned: due, New: rng.IntN(20), Reserve: 10, Within: 10 * time.Second}
			asked.Waiting = rng.IntN(asked.New + 1)
			got := Take(l, generation, &s, clock, asked)
			if refused := due - got.Returned + max(0, asked.Waiting-got.New); got.Reserved > refused {
				t.Fatalf("seed %d: %d times are reserved for %d adds", seed, got.Reserved, refused)
			}
			if got.Unchanged {
				continue
			}
			if n.rev != rev {
				*n = takeNode{shared, rev} // a conflict: it reads, and its adds come again
				continue
			}
			shared, rev = s, rev+1
			if rng.IntN(20) == 0 {
				continue // the answer is lost: nobody uses what was admitted
			}
			*n = takeNode{s, rev}
			slices.Sort(back)
			back = back[got.Returned:]
			for k := range got.Reserved {
				back = append(back, got.NextNs+int64(k)*got.StepNs)
			}
			for range got.Returned + got.New {
				admitted = append(admitted, now)
			}
		}
		for i, from := range admitted {
			for j := i; j < len(admitted); j++ {
				window := float64(admitted[j]-from+int64(differ)) / float64(time.Second)
				if most := window*float64(rate.Count) + float64(bound.Burst); float64(j-i+1) > most+1e-6 {
					t.Fatalf("seed %d, limit %+v: %d admitted in %.3f s, want at most %.1f", seed, bound, j-i+1, window, most)
				}
			}
		}
	}
}

// TestTake: adds that have reserved a time go first, new ones wait behind them, and the refused ones
// get different times.
func TestTake(t *testing.T) {
	t.Parallel()
	const now = int64(1_000_000_000_000)
	l := Limit{Rate: Rate{10, time.Second}, Burst: 3}
	var s State
	got := Take(l, 7, &s, now, Asked{New: 6, Waiting: 6, Reserve: 2, Within: time.Minute})
	if got.New != 3 && got.New != 2 || got.Reserved != 2 || got.NextNs <= now || got.StepNs != int64(100*time.Millisecond) {
		t.Fatalf("six new adds: %+v", got)
	}
	if s.PlanNs != got.NextNs+2*got.StepNs {
		t.Errorf("the plan is %d, want two times after %d", s.PlanNs, got.NextNs)
	}
	before := s
	if late := Take(l, 7, &s, got.NextNs, Asked{New: 1}); late.New != 0 || late.NextNs != before.PlanNs || s.GateNs != before.GateNs || s.PlanNs != before.PlanNs {
		t.Errorf("a new add before the waiting ones: %+v", late)
	}
	if back := Take(l, 7, &s, got.NextNs, Asked{Returned: 1, New: 1}); back.Returned != 1 || back.New != 0 {
		t.Errorf("an add at its time: %+v", back)
	}
	if far := Take(l, 7, &s, got.NextNs, Asked{New: 100, Waiting: 100, Reserve: 100, Within: time.Second}); far.Reserved > 11 {
		t.Errorf("%d adds reserved a time within a second at 10 a second", far.Reserved)
	}
}

// TestTakeRaisedLimit: a limit that was used up for an hour and is raised admits adds again within seconds,
// although each answer meanwhile admits none.
func TestTakeRaisedLimit(t *testing.T) {
	t.Parallel()
	now := int64(1_000_000_000_000)
	var s State
	Take(Limit{Rate: Rate{1, time.Hour}, Burst: 1}, 1, &s, now, Asked{New: 2})
	for range 30 {
		now += int64(100 * time.Millisecond)
		next := s
		got := Take(Limit{Rate: Rate{1000, time.Second}, Burst: 500}, 2, &next, now, Asked{New: 1})
		if got.New == 1 {
			return
		}
		if !got.Unchanged {
			s = next
		}
	}
	t.Error("no add was admitted for 3 s after the limit was raised")
}
