package console_test

import (
	"html"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/console"
	"github.com/belfryio/belfry/schemas"
)

// TestResults: each page says once how a call ended, and HTTP only of one over HTTP.
func TestResults(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]schemas.AttemptInfo{
		"HTTP status 200":             {Status: 200},
		"HTTP status 404 (Not Found)": {Status: 404, Error: "HTTP status 404 (Not Found)"},
		"NATS subject orders.pay answered with error code 500: no stock": {Status: 500, Error: "NATS subject orders.pay answered with error code 500: no stock"},
	} {
		outcome := &schemas.OutcomeInfo{Code: a.Status, Error: a.Error}
		for block, data := range map[string]any{
			"service call-result": a,
			"runs run-table":      map[string]any{"Runs": []schemas.RunInfo{{Run: 1, Outcome: outcome}}},
		} {
			page, name, _ := strings.Cut(block, " ")
			text, err := console.Block(page, name, data)
			if text = html.UnescapeString(text); err != nil || strings.Count(text, want) != 1 || strings.Count(text, "HTTP") != strings.Count(want, "HTTP") {
				t.Errorf("%s: want %q once in %q, error %v", block, want, text, err)
			}
		}
		steps := console.Steps(&schemas.TimerInfo{LastAttempts: []schemas.AttemptInfo{a}})
		if !slices.ContainsFunc(steps, func(s string) bool {
			return strings.Count(s, want) == 1 && strings.Count(s, "HTTP") == strings.Count(want, "HTTP")
		}) {
			t.Errorf("the steps are %q, want %q in one", steps, want)
		}
	}
}
