package router_test

import (
	"fmt"
	"testing"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestStopWhileAddsLinger: no add is lost if a router stops while adds wait for others. Another router stores
// the adds that the first has not stored.
func TestStopWhileAddsLinger(t *testing.T) {
	t.Parallel()
	const adds = 700
	f := newFixture(t, store.Config{GroupCommit: true})
	options := router.Options{Store: f.store, Time: f.clock, Linger: true, Log: zerolog.Nop()}
	first := f.startWith(options)
	f.publishAll(adds, func(i int) []byte { return add(fmt.Sprint(i), `"timerafter":"1h"`) })
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	stored := 0
	for i := range adds {
		if _, err := f.store.Get(t.Context(), schemas.NewTimerID("/test", fmt.Sprint(i))); err == nil {
			stored++
		}
	}
	t.Logf("the first router has stored %d of %d", stored, adds)
	f.startWith(options)
	for i := range adds {
		f.await("/test", fmt.Sprint(i))
	}
}
