package httpcall

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/schemas"
)

// TestPrivateCAAndClientCertificate: a server with a certificate of a private CA that
// requires a client certificate can be called with both.
func TestPrivateCAAndClientCertificate(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Issue("server", x509.ExtKeyUsageServerAuth)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	s.Config.ErrorLog = nil
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()}
	s.StartTLS()
	t.Cleanup(s.Close)

	cfg := loopback
	if out := call(t, newInvoker(t, cfg), s.URL, time.Minute); !out.Retryable || out.Reason != callback.ReasonTLS {
		t.Errorf("without the CA: %+v", out)
	}
	cfg.PEM.CA = ca.PEM
	if out := call(t, newInvoker(t, cfg), s.URL, time.Minute); out.Success || !out.Retryable {
		t.Errorf("without a client certificate: %+v", out)
	}
	cfg.PEM.Cert, cfg.PEM.Key = ca.Issue("client", x509.ExtKeyUsageClientAuth)
	if out := call(t, newInvoker(t, cfg), s.URL, time.Minute); !out.Success || string(out.Response) != "client" {
		t.Errorf("with both: %+v", out)
	}
	for name, bad := range map[string]PEM{"CA": {CA: []byte("hunter2")}, "no key": {Cert: cert}, "another key": {Cert: cert, Key: cfg.PEM.Key}} {
		if _, err := New(Config{PEM: bad}); schemas.CodeOf(err) != schemas.CodeConfig || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStructuredMode: the signature covers the event's id, source and type.
func TestStructuredMode(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	var got *http.Request
	var body []byte
	target := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	cfg := loopback
	cfg.Secrets, cfg.Structured = []string{secret}, true
	r := request(target)
	r.Event.DataBase64 = false // as schemas.ParseFired reads JSON data
	if out := newInvoker(t, cfg).Invoke(t.Context(), r); !out.Success {
		t.Fatalf("got outcome %+v", out)
	}
	if ct := got.Header.Get("Content-Type"); ct != "application/cloudevents+json; charset=utf-8" || got.Header.Get("Ce-Id") != "" || got.Header.Get("Idempotency-Key") != "tid.1" {
		t.Errorf("headers %v", got.Header)
	}
	var e map[string]any
	if err := json.Unmarshal(body, &e); err != nil {
		t.Fatal(err)
	}
	if e["id"] != "1 ü\"%" || e["source"] != "/a" || e["type"] != "t" || e["data"].(map[string]any)["a"] != 1.0 || e["timerattempt"] != 2.0 {
		t.Errorf("body %s", body)
	}
	w, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Verify(body, got.Header); err != nil {
		t.Error(err)
	}
	forged := bytes.Replace(body, []byte(`"/a"`), []byte(`"/b"`), 1)
	if err := w.Verify(forged, got.Header); err == nil {
		t.Error("another source has the same signature")
	}
}

func TestPermanentStatuses(t *testing.T) {
	t.Parallel()
	status := 0
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(status)
	})
	for _, c := range []struct {
		permanent []int
		status    int
		retry     bool
	}{
		{nil, 410, false}, {nil, 422, true}, {[]int{}, 410, true}, {[]int{404, 422}, 422, false}, {[]int{404, 422}, 410, true}, {[]int{302}, 302, false}, {[]int{503}, 503, false},
	} {
		cfg := loopback
		cfg.Permanent, status = c.permanent, c.status
		if out := call(t, newInvoker(t, cfg), target, time.Minute); out.Success || out.Retryable != c.retry || out.Code != int32(c.status) {
			t.Errorf("%d with %v: %+v", c.status, c.permanent, out)
		}
	}
	for _, code := range []int{0, 200, 299, 600} {
		if _, err := New(Config{Permanent: []int{code}}); schemas.CodeOf(err) != schemas.CodeConfig {
			t.Errorf("permanent status %d: %v", code, err)
		}
	}
}

// TestHeaders: configured headers are sent, and do not appear in an outcome, even if the
// callee repeats them across the end of the excerpt.
func TestHeaders(t *testing.T) {
	t.Parallel()
	const token, key = "hunter2-token", "hunter2-api-key"
	for _, before := range []int{0, schemas.MaxOutcomeResponse - 20, schemas.MaxOutcomeResponse - 3} {
		target := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+token || r.Header.Get("X-Api-Key") != key {
				t.Errorf("headers %v", r.Header)
			}
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, strings.Repeat("x", before)+token+" "+key+" "+r.Header.Get("Authorization"))
		})
		cfg := loopback
		cfg.Headers = map[string]string{"Authorization": "Bearer " + token, "X-Api-Key": key}
		out := call(t, newInvoker(t, cfg), target, time.Minute)
		if out.Code != 500 || strings.Contains(string(out.Response)+out.Err, "hun") || len(out.Response) > schemas.MaxOutcomeResponse {
			t.Errorf("%d before: %s %q", before, out.Err, out.Response)
		}
	}
	echo := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, p, _ := r.BasicAuth()
		_, _ = io.WriteString(w, p+" "+r.Header.Get("Authorization"))
	})
	out := call(t, newInvoker(t, loopback), strings.Replace(echo, "://", "://alice:hunter2@", 1), time.Minute)
	if !out.Success || strings.Contains(string(out.Response), "hunter2") || strings.Contains(string(out.Response), "YWxpY2U6aHVudGVyMg") {
		t.Errorf("credentials of the URL: %q", out.Response)
	}
	for name, value := range map[string]string{
		"Host": "x", "Content-Length": "1", "Ce-Id": "x", "Webhook-Signature": "x", "Idempotency-Key": "x", "X-Idempotency-Key": "hunter2", "Traceparent": "x", "Transfer-Encoding": "x",
		"x-lower": "hunter2", "A B": "hunter2", "": "hunter2", "X-Empty": "", "X-Break": "hunter2\r\nEvil: 1", "X-Wide": "hunter2ü", "X-Long": strings.Repeat("hunter2", 2000),
	} {
		_, err := New(Config{Headers: map[string]string{name: value}})
		if schemas.CodeOf(err) != schemas.CodeConfig || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("header %q: %v", name, err)
		}
	}
}
