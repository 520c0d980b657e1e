package router_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestUnknownAccountStopsNoTenant: more adds of an account that is no tenant than the server delivers at a time
// do not stop the adds of a tenant.
func TestUnknownAccountStopsNoTenant(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "many adds")
	f := newFixture(t, store.Config{Tenants: true})
	f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop(), Accounts: map[string]string{"ACME": "acme"}, TenantDedup: f.store.NewDedupCheck()})
	publish := func(account string, n int) {
		t.Helper()
		for i := range n {
			if _, err := f.js.PublishAsync("timers.t."+account+".add", add(fmt.Sprint(account, i), `"timerafter":"1h"`), jetstream.WithStallWait(bound)); err != nil {
				t.Fatal(err)
			}
		}
		waittest.Receive(t, "acknowledgements of all adds", f.js.PublishAsyncComplete())
	}
	publish("GHOST", store.RouterMaxAckPending+1000)
	publish("ACME", 1)
	id := schemas.NewTenantTimerID("acme", "/test", "ACME0")
	waittest.Until(t, "the tenant's timer to be stored", func() bool {
		_, err := f.store.Get(t.Context(), id)
		return err == nil
	})
}
