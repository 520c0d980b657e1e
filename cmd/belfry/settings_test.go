package main

import (
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/internal/waittest"
)

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "belfry.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestPrecedence: a flag overrides the environment, the environment the file, and the
// file the default.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, "shards: 3\nretention: P2D\nroles: [router, functions]\nhttp: 127.0.0.1:1\nnode: from-file\n")
	env := []string{"BELFRY_CONFIG=" + path, "BELFRY_HTTP=127.0.0.1:2", "BELFRY_NODE=from-env", "BELFRY_ALLOW_PREFIXES=10.0.0.0/8,fd00::/8", "BELFRY_SEEDS=7"}
	r := belfryEnv(t, env, "", "config", "print", "-o", "json", "--node", "from-flag")
	if r.code != exitOK {
		t.Fatalf("config print: got %v, want exit code 0", r)
	}
	m := parseLines[map[string]any](t, r.out)[0]
	for key, want := range map[string]any{"shards": 3.0, "retention": "48h", "http": "127.0.0.1:2", "node": "from-flag", "profile": "safe", "allow-loopback": true, "sweep-delay": "10m"} {
		if m[key] != want {
			t.Errorf("config print: %s is %v, want %v", key, m[key], want)
		}
	}
	if got := m["roles"].([]any); len(got) != 2 || len(m["allow-prefixes"].([]any)) != 2 {
		t.Errorf("config print: got roles %v and allow-prefixes %v, want 2 of each", got, m["allow-prefixes"])
	}
	if !strings.HasSuffix(m["data"].(string), "/.local/state/belfry") {
		t.Errorf("config print: data is %v, want the folder .local/state/belfry in HOME", m["data"])
	}
	// The printed configuration is valid input.
	again := belfryEnv(t, env, "", "config", "print")
	if r := belfryRun(t, "config", "check", "--config", writeConfig(t, again.out)); r.code != exitOK {
		t.Errorf("config check of the printed settings: got %v, want exit code 0\n%s", r, again.out)
	}
}

// TestServerChoice: the URL for clients does not make a node that must run an embedded
// server use another one.
func TestServerChoice(t *testing.T) {
	t.Parallel()
	env := []string{"BELFRY_NATS_URL=nats://10.0.0.1:4222", "BELFRY_CREDS=/c", "XDG_STATE_HOME=/state"}
	m := parseLines[map[string]any](t, belfryEnv(t, env, "", "config", "print", "-o", "json").out)[0]
	if m["nats-url"] != "nats://10.0.0.1:4222" || m["creds"] != "/c" || m["allow-loopback"] != false {
		t.Errorf("settings from the environment: got %v, want its URL and credentials, and no callbacks to loopback", m)
	}
	m = parseLines[map[string]any](t, belfryEnv(t, env, "", "config", "print", "-o", "json", "--data", "/d").out)[0]
	if m["nats-url"] != "" || m["creds"] != "" || m["data"] != "/d" {
		t.Errorf("settings with --data: got %v, want an embedded server and no URL", m)
	}
	m = parseLines[map[string]any](t, belfryEnv(t, env[2:], "", "config", "print", "-o", "json", "--nats-listen", "0.0.0.0:4222", "--insecure").out)[0]
	if m["allow-loopback"] != false || m["data"] != "/state/belfry" {
		t.Errorf("settings of a node that listens on all addresses: got %v, want no callbacks to loopback, and data in XDG_STATE_HOME", m)
	}
}

// TestNeverIdle: 0 is a valid value, also after it was printed and read again.
func TestNeverIdle(t *testing.T) {
	t.Parallel()
	r := belfryRun(t, "config", "print", "--service-idle", "0s")
	if r.code != exitOK || !strings.Contains(r.out, "service-idle: 0s") {
		t.Errorf("config print: got %v, want service-idle 0s", r)
	}
	if r := belfryRun(t, "config", "check", "--config", writeConfig(t, r.out)); r.code != exitOK {
		t.Errorf("config check of the printed settings: got %v, want exit code 0", r)
	}
	belfryRun(t, "serve", "--service-idle", "10ms", "--data", t.TempDir(), "--nats-listen", "127.0.0.1:0", "--http", "-", "--log-level", "error").oneLine(t, exitUsage, "service-idle is 10ms", "100ms")
}

// TestZeros: a 0 is refused wherever it is given, except for the settings that document it.
func TestZeros(t *testing.T) {
	t.Parallel()
	s := &settings{}
	s.add(&cobra.Command{})
	checked := 0
	for _, name := range s.names {
		zero := map[string]string{"int": "0", "int64": "0", "duration": "0s"}[s.fs.Lookup(name).Value.Type()]
		if zero == "" {
			continue
		}
		checked++
		for where, r := range map[string]result{
			"flag":        belfryRun(t, "config", "check", "--"+name, zero),
			"environment": belfryEnv(t, []string{envName(name) + "=" + zero}, "", "config", "check"),
			"file":        belfryRun(t, "config", "check", "--config", writeConfig(t, name+": "+zero)),
		} {
			switch {
			case !slices.Contains(zeroAllowed, name):
				r.oneLine(t, exitUsage, name+" is "+zero, "more than 0")
			case r.code != exitOK:
				t.Errorf("%s with %s from the %s: got %v, want exit code 0", name, zero, where, r)
			}
		}
	}
	if checked < 15 {
		t.Errorf("checked %d settings with a number or duration, want 15 or more", checked)
	}
}

// TestCheckReadsFiles: config check finds certificates, keys and credentials that serve could not use, and malformed URLs.
func TestCheckReadsFiles(t *testing.T) {
	t.Parallel()
	ca, dir := certtest.New(t), t.TempDir()
	cert, key := ca.Files("server", x509.ExtKeyUsageServerAuth)
	notPEM := writeConfig(t, "hello")
	url := []string{"--nats-url", "nats://h:4222"}
	for _, x := range []struct {
		args []string
		want string // "" if the settings are valid
	}{
		{[]string{"--http-tls-cert", cert, "--http-tls-key", key, "--nats-tls-cert", cert, "--nats-tls-key", key, "--nats-tls-ca", ca.File()}, ""},
		{append(url, "--tls-ca", ca.File(), "--tls-cert", cert, "--tls-key", key), ""},
		{[]string{"--http-tls-cert", cert, "--http-tls-key", filepath.Join(dir, "none")}, "http-tls-key"},
		{[]string{"--nats-tls-cert", notPEM, "--nats-tls-key", key}, "nats-tls-cert"},
		{append(url, "--creds", filepath.Join(dir, "none")), "creds: "},
		{append(url, "--creds", notPEM), "not a NATS credentials file"},
		{append(url, "--tls-ca", notPEM), "tls-ca"},
		{append(url, "--tls-cert", cert), "tls-cert and tls-key"},
		{[]string{"--nats-url", "nats://a:4222,b,tls://u:p@c"}, ""},
		{[]string{"--nats-url", "nats://u:hunter2@h:x"}, "nats-url is not"},
		{[]string{"--nats-url", "nats://h:70000"}, "port"},
		{[]string{"--nats-url", "http://h"}, "scheme"},
		{[]string{"--nats-url", "nats://"}, "without a host"},
		{[]string{"--nats-url", "nats://a,,"}, "without a host"},
	} {
		r := belfryRun(t, append([]string{"config", "check"}, x.args...)...)
		if x.want == "" {
			if r.code != exitOK {
				t.Errorf("config check %v: got %v, want exit code 0", x.args, r)
			}
			continue
		}
		r.oneLine(t, exitUsage, x.want)
		if strings.Contains(r.err, "hunter2") {
			t.Errorf("config check prints a password: %s", r.err)
		}
	}
}

// TestTenantsPrinted: the printed settings of tenants are equal to the settings in the file. A list that is absent allows
// everything, and an empty one nothing.
func TestTenantsPrinted(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, "nats-url: nats://h:4222\ntenants:\n  acme: {account: ACME, services: [orders, ship*], subjects: [callbacks.>], hosts: [a.example], webhook-origin: belfry.example.com, export-fired: true}\n  globex: {account: GLOBEX, services: [], export-fired: false}\n")
	want := map[string]any{
		"acme":   map[string]any{"account": "ACME", "services": []any{"orders", "ship*"}, "subjects": []any{"callbacks.>"}, "hosts": []any{"a.example"}, "webhook-origin": "belfry.example.com", "export-fired": true},
		"globex": map[string]any{"account": "GLOBEX", "services": []any{}, "hosts": []any{}},
	}
	for range 2 {
		m := parseLines[map[string]any](t, belfryRun(t, "config", "print", "-o", "json", "--config", path).out)[0]
		if !reflect.DeepEqual(m["tenants"], want) {
			t.Errorf("config print: tenants %v, want %v", m["tenants"], want)
		}
		path = writeConfig(t, belfryRun(t, "config", "print", "--config", path).out)
	}
}

func TestConfigFileMistakes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"unknown keys":       {"shard: 3\nretension: 1h\nshards: 2", []string{"retension, shard "}},
		"unknown nested":     {"services:\n  orders:\n    secrte: " + secret, []string{"services.orders.secrte", "secret"}},
		"number as a key":    {"7: 3", []string{"unknown keys: 7 "}},
		"no file":            {"", []string{"no such file"}},
		"number as service":  {"services:\n  7:\n    concurrency: 0", []string{"services.7.concurrency"}},
		"mixed keys":         {"services:\n  7: {concurrency: 1}\n  b: {true: 1}", []string{"services.b.true"}},
		"group in a list":    {"nats-users: [{7: x}]", []string{"user 1: unknown key 7"}},
		"not YAML":           {"\x00\x01garbage: [", []string{"not YAML"}},
		"a text":             {"hello", []string{"not YAML with settings"}},
		"wrong number":       {"shards: many", []string{"shards", "many"}},
		"wrong duration":     {"retention: 24", []string{"retention", "duration"}},
		"wrong bool":         {"allow-private: maybe", []string{"allow-private", "maybe"}},
		"group for value":    {"http: {host: x}", []string{"http", "not a group"}},
		"services a list":    {"services: [a]", []string{"services", "group"}},
		"service a text":     {"services: {orders: " + secret + "}", []string{"services.orders", "group"}},
		"service name":       {"services: {a b: {concurrency: 1}}", []string{"a b"}},
		"concurrency":        {"services: {orders: {concurrency: 0}}", []string{"services.orders.concurrency"}},
		"secret a number":    {"services: {orders: {secret: 7}}", []string{"services.orders.secret", "whsec_"}},
		"secrets a text":     {"services: {orders: {secrets: " + secret + "}}", []string{"services.orders.secrets", "list"}},
		"secret too short":   {"services: {orders: {secret: whsec_aHVudGVyMg==}}", []string{"orders"}},
		"secret not base64":  {"services: {orders: {secret: whsec_hunter2!hunter2!hunter2!hunter2}}", []string{"orders"}},
		"list without value": {"callback-hosts:", []string{"callback-hosts has no value", "[]"}},
		"null":               {"callback-subjects: null", []string{"callback-subjects has no value", "[]"}},
		"file without name":  {"http-tokens: ~", []string{"http-tokens has no value"}},
		"users without one":  {"nats-users:\n#- {name: a}", []string{"nats-users has no value", "[]"}},
		"services left out":  {"services:", []string{"services has no value"}},
		"null in a list":     {"callback-hosts: [a.example, ]\ncallback-subjects: [a.b, ~]", []string{"callback-subjects: item 2 has no value"}},
		"nothing":            {"", []string{"is empty", "{}"}},
		"only a comment":     {"# callback-hosts: []\n", []string{"is empty", "{}"}},
		"only a mark":        {"---\n", []string{"is empty", "{}"}},
		"only a null":        {"null\n", []string{"is empty", "{}"}},
		"empty tokens":       {"http-tokens: ''", []string{"http-tokens is empty"}},
		"empty user":         {"nats-user: ''", []string{"nats-user is empty"}},
		"two documents":      {"shards: 1\n---\ncallback-hosts: []", []string{"more than one YAML document"}},
		"half a document":    {"shards: 1\n---\n{", []string{"more than one YAML document"}},
		"key twice":          {"shards: 1\nshards: 2", []string{"shards"}},
		"role":               {"roles: [cook]", []string{"cook"}},
		"tenant's origin":    {"nats-url: nats://h:4222\ntenants: {acme: {account: ACME, webhook-origin: https://x}}", []string{"tenants.acme.webhook-origin", "DNS name"}},
		"tenant's key":       {"nats-url: nats://h:4222\ntenants: {acme: {account: ACME, host: x}}", []string{"tenants.acme.host", "account, services, subjects, hosts, webhook-origin and export-fired"}},
		"tenant's export":    {"nats-url: nats://h:4222\ntenants: {acme: {account: ACME, export-fired: maybe}}", []string{"tenants.acme.export-fired", "true or false"}},
		"tenant's service":   {"nats-url: nats://h:4222\ntenants: {acme: {account: ACME, services: [a.b]}}", []string{"tenant acme", "services", "a.b"}},
		"tenant's subject":   {"nats-url: nats://h:4222\ntenants: {acme: {account: ACME, subjects: ['$JS.>']}}", []string{"tenant acme", "subjects", "$JS"}},
		"tenant's host":      {"nats-url: nats://h:4222\ntenants: {acme: {account: ACME, hosts: ['a b']}}", []string{"tenant acme", "hosts", "a b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := writeConfig(t, tt.text)
			if name == "no file" {
				path += ".none"
			}
			for _, cmd := range []string{"config check", "config print", "serve"} {
				r := belfryRun(t, append(strings.Fields(cmd), "--config", path)...)
				r.oneLine(t, exitUsage, tt.want...)
				if strings.Contains(r.err, secret) || strings.Contains(r.err, "hunter2") || strings.Contains(r.err, "aHVudGVyMg") {
					t.Errorf("%s prints a secret: %s", cmd, r.err)
				}
			}
		})
	}
	belfryEnv(t, []string{"BELFRY_SHARDS=many"}, "", "serve").oneLine(t, exitUsage, "BELFRY_SHARDS", "many")
	for _, name := range restricting {
		variable := envName(name)
		belfryEnv(t, []string{variable + "="}, "", "config", "check").oneLine(t, exitUsage, variable+" is empty", name)
	}
	for _, name := range restricting[2:] { // the first two are lists, which may be empty
		belfryRun(t, "config", "check", "--"+name+"=").oneLine(t, exitUsage, name+" is empty")
	}
	printed := belfryRun(t, "config", "print")
	if r := belfryRun(t, "config", "check", "--config", writeConfig(t, printed.out)); r.code != exitOK {
		t.Errorf("config check of the output of config print: got %v, want exit code 0", r)
	}
	if r := belfryEnv(t, []string{"BELFRY_CREDS="}, "", "config", "check"); r.code != exitOK {
		t.Errorf("config check with an empty variable that restricts nothing: got %v, want exit code 0", r)
	}
	for _, text := range []string{"---\nshards: 1\n...\n", "{}\n"} {
		if r := belfryRun(t, "config", "check", "--config", writeConfig(t, text)); r.code != exitOK {
			t.Errorf("config check of one document %q: got %v, want exit code 0", text, r)
		}
	}
}

// TestSecretsAreNotTold: secrets do not appear in config print, in the log of a node that
// uses them, or on its HTTP server.
func TestSecretsAreNotTold(t *testing.T) {
	t.Parallel()
	path := writeConfig(t, "services:\n  orders:\n    secret: "+secret+"\n    concurrency: 3\n  bills:\n    secrets: ["+secret+"]\n")
	var all strings.Builder
	for _, format := range []string{"text", "json"} {
		for _, cmd := range []string{"print", "check"} {
			r := belfryRun(t, "config", cmd, "--config", path, "-o", format)
			if r.code != exitOK {
				t.Fatalf("config %s: got %v, want exit code 0", cmd, r)
			}
			all.WriteString(r.out + r.err)
		}
	}
	if !strings.Contains(all.String(), "(hidden)") || !strings.Contains(all.String(), "concurrency") {
		t.Errorf("config print: got %s, want the services with hidden secrets", all.String())
	}
	url := belfryRun(t, "config", "print", "--nats-url", "nats://user:hunter2@127.0.0.1:4222")
	if url.code != exitOK || !strings.Contains(url.out, "xxxxx") {
		t.Errorf("config print: got %v, want a URL with a hidden password", url)
	}
	n := serve(t, "", "--config", path, "--log-level", "debug")
	ok[added](t, n, "add", "--in", "1ms", "--svc", "orders", "--callback", "http://user:hunter2@127.0.0.1:1/", "--max-attempts", "1")
	waittest.Until(t, "a dead letter", func() bool { return len(ok[map[string]any](t, n, "dead", "ls")) == 1 })
	for _, path := range []string{"/readyz", "/metrics"} {
		_, body := httpGet(t, "http://"+n.http+path)
		all.WriteString(body)
	}
	for _, args := range [][]string{{"ls"}, {"ls", "-o", "json"}, {"dead", "ls", "-o", "json"}} {
		r := n.client(t, args...)
		all.WriteString(r.out + r.err)
	}
	n.stop(t)
	all.WriteString(url.out + n.log.String())
	for _, s := range []string{secret, strings.TrimPrefix(secret, "whsec_"), "hunter2"} {
		if strings.Contains(all.String(), s) {
			t.Errorf("the output, the log or the HTTP server shows the secret %s", s)
		}
	}
}

// TestServiceSecretsFromFilesAndEnvironment: secrets and headers can come from several
// files and from the environment, and are never printed.
func TestServiceSecretsFromFilesAndEnvironment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const second, third = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "whsec_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"
	ca := certtest.New(t)
	cert, key := ca.Files("client", x509.ExtKeyUsageClientAuth)
	config := func(text string) string {
		return "services:\n  orders:\n" + strings.NewReplacer("SECRETS", write("secrets", secret+"\n"+second+"\n"), "EMPTY", write("empty", "\n"), "TOKEN", write("token", "hunter2-token\n"),
			"CA", ca.File(), "CERT", cert, "PRIVATE", key, "DIR", dir).Replace(text)
	}
	c := &cli{process: process{err: io.Discard, lookupEnv: func(name string) (string, bool) {
		value, set := map[string]string{"HOME": dir, "ORDERS": third, "API_KEY": "hunter2-key"}[name]
		return value, set
	}}}
	load := func(text string) (*settings, error) {
		s := &settings{}
		s.add(&cobra.Command{})
		s.config = writeConfig(t, config(text))
		_, err := s.load(c)
		return s, err
	}
	s, err := load(`    secret-file: SECRETS
    secret-env: [ORDERS]
    base-url: https://api.example.com/v1
    headers: {authorization: {file: TOKEN, prefix: "Bearer "}, X-Api-Key: {env: API_KEY}, X-Plain: hunter2-plain}
    tls-ca: CA
    tls-cert: CERT
    tls-key: PRIVATE
    mode: binary
    permanent-statuses: []
    webhook-origin: belfry.example.com
    subjects: orders.>
    hosts: []
`)
	if err != nil {
		t.Fatal(err)
	}
	sc := s.app.Callbacks.Services["orders"]
	if !slices.Equal(sc.Secrets, []string{third, secret, second}) || len(sc.PEM.CA) == 0 || len(sc.PEM.Key) == 0 || sc.PermanentStatuses == nil || sc.WebhookOrigin != "belfry.example.com" || sc.Hosts == nil || len(sc.Subjects) != 1 ||
		sc.Headers["Authorization"] != "Bearer hunter2-token" || sc.Headers["X-Api-Key"] != "hunter2-key" || sc.Headers["X-Plain"] != "hunter2-plain" {
		t.Errorf("got service %+v, want all settings of the file, with secrets from the environment and both files", sc)
	}
	shown := fmt.Sprint(s.effective())
	for _, hide := range []string{"hunter2", secret, second, third} {
		if strings.Contains(shown, hide) {
			t.Errorf("the printed settings contain the secret %s: %s", hide, shown)
		}
	}
	if !strings.Contains(shown, "TOKEN") && !strings.Contains(shown, filepath.Join(dir, "token")) {
		t.Errorf("the printed settings are %s, want the sources of the secrets", shown)
	}
	if len(s.files) != 6 {
		t.Errorf("got watched files %v, want 6", s.files)
	}
	for text, want := range map[string]string{
		"    secret-file: DIR/none\n":                                         "none: no such file",
		"    secret-file: EMPTY\n":                                            "has no secret",
		"    secret-file: TOKEN\n":                                            "whsec_",
		"    secret-env: NOT_SET\n":                                           "NOT_SET is empty or not set",
		"    headers: {X-A: {file: EMPTY}}\n":                                 "is empty",
		"    headers: {X-A: {file: TOKEN, env: API_KEY}}\n":                   "{file: PATH} or {env: NAME}",
		"    headers: {X-A: {flie: TOKEN}}\n":                                 "{file: PATH} or {env: NAME}",
		"    headers: {X-A: 7}\n":                                             "{file: PATH} or {env: NAME}",
		"    headers: {X-A: hunter2}\n":                                       "need hosts or base-url",
		"    headers: {X-A: hunter2, x-a: hunter2}\n    hosts: [x.example]\n": "duplicate",
		"    headers: {Webhook-Id: hunter2}\n    hosts: [x.example]\n":        "set by Belfry",
		"    tls-ca: TOKEN\n":                                                 "no certificate",
		"    tls-cert: CERT\n    hosts: [x.example]\n":                        "tls-cert and tls-key",
		"    mode: both\n":                                                    "binary or structured",
		"    webhook-origin: https://x\n":                                     "must be a DNS name",
		"    webhook-origin: 7\n":                                             "must be a DNS name",
		"    permanent-statuses: [200]\n":                                     "300 to 599",
		"    base-url: ftp://hunter2\n":                                       "base-url must be",
		"    base-url: https://u:hunter2@x\n":                                 "credentials belong into headers",
		"    subjects: [timers.>]\n":                                          "reserved",
		"    hosts: [a/b]\n":                                                  "is not a host",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("service with %s: got error %v, want %q and no secret in it", text, err, want)
		}
	}
}
