package console

import (
	"maps"
	"slices"
)

// Templates returns the names of all templates of pages.
func Templates() []string { return slices.Sorted(maps.Keys(templates)) }

// Routes returns the methods, paths and scopes of all routes.
func Routes() [][3]string {
	var all [][3]string
	for _, rt := range routes {
		all = append(all, [3]string{rt.method, rt.path, rt.scope})
	}
	return all
}

// Limits of requests and sessions.
const (
	MaxForm     = maxForm
	MaxSessions = maxSessions
)
