package buildtest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const hello = "github.com/belfryio/belfry/internal/buildtest/testdata/hello"

func says(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command(path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestProgram: the program is built, also if it is kept already, and kept apart for other arguments.
func TestProgram(t *testing.T) { // not in parallel: it sets the cache folder
	cache := t.TempDir()
	goCache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(string(goCache))) // XDG_CACHE_HOME would move it
	t.Setenv("XDG_CACHE_HOME", cache)
	dir := t.TempDir()
	for i, x := range []struct {
		args []string
		want string
	}{{nil, "hello nobody"}, {nil, "hello nobody"}, {[]string{"-ldflags", "-X main.name=you"}, "hello you"}} {
		path := filepath.Join(dir, string(rune('a'+i)))
		if err := Program(path, hello, x.args...); err != nil {
			t.Fatal(err)
		}
		if got := says(t, path); got != x.want {
			t.Errorf("build %d says %q, want %q", i, got, x.want)
		}
	}
	kept, err := filepath.Glob(filepath.Join(cache, "belfry-test", "*.lock"))
	if err != nil || len(kept) != 2 {
		t.Errorf("%d programs are kept, want 2 (%v)", len(kept), err)
	}
}

// TestProgramFails: the error has what go build printed.
func TestProgramFails(t *testing.T) {
	t.Parallel()
	err := Program(filepath.Join(t.TempDir(), "x"), hello+"/none")
	if err == nil || !strings.Contains(err.Error(), "hello/none") {
		t.Errorf("a package that does not exist: %v", err)
	}
}
