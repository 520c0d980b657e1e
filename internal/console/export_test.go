package console

import (
	"maps"
	"slices"
)

// Templates returns the names of all templates of pages.
func Templates() []string { return slices.Sorted(maps.Keys(templates)) }

// Limits of requests and sessions.
const (
	MaxForm     = maxForm
	MaxSessions = maxSessions
)
