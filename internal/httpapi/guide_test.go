package httpapi_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/doctest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
)

// testGuide runs the requests of docs/http.md in their order. Each must succeed, and be as the
// document says. The answers that it shows have the fields that it names.
func testGuide(t *testing.T, n *node) {
	var last []byte // the answer to the last request
	for _, block := range doctest.Blocks(t, "internal/httpapi.testGuide") {
		text := block.Text()
		if block.Lang == "json" {
			compareAnswer(t, n, block, text, last)
			continue
		}
		commands := strings.TrimSpace(text)
		if strings.Contains(commands, "/v1/flows") || strings.Contains(commands, "/v1/calendars") {
			// They need no other block, and wait seconds until each change is in force.
			t.Run(strings.Fields(commands)[len(strings.Fields(commands))-1], func(t *testing.T) {
				t.Parallel()
				testsize.NotShort(t, "it waits until changes are in force")
				runBlock(t, n, commands)
			})
			continue
		}
		last = runBlock(t, n, commands)
	}
}

// compareAnswer compares an answer that docs/http.md shows: its fields with those of last, the answer
// to the request before it; a problem with that of a request that makes it.
func compareAnswer(t *testing.T, n *node, block *doctest.Block, text string, last []byte) {
	t.Helper()
	decode := func(text []byte, into any) {
		t.Helper()
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			t.Errorf("%s:%d: %v: %s", block.File, block.Line, err, text)
		}
	}
	var want, got map[string]any
	decode([]byte(strings.ReplaceAll(text, "[…]", "[]")), &want)
	switch {
	case want["pointer"] != nil:
		decode(n.send(t, "POST", "/v1/timers", `{"in":"15"}`, "Content-Type", "application/json").body, &got)
		if !maps.Equal(got, want) {
			t.Errorf("%s:%d: got the problem %v, want %v", block.File, block.Line, got, want)
		}
	case want["matched"] != nil: // a bulk operation; the reply before it lacks fields, because they are empty
		decode([]byte(strings.ReplaceAll(text, "[…]", "[]")), new(schemas.BulkReply))
	default:
		decode(last, &got)
		if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
			t.Errorf("%s:%d: the answer has other fields: %s", block.File, block.Line, last)
		}
	}
}

// runBlock runs the requests of a block, and returns the last answer.
func runBlock(t *testing.T, n *node, commands string) (last []byte) {
	t.Helper()
	for line := range strings.Lines(commands) {
		method, path, body, header := doctest.Curl(t, strings.TrimSpace(line))
		r := n.send(t, method, path, body, header...)
		if r.status >= 300 {
			t.Errorf("%s: got status %d: %s", line, r.status, r.body)
		}
		last = r.body
	}
	return last
}
