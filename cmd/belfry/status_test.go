package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/status"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
)

// statusJSON is the answer of status.
type statusJSON = status.Status

// TestStatus: status with two nodes on one server, waiting timers and a dead letter; then
// with one node, and with none.
func TestStatus(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	belfryRun(t, "status", "--nats-url", srv.URL()).oneLine(t, exitUnreachable, "no Belfry has run there")
	a, b := serveOn(t, srv.URL(), "--node", "a", "--allow-loopback"), serveOn(t, srv.URL(), "--node", "b", "--allow-loopback", "--roles", "scheduler,functions")
	a.nats = srv.URL()
	for _, id := range []string{"1", "2", "3"} {
		ok[added](t, a, "add", "--in", "1h", "--id", id)
	}
	ok[added](t, a, "add", "--in", "1ms", "--svc", "orders", "--callback", "http://127.0.0.1:1/", "--max-attempts", "1")
	belfryRun(t, "add", "--in", "1s", "--svc", "a.b", "--nats-url", srv.URL()).oneLine(t, exitRefused)
	var st statusJSON
	deadLetter := []string{"dead letters: 1 (see belfry dead ls)"}
	waittest.Until(t, "status counts both nodes and all timers", func() bool {
		st = ok[statusJSON](t, a, "status")[0]
		return st.Totals.Dead == 1 && st.Totals.Pending != nil && *st.Totals.Pending == 3 && len(st.Nodes) == 2 && st.Nodes[0].Shards == 1 && st.Nodes[1].Shards == 1
	})
	if !slices.Equal(st.Problems, deadLetter) || len(st.Shards) != 2 || st.Dead["orders"] != 1 || st.Nodes[0].Node != "a" || !slices.Contains(st.Nodes[0].Roles, "router") ||
		slices.Contains(st.Nodes[1].Roles, "router") || st.Nodes[0].Version != version || len(st.Streams) != 12 {
		t.Errorf("got status %+v, want 2 shards, 12 streams, 1 dead letter, and nodes a and b with their roles and version", st)
	}
	if f := st.Formats; f.Level != store.NewestLevel || f.Newest != store.NewestLevel || len(f.HeldBackBy) > 0 || st.Nodes[0].Reads != store.NewestLevel {
		t.Errorf("got formats %+v of nodes %+v, want the newest level on all nodes", f, st.Nodes)
	}
	for _, sh := range st.Shards {
		if sh.Owner == "" || sh.LagMs > bound.Milliseconds() || sh.Mark.IsZero() || sh.Epoch == 0 {
			t.Errorf("got shard %+v, want an owner, an epoch, a low watermark and a lag below %s", sh, bound)
		}
	}
	if !slices.ContainsFunc(st.Consumers, func(c store.ConsumerHealth) bool { return c.Name == "router" && c.Belfry && c.Pulls > 0 }) {
		t.Errorf("got consumers %+v, want the router's, with pull requests", st.Consumers)
	}
	text := a.client(t, "status")
	for _, w := range []string{"pending 3", "dead 1", fmt.Sprintf("formats: level %d, records of format 2\n", store.NewestLevel), "NODE", "SHARD", "TIMERS_FIRED", "belfry_orders", "PROBLEMS: dead letters: 1"} {
		if !strings.Contains(text.out, w) {
			t.Errorf("status: got %s, want %q in it", text.out, w)
		}
	}
	b.stop(t)
	waittest.Until(t, "node a owns both shards", func() bool {
		st = ok[statusJSON](t, a, "status")[0]
		return slices.Equal(st.Problems, deadLetter) && st.Shards[0].Owner == "a" && st.Shards[1].Owner == "a"
	})
	a.stop(t)
	st = ok[statusJSON](t, a, "status")[0]
	if !slices.Contains(st.Problems, "shard 0 has no owner") || !slices.Contains(st.Problems, "shard 1 has no owner") {
		t.Errorf("status without a node: got problems %v, want no owner of shards 0 and 1", st.Problems)
	}
}

// TestStatusWatch: status --watch prints again and again, also while the server is away,
// and ends with SIGINT.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	cmd := command(t, []string{"NATS_URL=" + n.nats}, "status", "--watch", "-o", "json", "--timeout", "500ms")
	out, in := io.Pipe()
	errs, errIn := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, errIn
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	for range 2 {
		line, err := r.ReadString('\n')
		var st statusJSON
		if err != nil || json.Unmarshal([]byte(line), &st) != nil || len(st.Shards) != 2 {
			t.Fatalf("status --watch: got line %s (%v), want a status with 2 shards", line, err)
		}
	}
	n.stop(t)
	if line, err := bufio.NewReader(errs).ReadString('\n'); err != nil || !strings.Contains(line, `"unavailable"`) {
		t.Errorf("status --watch without its server: got stderr %s (%v), want the code unavailable", line, err)
	}
	go io.Copy(io.Discard, errs)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("status --watch after SIGINT: got %v, want exit code 0", err)
	}
}

// TestDoctor: doctor with a healthy node, with a node whose server does not report its
// settings, and without a node.
func TestDoctor(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	listen := strings.TrimPrefix(n.nats, "nats://")
	type report struct {
		Errors   int
		Findings []doctor.Finding
	}
	levels := func(r result) map[string]doctor.Level {
		m := map[string]doctor.Level{}
		for _, f := range parseLines[report](t, r.out)[0].Findings {
			m[f.Check] = f.Level
		}
		return m
	}
	// The clock of a shard without owner is an error until the node has taken the shard.
	var r result
	waittest.Until(t, "doctor succeeds", func() bool {
		r = belfryRun(t, "doctor", "--nats-listen", listen, "-o", "json")
		return r.code == exitOK
	})
	if m := levels(r); m["sync"] != doctor.OK || m["shards"] != doctor.OK || m["version"] != doctor.OK || m["streams"] != doctor.OK {
		t.Errorf("doctor: got %s, want OK for sync, shards, version and streams", r.out)
	}
	if m := levels(n.client(t, "doctor", "-o", "json")); m["shards"] != doctor.OK || m["accounts"] != doctor.OK {
		t.Errorf("doctor with NATS_URL: got levels %v, want OK for shards and accounts", m)
	}
	if r := belfryRun(t, "doctor", "--nats-url", n.nats); r.code != exitOK || !strings.Contains(r.out, "listens only on this machine") {
		t.Errorf("doctor --nats-url: got %v, want no warning of accounts", r)
	}
	if r := belfryRun(t, "doctor", "--nats-listen", listen); r.code != exitOK || !strings.Contains(r.out, "OK       sync") {
		t.Errorf("doctor as text: got %v, want exit code 0 and OK for sync", r)
	}
	r = belfryRun(t, "doctor", "--nats-listen", listen, "--shards", "7", "-o", "json")
	if m := levels(r); r.code != exitUnhealthy || m["streams"] != doctor.Error || !strings.Contains(r.err, "unhealthy") {
		t.Errorf("doctor with other settings: got %v, want exit code %d and an error of check streams", r, exitUnhealthy)
	}
	belfryRun(t, "doctor", "--nats-listen", "127.0.0.1:1").oneLine(t, exitUnreachable, "127.0.0.1:1")
	belfryRun(t, "doctor", "--nats-listen", listen, "--sys-url", "nats://127.0.0.1:1").oneLine(t, exitUnreachable, "system account")
}

// TestDoctorOfFastNode: the fast profile that a node announces is not an error, unless
// the settings name the safe one.
func TestDoctorOfFastNode(t *testing.T) {
	t.Parallel()
	n := serve(t, "", "--profile", "fast")
	listen := strings.TrimPrefix(n.nats, "nats://")
	var r result
	waittest.Until(t, "doctor succeeds with all shards", func() bool {
		r = belfryRun(t, "doctor", "--nats-listen", listen)
		return r.code == exitOK && strings.Contains(r.out, "OK       shards")
	})
	if !strings.Contains(r.out, "WARNING  sync") {
		t.Errorf("doctor: got %s, want a warning of check sync", r.out)
	}
	if r := belfryRun(t, "doctor", "--nats-listen", listen, "--profile", "safe"); r.code != exitUnhealthy || !strings.Contains(r.out, "ERROR    sync") {
		t.Errorf("doctor --profile safe: got %v, want exit code %d and an error of check sync", r, exitUnhealthy)
	}
}

// TestProfileOfAnotherServer: a node warns if the server's settings do not permit the
// promised profile, or are unknown.
func TestProfileOfAnotherServer(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(conf, []byte(`
accounts {
  APP { jetstream: enabled, users: [ { user: node, password: pw } ], imports: [ { service: { account: SYS, subject: "$SYS.REQ.SERVER.PING.JSZ" } } ] }
  SYS { exports: [ { service: "$SYS.REQ.SERVER.PING.JSZ", response_type: stream, accounts: [APP] } ] }
}
system_account: SYS`), 0o600); err != nil {
		t.Fatal(err)
	}
	told := func(o *server.Options) {
		c, err := server.ProcessConfigFile(conf)
		if err != nil {
			t.Fatal(err)
		}
		o.Accounts, o.Users, o.SystemAccount = c.Accounts, c.Users, c.SystemAccount
	}
	url := func(srv *natstest.Server) string { return strings.Replace(srv.URL(), "nats://", "nats://node:pw@", 1) }
	const warning = "DOES NOT REPORT WHETHER IT SYNCS"

	later := natstest.Run(t, told)
	belfryRun(t, "serve", "--http", "-", "--nats-url", url(later)).oneLine(t, exitUsage, "profile safe", "sync_interval: always", "--replicas 3", "--profile fast")
	if n := serveOn(t, url(later), "--profile", "fast"); strings.Contains(n.log.String(), warning) {
		t.Errorf("profile fast on a server that syncs later: got log %s, want no warning", n.log.String())
	}
	if n := serveOn(t, url(natstest.Run(t, told, natstest.SyncAlways))); strings.Contains(n.log.String(), warning) {
		t.Errorf("profile safe on a server that syncs always: got log %s, want no warning", n.log.String())
	}
	plain := natstest.Run(t)
	if n := serveOn(t, plain.URL()); strings.Count(n.log.String(), warning) != 1 {
		t.Errorf("profile safe on a server that does not report its settings: got log %s, want one warning", n.log.String())
	}
	if n := serveOn(t, plain.URL(), "--profile", "fast"); strings.Contains(n.log.String(), warning) {
		t.Errorf("profile fast on a server that does not report its settings: got log %s, want no warning", n.log.String())
	}
}
