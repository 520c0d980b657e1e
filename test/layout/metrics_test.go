package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMetricsAreDocumented compares the metrics in the code with docs/operations.md.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`(belfry_[a-z_]*[a-z])").FindAllStringSubmatch(string(b), -1) {
		documented[m[1]] = true
	}
	exported := metricNames(t)
	if len(exported) < 30 {
		t.Fatalf("found only %v in the code", exported)
	}
	for _, name := range exported {
		if !documented[name] {
			t.Errorf("docs/operations.md does not document %s", name)
		}
	}
	for name := range documented {
		if !slices.Contains(exported, name) && name != "belfry_stream" { // the text names a group of metrics
			t.Errorf("docs/operations.md documents %s, which the code does not export", name)
		}
	}
}

// metricNames returns the metrics that the program creates, with their namespace.
func metricNames(t *testing.T) []string {
	t.Helper()
	var names []string
	created := regexp.MustCompile(`(?:Namespace: (?:ns|"belfry"), Name: |\b(?:counter|gauge|vec|desc)\()"([a-z_]+)"`)
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), "client_golang/prometheus\"") {
			return err
		}
		for _, m := range created.FindAllStringSubmatch(string(b), -1) {
			names = append(names, "belfry_"+m[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
