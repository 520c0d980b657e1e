package console

import (
	"bytes"
	"maps"
	"slices"

	"github.com/belfryio/belfry/schemas"
)

// Templates returns the names of all templates of pages.
func Templates() []string { return slices.Sorted(maps.Keys(templates)) }

// Block executes a block of the template of a page.
func Block(page, block string, data any) (string, error) {
	var b bytes.Buffer
	err := templates[page].ExecuteTemplate(&b, block, data)
	return b.String(), err
}

// Steps returns the names of the steps of a timer, and their texts.
func Steps(info *schemas.TimerInfo) (texts []string) {
	for _, s := range stepsOf(info, 0) {
		texts = append(texts, s.Name+": "+s.Text)
	}
	return texts
}

// Limits of requests and sessions.
const (
	MaxForm     = maxForm
	MaxLogin    = maxLogin
	MaxRequests = maxRequests
	MaxSessions = maxSessions
)
