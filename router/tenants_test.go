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

// TestUnknownAccountsAreBounded: a node hands back a bounded number of adds of accounts that are not configured,
// and rejects the others at once. After their wait, there is room for others.
func TestUnknownAccountsAreBounded(t *testing.T) {
	t.Parallel()
	const now = 1_800_000_000_000
	var u unknownAccounts
	patience := unknownAccountPatience.Milliseconds()
	hold := func(seq uint64, addedMs, nowMs int64, want bool) {
		t.Helper()
		if got := u.hold(&Add{Seq: seq, AddedMs: addedMs}, nowMs); got != want {
			t.Fatalf("add %d of %d at %d is handed back: %t", seq, addedMs-now, nowMs-now, got)
		}
	}
	for seq := uint64(1); seq <= maxUnknownAccounts; seq++ {
		hold(seq, now+int64(seq), now+int64(seq), true)
	}
	hold(5000, now, now, false)
	hold(1, now+1, now+1000, true) // delivered again
	hold(5000, now, now+patience-1, false)
	// The others have left the stream by other nodes.
	hold(7, now+7, now+patience+7, false)
	hold(5001, now+patience, now+patience+7, true)
	for seq := uint64(6001); seq <= 6008; seq++ {
		hold(seq, now+patience, now+patience+8, seq < 6008)
	}
	if len(u.until) != maxUnknownAccounts {
		t.Errorf("%d adds are known", len(u.until))
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
