package conf

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/buildtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestProgramWithTenants runs a node with deploy/tenants/belfry.yaml on a server with
// deploy/tenants/nats.conf, and the commands as users of two tenants.
func TestProgramWithTenants(t *testing.T) {
	t.Parallel()
	s := natstest.RunProduction(t, "../../deploy/tenants/nats.conf", nil)
	program := filepath.Join(t.TempDir(), "belfry")
	testsize.NotShort(t, "this test runs the program")
	if err := buildtest.Program(program, "github.com/belfryio/belfry/cmd/belfry"); err != nil {
		t.Fatal(err)
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("belfry-pw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	node := exec.CommandContext(t.Context(), program, "serve", "--config", "../../deploy/tenants/belfry.yaml", "--nats-url", "tls://"+s.Addr().String(),
		"--password-file", password, "--tls-ca", s.CA, "--http", "-")
	node.Stdout, node.Stderr = &log, &log
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = node.Process.Kill()
		_ = node.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	run := func(user string, args ...string) (out string, code int) {
		t.Helper()
		var text bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, append(args, "--nats-url", s.URLOf(user))...)
		cmd.Env = []string{"HOME=" + t.TempDir(), "BELFRY_TLS_CA=" + s.CA}
		cmd.Stdout, cmd.Stderr = &text, &text
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return text.String(), cmd.ProcessState.ExitCode()
	}
	add := []string{"add", "--in", "1h", "--svc", "orders", "--id", "one", "--source", "/conf"}
	var out string
	waittest.Until(t, "acme adds a timer", func() bool {
		var code int
		out, code = run("acme", add...)
		return code == 0
	}, func() string { return out })
	ok := func(user string, args ...string) string {
		t.Helper()
		out, code := run(user, args...)
		if code != 0 {
			t.Errorf("%s: belfry %s: exit code %d: %s", user, strings.Join(args, " "), code, out)
		}
		return out
	}
	ok("acme", "get", "one", "--source", "/conf", "--tenant", "acme")
	if out := ok("acme", "ls"); !strings.Contains(out, "one") {
		t.Errorf("acme: ls: %s", out)
	}
	const notFound = 3
	for _, tenant := range []string{"acme", "globex"} {
		if out, code := run("globex", "get", "one", "--source", "/conf", "--tenant", tenant); code != notFound {
			t.Errorf("globex: get as %s: exit code %d: %s", tenant, code, out)
		}
	}
	if out := ok("globex", "ls"); strings.Contains(out, "one") {
		t.Errorf("globex: ls: %s", out)
	}
	ok("globex", add...)
	ok("globex", "cancel", "one", "--source", "/conf", "--tenant", "globex")
	ok("acme", "reschedule", "one", "--source", "/conf", "--tenant", "acme", "--in", "2h")
	ok("acme", "dead", "ls")
	ok("acme", "rejected", "ls")
	if out := ok("admin", "ls"); strings.Count(out, "one") != 2 {
		t.Errorf("admin: ls: %s", out)
	}
}
