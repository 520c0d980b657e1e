package functions

import (
	"fmt"
	"testing"
	"time"
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
