package main

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/belfryio/belfry/internal/oidctest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestOIDC: a node starts while its OpenID Connect provider is down, and refuses its tokens with 503.
// Later it accepts them beside those of http-tokens, with the scopes of their roles, and writes the
// caller into the history. A reload keeps the provider.
func TestOIDC(t *testing.T) {
	t.Parallel()
	p := oidctest.New(t)
	rsa, ec := oidctest.NewSigner(t, "k1", jose.RS256), oidctest.NewSigner(t, "k2", jose.ES256)
	p.Publish(rsa, ec)
	p.SetDown(true)
	plain := newToken(t, "--name", "ci", "--scope", "read,write")
	file := filepath.Join(t.TempDir(), "tokens")
	writeTokens(t, file, plain.Line)
	config := writeConfig(t, "http-tokens: "+file+"\noidc-issuer: "+p.URL+"\noidc-audience: belfry\noidc-ca: "+p.CAFile(t)+
		"\noidc-name-claim: email\noidc-scopes-claim: realm_access.roles\noidc-scopes: [users=read+write, readers=read]\n")
	n := serve(t, "", "--config", config)
	send := func(method, body, token string) (int, string, http.Header) {
		t.Helper()
		return httpAs(t, n, token, method, "/v1/timers", body)
	}
	claims := func(role string) map[string]any {
		return p.Claims(map[string]any{"email": "anna@shop.example", "realm_access": map[string]any{"roles": []string{role}}})
	}
	user, reader := rsa.Sign(t, claims("users")), ec.Sign(t, claims("readers"))
	if status, text, header := send("GET", "", user); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !strings.Contains(text, `"code":"unavailable"`) || strings.Contains(text, p.URL) {
		t.Errorf("while the provider is down: status %d, %v: %s, want 503 with Retry-After, and no address", status, header, text)
	}
	if line := n.logged(t, "the keys of the OpenID Connect provider cannot be read"); !strings.Contains(line, p.URL) {
		t.Errorf("the log has %s, want the issuer", line)
	}
	if status, text, _ := send("GET", "", plain.Token); status != http.StatusOK {
		t.Errorf("a token of the file while the provider is down: status %d: %s", status, text)
	}
	p.SetDown(false)
	waittest.Until(t, "tokens of the provider are accepted", func() bool { status, _, _ := send("GET", "", user); return status == http.StatusOK }, n.log.String)

	const timer = `{"in":"1h","id":"o","source":"/oidc"}`
	if status, text, _ := send("POST", timer, reader); status != http.StatusForbidden || !strings.Contains(text, "needs scope write; token oidc:anna@shop.example has read") {
		t.Errorf("a role without write: status %d: %s, want 403 and the scope", status, text)
	}
	if status, text, _ := send("POST", timer, user); status != http.StatusCreated {
		t.Fatalf("an add: status %d: %s", status, text)
	}
	status, text, _ := httpAs(t, n, user, "DELETE", "/v1/timers?id=o&source=/oidc", "")
	if status != http.StatusOK || !strings.Contains(text, `"user":"oidc:anna@shop.example"`) {
		t.Errorf("a cancel: status %d: %s, want the caller in the history", status, text)
	}
	for what, token := range map[string]string{
		"another audience": rsa.Sign(t, p.Claims(map[string]any{"aud": "shop"})), "an expired token": rsa.Sign(t, p.Claims(map[string]any{"exp": 1})), "a forged token": user[:len(user)-4] + "AAAA",
		"a key of somebody else": oidctest.NewSigner(t, "k1", jose.RS256).Sign(t, claims("users")), "no token": "", "another text": "eyJ", "an unknown token": "bfy_" + strings.Repeat("a", 52),
	} {
		status, text, header := send("GET", "", token)
		if status != http.StatusUnauthorized || !strings.HasPrefix(header.Get("WWW-Authenticate"), `Bearer realm="belfry"`) || !strings.Contains(text, `"code":"unauthenticated"`) {
			t.Errorf("%s: status %d, %v: %s, want 401", what, status, header, text)
		}
	}

	next := newToken(t, "--name", "ci-2", "--scope", "read")
	writeTokens(t, file, next.Line)
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the new token is accepted", func() bool { status, _, _ := send("GET", "", next.Token); return status == http.StatusOK }, n.log.String)
	if status, text, _ := send("GET", "", user); status != http.StatusOK {
		t.Errorf("a token of the provider after a reload: status %d: %s", status, text)
	}
	for _, text := range []string{user, reader} {
		if strings.Contains(n.log.String(), text) {
			t.Error("the log has a token")
		}
	}
	n.stop(t)
}

// httpAs sends a request with a token, "" for none.
func httpAs(t *testing.T, n *node, token, method, path, body string) (status int, text string, header http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Bound)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+n.http+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

// TestOIDCSettings: settings of the provider that cannot be used are refused, and enough of them permit
// to listen beyond loopback.
func TestOIDCSettings(t *testing.T) {
	t.Parallel()
	const issuer = "--oidc-issuer https://login.example"
	for line, want := range map[string]string{
		issuer: "an audience is needed", "--oidc-issuer http://login.example --oidc-audience b": "must begin with https://", "--oidc-audience b": "need oidc-issuer",
		issuer + " --oidc-audience b --oidc-scopes ops":                           "ROLE=SCOPE+SCOPE",
		issuer + " --oidc-audience b --oidc-scopes ops=root":                      "is not one of read, write, admin, payload",
		issuer + " --oidc-audience b --oidc-scopes a=read,a=write":                "occurs twice",
		issuer + " --oidc-audience b --oidc-tenants x":                            "VALUE=TENANT",
		issuer + " --oidc-audience b --oidc-tenants a=acme":                       "tenant claim",
		issuer + " --oidc-audience b --oidc-tenant-claim t --oidc-tenants a=acme": "not in the setting tenants",
		issuer + " --oidc-audience b --oidc-ca /does/not/exist":                   "oidc-ca",
		issuer + " --oidc-audience b --oidc-tenant-claim t --oidc-tenants a=,a=":  "occurs twice",
		"--oidc-client-id c": "need oidc-issuer",
		issuer + " --oidc-audience b --oidc-client-secret-file /does/not/exist":                                 "oidc-client-secret-file",
		issuer + " --oidc-audience b --oidc-client-scopes profile --oidc-client-id c":                           "must include openid",
		issuer + " --oidc-audience b --oidc-redirect-url https://belfry.example":                                "needs oidc-client-id",
		issuer + " --oidc-audience b --oidc-client-id c --http 0.0.0.0:0":                                       "needs oidc-redirect-url",
		issuer + " --oidc-audience b --oidc-client-id c --http 0.0.0.0:0 --oidc-redirect-url https://b.example": "",
		issuer + " --oidc-audience b --http 0.0.0.0:0 --oidc-scopes ops=admin+payload":                          "",
		issuer + " --oidc-audience b --oidc-tenant-claim t --oidc-tenants staff= --http [::]:0":                 "",
	} {
		r := belfryRun(t, append([]string{"config", "check"}, strings.Fields(line)...)...)
		if want == "" && r.code != exitOK || want != "" && (r.code != exitUsage || !strings.Contains(r.err, want)) {
			t.Errorf("%s: got %v, want %q", line, r, want)
		}
	}
}
