package router

import (
	"context"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestUnknownAccount: an add of an account that is not configured waits for a node that knows
// the account, and is then rejected. Adds of tenants, and those with a flow key, wait while a live node cannot serve them.
func TestUnknownAccount(t *testing.T) {
	t.Parallel()
	now := time.Now().UnixMilli()
	st := &tenantsOnly{}
	s := &Service{engine: &engine{o: Options{Accounts: map[string]string{"ACME": "acme"}, Store: st, Time: fixedTime(now)}}}
	patience := unknownAccountPatience.Milliseconds()
	check := func(name string, a *Add, tenant string, want schemas.Code) {
		t.Helper()
		if err := s.checkTenant(a); schemas.CodeOf(err) != want || err == nil && a.Tenant != tenant {
			t.Errorf("%s: tenant %q, %v; want %q and code %q", name, a.Tenant, err, tenant, want)
		}
	}
	check("timers.add", &Add{}, "", "")
	check("tenant", &Add{Account: "ACME", AddedMs: now}, "acme", "")
	check("unknown, new", &Add{Account: "GHOST", AddedMs: now - patience + 1}, "", schemas.CodeUnavailable)
	check("unknown, old", &Add{Account: "GHOST", AddedMs: now - patience}, "", schemas.CodeBadRequest)
	st.err = schemas.Errorf(schemas.CodeUnavailable, "an older node")
	check("an older node, timers.add", &Add{}, "", "")
	check("an older node, tenant", &Add{Account: "ACME", AddedMs: now}, "", schemas.CodeUnavailable)
	check("an older node, tenant, by the API", &Add{Tenant: "acme"}, "", schemas.CodeUnavailable)
	for flow, want := range map[string]schemas.Code{"": "", "customer:7": schemas.CodeUnavailable} {
		if err := s.checkOfTenant(&schemas.Spec{Flow: flow}); schemas.CodeOf(err) != want {
			t.Errorf("an older node, flow key %q: %v, want code %q", flow, err, want)
		}
	}
}

// tenantsOnly is a store that says only whether tenants can be served.
type tenantsOnly struct {
	Store
	err error
}

func (s *tenantsOnly) CanServeTenants() error { return s.err }
func (s *tenantsOnly) CanKeyTenants() error   { return s.err }

type fixedTime int64 // Unix milliseconds

func (t fixedTime) LatestNs() int64             { return int64(t) * int64(time.Millisecond) }
func (t fixedTime) Ready(context.Context) error { return nil }
