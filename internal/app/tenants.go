package app

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/belfryio/belfry/schemas"
)

// maxTenants bounds the tenants of a node. Each has its own table of operations.
const maxTenants = 1000

// validateTenants checks the names and accounts of the tenants.
func (o *Options) validateTenants() error {
	for name := range o.ExportFired {
		if o.Tenants[name] == "" {
			return badConfig("export-fired is set for tenant %.80q, which has no account", name)
		}
	}
	if len(o.Tenants) == 0 {
		return nil
	}
	if o.embedded() {
		return badConfig("tenants are accounts of the server at nats-url; the embedded server has none: set nats-url")
	}
	if len(o.Tenants) > maxTenants {
		return badConfig("there are %d tenants; the limit is %d", len(o.Tenants), maxTenants)
	}
	owner := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(o.Tenants)) {
		account := o.Tenants[name]
		switch {
		case !schemas.ValidTenant(name):
			return badConfig("tenant %.80q must be 1 to %d lower-case letters, digits or '-'", name, schemas.MaxTenantLength)
		case !schemas.ValidAccount(account):
			return badConfig("tenant %s: account %.80q must be 1 to %d letters, digits, '-' or '_', because it becomes one token of a subject", name, account, schemas.MaxAccountLength)
		case owner[account] != "":
			return badConfig("tenants %s and %s have the same account %s", owner[account], name, account)
		}
		owner[account] = name
	}
	return nil
}

// tenantAccounts returns the tenants by their accounts.
func (o *Options) tenantAccounts() map[string]string {
	out := make(map[string]string, len(o.Tenants))
	for name, account := range o.Tenants {
		out[account] = name
	}
	return out
}

// firedAccounts returns the accounts of the tenants of ExportFired by their names.
func (o *Options) firedAccounts() map[string]string {
	out := map[string]string{}
	for name, export := range o.ExportFired {
		if export {
			out[name] = o.Tenants[name]
		}
	}
	return out
}

// tenantList returns the tenants, their accounts and whether they have export-fired as one text;
// "none" without tenants.
func (o *Options) tenantList() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(o.Tenants)) {
		entry := name + "=" + o.Tenants[name]
		if o.ExportFired[name] {
			entry += " (export-fired)"
		}
		list = append(list, entry)
	}
	return cmp.Or(strings.Join(list, ","), "none")
}
