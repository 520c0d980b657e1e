package schemas_test

import (
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// BenchmarkMessageWithoutCallback encodes a structured event of 400 bytes as it fires, with its
// callback and without.
func BenchmarkMessageWithoutCallback(b *testing.B) {
	body, _, err := parse(doc(b, map[string]any{"data": strings.Repeat("x", 250), "timersvc": "orders", "timercallback": "https://example.com/hooks/orders/17"}))
	if err != nil {
		b.Fatal(err)
	}
	for _, without := range []bool{false, true} {
		b.Run(map[bool]string{false: "with", true: "without"}[without], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				body.Message(schemas.Fired{ScheduledMs: added, FiredMs: added + 3, Run: 1, Attempt: 1, NoCallback: without})
			}
		})
	}
}
