package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryFailureIsTested: each row of the failure table in docs/operations.md names
// tests that exist.
func TestEveryFailureIsTested(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(b), "\n## What happens when a part fails\n")
	section, _, end := strings.Cut(section, "\n## ")
	if !found || !end {
		t.Fatal("docs/operations.md has no failure table")
	}
	exists := testNames(t)
	rows := 0
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| failure |") {
			continue
		}
		rows++
		cells := strings.Split(strings.TrimSpace(line), " | ")
		names := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(cells) != 4 || len(names) == 0 {
			t.Errorf("this row names no test: %.100s", line)
		}
		for _, n := range names {
			if !exists[n[1]] {
				t.Errorf("test %s does not exist, but this row names it: %.100s", n[1], line)
			}
		}
	}
	if rows < 20 {
		t.Errorf("the table has only %d rows", rows)
	}
}

// testNames returns the names of all tests of the module.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	decl := regexp.MustCompile(`(?m)^func (Test\w+)\(\w+ \*testing\.T\)`)
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range decl.FindAllSubmatch(b, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
