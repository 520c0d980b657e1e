package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/waittest"
)

// newToken runs belfry token new.
func newToken(t *testing.T, args ...string) tokenInfo {
	t.Helper()
	r := belfryRun(t, append([]string{"token", "new", "-o", "json"}, args...)...)
	if r.code != exitOK || r.err != "" {
		t.Fatalf("token new %v: got %v, want exit code 0", args, r)
	}
	return parseLines[tokenInfo](t, r.out)[0]
}

// writeTokens replaces a file in one step, as in production.
func writeTokens(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// httpStatus sends a GET with a token and returns the status and the header WWW-Authenticate.
func httpStatus(t *testing.T, url, token string) (status int, challenge string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("WWW-Authenticate")
}

// TestTokenCommand: token new prints a token once, and its line for the file; token ls shows no
// secret.
func TestTokenCommand(t *testing.T) {
	t.Parallel()
	before := time.Now()
	info := newToken(t, "--name", "ci", "--scope", "read,write", "--tenant", "acme", "--expires", "720h")
	expires, err := time.Parse(time.RFC3339, info.Expires)
	if err != nil || expires.Before(before.Add(719*time.Hour)) || expires.After(time.Now().Add(720*time.Hour)) {
		t.Errorf("token new: expires at %s (%v), want in 720 h", info.Expires, err)
	}
	want := "- {name: ci, hash: " + token.HashOf(info.Token).String() + ", scopes: [read, write], tenant: acme, expires: " + info.Expires + "}"
	if info.Line != want {
		t.Errorf("token new: got line %s, want %s", info.Line, want)
	}
	text := belfryRun(t, "token", "new", "--name", "p", "--scope", "payload")
	lines := strings.Split(text.out, "\n")
	if text.code != exitOK || len(lines) != 3 || lines[0] == info.Token || !strings.HasPrefix(lines[0], "bfy_") || lines[1] != "- {name: p, hash: "+token.HashOf(lines[0]).String()+", scopes: [payload]}" {
		t.Fatalf("token new: got %v, want a token and its line", text)
	}
	past := "- {name: old, hash: " + token.HashOf("x").String() + ", scopes: [admin], expires: 2026-01-01T00:00:00Z}"
	file := filepath.Join(t.TempDir(), "tokens")
	writeTokens(t, file, info.Line, lines[1], past)
	ls := belfryRun(t, "token", "ls", "--file", file)
	for _, part := range []string{"NAME ", "\nci ", " read,write ", " acme ", (&zone{}).text(info.Expires) + "\n", "\np ", "2026-01-01T00:00:00.000Z (expired)\n"} {
		if ls.code != exitOK || !strings.Contains(ls.out, part) {
			t.Errorf("token ls: got %v, want %q in it", ls, part)
		}
	}
	listed := belfryRun(t, "token", "ls", "--file", file, "-o", "json")
	if all := parseLines[tokenInfo](t, listed.out); len(all) != 3 || all[0].Name != "ci" || all[0].Tenant != "acme" || all[1].Expired || !all[2].Expired {
		t.Errorf("token ls -o json: got %v, want ci of tenant acme, p, and old, which has expired", listed)
	}
	if out := ls.out + listed.out; strings.Contains(out, "sha256") || strings.Contains(out, "bfy_") {
		t.Errorf("token ls: got %s, want no hash and no token", out)
	}
	writeTokens(t, file, info.Line, "- {name: x, hash: "+info.Token+", scopes: [read]}")
	for want, args := range map[string][]string{
		"name":                       {"token", "new", "--scope", "read"},
		"at least one of read":       {"token", "new", "--name", "a"},
		"scope \"cook\"":             {"token", "new", "--name", "a", "--scope", "read,cook"},
		"tenant \"ACME\"":            {"token", "new", "--name", "a", "--scope", "read", "--tenant", "ACME"},
		"must not be negative":       {"token", "new", "--name", "a", "--scope", "read", "--expires=-1h"},
		"--file":                     {"token", "ls"},
		"no such file":               {"token", "ls", "--file", file + ".none"},
		"line 2: hash: this is":      {"token", "ls", "--file", file},
		"http-tokens: file " + file:  {"serve", "--data", filepath.Join(t.TempDir(), "d"), "--http-tokens", file},
		"tenant acme of token ci is": {"serve", "--data", filepath.Join(t.TempDir(), "d"), "--http-tokens", secretFile(t, info.Line)},
	} {
		r := belfryRun(t, args...)
		r.oneLine(t, exitUsage, want)
		if strings.Contains(r.err, info.Token) {
			t.Errorf("%v prints the token: %s", args, r.err)
		}
	}
}

// TestTokensAreReloaded: a node accepts the tokens of its file and that of
// http-token-file. Tokens are added and removed without a restart; a file with a mistake changes
// nothing, and neither does the removal of all authentication.
func TestTokensAreReloaded(t *testing.T) {
	t.Parallel()
	first, second, writer := newToken(t, "--name", "ci", "--scope", "read"), newToken(t, "--name", "ci-2", "--scope", "admin"), newToken(t, "--name", "w", "--scope", "write,payload")
	expired := "bfy_" + strings.Repeat("a", 52)
	past := "- {name: old, hash: " + token.HashOf(expired).String() + ", scopes: [read], expires: 2026-01-01T00:00:00Z}"
	file := filepath.Join(t.TempDir(), "tokens")
	writeTokens(t, file, first.Line, writer.Line, past)
	config := writeConfig(t, "http-tokens: "+file+"\nhttp-token-file: "+secretFile(t, "tok-1234")+"\n")
	if r := belfryRun(t, "config", "check", "--http", "0.0.0.0:0", "--http-tokens", file); r.code != exitOK {
		t.Errorf("config check with tokens beyond loopback: got %v, want exit code 0", r)
	}
	n := serve(t, "", "--config", config)
	metrics := "http://" + n.http + "/metrics"
	statuses := func() map[string]int {
		out := map[string]int{}
		for name, text := range map[string]string{"none": "", "ci": first.Token, "ci-2": second.Token, "w": writer.Token, "old": expired, "file": "tok-1234", "hash": first.Line} {
			out[name], _ = httpStatus(t, metrics, text)
		}
		return out
	}
	check := func(when string, want map[string]int) {
		t.Helper()
		for name, got := range statuses() {
			if got != want[name] {
				t.Errorf("%s: /metrics with token %s: got status %d, want %d", when, name, got, want[name])
			}
		}
	}
	hangup := func() {
		t.Helper()
		if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	becomes := func(text string, want int) {
		t.Helper()
		waittest.Until(t, "the token gets another status", func() bool { status, _ := httpStatus(t, metrics, text); return status == want }, n.log.String)
	}
	check("at the start", map[string]int{"none": 401, "ci": 200, "ci-2": 401, "w": 403, "old": 401, "file": 200, "hash": 401})
	for text, want := range map[string]string{
		"": `Bearer realm="belfry"`, expired: `Bearer realm="belfry", error="invalid_token", error_description="the token old has expired`,
		writer.Token: `Bearer realm="belfry", error="insufficient_scope", error_description="this needs scope read; token w has write, payload", scope="read"`,
	} {
		if _, got := httpStatus(t, metrics, text); !strings.HasPrefix(got, want) {
			t.Errorf("WWW-Authenticate: got %s, want %s", got, want)
		}
	}

	writeTokens(t, file, first.Line, second.Line, writer.Line) // noticed without a signal
	becomes(second.Token, http.StatusOK)
	writeTokens(t, file, second.Line)
	hangup()
	becomes(first.Token, http.StatusUnauthorized)
	check("after the rotation", map[string]int{"none": 401, "ci": 401, "ci-2": 200, "w": 401, "old": 401, "file": 200, "hash": 401})

	writeTokens(t, file, first.Line, "- {name: x, hash: "+first.Token+", scopes: [read]}")
	hangup()
	if line := n.logged(t, "was not reloaded"); !strings.Contains(line, "line 2: hash") || !strings.Contains(line, file) || strings.Contains(line, first.Token) {
		t.Errorf("log of the failed reload: got %s, want the file, the line, and no token", line)
	}
	if err := os.WriteFile(config, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangup()
	n.logged(t, "a running node does not stop asking for tokens")
	check("after two mistakes", map[string]int{"none": 401, "ci": 401, "ci-2": 200, "w": 401, "old": 401, "file": 200, "hash": 401})

	writeTokens(t, file)
	if err := os.WriteFile(config, []byte("http-tokens: "+file+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangup()
	becomes("tok-1234", http.StatusUnauthorized)
	check("with an empty file", map[string]int{"none": 401, "ci": 401, "ci-2": 401, "w": 401, "old": 401, "file": 401, "hash": 401})
	for _, text := range []string{first.Token, second.Token, writer.Token, "tok-1234", token.HashOf(first.Token).String()} {
		if strings.Contains(n.log.String(), text) {
			t.Errorf("the log has the token or hash %s: %s", text, n.log.String())
		}
	}
	n.stop(t)
}
