package sim

import (
	"reflect"

	"github.com/belfryio/belfry/schemas"
)

// add sums up.
func (s *Stats) add(o Stats) {
	a, b := reflect.ValueOf(s).Elem(), reflect.ValueOf(o)
	for i := range a.NumField() {
		a.Field(i).SetInt(a.Field(i).Int() + b.Field(i).Int())
	}
}

// decide counts a decision about a nominal time.
func (s *Stats) decide(k schemas.DecisionKind) {
	count := map[schemas.DecisionKind]*int{
		schemas.DecisionFired: &s.Fires, schemas.DecisionTriggered: &s.Triggers, schemas.DecisionBackfilled: &s.Backfills,
		schemas.DecisionCoalesced: &s.Coalesced, schemas.DecisionMisfire: &s.Misfires, schemas.DecisionGrace: &s.Graces,
		schemas.DecisionOverlap: &s.Overlaps, schemas.DecisionQueue: &s.Queued, schemas.DecisionPaused: &s.Paused, schemas.DecisionUpdated: &s.Updated, schemas.DecisionExcluded: &s.Excluded,
	}[k]
	if count != nil {
		*count++
	}
}
