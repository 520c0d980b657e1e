package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/crypto/bcrypt"

	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// secretFile writes a file that only its owner can read.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// usersConfig has an administrator and two teams. Each password is the name with "-pw".
func usersConfig(t *testing.T) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("orders-pw"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return writeConfig(t, fmt.Sprintf(`nats-users:
  - {name: admin, password-file: %q, admin: true}
  - {name: orders, password: %q, services: [orders]}
  - {name: bills, password: bills-pw, services: [bills, taxes]}
`, secretFile(t, "admin-pw"), hash))
}

// as connects as a user.
func as(t *testing.T, url, user string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(opts, nats.UserInfo(user, user+"-pw"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		t.Fatalf("cannot connect as user %s: %v", user, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func subscribe(t *testing.T, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return sub
}

// TestUsers: with users on the embedded server, a client without credentials has no
// access, a team has access to its own timers, and an administrator to everything.
// Addresses: loopback without TLS, and all interfaces with TLS.
func TestUsers(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Files("server", x509.ExtKeyUsageServerAuth)
	for _, tt := range []struct {
		listen, host string
		args         []string
		opts         []nats.Option
	}{
		{"127.0.0.1:0", "127.0.0.1", nil, nil},
		{"127.0.0.2:0", "127.0.0.2", nil, nil},
		{"0.0.0.0:0", "127.0.0.1", []string{"--nats-tls-cert", cert, "--nats-tls-key", key}, []nats.Option{nats.RootCAs(ca.File())}},
	} {
		t.Run(tt.listen, func(t *testing.T) {
			t.Parallel()
			config := usersConfig(t)
			args := append([]string{"--config", config, "--nats-listen", tt.listen}, tt.args...)
			n := serve(t, "", args...)
			calm(t, n)
			port := n.nats[strings.LastIndex(n.nats, ":")+1:]
			url := "nats://" + tt.host + ":" + port

			for name, opts := range map[string][]nats.Option{"nobody": nil, "a wrong password": {nats.UserInfo("admin", "x")}, "a token": {nats.Token("x")}, "the node's name": {nats.UserInfo("belfry-node", "")}} {
				if nc, err := nats.Connect(url, append(opts, tt.opts...)...); !errors.Is(err, nats.ErrAuthorization) {
					t.Errorf("connect with %s: got %v, want %v", name, err, nats.ErrAuthorization)
					if nc != nil {
						nc.Close()
					}
				}
			}
			if len(tt.args) > 0 {
				if _, err := nats.Connect(url, nats.UserInfo("admin", "admin-pw")); err == nil {
					t.Error("connect without the CA's certificate: got a connection, want an error")
				}
			}
			orders, bills, admin := as(t, url, "orders", tt.opts...), as(t, url, "bills", tt.opts...), as(t, url, "admin", tt.opts...)
			teamsAreApart(t, orders, bills, admin)

			// The commands, as the administrator and as a team.
			env := []string{"BELFRY_NATS_URL=" + url}
			if len(tt.args) > 0 {
				env = append(env, "BELFRY_TLS_CA="+ca.File())
			}
			admins := append(slices.Clone(env), "BELFRY_USER=admin", "BELFRY_PASSWORD=admin-pw")
			teams := []string{"--user", "orders", "--password-file", secretFile(t, "orders-pw")}
			for _, line := range []string{"add --in 1h --svc orders --id cli --source /s", "get cli --source /s", "reschedule cli --source /s --in 2h", "cancel cli --source /s"} {
				if r := belfryEnv(t, env, "", append(strings.Fields(line), teams...)...); r.code != exitOK {
					t.Errorf("belfry %s as user orders: got %v, want exit code 0", line, r)
				}
			}
			for _, line := range []string{"status", "ls", "dead ls", "tail orders --since 1h -n 1", "get cli --source /s"} {
				if r := belfryEnv(t, admins, "", strings.Fields(line)...); r.code != exitOK {
					t.Errorf("belfry %s as user admin: got %v, want exit code 0", line, r)
				}
			}
			inURL := append(slices.Clone(env[1:]), "NATS_URL="+strings.Replace(url, "//", "//admin:admin-pw@", 1))
			if r := belfryEnv(t, inURL, "", "ls"); r.code != exitOK {
				t.Errorf("ls with credentials in the URL: got %v, want exit code 0", r)
			}
			belfryEnv(t, env, "", "ls").oneLine(t, exitUnreachable, "Authorization Violation")
			// doctor uses the node's settings.
			listen := append([]string{"doctor"}, append(args, "--nats-listen", tt.host+":"+port, "--shards", "2")...)
			var r result
			waittest.Until(t, "doctor succeeds", func() bool {
				r = belfryEnv(t, nil, "", listen...)
				return r.code == exitOK
			})
			if !strings.Contains(r.out, "BELFRY") {
				t.Errorf("doctor: got %s, want a finding about account BELFRY", r.out)
			}
			for _, pw := range []string{"admin-pw", "orders-pw", "bills-pw"} {
				if strings.Contains(n.log.String(), pw) {
					t.Errorf("the log contains the password %s: %s", pw, n.log.String())
				}
			}
			n.stop(t)
		})
	}
}

// teamsAreApart: orders reaches its own timers and events, and nothing else.
func teamsAreApart(t *testing.T, orders, bills, admin *nats.Conn) {
	t.Helper()
	add := func(nc *nats.Conn, id, svc string) {
		t.Helper()
		m, err := nc.Request(schemas.SubjectAPIPrefix+"add", fmt.Appendf(nil,
			`{"specversion":"1.0","id":%q,"source":"/u","type":"t","timerafter":"1ms","timersvc":%q,"timercallback":"nats:callbacks.%s.x"}`, id, svc, svc), bound)
		if err != nil || m.Header.Get("Nats-Service-Error-Code") != "" {
			t.Fatalf("add of timer %s: got error %v and answer %v, want success", id, err, m)
		}
	}
	called := subscribe(t, orders, "callbacks.orders.>")
	mine, all := subscribe(t, orders, "timers.fired.orders"), subscribe(t, orders, ">")
	theirs := subscribe(t, bills, "timers.fired.bills")
	adminAll := subscribe(t, admin, "timers.fired.*")
	add(bills, "b", "bills")
	if _, err := theirs.NextMsg(bound); err != nil {
		t.Fatalf("user bills received no event of its service: %v", err)
	}
	add(orders, "o", "orders")
	if _, err := mine.NextMsg(bound); err != nil {
		t.Fatalf("user orders received no event of its service: %v", err)
	}
	m, err := called.NextMsg(bound)
	if err != nil {
		t.Fatalf("user orders received no callback of its service: %v", err)
	}
	if err := m.Respond(nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := adminAll.NextMsg(bound); err != nil {
			t.Fatalf("user admin did not receive both events: %v", err)
		}
	}
	for {
		m, err := all.NextMsg(10 * time.Millisecond)
		if err != nil {
			break // everything before the event of orders has been read
		}
		if strings.Contains(m.Subject, "bills") {
			t.Errorf("user orders received %s of service bills, want nothing of other services", m.Subject)
		}
	}
	for _, subject := range []string{
		"$JS.API.STREAM.PURGE.TIMERS_FIRED", "$JS.API.STREAM.DELETE.TIMERS_FIRED", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.MSG.GET.TIMERS_FIRED", "$JS.API.DIRECT.GET.KV_clock",
		"JS.BELFRY.API.STREAM.PURGE.TIMERS_FIRED", "JS.BELFRY.API.CONSUMER.MSG.NEXT.TIMERS_FIRED.bills",
		"$KV.clock.clock.0", "$KV.timers_0.timer.x", "timers.fired.bills", "timers.dead.bills", "timers.retry.orders",
		schemas.SubjectAPIPrefix + "list", schemas.SubjectAPIPrefix + "dead.list", schemas.SubjectAPIPrefix + "dead.replay", "$SYS.REQ.SERVER.PING.JSZ", "$SRV.INFO.timers", "callbacks.bills.x", "timers.work.bills",
	} {
		all.Unsubscribe() // fails only if the connection is closed
		m, err := orders.Request(subject, []byte(`{}`), bound)
		if errors.Is(err, nats.ErrNoResponders) || err == nil && strings.Contains(string(m.Data), "not enabled for account") {
			continue
		}
		t.Errorf("user orders sent a request to %s: got answer %v (%v), want none", subject, m, err)
	}
	info, err := admin.Request("$JS.API.STREAM.INFO.TIMERS_FIRED", nil, bound)
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ State struct{ Messages int } }
	if err := json.Unmarshal(info.Data, &r); err != nil || r.State.Messages != 2 {
		t.Errorf("stream TIMERS_FIRED: got %s (%v), want 2 messages", info.Data, err)
	}
}

// TestUsersComeAndGo: timers remain when users are configured for the first time and when
// they are removed, although NATS keeps the streams of accounts apart.
func TestUsersComeAndGo(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	ok[added](t, n, "add", "--in", "1h", "--id", "kept", "--source", "/s")
	n.stop(t)
	for range 2 {
		n = serve(t, n.data, "--nats-user", "admin", "--nats-password-file", secretFile(t, "admin-pw"))
		n.client(t, "ls").oneLine(t, exitUnreachable, "Authorization Violation")
		n.nats = strings.Replace(n.nats, "//", "//admin:admin-pw@", 1)
		if got := ok[schemas.TimerInfo](t, n, "get", "kept", "--source", "/s"); got[0].State != schemas.StatePending {
			t.Errorf("get after users were configured: got %+v, want state pending", got)
		}
		n.stop(t)
		n = serve(t, n.data)
		if got := ok[schemas.TimerInfo](t, n, "get", "kept", "--source", "/s"); got[0].State != schemas.StatePending {
			t.Errorf("get after users were removed: got %+v, want state pending", got)
		}
		n.stop(t)
	}
	if err := os.MkdirAll(filepath.Join(n.data, "jetstream", "BELFRY", "streams", "X"), 0o700); err != nil {
		t.Fatal(err)
	}
	belfryRun(t, "serve", "--data", n.data, "--nats-listen", "127.0.0.1:0", "--http", "-", "--log-level", "error").oneLine(t, exitUsage, "$G", "BELFRY")
}

// TestBeyondLoopback: a node does not listen beyond loopback without authentication,
// unless --insecure permits it, and then it logs a warning.
func TestBeyondLoopback(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Files("server", x509.ExtKeyUsageServerAuth)
	withTLS := []string{"--nats-tls-cert", cert, "--nats-tls-key", key}
	user := []string{"--nats-user", "admin", "--nats-password-file", secretFile(t, "admin-pw")}
	join := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--nats-listen", "0.0.0.0:0"}, "nats-users"},
		{[]string{"--nats-listen", ":0"}, "nats-users"},
		{[]string{"--nats-listen", "[::]:0"}, "nats-users"},
		{[]string{"--nats-listen", "192.0.2.1:4222"}, "nats-users"},
		{[]string{"--nats-listen", "belfry.example:4222"}, "--insecure"},
		{join([]string{"--nats-listen", "0.0.0.0:0"}, withTLS), "nats-users"},
		{join([]string{"--nats-listen", "0.0.0.0:0"}, user), "nats-tls-cert"},
		{[]string{"--http", "0.0.0.0:0"}, "set http-tokens or http-token-file"},
		{[]string{"--http", ":0"}, "--insecure"},
		{[]string{"--nats-tls-cert", cert}, "belong together"},
		{[]string{"--nats-tls-ca", ca.File()}, "nats-tls-cert"},
		{[]string{"--nats-user", "admin"}, "BELFRY_NATS_PASSWORD"},
		{[]string{"--nats-user", "admin", "--nats-password-file", "/does/not/exist"}, "no such file"},
		{[]string{"--nats-password-file", "/x"}, "needs nats-user"},
		{join([]string{"--nats-tls-cert", key, "--nats-tls-key", cert}), "nats-tls-cert"},
		{[]string{"--http-tls-cert", cert}, "belong together"},
		{[]string{"--http-token-file", "/does/not/exist"}, "no such file"},
		{[]string{"--http-tokens", "/does/not/exist"}, "no such file"},
	} {
		args := join([]string{"serve", "--data", filepath.Join(t.TempDir(), "d"), "--nats-listen", "127.0.0.1:0", "--http", "127.0.0.1:0"}, tt.args)
		belfryRun(t, args...).oneLine(t, exitUsage, tt.want)
	}
	for name, text := range map[string]string{
		"not a list":         "nats-users: {admin: true}",
		"not a group":        "nats-users: [hunter2]",
		"no password":        "nats-users: [{name: a, admin: true}]",
		"two passwords":      "nats-users: [{name: a, admin: true, password: hunter2, password-env: HOME}]",
		"an empty variable":  "nats-users: [{name: a, admin: true, password-env: NONE}]",
		"neither":            "nats-users: [{name: a, password: hunter2}]",
		"both":               "nats-users: [{name: a, password: hunter2, admin: true, services: [x]}]",
		"unknown key":        "nats-users: [{name: a, password: hunter2, admin: true, role: x}]",
		"same name":          "nats-users: [{name: a, password: hunter2, admin: true}, {name: a, password: hunter2, admin: true}]",
		"the node's name":    "nats-users: [{name: belfry-node, password: hunter2, admin: true}]",
		"a space":            "nats-users: [{name: a b, password: hunter2, admin: true}]",
		"a wildcard":         "nats-users: [{name: a, password: hunter2, services: ['>']}]",
		"overlapping teams":  "nats-users: [{name: a, password: hunter2, services: [x]}, {name: b, password: hunter2, services: [x, y]}]",
		"a hidden password":  "nats-users: [{name: a, password: (hidden), admin: true}]",
		"admin not a bool":   "nats-users: [{name: a, password: hunter2, admin: 7}]",
		"another's settings": "nats-url: nats://127.0.0.1:1\nnats-users: [{name: a, password: hunter2, admin: true}]",
	} {
		r := belfryRun(t, "config", "check", "--config", writeConfig(t, text))
		r.oneLine(t, exitUsage, "nats-users")
		if strings.Contains(r.err, "hunter2") {
			t.Errorf("config with %s: the error contains the password: %s", name, r.err)
		}
	}
	n := serve(t, "", "--nats-listen", "0.0.0.0:0", "--http", "0.0.0.0:0", "--insecure")
	if strings.Count(n.log.String(), "INSECURE") != 2 {
		t.Errorf("serve --insecure: got log %s, want 2 warnings", n.log.String())
	}
	n.stop(t)
	printed := belfryRun(t, "config", "print", "--config", usersConfig(t))
	if printed.code != exitOK || !strings.Contains(printed.out, "name: orders") || strings.Contains(printed.out, "-pw") || strings.Contains(printed.out, "$2a$") {
		t.Errorf("config print: got %v, want user orders and no password or hash", printed)
	}
}

// TestHTTPToken: without the token /readyz has only the status, and /metrics is refused.
// The same holds over HTTPS.
func TestHTTPToken(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := ca.Files("server", x509.ExtKeyUsageServerAuth)
	for scheme, args := range map[string][]string{"http": nil, "https": {"--http-tls-cert", cert, "--http-tls-key", key}} {
		n := serve(t, "", append([]string{"--http", "0.0.0.0:0", "--http-token-file", secretFile(t, "tok-1234")}, args...)...)
		if warned := strings.Contains(n.log.String(), "in the clear"); warned != (scheme == "http") {
			t.Errorf("%s: got a warning about unencrypted tokens: %v, want %v", scheme, warned, scheme == "http")
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool()}}}
		url := scheme + "://127.0.0.1" + n.http[strings.LastIndex(n.http, ":"):]
		get := func(path, token string) (int, string) {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(b)
		}
		for _, token := range []string{"", "wrong", "tok-12345"} {
			if code, _ := get("/healthz", token); code != http.StatusOK {
				t.Errorf("%s, /healthz with token %q: got status %d, want 200", scheme, token, code)
			}
			if code, body := get("/metrics", token); code != http.StatusUnauthorized || strings.Contains(body, "belfry_") {
				t.Errorf("%s, /metrics with token %q: got status %d, body %s, want status 401 and no metrics", scheme, token, code, body)
			}
			if code, body := get("/readyz", token); code != http.StatusOK || body != "{\"ready\":true}\n" {
				t.Errorf("%s, /readyz with token %q: got status %d, body %q, want status 200 and only the status", scheme, token, code, body)
			}
		}
		if code, body := get("/metrics", "tok-1234"); code != http.StatusOK || !strings.Contains(body, "belfry_ready 1") {
			t.Errorf("%s, /metrics with the right token: got status %d, body %s, want status 200 and the metrics", scheme, code, body)
		}
		if code, body := get("/readyz", "tok-1234"); code != http.StatusOK || !strings.Contains(body, `"checks"`) {
			t.Errorf("%s, /readyz with the right token: got status %d, body %s, want status 200 and the checks", scheme, code, body)
		}
		n.stop(t)
	}
}
