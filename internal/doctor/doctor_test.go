package doctor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

func TestMain(m *testing.M) {
	waittest.Parallel(4)
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}

// accounts is a server configuration with an account for Belfry, whose user "asker" may
// read the servers' settings, and a system account.
const accounts = `
accounts {
  APP {
    jetstream: { max_streams: %d }
    users: [
      { user: node, password: pw }
      { user: few, password: pw, permissions: { publish: ["timers.>", "$JS.API.>", "$SYS.REQ.USER.INFO"], subscribe: ["_INBOX.>"] } }
    ]
    imports: [ { service: { account: SYS, subject: "$SYS.REQ.SERVER.PING.JSZ" } } ]
  }
  PLAIN { jetstream: enabled, users: [ { user: plain, password: pw } ] }
  NOJS { users: [ { user: nojs, password: pw } ] }
  SYS {
    users: [ { user: sys, password: pw } ]
    exports: [ { service: "$SYS.REQ.SERVER.PING.JSZ", response_type: stream, accounts: [APP] } ]
  }
}
system_account: SYS
`

// withAccounts is an option for a server with these accounts.
func withAccounts(t *testing.T, maxStreams int) natstest.Option {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(path, fmt.Appendf(nil, accounts, maxStreams), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *server.Options) {
		o.Accounts, o.Users, o.SystemAccount = conf.Accounts, conf.Users, conf.SystemAccount
	}
}

func as(srv *natstest.Server, t *testing.T, user string) *nats.Conn {
	t.Helper()
	return srv.Connect(nats.UserInfo(user, "pw"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// config returns the configuration of a store with few shards.
func config(replicas int) store.Config {
	c := store.Config{Node: "n1", Replicas: replicas, Geometry: schemas.DefaultGeometry()}
	c.Geometry.Shards = 2
	return c
}

func open(t *testing.T, nc *nats.Conn, c store.Config) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), nc, c, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func examine(t *testing.T, o doctor.Options) []doctor.Finding {
	t.Helper()
	findings, err := doctor.Examine(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

// want checks that there is a finding of a check and a level that has the words and an
// advice.
func want(t *testing.T, findings []doctor.Finding, check string, level doctor.Level, words ...string) {
	t.Helper()
	for _, f := range findings {
		has := f.Check == check && f.Level == level
		for _, w := range words {
			has = has && strings.Contains(f.Text+" "+f.Do, w)
		}
		if has {
			if (level == doctor.Error || level == doctor.Warning) && f.Do == "" {
				t.Errorf("finding %+v has no advice", f)
			}
			return
		}
	}
	t.Errorf("got findings %+v, want a finding of check %s at level %s with %q", findings, check, level, words)
}

// none checks that there is no finding of a level.
func none(t *testing.T, findings []doctor.Finding, level doctor.Level) {
	t.Helper()
	for _, f := range findings {
		if f.Level == level {
			t.Errorf("got finding %+v, want none of level %s", f, level)
		}
	}
}

func TestFreshServer(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	f := examine(t, doctor.Options{Conn: srv.Connect(), Safe: true, Loopback: true})
	none(t, f, doctor.Error)
	none(t, f, doctor.Warning)
	want(t, f, "version", doctor.OK, "2.")
	want(t, f, "zones", doctor.OK, calendar.ZoneDataVersion)
	want(t, f, "streams", doctor.OK, "belfry serve")
	want(t, f, "permissions", doctor.OK)
	want(t, f, "sync", doctor.Unknown, "sync_interval: always", "--sys-creds")
}

// TestOldServer: doctor reports a server whose version is too old.
func TestOldServer(t *testing.T) {
	t.Parallel()
	nc, err := nats.Connect(natstest.Greeting(t, "2.10.29"), nats.NoReconnect())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	f := examine(t, doctor.Options{Conn: nc, Timeout: 100 * time.Millisecond})
	want(t, f, "version", doctor.Error, "2.10.29", "2.11", "upgrade")
	want(t, f, "jetstream", doctor.Error, "does not answer")
}

func TestNoJetStream(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, natstest.NoJetStream)
	want(t, examine(t, doctor.Options{Conn: srv.Connect()}), "jetstream", doctor.Error, "-js")
	srv = natstest.Run(t, withAccounts(t, 100))
	want(t, examine(t, doctor.Options{Conn: as(srv, t, "nojs")}), "jetstream", doctor.Error, "account")
}

// TestSync: the result of the check for each combination of server settings and
// permissions.
func TestSync(t *testing.T) {
	t.Parallel()
	always, later := natstest.Run(t, withAccounts(t, 100), natstest.SyncAlways), natstest.Run(t, withAccounts(t, 100))
	for _, tt := range []struct {
		name  string
		srv   *natstest.Server
		user  string
		sys   bool
		safe  bool
		level doctor.Level
		word  string
	}{
		{"always, imported", always, "node", false, true, doctor.OK, "every server syncs"},
		{"always, system account", always, "plain", true, true, doctor.OK, "every server syncs"},
		{"not told", always, "plain", false, true, doctor.Unknown, "does not report"},
		{"later, safe", later, "node", false, true, doctor.Error, "sync_interval: always"},
		{"later, fast", later, "plain", true, false, doctor.Warning, "sync_interval: always"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := doctor.Options{Conn: as(tt.srv, t, tt.user), Safe: tt.safe}
			if tt.sys {
				o.Sys = as(tt.srv, t, "sys")
			}
			want(t, examine(t, o), "sync", tt.level, tt.word)
		})
	}
}

// TestNodesTell: a node with an embedded server announces its settings.
func TestNodesTell(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.Connect()
	s := open(t, nc, config(1))
	for level, sync := range map[doctor.Level]string{doctor.OK: store.SyncAlways, doctor.Error: store.SyncInterval} {
		s.Announce(func(p *store.Presence) { p.Sync = sync })
		if _, err := s.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, examine(t, doctor.Options{Conn: nc, Store: config(1), Safe: true}), "sync", level)
	}
}

// TestNodesDiffer: doctor warns about settings that differ between nodes, and about nodes
// of an older version.
func TestNodesDiffer(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.Connect()
	beat := func(node, lease, retention string) {
		t.Helper()
		c := config(1)
		c.Node = node
		s := open(t, nc, c)
		s.Announce(func(p *store.Presence) { p.Settings = map[string]string{"lease": lease, "retention": retention} })
		if _, err := s.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	warned := func(check string) bool {
		t.Helper()
		return slices.ContainsFunc(examine(t, doctor.Options{Conn: nc, Store: config(1)}), func(f doctor.Finding) bool { return f.Check == check })
	}
	beat("a", "3s", "24h0m0s")
	beat("b", "3s", "24h0m0s")
	if warned("settings") || warned("formats") {
		t.Error("got a warning about settings or formats, want none: the nodes agree")
	}
	beat("c", "10s", "24h0m0s")
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1)}), "settings", doctor.Warning, "lease: a 3s, b 3s, c 10s", "same lease")
	if slices.ContainsFunc(examine(t, doctor.Options{Conn: nc, Store: config(1)}), func(f doctor.Finding) bool { return f.Check == "zones" && f.Level != doctor.OK }) {
		t.Error("got a finding of check zones, want none: the nodes announce no time zone data")
	}
	if _, err := nc.Request("$KV.clock.node.shared", []byte(`{"v":1,"reads":5,"shared":true}`), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1)}), "nodes", doctor.Error, "node name shared", "own --node")
	if _, err := nc.Request("$KV.clock.node.zones", []byte(`{"v":1,"reads":5,"zones":"2019a"}`), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1)}), "zones", doctor.Warning, "zones 2019a", "same version")
	if _, err := nc.Request("$KV.clock.node.old", []byte(`{"v":1,"reads":1}`), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1)}), "formats", doctor.Warning, "no schedules can be added", "older format")
}

// TestOlderNodeIgnoresLimits: doctor reports a node that makes callbacks and knows no flow limits, if
// there are limits.
func TestOlderNodeIgnoresLimits(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc, config(1))
	if _, err := s.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1)}), "flows", doctor.OK, "0 flow limits")
	waittest.Until(t, "limits may be stored", func() bool { return s.CanLimit() == nil })
	if _, err := s.PutLimit(t.Context(), store.FlowLimit{Pattern: "api.example.com", Limit: flow.Limit{Parallel: 1}}, 0); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1)}), "flows", doctor.OK, "1 flow limits", "every node")
	for name, presence := range map[string]string{"old": `{"v":1,"reads":5,"roles":["functions"]}`, "planner": `{"v":1,"reads":5,"roles":["scheduler"]}`} {
		if _, err := nc.Request("$KV.clock.node."+name, []byte(presence), 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	f := examine(t, doctor.Options{Conn: nc, Store: config(1)})
	want(t, f, "flows", doctor.Error, "1 flow limits: old", "upgrade")
	if i := slices.IndexFunc(f, func(f doctor.Finding) bool { return f.Check == "flows" }); strings.Contains(f[i].Text, "planner") {
		t.Errorf("got %q, want only the node that makes callbacks", f[i].Text)
	}
}

// TestFastProfileIsNoError: the fast profile that nodes announce is accepted, unless the
// settings of the examination name a profile, or a node has the safe one.
func TestFastProfileIsNoError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		profile     string
		nodesDecide bool
		level       doctor.Level
	}{
		{"fast", true, doctor.Warning},
		{"fast", false, doctor.Error},
		{"safe", true, doctor.Error},
		{"", true, doctor.Error}, // a node of an older version
	} {
		srv := natstest.Run(t)
		nc := srv.Connect()
		s := open(t, nc, config(1))
		s.Announce(func(p *store.Presence) { p.Sync, p.Profile = store.SyncInterval, tt.profile })
		if _, err := s.Beat(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, examine(t, doctor.Options{Conn: nc, Store: config(1), Safe: true, NodesDecide: tt.nodesDecide}), "sync", tt.level)
	}
}

func TestLimitsAndPermissions(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, withAccounts(t, 3))
	f := examine(t, doctor.Options{Conn: as(srv, t, "few")})
	want(t, f, "limits", doctor.Error, "3 streams", "creates 14")
	want(t, f, "permissions", doctor.Error, "publish to $KV.clock.>", "subscribe to timers.api.>")
	want(t, examine(t, doctor.Options{Conn: as(srv, t, "node")}), "permissions", doctor.OK)
}

// TestStreams: streams as a node creates them are fine; changed ones are reported.
func TestStreams(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, withAccounts(t, 100), natstest.SyncAlways)
	nc := as(srv, t, "node")
	s := open(t, nc, config(1))
	if _, err := s.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := doctor.Options{Conn: nc, Store: config(1), Safe: true}
	f := examine(t, o)
	want(t, f, "streams", doctor.OK, "12 streams")
	want(t, f, "nodes", doctor.OK, "nodes alive: 1")
	want(t, f, "clock", doctor.OK)
	want(t, f, "shards", doctor.Error, "shard 0", "role scheduler") // no scheduler runs

	js := natstest.JetStream(t, nc)
	fired, err := js.Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	cfg := fired.CachedInfo().Config
	cfg.MaxAge *= 2
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), schemas.StreamRetry); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), schemas.StreamDead); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: schemas.StreamDead, Subjects: []string{"timers.dead.*"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	o.Store.Replicas, o.Store.Geometry.Shards = 3, 5
	f = examine(t, o)
	want(t, f, "streams", doctor.Warning, schemas.StreamFired, "maximum age")
	want(t, f, "streams", doctor.Error, schemas.StreamRetry, "missing")
	want(t, f, "streams", doctor.Error, schemas.StreamDead, "storage")
	want(t, f, "streams", doctor.Error, "2 shards")
	want(t, f, "streams", doctor.Warning, "replicas 1", "3")
	want(t, f, "replicas", doctor.Error, "3 replicas", "add servers")
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := natstest.Cluster3(t)
	nc := c.Connect()
	open(t, nc, config(1)).Close()
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1), Safe: true}), "replicas", doctor.Warning, "replicas 3")
	s := open(t, nc, config(3))
	if _, err := s.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := doctor.Options{Conn: nc, Store: config(3), Safe: true}
	replicas := func(level doctor.Level, text string) func() bool {
		return func() bool {
			return slices.ContainsFunc(examine(t, o), func(f doctor.Finding) bool {
				return f.Check == "replicas" && f.Level == level && strings.Contains(f.Text, text)
			})
		}
	}
	waittest.Until(t, "all replicas are up to date", replicas(doctor.OK, ""))
	want(t, examine(t, o), "sync", doctor.Unknown, "replicated")
	for _, srv := range c.Servers {
		if c.StreamLeader("KV_clock") != srv && nc.ConnectedAddr() != srv.Addr().String() {
			srv.Stop()
			break
		}
	}
	waittest.Until(t, "a warning of an offline replica", replicas(doctor.Warning, "behind or offline"))
}

// TestFailingOrder: doctor names the ordering keys whose event has failed for more than an hour, and
// the event.
func TestFailingOrder(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	s := open(t, nc, config(1))
	if _, err := s.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1)}), "order", doctor.OK, "no ordering key waits")
	nowMs := time.Now().UnixMilli()
	hold := func(id string, turnMs int64, attempts int) schemas.TimerID {
		t.Helper()
		rec := schemas.Record{
			Definition: schemas.Definition{AddedMs: turnMs, Service: "orders", Source: "/test", EventID: id, Type: "t", Key: "key-" + id, Callback: "https://example.com", Body: schemas.Body{Data: []byte(`{}`)}},
			RunState:   schemas.RunState{State: schemas.StateRetrying, Queued: true, Run: 1, MaxAttempt: 36, DueMs: nowMs + 3_600_000, NextMs: nowMs + 3_600_000, ScheduledMs: turnMs, FiredMs: turnMs},
		}
		for range attempts {
			rec.AddAttempt(turnMs, time.Second, schemas.Outcome{Code: 503, Error: "HTTP status 503"})
		}
		timer := rec.TimerID()
		if r := s.Create(t.Context(), []store.Write{{ID: timer, Record: &rec}}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		for n, e := range []order.Event{{DueMs: turnMs, AddedMs: turnMs, ID: timer}, {DueMs: turnMs, AddedMs: turnMs, ID: schemas.NewTimerID("/test", id+"-next")}} {
			asks := []order.Ask{{Kind: order.Join, Event: e}}
			if _, err := s.DecideOrder(t.Context(), store.OrderKey{Service: "orders", Key: rec.Key}, "n", func() int64 { return turnMs + int64(n) }, asks); err != nil {
				t.Fatal(err)
			}
		}
		return timer
	}
	long := nowMs - 2*time.Hour.Milliseconds()
	id := hold("fails", long, 12)
	hold("waits", long, 0)
	hold("new", nowMs-time.Minute.Milliseconds(), 12)
	f := examine(t, doctor.Options{Conn: nc, Store: config(1)})
	want(t, f, "order", doctor.Warning, "timer "+id.String()+" holds up ordering key key-fails of service orders since "+schemas.FormatTime(long), "12 of 36 attempts have failed (HTTP status 503); events that wait: 1", "belfry cancel "+id.String())
	n := 0
	for _, x := range f {
		if x.Check == "order" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("got %d findings about ordering keys in %+v, want 1", n, f)
	}
	for i := range 11 {
		hold(fmt.Sprint("fails", i), long, 1)
	}
	want(t, examine(t, doctor.Options{Conn: nc, Store: config(1)}), "order", doctor.Warning, "may be more ordering keys", "belfry order ls -n 0")
}
