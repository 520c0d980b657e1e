package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestSize: the text is that of docs/operations.md, the JSON has the same figures, and a load beyond a limit has a
// note.
func TestSize(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(b), "\n```console\n$ belfry size ")
	example, _, end := strings.Cut(example, "```")
	args, want, line := strings.Cut(example, "\n")
	if !found || !end || !line {
		t.Fatal("docs/operations.md has no example of belfry size")
	}
	r := belfryRun(t, append([]string{"size"}, strings.Fields(args)...)...)
	if r.code != exitOK || r.out != want {
		t.Errorf("size %s: got %v, want %q", args, r, want)
	}

	r = belfryRun(t, "size", "--rate", "5000", "--replicas", "3", "--retention", "24h", "-o", "json")
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
