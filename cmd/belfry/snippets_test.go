package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/internal/doctest"
)

// TestSettingsSnippets: the settings that the documents show are accepted by belfry config check. The
// files that they name are in a folder of the test. A file of tokens is that of http-tokens.
func TestSettingsSnippets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("orders", "whsec_YW4gZXhhbXBsZSBvZiBhIG5ldyBrZXku\n")
	write("orders-token", "a token\n")
	write("belfry-console", "a secret\n")
	write("admin.password", "an example of a password\n")
	ca, err := os.ReadFile(certtest.New(t).File())
	if err != nil {
		t.Fatal(err)
	}
	write("internal-ca.pem", string(ca))
	const tenants = "nats-url: nats://127.0.0.1:1\ntenants: {acme: {account: ACME}}\n"
	places := strings.NewReplacer("/run/secrets", dir, "/etc/belfry", dir, "4f0c…", strings.Repeat("4f", 32), "b1d2…", strings.Repeat("b1", 32))
	for _, block := range doctest.Blocks(t, "cmd/belfry.TestSettingsSnippets") {
		text := places.Replace(block.Text())
		switch {
		case strings.HasPrefix(text, "- {name:"):
			text = "http-tokens: " + write("tokens.yaml", text) + "\n" + tenants
		case strings.HasPrefix(text, "tenants:"):
			text += "nats-url: nats://127.0.0.1:1\n"
		case strings.Contains(text, "oidc-tenants"):
			text += tenants
		}
		env := []string{"ORDERS_API_KEY=a key", "ORDERS_PASSWORD=an example of a password"}
		if r := belfryEnv(t, env, "", "config", "check", "--config", writeConfig(t, text)); r.code != exitOK {
			t.Errorf("%s:%d: %v", block.File, block.Line, r)
		}
	}
}
