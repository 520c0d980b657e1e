package natsapi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// notForTenants lists the prefixes of the verbs that concern all tenants.
var notForTenants = []string{"calendar.", "flow."}

// startTenants serves timers.t.<account>.api.<verb>, if there are tenants. Each tenant has the
// operations of a service that sees its own timers alone.
func (a *api) startTenants() error {
	tenants := a.o.Service.Tenants()
	if len(tenants) == 0 {
		return nil
	}
	byAccount := make(map[string]map[string]func(*endpoint.Request), len(tenants))
	for account, tenant := range tenants {
		verbs := a.verbs(a.o.Service.In(router.Scope{Tenant: tenant}), true)
		verbs = slices.DeleteFunc(verbs, func(v verb) bool {
			return slices.ContainsFunc(notForTenants, func(prefix string) bool { return strings.HasPrefix(v.name, prefix) })
		})
		byAccount[account] = byName(verbs)
	}
	err := a.svc.Add("tenants", schemas.SubjectTenantAPI, map[string]string{
		"description": "the operations of timers.api for tenants: the subject has the account, which the server checks", "format": "application/json",
	}, func(r *endpoint.Request) { a.tenant(byAccount, r) })
	if err != nil {
		return fmt.Errorf("router: start the API of tenants: %w", err)
	}
	return nil
}

// tenant carries out a request of a tenant. The subject names the account: the server checks it
// when the account imports the subject, but a client of Belfry's own account can publish on every
// subject. So the account must also be in the header that the server sets on requests through an
// import, see callerOf.
func (a *api) tenant(byAccount map[string]map[string]func(*endpoint.Request), r *endpoint.Request) {
	account, name := schemas.TenantRequest(r.Subject)
	if !imported(r.Reply) || requestInfo(r.Header).Account != account {
		a.respond("tenant", r, nil, schemas.Errorf(schemas.CodeBadRequest, "%s.> serves only account %s, through the service import of that account; nothing was done: send the request from it", strings.TrimSuffix(r.Subject, "."+name), account))
		return
	}
	verbs, ok := byAccount[account]
	if !ok {
		a.respond("tenant", r, nil, schemas.Errorf(schemas.CodeBadRequest, "account %.80s is not in the setting tenants; nothing was done", account))
		return
	}
	handle, ok := verbs[name]
	if !ok {
		a.respond("tenant", r, nil, schemas.Errorf(schemas.CodeBadRequest, "tenants have no operation %.80s; nothing was done", name))
		return
	}
	handle(r)
}
