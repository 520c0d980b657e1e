package main

import (
	"maps"
	"slices"

	"github.com/belfryio/belfry/schemas"
)

// readTenants reads the group tenants of the config file: for each tenant its account, and
// its allowed services, subjects and hosts, its webhook origin, and whether it imports its fired events.
func (s *settings) readTenants(file map[string]any) error {
	value := file[keyTenants]
	if value == nil || s.ownServer {
		return nil
	}
	where := "config file " + s.config + ": " + keyTenants
	tenants, ok := value.(map[string]any)
	if !ok {
		return usagef("%s: must be a group, with a group of settings for each tenant", where)
	}
	s.app.Tenants, s.app.ExportFired, s.app.Callbacks.Tenants = map[string]string{}, map[string]bool{}, map[string]schemas.TenantAllowance{}
	for _, name := range slices.Sorted(maps.Keys(tenants)) {
		group, ok := tenants[name].(map[string]any)
		if !ok {
			return usagef("%s.%s: must be a group of settings", where, name)
		}
		account, allowed := "", schemas.TenantAllowance{Hosts: []string{}}
		lists := map[string]*[]string{"services": &allowed.Services, "subjects": &allowed.Subjects, "hosts": &allowed.Hosts}
		for _, key := range slices.Sorted(maps.Keys(group)) {
			var err error
			list := lists[key]
			switch {
			case key == "account":
				if account, ok = group[key].(string); !ok {
					return usagef("%s.%s.account: must be the name of an account", where, name)
				}
			case key == keyExportFired:
				export, ok := group[key].(bool)
				if !ok {
					return usagef("%s.%s.%s: must be true or false", where, name, key)
				}
				if export {
					s.app.ExportFired[name] = true
				}
			case key == keyWebhookOrigin:
				if allowed.WebhookOrigin, err = webhookOrigin(group[key]); err != nil {
					return usagef("%s.%s.%s: %v", where, name, key, err)
				}
			case list != nil:
				if *list, err = texts(group[key]); err != nil {
					return usagef("%s.%s.%s: %v", where, name, key, err)
				}
			default:
				return usagef("%s.%s.%s: unknown key; the keys of a tenant are account, services, subjects, hosts, webhook-origin and export-fired", where, name, key)
			}
		}
		s.app.Tenants[name], s.app.Callbacks.Tenants[name] = account, allowed
	}
	return nil
}

// printedTenants returns the tenants for config print.
func (s *settings) printedTenants() map[string]any {
	out := map[string]any{}
	for name, account := range s.app.Tenants {
		allowed := s.app.Callbacks.Tenants[name]
		group := map[string]any{"account": account, "hosts": allowed.Hosts}
		if allowed.Services != nil {
			group["services"] = allowed.Services
		}
		if allowed.Subjects != nil {
			group["subjects"] = allowed.Subjects
		}
		if allowed.WebhookOrigin != "" {
			group[keyWebhookOrigin] = allowed.WebhookOrigin
		}
		if s.app.ExportFired[name] {
			group[keyExportFired] = true
		}
		out[name] = group
	}
	return out
}
