package router

import (
	"maps"
	"math"
	"sync"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Scope selects the tenants whose timers an operation sees and adds. The zero value is the scope of the
// default tenant.
type Scope struct {
	// Tenant is the tenant whose timers are added, and whose names the operation uses.
	Tenant string
	// All lets an operation see the timers of all tenants, for Belfry's own account. Adds,
	// names (source and id) and groups are those of Tenant.
	All bool
}

// Sees reports whether an operation may see and change a timer of a service.
func (sc *Scope) Sees(service string) bool {
	return sc.All || schemas.TenantOf(service) == sc.Tenant
}

// tenant returns the tenant that a list is limited to; nil for all.
func (sc *Scope) tenant() *string {
	if sc.All {
		return nil
	}
	return &sc.Tenant
}

// selects returns the service and the tenant by which a list selects timers, for the service in a
// request, "" for every service. Only Belfry's own account may name a service of another tenant, as
// <tenant>=<service>.
func (sc *Scope) selects(service string) (name string, tenant *string, err error) {
	switch {
	case service == "":
		return "", sc.tenant(), nil
	case sc.All && schemas.ValidServiceName(service):
		return service, nil, nil
	case !schemas.ValidService(service):
		return "", nil, schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", service, schemas.MaxServiceLength)
	}
	return schemas.TenantService(sc.Tenant, service), sc.tenant(), nil
}

// FiredSubject returns the subject of the fired events of a service that a request names. Errors:
// bad_request.
func (sc *Scope) FiredSubject(service string) (string, error) {
	if service == "" {
		return "", schemas.Errorf(schemas.CodeBadRequest, "name a service")
	}
	name, _, err := sc.selects(service)
	return schemas.SubjectFired(name), err
}

// In returns the service for a scope. It shares everything else with s, and is started and
// stopped with it.
func (s *Service) In(sc Scope) *Service {
	scoped := &Service{engine: s.engine, scope: sc, ops: s.ops}
	scoped.ops.Scope = sc
	return scoped
}

// AtRevision returns the service whose operations change a timer only if it has a revision, and
// otherwise return conflict; 0 is any revision. It is otherwise as In. Adds, and operations on
// several timers, ignore the revision.
func (s *Service) AtRevision(rev uint64) *Service {
	scoped := s.In(s.scope)
	scoped.ops.Revision = rev
	return scoped
}

// Tenants returns the tenants by their accounts. The caller must not change the map.
func (s *Service) Tenants() map[string]string { return s.o.Accounts }

// tenantOf returns the tenant of an account; for "", which is timers.add, the default tenant. ok is
// false for an account that is not configured.
func (s *Service) tenantOf(account string) (tenant string, ok bool) {
	if account == "" {
		return "", true
	}
	tenant, ok = s.o.Accounts[account]
	return tenant, ok
}

// unknownAccountPatience is the time for which an add of an account that is not configured is handed
// back to the stream. While a configuration is rolled out, another node may know the account.
const unknownAccountPatience = 5 * time.Minute

// maxUnknownAccounts bounds the number of such adds on a node; further adds are rejected. They count for
// store.RouterMaxAckPending, and must not stop the adds of the tenants.
const maxUnknownAccounts = 1000

// unknownAccounts has the adds of accounts that are not configured which this node hands back. Safe for
// concurrent use.
type unknownAccounts struct {
	mu sync.Mutex
	// until has the end of the wait of each add, by its sequence in TIMERS_ADD, in Unix milliseconds; firstMs is a lower
	// bound of these.
	until   map[uint64]int64
	firstMs int64
}

// hold reports whether to hand an add back: it is younger than unknownAccountPatience, and there is room for it.
func (u *unknownAccounts) hold(a *Add, nowMs int64) bool {
	untilMs := min(a.AddedMs, nowMs) + unknownAccountPatience.Milliseconds() // the clock may have been set back since the add
	u.mu.Lock()
	defer u.mu.Unlock()
	if nowMs >= untilMs {
		delete(u.until, a.Seq)
		return false
	}
	if _, held := u.until[a.Seq]; held {
		return true
	}
	if len(u.until) >= maxUnknownAccounts && nowMs >= u.firstMs {
		maps.DeleteFunc(u.until, func(_ uint64, ms int64) bool { return ms <= nowMs })
		u.firstMs = math.MaxInt64
		for _, ms := range u.until {
			u.firstMs = min(u.firstMs, ms)
		}
	}
	if len(u.until) >= maxUnknownAccounts {
		return false
	}
	if u.until == nil {
		u.until, u.firstMs = map[uint64]int64{}, untilMs
	}
	u.until[a.Seq], u.firstMs = untilMs, min(u.firstMs, untilMs)
	return true
}

// checkTenant sets the tenant of an add of the stream. An error of CodeUnavailable delays the
// add.
func (s *Service) checkTenant(a *Add) error {
	if a.Account != "" {
		tenant, ok := s.tenantOf(a.Account)
		if !ok {
			code := schemas.CodeBadRequest
			if s.unknown.hold(a, s.nowMs()) {
				code = schemas.CodeUnavailable
			}
			return schemas.Errorf(code, "account %.80s is not in the setting tenants of the node that has read this add", a.Account)
		}
		a.Tenant = tenant
	}
	if a.Tenant == "" {
		return nil
	}
	return s.o.Store.CanServeTenants()
}

// checkOfTenant checks an add of a tenant. It must not name a calendar, because all tenants share the
// calendars. It may have a flow key only while every live node keeps the keys of tenants apart.
func (s *Service) checkOfTenant(spec *schemas.Spec) error {
	if spec.Recurrence != nil && len(spec.Recurrence.Exclude) > 0 {
		return schemas.Errorf(schemas.CodeInvalidAttribute, "%s: only the default tenant has calendars; leave it out", schemas.AttrExclude).About(schemas.AttrExclude)
	}
	if spec.Flow != "" {
		return s.o.Store.CanKeyTenants()
	}
	return nil
}

// whose returns the tenant for an error text, such as " for tenant acme"; "" for the default tenant.
func (sc *Scope) whose() string {
	if sc.Tenant == "" {
		return ""
	}
	return " for tenant " + sc.Tenant
}
