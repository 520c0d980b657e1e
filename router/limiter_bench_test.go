package router

import (
	"testing"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// limitsOnly is a store that has only a geometry and a copy of the limits.
type limitsOnly struct {
	Store
	set *store.FlowSet
}

func (s *limitsOnly) Geometry() schemas.Geometry { return schemas.DefaultGeometry() }

func (s *limitsOnly) FlowsNow() (*store.FlowSet, bool) { return s.set, true }

// limitsOf returns a copy of the limits in which one pattern has a rate.
func limitsOf(pattern string) *store.FlowSet {
	return (&store.FlowSet{}).With(store.FlowLimit{Pattern: pattern, Limit: flow.Limit{Rate: flow.Rate{Count: 100, Per: 1e9}, Burst: 10}})
}

// BenchmarkUnlimitedAdd is the cost of the limiter for an add of a service without a limit: with no
// limit of adds stored, and with one of another service.
func BenchmarkUnlimitedAdd(b *testing.B) {
	for name, set := range map[string]*store.FlowSet{"none": limitsOf("customer:*"), "another": limitsOf("adds:mail")} {
		b.Run(name, func(b *testing.B) {
			l := newLimiter(&Service{engine: &engine{o: Options{Store: &limitsOnly{set: set}}}})
			group := []*Add{{}}
			group[0].Spec.Service = "orders"
			b.ReportAllocs()
			for b.Loop() {
				if len(l.unlimited(group)) != 1 {
					b.Fatal("the add was limited")
				}
			}
		})
	}
}

// TestUnlimitedAddAllocatesNothing: an add without a limit costs no allocation.
func TestUnlimitedAddAllocatesNothing(t *testing.T) {
	for _, pattern := range []string{"customer:*", "adds:mail", "adds:acme="} {
		l := newLimiter(&Service{engine: &engine{o: Options{Store: &limitsOnly{set: limitsOf(pattern)}}}})
		group := []*Add{{}}
		group[0].Spec.Service = "orders"
		if n := testing.AllocsPerRun(100, func() { l.unlimited(group) }); n > 0 {
			t.Errorf("with a limit of %s an add of another service allocates %.0f times", pattern, n)
		}
	}
}
