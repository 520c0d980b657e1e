// Package gomodule tests the Go client as the module of a user has it: with a go.mod of its own, and with the releases
// of Go that the Go team supports.
package gomodule

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/belfryio/belfry/test/proc"
)

// goEnv names releases of Go in addition to that of the test, with spaces between them: "go1.27.0". The go command
// downloads them.
const goEnv = "BELFRY_GO"

func TestMain(m *testing.M) { goleak.VerifyTestMain(testMain{m}) }

// testMain removes the program that the test has built.
type testMain struct{ m *testing.M }

func (t testMain) Run() int { return proc.Run(t.m) }

// TestUserModule: the module of a user with Belfry's go directive builds without further settings. It adds, cancels and
// handles timers of a node, with the release of Go that runs the test and with those in BELFRY_GO.
func TestUserModule(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: this test builds two programs")
	}
	n := proc.New(t, proc.Options{})
	n.Start()
	n.Ready(t.Context())
	for i, toolchain := range append([]string{""}, strings.Fields(os.Getenv(goEnv))...) {
		t.Run(cmp.Or(toolchain, "local"), func(t *testing.T) {
			t.Parallel()
			dir := userModule(t)
			service := fmt.Sprint("orders-", i)
			want := " handled " + service + "-now\n"
			if out := run(t, dir, toolchain, "run", ".", n.URL(), service); !strings.HasPrefix(out, cmp.Or(toolchain, "go")) || !strings.HasSuffix(out, want) {
				t.Errorf("got %q, want %s%s", out, toolchain, want)
			}
		})
	}
}

// userModule makes the module of a user that requires this one.
func userModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"testdata/user/main.go": "main.go", "../../go.sum": "go.sum", "../../go.mod": "go.mod"} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if to == "go.mod" { // the same requirements, so that nothing is looked up
			b = []byte(strings.Replace(string(b), "module github.com/belfryio/belfry\n", "module example.com/user\n\nrequire github.com/belfryio/belfry v0.0.0\n\nreplace github.com/belfryio/belfry => "+root+"\n", 1))
		}
		if err := os.WriteFile(filepath.Join(dir, to), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// run runs the go command of a release, "" for that of the test, and returns its output.
func run(t *testing.T, dir, toolchain string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if toolchain != "" {
		cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+toolchain)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s with %s: %v\n%s", args[0], cmp.Or(toolchain, "this release"), err, stderr.String())
	}
	return string(out)
}
