package httpcall

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func dialer(addr string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp4", addr)
	}
}

func newInvoker(t *testing.T, cfg Config) *Invoker {
	t.Helper()
	i, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i
}

var loopback = Config{Guard: Guard{AllowLoopback: true}}

func request(target string) callback.Request {
	e := event.New()
	e.SetID("1 ü\"%")
	e.SetSource("/a")
	e.SetType("t")
	e.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC))
	e.SetExtension("timerattempt", int32(2))
	e.SetExtension("timerscheduled", "2026-01-02T03:04:05.006Z")
	_ = e.SetData("application/json", []byte(`{"a":1}`))
	return callback.Request{Target: target, Event: &e, Key: "tid.1", Timeout: time.Second, NowMs: time.Now().UnixMilli(),
		Trace: map[string]string{"traceparent": "00-1-2-01"}}
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// raw calls h after the request of each connection.
func raw(t *testing.T, h func(net.Conn)) string {
	t.Helper()
	return "http://" + tcptest.Serve(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			h(c)
		}
	})
}

// hang never answers. It reads the body first, because only then does the server notice
// that the client has disconnected.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func call(t *testing.T, i *Invoker, target string, timeout time.Duration) callback.Outcome {
	t.Helper()
	r := request(target)
	r.Timeout = timeout
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return i.Invoke(ctx, r)
}

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	const s1, s2 = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	var got *http.Request
	var body []byte
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "thanks")
	})
	cfg := loopback
	cfg.Secrets = []string{s1, s2}
	out := call(t, newInvoker(t, cfg), strings.Replace(target, "http://", "http://alice:hunter2@", 1)+"/p?q=1#f", time.Minute)
	if !out.Success || out.Code != 202 || string(out.Response) != "thanks" || out.Retryable {
		t.Fatalf("got outcome %+v", out)
	}
	if got.Method != "POST" || got.RequestURI != "/p?q=1" || string(body) != `{"a":1}` {
		t.Fatalf("%s %s %q", got.Method, got.RequestURI, body)
	}
	for k, want := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": "1%20%C3%BC%22%25", "Ce-Source": "/a", "Ce-Type": "t", "Ce-Time": "2026-01-02T03:04:05.006Z",
		"Ce-Timerattempt": "2", "Ce-Timerscheduled": "2026-01-02T03:04:05.006Z", "Content-Type": "application/json",
		"Idempotency-Key": "tid.1", "Webhook-Id": "tid.1", "Traceparent": "00-1-2-01", "User-Agent": "belfry",
	} {
		if v := got.Header.Get(k); v != want {
			t.Errorf("%s: %q; want %q", k, v, want)
		}
	}
	if u, p, ok := got.BasicAuth(); !ok || u != "alice" || p != "hunter2" {
		t.Errorf("basic auth %q %q", u, p)
	}
	for _, s := range []string{s1, s2} {
		w, err := standardwebhooks.NewWebhook(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Verify(body, got.Header); err != nil {
			t.Error(err)
		}
	}
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	var status int
	header := http.Header{}
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for k, v := range header {
			w.Header()[k] = v
		}
		w.WriteHeader(status)
	})
	i := newInvoker(t, loopback)
	for _, c := range []struct {
		status         int
		retryAfter     string
		success, retry bool
		notNow         bool
		wait           time.Duration
		reason         callback.Reason
	}{
		{200, "", true, false, false, 0, ""}, {204, "", true, false, false, 0, ""}, {299, "5", true, false, false, 0, ""},
		{301, "", false, true, false, 0, callback.ReasonRedirect}, {304, "", false, true, false, 0, callback.ReasonRedirect},
		{400, "", false, true, false, 0, callback.ReasonStatus}, {401, "", false, true, false, 0, callback.ReasonStatus},
		{403, "", false, true, false, 0, callback.ReasonStatus}, {404, "5", false, true, false, 5 * time.Second, callback.ReasonStatus},
		{408, "", false, true, false, 0, callback.ReasonStatus}, {409, "", false, true, false, 0, callback.ReasonStatus},
		{410, "5", false, false, false, 0, callback.ReasonStatus}, {422, "", false, true, false, 0, callback.ReasonStatus},
		{425, "", false, true, false, 0, callback.ReasonStatus}, {429, "", false, true, false, 0, callback.ReasonStatus},
		{429, "2", false, true, true, 2 * time.Second, callback.ReasonRetryLater}, {503, "120", false, true, true, 2 * time.Minute, callback.ReasonRetryLater},
		{429, "rubbish", false, true, false, 0, callback.ReasonStatus}, {500, "3", false, true, false, 3 * time.Second, callback.ReasonStatus},
		{500, "", false, true, false, 0, callback.ReasonStatus}, {599, "", false, true, false, 0, callback.ReasonStatus},
		{600, "", false, true, false, 0, callback.ReasonStatus},
	} {
		status, header = c.status, http.Header{}
		if c.retryAfter != "" {
			header.Set("Retry-After", c.retryAfter)
		}
		out := call(t, i, target, time.Minute)
		if out.Success != c.success || out.Retryable != c.retry || out.NotNow != c.notNow || out.RetryAfter != c.wait || out.Reason != c.reason || out.Code != int32(c.status) {
			t.Errorf("%d %q: %+v", c.status, c.retryAfter, out)
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	inner := 0
	private := serve(t, func(http.ResponseWriter, *http.Request) { inner++ })
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(private, "://", "://bob:secret@", 1)+"/?k=secret", http.StatusTemporaryRedirect)
	})
	out := call(t, newInvoker(t, loopback), target, time.Minute)
	if out.Success || !out.Retryable || out.Reason != callback.ReasonRedirect || inner != 0 || strings.Contains(out.Err, "secret") || !strings.Contains(out.Err, "final URL") {
		t.Fatalf("%+v, %d calls behind the redirect", out, inner)
	}
}

// TestRedirectIsNamed: the outcome names the URL that a redirect leads to, also a relative one, without its query.
func TestRedirectIsNamed(t *testing.T) {
	t.Parallel()
	to := ""
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
	})
	for location, want := range map[string]string{
		"https://h.example/a?token=secret": "redirects to https://h.example/a?xxxxx", "reset/b": "redirects to " + target + "/v1/reset/b", "mailto:a@h.example": "redirects are not followed", "": "redirects are not followed",
	} {
		to = location
		if out := call(t, newInvoker(t, loopback), target+"/v1/hook", time.Minute); out.Reason != callback.ReasonRedirect || !strings.HasSuffix(out.Err, want) {
			t.Errorf("%q: got %+v, want the end %q", location, out, want)
		}
	}
}

func TestHang(t *testing.T) {
	t.Parallel()
	target := serve(t, hang)
	out := call(t, newInvoker(t, loopback), target, 50*time.Millisecond)
	if !out.Retryable || out.Reason != callback.ReasonTimeout || !strings.Contains(out.Err, "50ms") {
		t.Fatalf("got outcome %+v", out)
	}
}

func TestHugeAnswerIsCutOff(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	wrote := make(chan int64, 1)
	target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		n, _ := io.CopyN(w, strings.NewReader(strings.Repeat("x", 1<<20)), 1<<20)
		for n < size {
			m, err := w.Write(make([]byte, 1<<20))
			n += int64(m)
			if err != nil {
				break
			}
		}
		wrote <- n
	})
	begin := time.Now()
	out := call(t, newInvoker(t, loopback), target, time.Minute)
	if !out.Success || len(out.Response) != schemas.MaxOutcomeResponse {
		t.Fatalf("got outcome %+v", out)
	}
	if n := <-wrote; n >= size {
		t.Fatalf("the whole answer was read, in %v", time.Since(begin))
	}
}

func TestSlowBodyDoesNotHoldTheCall(t *testing.T) {
	t.Parallel()
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			time.Sleep(5 * time.Millisecond) // the pace of the body
		}
	})
	cfg := loopback
	cfg.BodyWait = 100 * time.Millisecond
	begin := time.Now()
	out := call(t, newInvoker(t, cfg), target, time.Minute)
	if !out.Success || len(out.Response) == 0 || time.Since(begin) > 30*time.Second {
		t.Fatalf("%+v after %v", out, time.Since(begin))
	}
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	target := raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for range 1000 {
			if _, err := io.WriteString(c, "X-Junk: "+strings.Repeat("j", 1000)+"\r\n"); err != nil {
				return
			}
		}
	})
	out := call(t, newInvoker(t, loopback), target, time.Minute)
	if out.Success || !out.Retryable || out.Reason != callback.ReasonConnection {
		t.Fatalf("got outcome %+v", out)
	}
}

func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"closed": "", "garbage": "SSH-2.0-x\r\n\r\n", "half": "HTTP/1.1 200"} {
		target := raw(t, func(c net.Conn) { _, _ = io.WriteString(c, answer) })
		if out := call(t, newInvoker(t, loopback), target, time.Minute); !out.Retryable || out.Reason != callback.ReasonConnection {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

func TestRefusedConnection(t *testing.T) {
	t.Parallel()
	out := call(t, newInvoker(t, loopback), "http://"+tcptest.FreeAddress(t), time.Minute)
	if !out.Retryable || out.Reason != callback.ReasonConnection {
		t.Fatalf("got outcome %+v", out)
	}
}

func TestGuardAtDialTime(t *testing.T) {
	t.Parallel()
	calls := 0
	target := serve(t, func(http.ResponseWriter, *http.Request) { calls++ })
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	port := u.Port()
	named := Config{Resolver: resolver(t, "127.0.0.1")}
	// The second answer of the resolver differs from the first. The guard must check the
	// address that is dialled.
	rebinding := Config{Guard: Guard{AllowPrefixes: nil}, Resolver: resolver(t, "127.0.0.1", "127.0.0.2")}
	for _, c := range []struct {
		cfg  Config
		host string
	}{
		{Config{}, "127.0.0.1"}, {Config{}, "localhost"}, {Config{}, "[::1]"}, {Config{}, "[::ffff:127.0.0.1]"}, {Config{}, "0.0.0.0"},
		{Config{}, "[::]"}, {Config{}, "169.254.169.254"}, {Config{}, "[fd00:ec2::254]"}, {Config{}, "[64:ff9b::7f00:1]"},
		{named, "inside.example"}, {rebinding, "rebinding.example"}, {rebinding, "rebinding.example"},
	} {
		out := call(t, newInvoker(t, c.cfg), "http://user:hunter2@"+c.host+":"+port+"/", time.Minute)
		if out.Success || !out.Retryable || out.Reason != callback.ReasonAddressRefused || !strings.Contains(out.Err, "(to allow it: allow-") {
			t.Errorf("%s: %+v", c.host, out)
		}
	}
	if calls != 0 {
		t.Fatalf("%d calls went through", calls)
	}
	allowed := Config{Guard: Guard{AllowLoopback: true}, Resolver: resolver(t, "127.0.0.1")}
	if out := call(t, newInvoker(t, allowed), "http://inside.example:"+port+"/", time.Minute); !out.Success {
		t.Fatalf("got outcome %+v", out)
	}
}

func TestProxyFromTheEnvironmentIsNotUsed(t *testing.T) {
	proxied := 0
	proxy := serve(t, func(http.ResponseWriter, *http.Request) { proxied++ })
	t.Setenv("HTTP_PROXY", proxy)
	t.Setenv("http_proxy", proxy)
	out := call(t, newInvoker(t, Config{Guard: Guard{AllowLoopback: true}, Resolver: resolver(t, "10.255.255.1")}), "http://x.example/", time.Minute)
	if out.Reason != callback.ReasonAddressRefused || proxied != 0 {
		t.Fatalf("%+v, %d through the proxy", out, proxied)
	}
}

func TestCredentialsAreInNoError(t *testing.T) {
	t.Parallel()
	redirecting := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) })
	failing := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	hanging := serve(t, hang)
	creds := func(s string) string { return strings.Replace(s, "://", "://alice:hunter2@", 1) + "/?token=hunter2" }
	i := newInvoker(t, loopback)
	for _, target := range []string{
		creds(redirecting), creds(failing), creds(hanging), creds("http://127.0.0.1:1"), creds("http://10.0.0.1:80"), creds("https" + failing[4:]),
		creds("http://no-such-host.invalid"), "http://alice:hunter2@bad host/", "http://alice:hunter2@h:port/", "ftp://alice:hunter2@h/", "http://alice:hunter2@",
		"http://alice:hunter2@[::1/", "http://alice:hunter2%zz@h/",
	} {
		out := call(t, i, target, 200*time.Millisecond)
		if out.Success || out.Err == "" || strings.Contains(out.Err, "hunter2") {
			t.Errorf("%s: %+v", target, out)
		}
	}
}

// TestUserNameIsInNoAnswer: the credentials of a callback are hidden in an answer that repeats them. Without a password
// the user name is the credential.
func TestUserNameIsInNoAnswer(t *testing.T) {
	t.Parallel()
	echo := serve(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		_, _ = fmt.Fprint(w, user, " ", password, " ", r.Header.Get("Authorization"))
	})
	i := newInvoker(t, loopback)
	for user, want := range map[string]string{"sk_live_4eC39": "(hidden)  Basic (hidden)", "sk_live_4eC39:": "(hidden)  Basic (hidden)", "customer:hunter2": "customer (hidden) Basic (hidden)"} {
		if out := call(t, i, strings.Replace(echo, "://", "://"+user+"@", 1), time.Minute); string(out.Response) != want {
			t.Errorf("%s: the answer is %q, want %q", user, out.Response, want)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	if out := call(t, newInvoker(t, loopback), s.URL, time.Minute); !out.Retryable || out.Reason != callback.ReasonTLS {
		t.Fatalf("untrusted: %+v", out)
	}
	cfg := loopback
	cfg.TLS = s.Client().Transport.(*http.Transport).TLSClientConfig
	if out := call(t, newInvoker(t, cfg), s.URL, time.Minute); !out.Success || string(out.Response) != "HTTP/2.0" {
		t.Fatalf("trusted: %+v", out)
	}
}

func TestSecretsAreChecked(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "whsec_", "secret", "whsec_c2hvcnQ=", "whsec_!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", "whsec_" + strings.Repeat("A", 200)} {
		_, err := New(Config{Secrets: []string{s}})
		if schemas.CodeOf(err) != schemas.CodeConfig || (len(s) > 7 && strings.Contains(err.Error(), s)) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestCancelEndsTheCall(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	target := serve(t, func(w http.ResponseWriter, r *http.Request) { close(arrived); hang(w, r) })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if out := newInvoker(t, loopback).Invoke(ctx, request(target)); out.Success || !errors.Is(ctx.Err(), context.Canceled) {
		t.Fatalf("got outcome %+v", out)
	}
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	conns := 0
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 20_000))
	}))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns++
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	i := newInvoker(t, loopback)
	for range 20 {
		if out := call(t, i, s.URL, time.Minute); !out.Success {
			t.Fatalf("got outcome %+v", out)
		}
	}
	if conns != 1 {
		t.Fatalf("%d connections for 20 calls in a row", conns)
	}
}

// TestCloseFailsNoCall: a call does not fail because Close is called at the same time, and the
// connections are closed when the last call has ended.
func TestCloseFailsNoCall(t *testing.T) {
	t.Parallel()
	var open atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	i := newInvoker(t, Config{Guard: Guard{AllowLoopback: true}, MaxConns: 4})
	var calls, rest sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		calls.Go(func() {
			for range 500 {
				if out := call(t, i, s.URL, 10*time.Second); !out.Success {
					t.Errorf("got %+v, want a success", out)
				}
			}
		})
	}
	rest.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				i.Close()
			}
		}
	})
	calls.Wait()
	close(done)
	rest.Wait()
	waittest.Until(t, "the connections to be closed", func() bool { return open.Load() == 0 })
}

func BenchmarkInvoke(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer s.Close()
	i, err := New(Config{Guard: Guard{AllowLoopback: true}})
	if err != nil {
		b.Fatal(err)
	}
	defer i.Close()
	r := request(s.URL)
	b.ReportAllocs()
	for b.Loop() {
		if out := i.Invoke(b.Context(), r); !out.Success {
			b.Fatalf("got outcome %+v", out)
		}
	}
}
