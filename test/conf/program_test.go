package conf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/buildtest"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestProgramWithProductionConfig: the permissions in nats.conf suffice for a node and
// for the commands.
func TestProgramWithProductionConfig(t *testing.T) {
	t.Parallel()
	s := natstest.RunProduction(t, file, nil)
	var log logtest.Buffer
	o := app.DefaultOptions()
	o.NATSURL, o.TLS.CA, o.HTTP, o.Log = s.URLOf("belfry"), s.CA, app.NoHTTP, zerolog.New(&log).Level(zerolog.WarnLevel)
	a, err := app.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		ctx, cancel := context.WithTimeout(context.Background(), app.StopTimeout)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Error(err)
		}
		stopped = true
	}
	t.Cleanup(func() {
		if !stopped {
			stop()
		}
	})

	program := filepath.Join(t.TempDir(), "belfry")
	testsize.NotShort(t, "this test runs the program")
	if err := buildtest.Program(program, "github.com/belfryio/belfry/cmd/belfry"); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = []string{"HOME=" + t.TempDir(), "BELFRY_TLS_CA=" + s.CA}
		cmd.Stdout, cmd.Stderr = &out, &errs
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("belfry %s: exit code %d: %s%s", strings.Join(args, " "), code, out.String(), errs.String())
		}
		return out.String()
	}
	admin := func(args ...string) string {
		t.Helper()
		return run(append(args, "--nats-url", s.URLOf("admin"))...)
	}
	admin("add", "--in", "1ms", "--svc", "orders", "--id", "one", "--source", "/conf")
	admin("add", "--in", "1h", "--svc", "orders", "--id", "far", "--source", "/conf")
	if out := admin("tail", "orders", "--since", "1h", "-n", "1"); !strings.Contains(out, "one") {
		t.Errorf("tail: %s", out)
	}
	admin("get", "one", "--source", "/conf")
	admin("reschedule", "far", "--source", "/conf", "--in", "2h")
	admin("cancel", "far", "--source", "/conf")
	admin("dead", "ls")
	if out := admin("ls"); !strings.Contains(out, "far") {
		t.Errorf("ls: %s", out)
	}
	if out := admin("status"); !strings.Contains(out, "PROBLEMS: none") {
		t.Errorf("status: %s", out)
	}
	// The first write of a shard's clock takes a moment.
	var report string
	waittest.Until(t, "doctor finds no error", func() bool {
		report = run("doctor", "--nats-url", s.URLOf("belfry"))
		return !strings.Contains(report, "ERROR")
	}, func() string { return report })
	for _, check := range []string{"permissions", "sync", "streams", "shards"} {
		if !strings.Contains(report, fmt.Sprintf("%-9s%s", "OK", check)) {
			t.Errorf("doctor does not report OK for %s: %s", check, report)
		}
	}
	stop()
	// Warnings that a slow machine causes. A missing permission causes others.
	machine := []string{"clock was stepped", "no heartbeat received", "no answer from JetStream", "lease ran out"}
	for line := range strings.Lines(log.String()) {
		if !slices.ContainsFunc(machine, func(text string) bool { return strings.Contains(line, text) }) {
			t.Errorf("the node logged a warning: %s", line)
		}
	}
}
