package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/test/proc"
)

const (
	unitFile    = "deploy/systemd/belfry.service"
	envFile     = "deploy/systemd/belfry.env.example"
	installPath = "/usr/local/bin/belfry"
	// maxExposure is the highest exposure level that systemd-analyze security may give to the service, in
	// tenths: 0 is the best, 100 no protection.
	maxExposure = 20
)

// unit returns the values of each setting of a unit file, in order.
func unit(t *testing.T, path string) map[string][]string {
	t.Helper()
	values := map[string][]string{}
	for line := range strings.Lines(read(t, path)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && key[0] != '#' {
			values[key] = append(values[key], value)
		}
	}
	return values
}

// TestUnit: the units fit the program's exit codes, its bound for stopping, and its settings.
func TestUnit(t *testing.T) {
	t.Parallel()
	for _, path := range []string{unitFile, "deploy/cluster/belfry.service"} {
		u := unit(t, path)
		if seconds, err := strconv.Atoi(u["TimeoutStopSec"][0]); err != nil || time.Duration(seconds)*time.Second <= app.StopTimeout {
			t.Errorf("%s: TimeoutStopSec is %v, want more than %s", path, u["TimeoutStopSec"], app.StopTimeout)
		}
	}
	u := unit(t, unitFile)
	if got := u["RestartPreventExitStatus"]; !slices.Equal(got, []string{strconv.Itoa(cmdline.ExitUsage)}) {
		t.Errorf("RestartPreventExitStatus is %v, want %d, the exit code for a wrong setting", got, cmdline.ExitUsage)
	}
	if got := u["LimitCORE"]; !slices.Equal(got, []string{"0"}) {
		t.Errorf("LimitCORE is %v, want 0: a core file has the secrets of the process", got)
	}
	if got := u["ExecStart"]; !slices.Equal(got, []string{installPath + " serve"}) {
		t.Errorf("ExecStart is %v", got)
	}
	state := "/var/lib/" + u["StateDirectory"][0]
	if !slices.Contains(strings.Fields(u["Environment"][0]), "BELFRY_DATA="+state) {
		t.Errorf("Environment is %v, want the state directory %s as BELFRY_DATA", u["Environment"], state)
	}
}

// TestUnitRestartsAfterCrash: with the environment of the unit, the program does not end with the exit code that prevents
// a restart when it crashes. SIGQUIT ends a Go program as a panic does.
func TestUnitRestartsAfterCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), proc.Build(t), "serve")
	cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir}
	for _, value := range unit(t, unitFile)["Environment"] {
		cmd.Env = append(cmd.Env, strings.Fields(value)...)
	}
	cmd.Env = append(cmd.Env, "BELFRY_DATA="+dir, "BELFRY_NATS_LISTEN=127.0.0.1:0", "BELFRY_HTTP=127.0.0.1:0")
	var log logtest.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the node runs", func() bool { return log.Count("belfry is running") > 0 }, log.String)
	if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
		t.Errorf("a node that crashes: %v, want an end by a signal", err)
	}
}

// TestUnitSettings: the program accepts the environment of the unit and of the example file, with each
// line that is commented out.
func TestUnitSettings(t *testing.T) {
	t.Parallel()
	bin := proc.Build(t)
	base := []string{"HOME=" + t.TempDir()}
	for _, value := range unit(t, unitFile)["Environment"] {
		base = append(base, strings.Fields(value)...)
	}
	dir := t.TempDir()
	tokens, config := filepath.Join(dir, "tokens.yaml"), filepath.Join(dir, "belfry.yaml")
	for path, text := range map[string]string{tokens: "[]\n", config: "log-level: info\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(env []string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, "config", "print")
		cmd.Env = append(slices.Clone(base), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("config print with %v: %v\n%s", env, err, out)
		}
		for _, e := range env {
			name, _, _ := strings.Cut(e, "=")
			key := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "BELFRY_"), "_", "-"))
			if name != "BELFRY_CONFIG" && !regexp.MustCompile(`(?m)^`+key+`:`).Match(out) {
				t.Errorf("%s is the variable of no setting", name)
			}
		}
	}
	check(nil)
	var env []string
	for line := range strings.Lines(read(t, envFile)) {
		if line = strings.TrimPrefix(strings.TrimSpace(line), "#"); strings.HasPrefix(line, "BELFRY_") {
			env = append(env, strings.NewReplacer("/etc/belfry/belfry.yaml", config, "/etc/belfry/tokens.yaml", tokens).Replace(line))
		}
	}
	if len(env) < 5 {
		t.Fatalf("%s has only the settings %v", envFile, env)
	}
	check(env)
}

// TestUnitVerifies: systemd accepts the unit, and rates its protection. The unit has not run: that needs
// systemd as the first process.
func TestUnitVerifies(t *testing.T) {
	t.Parallel()
	need(t, "systemd-analyze", "that systemd accepts the unit, and how well it protects the host")
	// systemd-analyze wants the program to exist, and a file that has the name of the unit.
	path := filepath.Join(t.TempDir(), filepath.Base(unitFile))
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(read(t, unitFile), installPath, proc.Build(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run(t, ".", "systemd-analyze", "verify", "--man=no", path); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	cmd := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+strconv.Itoa(maxExposure), path)
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "option '--offline") {
		t.Logf("systemd-analyze is older than version 250, so the protection was not rated")
		return
	}
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("systemd-analyze security: %v; want an exposure of at most %d tenths", err, maxExposure)
	}
}
