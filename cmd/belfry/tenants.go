package main

import (
	"maps"
	"slices"
)

// readTenants reads the group tenants of the config file: for each tenant its account, and the
// hosts that its callbacks may call.
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
	s.app.Tenants, s.app.Callbacks.Tenants = map[string]string{}, map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(tenants)) {
		group, ok := tenants[name].(map[string]any)
		if !ok {
			return usagef("%s.%s: must be a group of settings", where, name)
		}
		account, hosts := "", []string{}
		for _, key := range slices.Sorted(maps.Keys(group)) {
			var err error
			switch key {
			case "account":
				if account, ok = group[key].(string); !ok {
					return usagef("%s.%s.account: must be the name of an account", where, name)
				}
			case "hosts":
				if hosts, err = texts(group[key]); err != nil {
					return usagef("%s.%s.hosts: %v", where, name, err)
				}
			default:
				return usagef("%s.%s.%s: unknown key; the keys of a tenant are account and hosts", where, name, key)
			}
		}
		s.app.Tenants[name], s.app.Callbacks.Tenants[name] = account, hosts
	}
	return nil
}

// printedTenants returns the tenants for config print.
func (s *settings) printedTenants() map[string]any {
	out := map[string]any{}
	for name, account := range s.app.Tenants {
		out[name] = map[string]any{"account": account, "hosts": s.app.Callbacks.Tenants[name]}
	}
	return out
}
