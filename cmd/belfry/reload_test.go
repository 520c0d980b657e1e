package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
)

// TestSecretIsRotatedUnderLoad checks that a running node uses a new secret when its file
// changes, that every callback is signed with a valid secret meanwhile, and that a
// configuration with a mistake changes only the log and a metric.
func TestSecretIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	const next = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	var byOld, byBoth, byNew, invalid atomic.Int64
	verify := func(secret string, body []byte, h http.Header) bool {
		w, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Error(err)
			return false
		}
		return w.Verify(body, h) == nil
	}
	callee := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the connection is closed when the test ends
		}
		switch before, after := verify(secret, body, r.Header), verify(next, body, r.Header); {
		case before && after:
			byBoth.Add(1)
		case before:
			byOld.Add(1)
		case after:
			byNew.Add(1)
		default:
			invalid.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(callee.Close)

	secrets := filepath.Join(t.TempDir(), "secrets")
	write := func(path, text string) {
		t.Helper()
		// Replace the file in one step, as in production.
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(secrets, secret+"\n")
	config := writeConfig(t, "services:\n  orders:\n    secret-file: "+secrets+"\n")
	n := serve(t, "", "--config", config)
	c, err := belfry.Connect(t.Context(), n.nats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	var timers []schemas.TimerID
	add := func() {
		t.Helper()
		e := event.New()
		e.SetID(uuid.NewString())
		e.SetSource("/rotation")
		e.SetType("t")
		r, err := c.Add(t.Context(), e, belfry.After(0), belfry.WithService("orders"), belfry.WithCallback(callee.URL))
		if err != nil {
			t.Fatal(err)
		}
		timers = append(timers, r.Timer)
	}
	metric := func(line string) func() bool {
		return func() bool {
			add()
			_, body := httpGet(t, "http://"+n.http+"/metrics")
			return strings.Contains(body, line)
		}
	}
	until := func(counter *atomic.Int64) {
		t.Helper()
		from := counter.Load()
		waittest.Until(t, "10 more callbacks with this signature", func() bool { add(); return counter.Load() > from+10 })
	}
	until(&byOld)
	write(secrets, secret+"\n"+next+"\n")
	until(&byBoth)
	write(secrets, next+"\n")
	until(&byNew)

	write(secrets, "whsec_hunter2\n")
	waittest.Until(t, "the metric says that the reload failed", metric("belfry_config_reload_successful 0"))
	old, both := byOld.Load(), byBoth.Load()
	until(&byNew)
	if byOld.Load() != old || byBoth.Load() != both {
		t.Errorf("after the old secret was removed: %d callbacks with the old secret and %d with both, want %d and %d as before", byOld.Load(), byBoth.Load(), old, both)
	}
	if line := n.logged(t, "was not reloaded"); !strings.Contains(line, "orders") || strings.Contains(line, "hunter2") {
		t.Errorf("log of the failed reload: got %s, want the service and no secret", line)
	}
	write(secrets, next+"\n")
	waittest.Until(t, "the metric says that the reload succeeded", metric("belfry_config_reload_successful 1"))

	// The config file itself, with a setting that needs a restart.
	write(config, "retention: 3h\ncallback-hosts: [example.com]\nservices:\n  orders:\n    secret-file: "+secrets+"\n    hosts: [127.0.0.1]\n")
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if line := n.logged(t, "take effect at the next start"); !strings.Contains(line, `["retention"]`) {
		t.Errorf("log of the reload: got %s, want the setting retention", line)
	}
	r := n.client(t, "add", "--in", "1ms", "--svc", "bills", "--callback", callee.URL)
	if r.code != exitRefused || !strings.Contains(r.err, "callback-hosts") {
		t.Errorf("add with a host that is no longer allowed: got %v, want exit code %d and the setting callback-hosts", r, exitRefused)
	}
	until(&byNew)

	for _, id := range timers {
		waittest.Until(t, "timer "+id.String()+" succeeds", func() bool {
			i, err := c.Get(t.Context(), id)
			if err == nil && i.State == schemas.StateSuccess && i.Attempts != 1 {
				t.Errorf("timer %s needed %d attempts, want 1: %+v", id, i.Attempts, i.LastAttempts)
			}
			return err == nil && i.State == schemas.StateSuccess
		})
	}
	if invalid.Load() != 0 {
		t.Errorf("got %d callbacks without a valid signature, want none", invalid.Load())
	}
	t.Logf("%d timers; signed with the old secret %d, both %d, the new one %d", len(timers), byOld.Load(), byBoth.Load(), byNew.Load())
	n.stop(t)
}

// TestReloadWithZeroFlag: a reload accepts the flags of the start, also a duration of 0.
func TestReloadWithZeroFlag(t *testing.T) {
	t.Parallel()
	config := writeConfig(t, "callback-hosts: [example.com]\n")
	n := serve(t, "", "--service-idle", "0s", "--config", config)
	if err := os.WriteFile(config, []byte("callback-hosts: [other.example.com]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.logged(t, "the configuration was ")
	if line, failed := n.log.Line("was not reloaded"); failed {
		t.Errorf("log of the reload: %s", line)
	}
}

// TestReloadOfEmptyFile: a config file that has lost its text is a mistake, and the previous configuration stays in use.
func TestReloadOfEmptyFile(t *testing.T) {
	t.Parallel()
	config := writeConfig(t, "callback-hosts: [example.com]\n")
	n := serve(t, "", "--config", config)
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if line := n.logged(t, "the configuration was "); !strings.Contains(line, "not reloaded") || !strings.Contains(line, "is empty") {
		t.Errorf("log of the reload of an empty file: got %s, want the reason why it was not reloaded", line)
	}
	n.client(t, "add", "--in", "1ms", "--callback", "http://other.example.com").oneLine(t, exitRefused, "callback-hosts")
}

// TestReloadOfUsers: a change of the users needs a restart, which the log says without their passwords.
func TestReloadOfUsers(t *testing.T) {
	t.Parallel()
	text := func(password string) string {
		return "nats-users: [{name: a, admin: true, password: hunter2-" + password + "}]\n"
	}
	config := writeConfig(t, text("one"))
	n := serve(t, "", "--config", config)
	if err := os.WriteFile(config, []byte(text("another")), 0o600); err != nil {
		t.Fatal(err)
	}
	n.logged(t, "the configuration was reloaded")
	if line, _ := n.log.Line("take effect at the next start"); !strings.Contains(line, `["nats-users"]`) || strings.Contains(line, "hunter2") {
		t.Errorf("log of the reload: got %s, want the setting nats-users without a password", line)
	}
}

// TestHangup: a SIGHUP during the start of a node becomes one reload when the node runs. During its stop it has no effect.
func TestHangup(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	connected, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := tcptest.Serve(t, func(c net.Conn) {
		once.Do(func() { close(connected) })
		<-let
		to, err := net.Dial("tcp", strings.TrimPrefix(srv.URL(), "nats://"))
		if err != nil {
			return
		}
		go func() {
			defer to.Close()
			io.Copy(to, c)
		}()
		io.Copy(c, to)
	})
	hold := make(chan struct{})
	called := make(chan struct{}, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		called <- struct{}{}
		<-hold
	}))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(hold) })
	n := begin(t, []string{"--http", "-", "--shards", "2", "--allow-loopback", "--nats-url", "nats://" + slow})
	hangup := func() {
		t.Helper()
		if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	waittest.Receive(t, "the node connects", connected, n.log.String)
	hangup()
	close(let)
	n.logged(t, "the configuration was reloaded")

	n.nats = srv.URL()
	ok[added](t, n, "add", "--in", "1ms", "--callback", hook.URL)
	waittest.Receive(t, "the callback runs", called, n.log.String)
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	n.logged(t, `"stopping"`)
	hangup()
	waittest.Receive(t, "the end of the process", n.done, n.log.String)
	if code := n.cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("after SIGHUP during the stop: got exit code %d, want 0: %s", code, n.log.String())
	}
	if got := n.log.Count("the configuration was reloaded"); got != 1 {
		t.Errorf("the node has reloaded %d times, want once: %s", got, n.log.String())
	}
}
