package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/belfryio/belfry/internal/natstest"
)

// TestContexts: a context of the nats command line tool, by flag, by variable or by path, has the
// server and the login. A URL in the environment does not override --context; it takes precedence over
// $NATS_CONTEXT.
func TestContexts(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	home := t.TempDir()
	write := func(name string, settings map[string]string) string {
		t.Helper()
		data, err := json.Marshal(settings)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(home, "nats", "context", name+".json")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := write("here", map[string]string{"url": n.nats})
	write("nowhere", map[string]string{"url": "nats://127.0.0.1:1"})
	write("broken", map[string]string{"url": n.nats, "nkey": filepath.Join(home, "missing.nk")})
	config := "XDG_CONFIG_HOME=" + home
	for _, x := range []struct {
		env  []string
		args []string
		code int
		want string
	}{
		{[]string{config}, []string{"ls", "--context", "here"}, exitOK, "the list is empty"},
		{nil, []string{"ls", "--context", path}, exitOK, "the list is empty"},
		{[]string{config, "NATS_CONTEXT=here"}, []string{"ls"}, exitOK, "the list is empty"},
		{[]string{config, "BELFRY_CONTEXT=here", "NATS_CONTEXT=nowhere"}, []string{"ls"}, exitOK, "the list is empty"},
		{[]string{config, "NATS_URL=nats://127.0.0.1:1"}, []string{"ls", "--context", "here"}, exitOK, "the list is empty"},
		{[]string{config, "NATS_CONTEXT=nowhere", "NATS_URL=" + n.nats}, []string{"ls"}, exitOK, "the list is empty"},
		{[]string{config}, []string{"ls", "--context", "nowhere"}, exitUnreachable, "of context nowhere cannot be reached"},
		{[]string{config}, []string{"ls", "--context", "unknown"}, exitUsage, `unknown context "unknown"`},
		{[]string{config}, []string{"ls", "--context", "broken"}, exitUsage, "missing.nk"},
		{[]string{config}, []string{"ls", "--context", "here", "--nats-url", n.nats}, exitUsage, "give neither --nats-url"},
		{[]string{config}, []string{"ls", "--context", "here", "--creds", path}, exitUsage, "give neither --nats-url"},
	} {
		if r := belfryEnv(t, x.env, "", x.args...); r.code != x.code || !strings.Contains(r.err, x.want) {
			t.Errorf("%v %v: %v, want exit code %d and %q", x.env, x.args, r, x.code, x.want)
		}
	}
	n.stop(t)
}

// TestNKey: the seed of an NKey logs in, by flag, variable and context. Without it the server refuses.
func TestNKey(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	srv := natstest.Run(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} })
	file := filepath.Join(t.TempDir(), "user.nk")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	url := "NATS_URL=" + srv.URL()
	belfryEnv(t, []string{url}, "", "tail", "orders").oneLine(t, exitUnreachable, "Authorization Violation")
	for _, x := range []struct{ env, args []string }{
		{[]string{url}, []string{"tail", "orders", "--nkey", file}},
		{[]string{url, "NATS_NKEY=" + file}, []string{"tail", "orders"}},
		{[]string{url, "BELFRY_NKEY=" + file, "NATS_NKEY=/nowhere"}, []string{"tail", "orders"}},
	} {
		belfryEnv(t, x.env, "", x.args...).oneLine(t, exitUnreachable, "this NATS server has no stream TIMERS_FIRED")
	}
	belfryEnv(t, []string{url}, "", "ls", "--nkey", "/nowhere").oneLine(t, exitUsage, "--nkey")
	belfryEnv(t, []string{url}, "", "ls", "--nkey", file, "--creds", file).oneLine(t, exitUsage, "either --creds or --nkey")
}
