package clients

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// suiteBound bounds the time of one suite.
const suiteBound = 8 * time.Minute

// TestTypes checks the types of the JavaScript client with the compiler of TypeScript, and those of the Python client with mypy.
func TestTypes(t *testing.T) {
	t.Parallel()
	t.Run("typescript", func(t *testing.T) {
		t.Parallel()
		tsc := filepath.Join(root, "clients/js/node_modules/.bin/tsc")
		if _, err := os.Stat(tsc); err != nil {
			missing(t, "the compiler of TypeScript is not installed: npm ci --prefix clients/js")
		}
		run(t, "clients/js", nil, "node_modules/.bin/tsc")
	})
	t.Run("mypy", func(t *testing.T) {
		t.Parallel()
		mypy, err := exec.LookPath("mypy")
		if err != nil {
			missing(t, "mypy is not installed")
		}
		run(t, "clients/python", nil, mypy, "--cache-dir", t.TempDir())
	})
}

// program returns the path of a program; "" if it is not installed.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if required() {
			t.Fatalf("BELFRY_CLIENTS=required, and %s is not installed", name)
		}
		return ""
	}
	return path
}

// required reports whether no suite may be skipped.
func required() bool { return os.Getenv("BELFRY_CLIENTS") == "required" }

// missing skips the test, or fails it if no suite may be skipped.
func missing(t *testing.T, why string) {
	t.Helper()
	if required() {
		t.Fatalf("BELFRY_CLIENTS=required, and %s", why)
	}
	t.Skip(why)
}

// run runs a program in a folder of the repository and logs its output. The test fails if the program does.
func run(t *testing.T, folder string, env []string, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suiteBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = filepath.Join(root, folder)
	cmd.Env = append(append(os.Environ(), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1", "NO_COLOR=1"), env...)
	cmd.WaitDelay = 10 * time.Second // for programs that it has started
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	t.Logf("%s", out)
}
