package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

type added struct {
	Timer     schemas.TimerID
	ID        string
	Source    string
	Due       string
	Duplicate bool
	State     string
}

// TestRoundTrip adds two timers on the command line. The first fires and is called back, the
// second is cancelled.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	got := make(chan string, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- string(b)
	}))
	t.Cleanup(hook.Close)

	first := ok[added](t, n, "add", "--in", "500ms", "--svc", "orders", "--callback", hook.URL, "--data", `{"n":1}`, "--group", "g", "--max-attempts", "2",
		"--backoff", "1s..2s", "--callback-timeout", "3s", "--type", "t", "--ext", "color=red", "--id", "one", "--source", "/shop")[0]
	if first.ID != "one" || first.Source != "/shop" || first.Duplicate || first.State != "pending" || first.Timer != schemas.NewTimerID("/shop", "one") {
		t.Errorf("add: got %+v, want the new timer one of source /shop, pending", first)
	}
	if body := waittest.Receive(t, "a callback", got); body != `{"n":1}` {
		t.Errorf("the callback received %s, want the data {\"n\":1}", body)
	}
	waittest.Until(t, "the timer succeeds", func() bool {
		return ok[schemas.TimerInfo](t, n, "get", first.Timer.String())[0].State == schemas.StateSuccess
	})
	info := ok[schemas.TimerInfo](t, n, "get", "one", "--source", "/shop")[0]
	if info.Group != "g" || info.MaxAttempts != 2 || info.Type != "t" || info.Attempts != 1 || info.Outcome == nil || info.Outcome.Code != 200 {
		t.Errorf("get: got %+v, want the options of the add and one attempt with status 200", info)
	}
	if c := info.Claim; c == nil || c.Epoch == 0 || c.Node == "" || c.Message != first.Timer.String()+".1" || c.Sequence == 0 {
		t.Errorf("get: got claim %+v, want the node, its epoch, and the message and its sequence", c)
	} else if r := n.client(t, "get", "one", "--source", "/shop"); !strings.Contains(r.out, claimLine(c)+"\n") || !strings.Contains(r.out, publishedLine(c)+"\n") {
		t.Errorf("get as text: got %v, want the lines %q and %q", r, claimLine(c), publishedLine(c))
	}
	if a := info.LastAttempts; len(a) != 1 || a[0].Attempt != 1 || a[0].Status != 200 || a[0].At.Before(info.Fired) {
		t.Errorf("get: got attempts %+v, want one with status 200, not before %s", a, info.Fired)
	} else if r := n.client(t, "get", "one", "--source", "/shop"); !strings.Contains(r.out, (&cli{}).attemptLine(a[0])+"\n") || !strings.HasPrefix((&cli{}).attemptLine(a[0]), "1 at "+showTime(a[0].At)+", ") {
		t.Errorf("get as text: got %v, want the line %q", r, (&cli{}).attemptLine(a[0]))
	}

	far := []string{"add", "--in", "1h", "--svc", "orders", "--id", "far", "--data", "text"}
	if a := ok[added](t, n, far...)[0]; a.Duplicate || a.Source != "belfry-cli" {
		t.Errorf("add: got %+v, want a new timer of source belfry-cli", a)
	}
	if a := ok[added](t, n, far...)[0]; !a.Duplicate {
		t.Errorf("repeated add: got %+v, want a duplicate", a)
	}
	n.client(t, append(far, "--ext", "other=1")...).oneLine(t, exitRefused)
	moved := ok[schemas.TimerInfo](t, n, "reschedule", "far", "--source", "belfry-cli", "--at", "2030-01-02T03:04:05.678Z")
	if showTime(moved[0].Due) != "2030-01-02T03:04:05.678Z" {
		t.Errorf("reschedule: due at %s, want 2030-01-02T03:04:05.678Z", moved[0].Due)
	}
	ok[schemas.TimerInfo](t, n, "reschedule", "far", "--source", "belfry-cli", "--in", "PT2H")
	if l := ok[schemas.TimerInfo](t, n, "ls", "--svc", "orders", "--state", "pending"); len(l) != 1 || l[0].ID != "far" {
		t.Errorf("ls: got %+v, want only the timer far", l)
	}
	if c := ok[schemas.TimerInfo](t, n, "cancel", "far", "--source", "belfry-cli"); c[0].State != schemas.StateCancelled {
		t.Errorf("cancel: got %+v, want state cancelled", c)
	}
	told := ok[schemas.TimerInfo](t, n, "get", "far", "--source", "belfry-cli")[0].History
	if len(told) != 3 || told[0].Op != "reschedule" || told[2].Op != "cancel" || told[2].By != whoami() || told[2].By == "" {
		t.Errorf("history: got %+v, want two reschedules and a cancel by %q", told, whoami())
	}
	if r := n.client(t, "get", "far", "--source", "belfry-cli"); !strings.Contains(r.out, "cancel at "+showTime(told[2].At)+", by "+told[2].By+" (name not verified)") {
		t.Errorf("get as text: got %v, want the cancel with its time and caller", r)
	}
	n.client(t, "cancel", "far", "--source", "belfry-cli", "--by", "a\nb").oneLine(t, exitUsage, "--by")
	past := []string{"add", "--at", "2020-01-02T03:04:05Z", "--svc", "late"}
	if r := n.client(t, past...); r.code != exitOK || !strings.Contains(r.out, "ago: fires now") {
		t.Errorf("add in the past: got %v, want exit code 0 and the remark \"ago: fires now\"", r)
	}
	var late struct {
		LatenessMs int64 `json:"lateness_ms"`
	}
	r := n.client(t, "tail", "late", "--since", "1h", "-n", "1", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &late); err != nil || late.LatenessMs > time.Hour.Milliseconds() {
		t.Errorf("tail: got %q (%v), want the event, late since its add and not since 2020", r.out, err)
	}
	n.client(t, "cancel", first.Timer.String()).oneLine(t, exitRefused, "success")
	r = n.client(t, "reschedule", "far", "--source", "belfry-cli", "--in", "1h", "-o", "json")
	r.oneLine(t, exitRefused)
	e := parseLines[struct {
		Error struct{ Code, Message string }
	}](t, r.err)[0].Error
	if e.Code != "already_done" || e.Message == "" {
		t.Errorf("error in JSON: got %s, want code already_done and a message", r.err)
	}

	for name, want := range map[string]string{"ls": "far", "get " + first.Timer.String(): "callback", "version": "belfry", "dead ls": "", "config check": "ok", "config print": "nats-listen"} {
		if r := n.client(t, strings.Fields(name)...); r.code != exitOK || !strings.Contains(r.out, want) {
			t.Errorf("belfry %s: got %v, want exit code 0 and %q", name, r, want)
		}
	}
	if r := n.client(t, "ls", "-n", "1"); strings.Count(r.out, "\n") != 2 || !strings.Contains(r.err, "-n 0") {
		t.Errorf("ls -n 1: got %v, want a header, one timer, and a hint at -n 0 on stderr", r)
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if code, body := httpGet(t, "http://"+n.http+path); code != http.StatusOK {
			t.Errorf("GET %s: got status %d, body %s, want status 200", path, code, body)
		}
	}
	n.stop(t)
}

// TestTail: tail shows events live, from the past, and as text.
func TestTail(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	live := command(t, []string{"NATS_URL=" + n.nats}, "tail", "orders", "-o", "json", "-n", "2")
	var printed logtest.Buffer
	live.Stdout = &printed
	if err := live.Start(); err != nil {
		t.Fatal(err)
	}
	// Add timers until the tail, which starts at an unknown time, has shown two.
	ended := make(chan error, 1)
	go func() { ended <- live.Wait() }()
	count := 0
	for running := true; running; count++ {
		ok[added](t, n, "add", "--in", "1ms", "--svc", "orders", "--id", fmt.Sprint(count), "--data", "line\x1b[31m\nbreak")
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("tail -n 2 failed: %v", err)
			}
			running = false
		default:
		}
	}
	events := parseLines[firedEvent](t, printed.String())
	if len(events) != 2 {
		t.Fatalf("tail -n 2 printed %d events, want 2", len(events))
	}
	for _, e := range events {
		if e.Service != "orders" || e.LatenessMs < 0 || e.LatenessMs > bound.Milliseconds() || e.Timer != schemas.NewTimerID("belfry-cli", e.ID) || !strings.Contains(string(e.Event), `"timerfired"`) {
			t.Errorf("tail printed event %+v, want an event of service orders with its timer id, lateness and fired event", e)
		}
	}
	past := ok[firedEvent](t, n, "tail", "*", "--since", "1h", "-n", fmt.Sprint(count))
	if len(past) != count || past[0].ID != "0" {
		t.Errorf("tail --since: got %d events, want %d from id 0 on", len(past), count)
	}
	text := n.client(t, "tail", "orders", "--since", "2000-01-01T00:00:00Z", "-n", "1")
	if text.code != exitOK || strings.Count(text.out, "\n") != 2 || strings.Contains(text.out, "\x1b") || !strings.Contains(text.out, "s") {
		t.Errorf("tail as text: got %v, want exit code 0 and an event without control characters", text)
	}
	n.client(t, "tail", "a.b").oneLine(t, exitUsage, "a.b")
	n.client(t, "tail", "a", "--since", "yesterday").oneLine(t, exitUsage, "yesterday")
}

// TestDeadLetters: dead letters are listed, replayed and discarded, one or by filter, and a dry run only
// lists them.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	calls := make(chan struct{}, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGone)
		calls <- struct{}{}
	}))
	t.Cleanup(hook.Close)
	a := ok[added](t, n, "add", "--in", "1ms", "--svc", "orders", "--callback", hook.URL)[0]
	<-calls
	var dead []schemas.DeadInfo
	died := func() {
		t.Helper()
		waittest.Until(t, "a dead letter, and the record of the failure", func() bool {
			dead = ok[schemas.DeadInfo](t, n, "dead", "ls", "--svc", "orders")
			return len(dead) == 1 && ok[schemas.TimerInfo](t, n, "get", a.Timer.String())[0].State == schemas.StateFail
		})
	}
	died()
	if dead[0].Timer != a.Timer || dead[0].Attempts != 1 {
		t.Errorf("dead ls: got %+v, want timer %s after one attempt", dead[0], a.Timer)
	}
	if r := n.client(t, "dead", "ls"); !strings.Contains(r.out, a.Timer.String()) {
		t.Errorf("dead ls as text: got %v, want timer %s", r, a.Timer)
	}
	if r := ok[map[string]int](t, n, "dead", "replay", a.Timer.String()); r[0]["replayed"] != 1 {
		t.Errorf("dead replay: got %v, want 1 replayed", r)
	}
	<-calls
	died()
	for _, line := range []string{"dead replay --svc orders --dry-run", "dead rm --code " + dead[0].ErrorCode + " --dry-run", "dead rm " + a.Timer.String() + " --dry-run"} {
		if got := ok[schemas.DeadInfo](t, n, strings.Fields(line)...); len(got) != 1 || got[0].Timer != a.Timer {
			t.Errorf("%s: got %+v, want the dead letter", line, got)
		}
	}
	if r := ok[map[string]int](t, n, "dead", "replay", "--svc", "orders", "--rate", "10/s"); r[0]["replayed"] != 1 {
		t.Errorf("dead replay --svc: got %v, want 1 replayed", r)
	}
	<-calls
	died()
	if got := ok[schemas.ServiceInfo](t, n, "services"); len(got) != 1 || got[0].Service != "orders" || !got[0].Callbacks || got[0].Dead != 1 {
		t.Errorf("services: got %+v", got)
	}
	if r := ok[map[string]int](t, n, "dead", "rm", "--sequence", fmt.Sprint(dead[0].Sequence), "--by", "anna"); r[0]["discarded"] != 1 {
		t.Errorf("dead rm: got %v, want 1 discarded", r)
	}
	if r := n.client(t, "dead", "rm", "--svc", "orders"); r.code != exitOK || r.out != "" || r.err != "the list is empty\n" {
		t.Errorf("dead rm of a service without dead letters: got %v", r)
	}
	for _, verb := range []string{"replay", "rm"} {
		n.client(t, "dead", verb).oneLine(t, exitUsage)
		n.client(t, "dead", verb, "none", "--source", "/none").oneLine(t, exitNotFound)
	}
	n.client(t, "dead", "replay", "--svc", "orders", "--rate", "10").oneLine(t, exitUsage)
}

// TestUsage: mistakes that the program finds without a server.
func TestUsage(t *testing.T) {
	t.Parallel()
	id := schemas.NewTimerID("a", "b").String()
	for line, want := range map[string]string{
		"ad":                                       "did you mean add",
		"nonsense":                                 "unknown command",
		"dead lss":                                 "did you mean ls",
		"config chekc":                             "check",
		"add --nonsense":                           "unknown flag: --nonsense",
		"add":                                      "one of --in, --at, --cron and --every",
		"add --in 1s --at 2030-01-01T00:00:00Z":    "--in or --at",
		"add --in soon":                            "soon",
		"add --at tomorrow":                        "tomorrow",
		"add --in 1s extra":                        "got 1 arguments",
		"add --in 1s --ext novalue":                "NAME=VALUE",
		"add --in 1s --source /küche":              "write it as \"/k%C3%BCche\"",
		"add --in 1s --data @/does/not/exist":      "/does/not/exist",
		"get":                                      "got 0 arguments",
		"cancel " + strings.Repeat("z", 26):        "base32hex",
		"reschedule " + id:                         "--in or --at",
		"reschedule --in 1h":                       "name one timer",
		"reschedule " + id + " --svc x --in 1h":    "name one timer",
		"reschedule --svc x --source /s --in 1h":   "belong to an ID",
		"reschedule " + id + " --dry-run --in 1h":  "--dry-run needs --svc or --group",
		"reschedule --svc x":                       "--in or --at",
		"dead rm " + id + " --code http":           "either one timer, or a filter",
		"restore /none --data d --context c":       "--context belongs to a NATS server",
		"restore /none --data d --creds c":         "--creds belongs to a NATS server",
		"cancel --svc x --group=":                  "--group has no value",
		"reschedule --svc= --group g --in 1h":      "--svc has no value",
		"dead replay --svc x --code=":              "--code has no value",
		"dead rm --svc= --code http":               "--svc has no value",
		"dead rm --svc x --sequence 0":             "--sequence has no value",
		"dead rm --svc x --tenant t":               "belong to an ID",
		"ls --state sleeping":                      "sleeping",
		"ls -n -1":                                 "negative",
		"ls -o xml":                                "text or json",
		"ls --timeout soon":                        "timeout",
		"ls --creds /does/not/exist":               "/does/not/exist",
		"ls --inbox-prefix a.>":                    "inbox-prefix",
		"ls --tls-ca /does/not/exist":              "/does/not/exist",
		"tail":                                     "got 0 arguments",
		"dead replay " + id + " --svc x":           "either",
		"version --output xml":                     "text or json",
		"serve extra":                              "got 1 arguments",
		"serve --http nowhere":                     "HOST:PORT",
		"serve --roles cook":                       "cook",
		"serve --profile brave":                    "brave",
		"serve --log-level loud":                   "loud",
		"serve --log-format xml":                   "xml",
		"serve --retention never":                  "retention",
		"serve --allow-prefixes everything":        "everything",
		"serve --replicas 2":                       "1, 3 or 5",
		"serve --data d --nats-url nats://x":       "give only one of them",
		"serve --config /does/not/exist":           "/does/not/exist",
		"serve --shards 1000 --data /tmp/x":        "shards",
		"config check --config /does/not/exist":    "no such file",
		"serve --nats-url nats://x --creds /nope/": "/nope/",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			// No server has this address, so a command that connects fails with another
			// exit code.
			r := belfryEnv(t, []string{"NATS_URL=nats://127.0.0.1:1"}, "", strings.Fields(line)...)
			r.oneLine(t, exitUsage, want)
		})
	}
}

func TestRefusedAndNotFound(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	n.client(t, "get", "none", "--source", "/none").oneLine(t, exitNotFound, "no timer")
	n.client(t, "cancel", schemas.NewTimerID("/none", "none").String()).oneLine(t, exitNotFound)
	n.client(t, "add", "--in", "1s", "--svc", "a.b").oneLine(t, exitRefused, "--svc: timersvc")
	n.client(t, "add", "--in", "1s", "--callback", "ftp://x").oneLine(t, exitRefused, "timercallback")
	n.client(t, "add", "--in", "-1s").oneLine(t, exitRefused, "--in: timerafter")
	n.client(t, "add", "--in", "1s", "--max-attempts", "many").oneLine(t, exitRefused, "--max-attempts: timermaxattempts", "many")
	big := belfryEnv(t, []string{"NATS_URL=" + n.nats}, strings.Repeat("x", 2<<20), "add", "--in", "1s", "--data", "@-")
	big.oneLine(t, exitRefused, "bytes")
	stdin := belfryEnv(t, []string{"BELFRY_NATS_URL=" + n.nats}, `{"from":"stdin"}`, "add", "--in", "1h", "--data", "@-", "--id", "s")
	if stdin.code != exitOK {
		t.Errorf("add with data from stdin: got %v, want exit code 0", stdin)
	}
}

// TestUnreachable: without a server, clients and nodes print one line and return the
// documented exit code.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	plain := natstest.Run(t, func(o *server.Options) { o.JetStream = false })
	empty := natstest.Run(t)
	none := "nats://user:hunter2@127.0.0.1:1"
	for _, cmd := range []string{"ls", "get " + schemas.NewTimerID("a", "b").String(), "add --in 1s", "tail x", "dead ls", "dead replay --svc x"} {
		belfryRun(t, append(strings.Fields(cmd), "--nats-url", none)...).oneLine(t, exitUnreachable, "127.0.0.1:1", "belfry serve")
	}
	if r := belfryRun(t, "ls", "--nats-url", none, "-o", "json"); strings.Contains(r.err, "hunter2") || !strings.Contains(r.err, `"code":"unavailable"`) {
		t.Errorf("ls without a server: got stderr %q, want the code unavailable and no password", r.err)
	}
	belfryRun(t, "ls", "--nats-url", empty.URL()).oneLine(t, exitUnreachable, "router")
	belfryRun(t, "tail", "x", "--nats-url", empty.URL()).oneLine(t, exitUnreachable, schemas.StreamFired)
	belfryRun(t, "tail", "x", "--nats-url", plain.URL()).oneLine(t, exitUnreachable)
	belfryRun(t, "serve", "--http", "-", "--nats-url", none).oneLine(t, exitUnreachable, "127.0.0.1:1")
	belfryRun(t, "serve", "--http", "-", "--nats-url", plain.URL()).oneLine(t, exitUsage, "JetStream")
}

// TestNoAddressYet: an address that this host does not have, or a name that nothing resolves, is no wrong setting: the
// host may have it later.
func TestNoAddressYet(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"192.0.2.1", "host.invalid"} {
		for flag, other := range map[string]string{"--http": "--nats-listen", "--nats-listen": "--http"} {
			belfryRun(t, "serve", "--insecure", "--log-level", "error", "--data", filepath.Join(t.TempDir(), "data"), flag, host+":4000", other, "127.0.0.1:0").oneLine(t, exitFailure, host, flag)
		}
	}
}

// TestInUse: a used port, and a folder that a running node uses, are refused.
func TestInUse(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Close() })
	addr := busy.Addr().String()
	n := serve(t, "")
	free := "127.0.0.1:0"
	belfryRun(t, "serve", "--data", filepath.Join(t.TempDir(), "data"), "--nats-listen", free, "--http", addr).oneLine(t, exitInUse, addr, "--http")
	belfryRun(t, "serve", "--data", filepath.Join(t.TempDir(), "data"), "--nats-listen", addr, "--http", free).oneLine(t, exitInUse, addr, "--nats-listen")
	belfryRun(t, "serve", "--data", n.data, "--nats-listen", free, "--http", free).oneLine(t, exitInUse, n.data, fmt.Sprintf("process %d", n.cmd.Process.Pid))
}

// TestKilledAndBack: after SIGKILL the timers are still there, and the lock of the folder
// does not prevent a start.
func TestKilledAndBack(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	ok[added](t, n, "add", "--in", "1h", "--id", "kept", "--source", "/s")
	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-n.done
	n = serve(t, n.data)
	if got := ok[schemas.TimerInfo](t, n, "get", "kept", "--source", "/s"); got[0].State != schemas.StatePending {
		t.Errorf("get after SIGKILL and restart: got %+v, want state pending", got)
	}
	n.stop(t)
	if _, err := os.Stat(filepath.Join(n.data, "belfry.pid")); !os.IsNotExist(err) {
		t.Errorf("after the stop: belfry.pid exists (%v), want it removed", err)
	}
}

// TestStopWithCallbackRunning: SIGTERM stops a node while a callback hangs.
func TestStopWithCallbackRunning(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	called := make(chan struct{}, 10)
	hold := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) {
		called <- struct{}{}
		<-hold
	}))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(hold) })
	ok[added](t, n, "add", "--in", "1ms", "--callback", hook.URL)
	<-called
	n.stop(t)
}

func TestExitCodesAreDocumented(t *testing.T) {
	t.Parallel()
	r := belfryRun(t, "help", "exit-codes")
	for code := exitOK; code <= exitDiffers; code++ {
		if !strings.Contains(r.out, fmt.Sprintf("\n  %d  ", code)) {
			t.Errorf("help exit-codes: got %s, want a row for code %d", r.out, code)
		}
	}
	if r := belfryRun(t); r.code != exitOK || !strings.Contains(r.out, "belfry serve") {
		t.Errorf("belfry without arguments: got %v, want exit code 0 and the usage", r)
	}
}
