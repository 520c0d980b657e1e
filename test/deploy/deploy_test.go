// Package deploy checks the files in the folder deploy: that the programs which read them accept
// them, and that what they name exists in Belfry. A test that needs a program which is not
// installed is skipped, and says what was not checked.
package deploy

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/test/proc"
)

// root is the folder of the module.
const root = "../.."

// bound is the time limit of a program that a test runs. No program takes that long on a busy
// machine.
const bound = 5 * time.Minute

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testMain{m}, natstest.ServerLeaks()...)
}

// testMain removes the programs that the tests have built.
type testMain struct{ m *testing.M }

func (t testMain) Run() int { return proc.Run(t.m) }

// startNode runs a node with an embedded server in this process.
func startNode(t *testing.T) *app.App {
	t.Helper()
	a, err := app.New(app.Options{
		Data: filepath.Join(t.TempDir(), "data"), NATSListen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Profile: app.ProfileFast, Shards: 2,
		AllowLoopback: true, Version: "1.2.3", Commit: "abc", Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("Stop: got error %v, want none", err)
		}
	})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

// read returns a file of the module.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// readYAML decodes a YAML file of the module, and refuses keys that into does not have.
func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(read(t, path)))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// need skips the test if a program is not installed.
func need(t *testing.T, program, whatFor string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed, so this was not checked: %s", program, whatFor)
	}
}

// run runs a program in a folder of the module and returns its output. It fails the test if the
// program fails.
func run(t *testing.T, folder, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = filepath.Join(root, folder)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}
