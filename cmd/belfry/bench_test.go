package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/testsize"
)

// TestBenchQuick runs the whole short form and checks that it leaves no files.
func TestBenchQuick(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "40,000 timers")
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := belfryRun(t, "bench", "--quick", "--profile", "fast", "--dir", dir, "-o", "json")
	if r.code != exitOK {
		t.Fatalf("belfry bench: got %v, want exit code 0", r)
	}
	var d struct {
		Results []struct {
			Workload string
			Verified struct{ Expected, Found int }
		}
	}
	if err := json.Unmarshal([]byte(r.out), &d); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"add": 20_000, "steady": 10_000, "burst": 10_000}
	for _, res := range d.Results {
		if res.Verified.Expected != want[res.Workload] || res.Verified.Found != want[res.Workload] {
			t.Errorf("workload %s: got %+v, want %d timers expected and found", res.Workload, res.Verified, want[res.Workload])
		}
		delete(want, res.Workload)
	}
	if len(want) > 0 {
		t.Errorf("belfry bench did not run these workloads, with their timers: %v", want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("after belfry bench: the folder has %v (%v), want no files", left, err)
	}
}

// TestBenchUsage: a wrong profile is refused, and the help and the name of a workload
// refer to the full tool.
func TestBenchUsage(t *testing.T) {
	t.Parallel()
	belfryRun(t, "bench", "--profile", "slow").oneLine(t, exitUsage, "profile")
	belfryRun(t, "bench", "day").oneLine(t, exitUsage, "belfry-bench")
	if r := belfryRun(t, "bench", "--help"); r.code != exitOK || !strings.Contains(r.out, "go run ./cmd/belfry-bench") {
		t.Errorf("belfry bench --help: got %v, want exit code 0 and the command of the full tool", r)
	}
}
