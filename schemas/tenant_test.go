package schemas_test

import (
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// TestTenantIDs: the ids of the default tenant are those of NewTimerID, and no pair of tenant,
// source and id has the id of another.
func TestTenantIDs(t *testing.T) {
	t.Parallel()
	if got := schemas.NewTenantTimerID("", "/s", "1"); got != schemas.NewTimerID("/s", "1") || got.String() != "d5ml29lrsle8b2ppufs7sek3rs" {
		t.Errorf("the default tenant: %s", got)
	}
	if got := schemas.NewTenantTimerID("acme", "/s", "1").String(); got != "b09mmh4f1u1rie217ejmgn07hc" {
		t.Errorf("tenant acme: %s", got) // fixed: stored records have it
	}
	seen := map[schemas.TimerID][3]string{}
	for _, tenant := range []string{"", "a", "ab", "a-"} {
		for _, source := range []string{"/s", "/s1", "b", "a", "ab"} {
			for _, id := range []string{"1", "11", "b", "a"} {
				key := schemas.NewTenantTimerID(tenant, source, id)
				if other, ok := seen[key]; ok {
					t.Errorf("%v and %v have the same id", other, [3]string{tenant, source, id})
				}
				seen[key] = [3]string{tenant, source, id}
			}
		}
	}
}

func TestTenantNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "Acme", "a_b", "a.b", "a=b", "a b", "é", strings.Repeat("a", schemas.MaxTenantLength+1)} {
		if schemas.ValidTenant(name) {
			t.Errorf("tenant %q is valid", name)
		}
	}
	for _, name := range []string{"a", "acme-2", strings.Repeat("a", schemas.MaxTenantLength)} {
		if !schemas.ValidTenant(name) {
			t.Errorf("tenant %q is not valid", name)
		}
		svc := schemas.TenantService(name, "orders")
		if tenant, own := schemas.SplitService(svc); tenant != name || own != "orders" || !schemas.ValidServiceName(svc) || schemas.ValidService(svc) {
			t.Errorf("%q: %q %q", svc, tenant, own)
		}
	}
	for _, name := range []string{"", "=orders", "acme=", "acme=a=b", "Acme=orders", "a.b", "acme=a.b"} {
		if schemas.ValidServiceName(name) {
			t.Errorf("service %q is valid", name)
		}
	}
	for _, name := range []string{"", "A.B", "*", ">", "A B", strings.Repeat("A", schemas.MaxAccountLength+1)} {
		if schemas.ValidAccount(name) {
			t.Errorf("account %q is valid", name)
		}
	}
}

func TestTenantSubjects(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]string{
		"timers.t.ACME.add": "ACME", "timers.add": "", "timers.t.ACME.api.add": "", "timers.t.A.B.add": "", "timers.t..add": "", "timers.t.add": "", "x.timers.t.A.add": "",
	} {
		if got := schemas.TenantAddAccount(subject); got != want {
			t.Errorf("%s: %q, want %q", subject, got, want)
		}
	}
	for subject, want := range map[string][2]string{
		"timers.t.ACME.api.get": {"ACME", "get"}, "timers.t.ACME.api.schedule.why": {"ACME", "schedule.why"}, "timers.api.get": {}, "timers.t.A.B.api.get": {}, "timers.t.ACME.add": {},
	} {
		if account, verb := schemas.TenantRequest(subject); account != want[0] || verb != want[1] {
			t.Errorf("%s: %q %q", subject, account, verb)
		}
	}
	if got := schemas.CallSubject("acme=orders", "callbacks.x"); got != "timers.call.acme.callbacks.x" {
		t.Error(got)
	}
	if got := schemas.CallSubject("orders", "callbacks.x"); got != "callbacks.x" {
		t.Error(got)
	}
}

// TestTenantCallbacks: a tenant calls only the hosts of its setting, and a tenant without a
// configuration calls nothing. The rules of the default tenant do not apply to it, nor the other
// way round.
func TestTenantCallbacks(t *testing.T) {
	t.Parallel()
	p := &schemas.CallbackPolicy{
		Common:   schemas.CallbackRules{Hosts: []string{"default.example"}, Subjects: []string{"default.>"}},
		Services: map[string]schemas.CallbackRules{"orders": {}},
		Tenants:  map[string]schemas.CallbackRules{"acme": schemas.TenantRules(schemas.TenantAllowance{Hosts: []string{"acme.example"}}), "globex": schemas.TenantRules(schemas.TenantAllowance{})},
	}
	for _, c := range []struct {
		service, callback string
		ok                bool
	}{
		{"acme=orders", "https://acme.example/x", true},
		{"acme=orders", "https://default.example/x", false},
		{"acme=orders", "nats:any.subject", true},
		{"acme=orders", "nats:timers.work.orders", true},
		{"acme=orders", "/path", false},
		{"globex=orders", "https://acme.example/x", false},
		{"globex=orders", "nats:any.subject", true},
		{"other=orders", "nats:any.subject", false},
		{"other=orders", "nats:timers.work.orders", false},
		{"other=orders", "https://acme.example/x", false},
		{"orders", "https://acme.example/x", true},
		{"mail", "https://acme.example/x", false},
		{"mail", "nats:any.subject", false},
	} {
		if err := p.Check(c.callback, c.service); (err == nil) != c.ok {
			t.Errorf("%s: %s: %v", c.service, c.callback, err)
		}
	}
	var none *schemas.CallbackPolicy
	if none.Check("nats:x", "acme=orders") == nil || none.Check("nats:x", "orders") != nil {
		t.Error("without a policy, a tenant calls, or the default tenant does not")
	}
}

// TestTenantAllowance: a tenant uses the services and subjects of its lists. Without a list it uses all, with
// an empty one none. Workers need no subject.
func TestTenantAllowance(t *testing.T) {
	t.Parallel()
	p := &schemas.CallbackPolicy{Tenants: map[string]schemas.CallbackRules{
		"acme":   schemas.TenantRules(schemas.TenantAllowance{Services: []string{"orders", "ship*"}, Subjects: []string{"callbacks.>"}}),
		"globex": schemas.TenantRules(schemas.TenantAllowance{}),
		"closed": schemas.TenantRules(schemas.TenantAllowance{Services: []string{}, Subjects: []string{}}),
		"any":    schemas.TenantRules(schemas.TenantAllowance{Services: []string{"*"}, Subjects: []string{}}),
	}}
	for _, c := range []struct {
		service, callback string
		serviceOK, ok     bool
	}{
		{"acme=orders", "nats:callbacks.x", true, true},
		{"acme=orders", "nats:other.x", true, false},
		{"acme=orders", "nats:timers.work.orders", true, true},
		{"acme=ship", "nats:callbacks.x", true, true},
		{"acme=shipping", "nats:callbacks.x", true, true},
		{"acme=orders2", "nats:callbacks.x", false, false},
		{"acme=mail", "nats:timers.work.mail", false, false},
		{"globex=mail", "nats:other.x", true, true},
		{"closed=mail", "nats:timers.work.mail", false, false},
		{"any=mail", "nats:timers.work.mail", true, true},
		{"any=mail", "nats:callbacks.x", true, false},
		{"unknown=mail", "nats:callbacks.x", true, false},
		{"mail", "nats:other.x", true, true},
	} {
		if err := p.CheckService(c.service); (err == nil) != c.serviceOK {
			t.Errorf("%s: %v", c.service, err)
		}
		if err := p.Check(c.callback, c.service); (err == nil) != c.ok || err != nil && schemas.CodeOf(err) != schemas.CodeInvalidAttribute {
			t.Errorf("%s: %s: %v", c.service, c.callback, err)
		}
	}
	var none *schemas.CallbackPolicy
	if err := none.CheckService("acme=orders"); err != nil {
		t.Errorf("without a policy: %v", err)
	}
	for pattern, ok := range map[string]bool{"orders": true, "ship*": true, "*": true, "": false, "a.b": false, "a*b": false, "**": false, "acme=x": false} {
		a := schemas.TenantAllowance{Services: []string{pattern}}
		if err := a.Check(); (err == nil) != ok || err != nil && schemas.CodeOf(err) != schemas.CodeConfig {
			t.Errorf("services %q: %v", pattern, err)
		}
	}
}
