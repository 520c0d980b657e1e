package schemas

import (
	"slices"
	"strings"
)

// TenantAllowance is the configuration of a tenant: the services, subjects and hosts that its timers may
// use, and the origin of its webhook handshakes.
type TenantAllowance struct {
	// Services lists the services of its timers: names, or beginnings of names with a * at the
	// end. nil allows all names.
	Services []string
	// Subjects lists NATS wildcard patterns of the subjects, in its own account, that its
	// callbacks may name; nil allows all that the account exports. Workers of an allowed service
	// need no pattern.
	Subjects []string
	// Hosts lists patterns of the hosts that its HTTP callbacks may call, see CheckHostPattern;
	// an empty list allows none.
	Hosts []string
	// WebhookOrigin is the DNS name by which Belfry asks the targets of its HTTP callbacks for their
	// permission before the first call; empty for no such question. It is checked where it is read.
	WebhookOrigin string
}

// askOperator ends the errors about services, subjects and hosts that a tenant may not use.
const askOperator = "use an allowed one, or ask the operator of this Belfry to add it"

// Check returns an error, of CodeConfig, for an invalid pattern.
func (a *TenantAllowance) Check() error {
	for _, p := range a.Services {
		if name := strings.TrimSuffix(p, "*"); !ValidService(name) && p != "*" {
			return Errorf(CodeConfig, "services: %.80q is not a service, or the beginning of one and a *", p)
		}
	}
	return CheckCallbackPatterns("", a.Subjects, a.Hosts)
}

// CheckCallbackPatterns returns an error, of CodeConfig, for an invalid pattern of subjects or of
// hosts. It names the setting: prefix and "subjects" or "hosts".
func CheckCallbackPatterns(prefix string, subjects, hosts []string) error {
	for _, p := range subjects {
		if err := CheckSubjectPattern(p); err != nil {
			return Errorf(CodeConfig, "%ssubjects: %w", prefix, err)
		}
	}
	for _, p := range hosts {
		if err := CheckHostPattern(p); err != nil {
			return Errorf(CodeConfig, "%shosts: %w", prefix, err)
		}
	}
	return nil
}

// TenantRules returns the rules of the services of a tenant. CallSubject leads its NATS callbacks to
// the subjects of the tenant's own account, whatever the rules allow.
func TenantRules(a TenantAllowance) CallbackRules {
	return CallbackRules{Services: a.Services, Subjects: a.Subjects, Hosts: append([]string{}, a.Hosts...), tenant: true}
}

// NoCallbacks returns the rules of a tenant that is not configured: they allow nothing.
func NoCallbacks() CallbackRules {
	return CallbackRules{Subjects: []string{}, Hosts: []string{}, tenant: true, unknown: true}
}

// CheckService returns an error, of CodeInvalidAttribute, if the tenant of a service may not use it.
// A tenant that is not configured is not restricted: it only has no callbacks.
func (p *CallbackPolicy) CheckService(service string) error {
	tenant, name := SplitService(service)
	if tenant == "" || p == nil {
		return nil
	}
	rules := p.Tenants[tenant]
	return rules.checkService(tenant, name)
}

func (r *CallbackRules) checkService(tenant, service string) error {
	if r.Services == nil || slices.ContainsFunc(r.Services, func(p string) bool { return serviceMatches(p, service) }) {
		return nil
	}
	return Errorf(CodeInvalidAttribute, "the setting services of tenant %s does not allow service %s: %s", tenant, service, askOperator)
}

// serviceMatches reports whether a service has the name p, or begins with p up to its *.
func serviceMatches(p, service string) bool {
	if begin, ok := strings.CutSuffix(p, "*"); ok {
		return strings.HasPrefix(service, begin)
	}
	return p == service
}
