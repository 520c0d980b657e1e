package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/doctest"
)

// TestSize: the text is that of docs/operations.md, the JSON has the same figures, and a load beyond a limit has a
// note.
func TestSize(t *testing.T) {
	t.Parallel()
	for _, block := range doctest.Blocks(t, "cmd/belfry.TestSize") {
		commands, shown := block.Commands()
		for i, line := range commands {
			if r := belfryRun(t, strings.Fields(strings.TrimPrefix(line, "belfry "))...); r.code != exitOK || r.out != shown[i] {
				t.Errorf("%s: got %v, want %q", line, r, shown[i])
			}
		}
	}

	r := belfryRun(t, "size", "--rate", "5000", "--replicas", "3", "--retention", "24h", "-o", "json")
	var got struct {
		Memory float64 `json:"memory_bytes"`
		Cores  float64
		Notes  []string
	}
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != exitOK {
		t.Fatalf("size -o json: got %v: %v", r, err)
	}
	if got.Memory < 1e9 || got.Cores < 1 || len(got.Notes) != 2 || !strings.Contains(got.Notes[0], "fired-max-age of 1h11m fits") {
		t.Errorf("size of 5,000 a second with records of a day: got %+v", got)
	}
	belfryRun(t, "size", "--replicas", "2").oneLine(t, exitUsage, "replicas is 2")
	belfryRun(t, "size", "--rate", "many").oneLine(t, exitUsage, "--rate")
}
