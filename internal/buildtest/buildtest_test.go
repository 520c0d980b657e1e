package buildtest

import (
	"fmt"
	"os"
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

// TestProgramOverlay: an overlay in GOFLAGS changes the program, which is not kept.
func TestProgramOverlay(t *testing.T) { // not in parallel: it sets GOFLAGS
	root, err := ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	text := fmt.Sprintf(`{"Replace": {%q: %q}}`, filepath.Join(root, "internal/buildtest/testdata/hello/main.go"), changed)
	for path, content := range map[string]string{changed: "package main\n\nfunc main() { print() }\n", overlay: text} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct{ flags, want string }{{"-overlay=" + overlay, ""}, {"", "hello nobody"}} {
		t.Setenv("GOFLAGS", x.flags)
		path := filepath.Join(t.TempDir(), "hello")
		if err := Program(path, hello); err != nil {
			t.Fatal(err)
		}
		if got := says(t, path); got != x.want {
			t.Errorf("with GOFLAGS=%q the program says %q, want %q", x.flags, got, x.want)
		}
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
