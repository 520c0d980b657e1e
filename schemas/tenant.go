package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
)

// A tenant is a NATS account that shares a Belfry with others. Its timers have ids of their
// own (NewTenantTimerID), and its services have names of their own (TenantService). Everything
// below the router knows a service only by that name, so whatever Belfry keeps by service
// (subjects, consumers, limits, records, dead letters) is separate by tenant. The default
// tenant is "": its ids and names are those of a Belfry without tenants.

// Subjects of tenants. The NATS server lets an account import only the subjects with its own
// name in place of the * (the option account_token_position of a service export), so an account
// cannot pretend to be another one.
const (
	// SubjectTenantAdd matches the adds of all tenants: timers.t.<account>.add. StreamAdd
	// stores them.
	SubjectTenantAdd = tenantPrefix + "*" + tenantAdd
	// SubjectTenantAPI matches the API requests of all tenants: timers.t.<account>.api.<verb>.
	SubjectTenantAPI = tenantPrefix + "*" + tenantAPI + ">"
	// SubjectTenantFired matches the fired events that tenants import:
	// timers.t.<account>.fired.<service>. StreamTenantFired stores them.
	SubjectTenantFired = tenantPrefix + "*" + tenantFired + "*"
	// CallSubjectPrefix, a tenant, a dot and a subject of that tenant's account make the
	// subject on which Belfry calls that subject. Belfry's account imports it.
	CallSubjectPrefix = "timers.call."

	// JetStreamPrefix replaces $JS.API in the account of a team or a tenant: the server answers
	// $JS.API there for that account itself.
	JetStreamPrefix = "JS.BELFRY.API"

	tenantPrefix = "timers.t."
	tenantAdd    = ".add"
	tenantAPI    = ".api."
	tenantFired  = ".fired."
)

// Headers of a rejected add of a tenant: the tenant, absent if no configuration names the
// account, and the account.
const (
	HeaderTenant  = "Belfry-Tenant"
	HeaderAccount = "Belfry-Account"
)

const (
	// MaxTenantLength bounds the name of a tenant, in bytes.
	MaxTenantLength = 32
	// MaxAccountLength bounds the name of a tenant's account, in bytes. The public key of an
	// account has 56.
	MaxAccountLength = 64
	// tenantSeparator is between the tenant and the service in TenantService. It is not allowed
	// in either of them, and is allowed in subjects, consumer names and KV keys.
	tenantSeparator = "="
)

// ValidTenant reports whether name is a valid name of a tenant: 1 to MaxTenantLength lower-case
// letters, digits or '-'.
func ValidTenant(name string) bool {
	for i := 0; i < len(name); i++ {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return name != "" && len(name) <= MaxTenantLength
}

// ValidAccount reports whether name can be the account of a tenant: 1 to MaxAccountLength
// letters, digits, '-' or '_', which are one token of a subject.
func ValidAccount(name string) bool { return len(name) <= MaxAccountLength && ValidService(name) }

// TenantService returns the name by which Belfry knows a service of a tenant. No service of
// another tenant, and none of the default tenant, has that name.
func TenantService(tenant, service string) string {
	if tenant == "" {
		return service
	}
	return tenant + tenantSeparator + service
}

// SplitService returns the tenant of a service, "" for the default tenant, and the tenant's
// own name for the service.
func SplitService(name string) (tenant, service string) {
	if tenant, service, ok := strings.Cut(name, tenantSeparator); ok {
		return tenant, service
	}
	return "", name
}

// TenantOf returns the tenant of a service, "" for the default tenant.
func TenantOf(service string) string {
	tenant, _ := SplitService(service)
	return tenant
}

// ValidServiceName reports whether name is a valid service of the default tenant, or a valid
// TenantService.
func ValidServiceName(name string) bool {
	tenant, service := SplitService(name)
	return ValidService(service) && (len(service) == len(name) || ValidTenant(tenant))
}

// NewTenantTimerID is NewTimerID for an event of a tenant. Its input to the hash differs from
// that of every timer of another tenant, and of the default tenant.
func NewTenantTimerID(tenant, source, id string) TimerID {
	if tenant == "" {
		return NewTimerID(source, id)
	}
	// A source never has that length, so no input of the default tenant begins like this.
	var array [256]byte
	buf := binary.BigEndian.AppendUint64(array[:0], 1<<64-1)
	for _, s := range [...]string{tenant, source} {
		buf = binary.BigEndian.AppendUint64(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	sum := sha256.Sum256(append(buf, id...))
	return TimerID(sum[:16])
}

// TenantAddAccount returns the account in a subject that SubjectTenantAdd matches; "" for every
// other subject.
func TenantAddAccount(subject string) string {
	rest, ours := strings.CutPrefix(subject, tenantPrefix)
	account, ok := strings.CutSuffix(rest, tenantAdd)
	if !ours || !ok || strings.Contains(account, ".") {
		return ""
	}
	return account
}

// TenantFiredSubject returns the subject on which an account imports the fired events of a
// service of its own; "*" stands for all accounts or services.
func TenantFiredSubject(account, service string) string {
	return tenantPrefix + account + tenantFired + service
}

// TenantRequest returns the account and the verb in a subject that SubjectTenantAPI matches;
// "" for every other subject.
func TenantRequest(subject string) (account, verb string) {
	rest, ours := strings.CutPrefix(subject, tenantPrefix)
	account, verb, ok := strings.Cut(rest, tenantAPI)
	if !ours || !ok || strings.Contains(account, ".") {
		return "", ""
	}
	return account, verb
}

// CallSubject returns the subject on which Belfry calls a NATS callback of a service: the
// subject itself for the default tenant, CallSubjectPrefix with tenant and subject for others.
func CallSubject(service, subject string) string {
	if tenant := TenantOf(service); tenant != "" {
		return CallSubjectPrefix + tenant + "." + subject
	}
	return subject
}
