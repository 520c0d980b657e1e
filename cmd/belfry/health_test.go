package main

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/internal/tcptest"
)

// TestHealth: the exit code says whether the node on this host is ready. The command finds the node
// by the settings that serve has, also by those of the environment.
func TestHealth(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	if r := belfryRun(t, "health", "--http", n.http, "-o", "json"); r.code != exitOK || r.out != "{\"ok\":true}\n" {
		t.Errorf("health of a node that runs: got %v, want exit code 0", r)
	}
	_, port, _ := strings.Cut(n.http, ":")
	if r := belfryEnv(t, []string{"BELFRY_HTTP=0.0.0.0:" + port, "BELFRY_INSECURE=true"}, "", "health", "--live"); r.code != exitOK || !strings.Contains(r.out, "ok") {
		t.Errorf("health of a node that listens on all interfaces: got %v, want exit code 0", r)
	}
	n.stop(t)
	belfryRun(t, "health", "--http", tcptest.FreeAddress(t)).oneLine(t, exitUnreachable, "no node answers at 127.0.0.1:")
	belfryRun(t, "health", "--http", "-").oneLine(t, exitUsage, "http is -")
	belfryRun(t, "health", "--http", "nonsense").oneLine(t, exitUsage, "HOST:PORT")
}

// TestHealthNotReady: a node that answers and is not ready has an exit code of its own, and the message has
// the reasons that the node states.
func TestHealthNotReady(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		body string
		want string
	}{
		"without tokens": {`{"ready":false,"checks":{"store":{"ok":false,"reason":"connection is RECONNECTING"},"time":{"ok":true}}}`, "not ready (status 503): store: connection is RECONNECTING"},
		"with tokens":    {`{"ready":false}`, "not ready (status 503)\n"},
		"not JSON":       {`<html>`, "not ready (status 503)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "" {
					t.Errorf("got a request for %s with Authorization %q", r.URL.Path, r.Header.Get("Authorization"))
				}
				w.WriteHeader(http.StatusServiceUnavailable)
				w.Write([]byte(tt.body))
			}))
			t.Cleanup(s.Close)
			belfryEnv(t, []string{"BELFRY_HTTP_TOKEN=hunter2"}, "", "health", "--http", s.Listener.Addr().String()).oneLine(t, exitUnhealthy, tt.want)
		})
	}
}

// TestHealthOverTLS: the certificate of a node does not name the loopback interface, and this host may not
// trust it.
func TestHealthOverTLS(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Files("node.example.com", x509.ExtKeyUsageServerAuth)
	n := serve(t, "", "--http-tls-cert", cert, "--http-tls-key", key)
	if r := belfryRun(t, "health", "--http", n.http, "--http-tls-cert", cert, "--http-tls-key", key); r.code != exitOK {
		t.Errorf("health over HTTPS: got %v, want exit code 0", r)
	}
}
