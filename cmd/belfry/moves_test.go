package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// imported runs belfry import with lines on standard input.
func (n *node) imported(t *testing.T, lines string, args ...string) (importCounts, result) {
	t.Helper()
	r := belfryEnv(t, []string{"NATS_URL=" + n.nats}, lines, append([]string{"import", "-o", "json"}, args...)...)
	var counts importCounts
	if r.out != "" {
		counts = parseLines[importCounts](t, r.out)[0]
	}
	return counts, r
}

// TestMove moves timers and schedules from one node to another: they keep their times, data, phase and
// pauses; a repetition finds duplicates; what is moved can be exported again and is the same.
func TestMove(t *testing.T) {
	t.Parallel()
	from, to := serve(t, ""), serve(t, "")
	for _, line := range []string{
		`add --in 2h --id plain --source /m --svc mail --data {"n":1.50} --ext color=red --callback https://u:p@hook.example/x?k=1 --group g`,
		`add --in 2h --id held --source /m --group g`,
		`add --at 2020-01-01T00:00:00Z --id gone --source /m --svc past`,
		`add --in 2h --id moved --source /m`,
		`add --every 7m --id period --source /m --limit 9 --group g`,
		`add --cron @daily --tz Europe/Berlin --id nightly --source /m --group g`,
		`pause held --source /m --note hot`,
		`pause nightly --source /m`,
		`reschedule held --source /m --at 2020-02-02T02:02:02Z`,
		`reschedule moved --source /m --at 2034-05-06T07:08:09Z`,
	} {
		if r := from.client(t, strings.Fields(line)...); r.code != exitOK {
			t.Fatalf("%s: %v", line, r)
		}
	}
	file := filepath.Join(t.TempDir(), "timers.ndjson")
	r := from.client(t, "export", "--file", file)
	if r.code != exitOK || r.out != "" || !strings.Contains(r.err, "exported 5, of them 2 paused\n") || !strings.Contains(r.err, "have a history") {
		t.Fatalf("export: %v", r)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v, want 0600 (%v)", info.Mode(), err)
	}
	from.client(t, "export", "--file", file).oneLine(t, exitUsage, "exists")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{`"n":1.50`, "u:p@hook.example/x?k=1", `"timerat":"2034-05-06T07:08:09.000Z"`, `"belfrystate":"paused","belfrynote":"hot"`, `"timerstart":"20`} {
		if !strings.Contains(text, want) {
			t.Errorf("the export lacks %s: %s", want, text)
		}
	}
	for _, x := range []struct {
		args string
		want int
	}{{"--group g --schedule", 2}, {"--group g --schedule=false --state pending", 1}, {"--svc mail", 1}, {"--state retrying,delivered", 0}} {
		if r := from.client(t, append([]string{"export"}, strings.Fields(x.args)...)...); r.code != exitOK || strings.Count(r.out, "\n") != x.want {
			t.Errorf("export %s: %v, want %d lines", x.args, r, x.want)
		}
	}
	if counts, r := to.imported(t, text, "--dry-run"); r.code != exitOK || counts.Accepted != 5 || counts.Paused != 2 {
		t.Errorf("dry run: %+v, %v", counts, r)
	}
	if r := to.client(t, "ls"); r.out != "" {
		t.Errorf("after the dry run: %v", r)
	}
	r = to.client(t, "import", file)
	if r.code != exitOK || r.err != "" || !regexp.MustCompile(`(?s)accepted +5.*duplicate +0.*paused +2.*rejected +0`).MatchString(r.out) {
		t.Errorf("import: %v", r)
	}
	old, now := map[string]schemas.TimerInfo{}, map[string]schemas.TimerInfo{}
	for _, info := range ok[schemas.TimerInfo](t, from, "ls", "--state", "pending,paused") {
		old[info.ID] = info
	}
	for _, info := range ok[schemas.TimerInfo](t, to, "ls") {
		now[info.ID] = info
	}
	if len(now) != len(old) {
		t.Errorf("moved %d timers, want %d", len(now), len(old))
	}
	for id, a := range old {
		b := now[id]
		if b.Timer != a.Timer || !b.Scheduled.Equal(a.Scheduled) || b.State != a.State || b.PauseNote != a.PauseNote || b.Service != a.Service || b.Group != a.Group || b.Callback != a.Callback {
			t.Errorf("%s: got %+v, want %+v", id, b, a)
		}
	}
	// The second import changes nothing, also not what was resumed since.
	if r := to.client(t, "resume", "nightly", "--source", "/m"); r.code != exitOK {
		t.Fatal(r)
	}
	if counts, r := to.imported(t, text); r.code != exitOK || counts.Accepted != 0 || counts.Duplicate != 5 || counts.Paused != 0 {
		t.Errorf("the second import: %+v, %v", counts, r)
	}
	if again := ok[schemas.TimerInfo](t, to, "get", "nightly", "--source", "/m")[0]; again.State != schemas.StatePending {
		t.Errorf("the second import paused what was resumed: %s", again.State)
	}
	// The first node has the same timers, with relative times.
	if counts, r := from.imported(t, text); r.code != exitOK || counts.Duplicate != 5 || counts.Accepted != 0 {
		t.Errorf("back to the first node: %+v, %v", counts, r)
	}
	other := strings.Replace(strings.SplitAfter(from.client(t, "export", "--svc", "mail").out, "\n")[0], "1.50", "1.51", 1)
	if counts, r := from.imported(t, other); r.code != exitRefused || len(counts.Lines) != 1 || counts.Lines[0].Code != schemas.CodeConflict {
		t.Errorf("another event: %+v, %v", counts, r)
	}
	if r := to.client(t, "export"); strings.Count(r.out, "\n") != 5 {
		t.Errorf("exported again: %v", r)
	}
}

// line returns a line of an import.
func eventLine(id, more string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/i","type":"t",%s}`, id, more) + "\n"
}

// TestImportVerdicts: each line gets a verdict, with its number; what was due in the past follows --past; an
// interrupted import says where to continue.
func TestImportVerdicts(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	const later, past = `"timerafter":"1h"`, `"timerat":"2020-01-01T00:00:00Z"`
	lines := eventLine("a", later) + "\n" + "not JSON\n" + eventLine("a", later) + eventLine("a", `"timerafter":"2h"`) + eventLine("b", `"timersvc":"a b","timerafter":"1h"`) +
		eventLine("c", past) + eventLine("d", `"timercron":"0 9 * * *","timerexclude":"nowhere"`) + eventLine("e", later+`,"belfrystate":"odd"`) + strings.TrimSuffix(eventLine("f", later), "\n")
	counts, r := n.imported(t, lines, "--past", "fail")
	want := map[int]schemas.Code{3: "invalid_event", 5: "conflict", 6: "invalid_attribute", 7: "invalid_attribute", 8: "invalid_attribute", 9: "invalid_attribute"}
	if r.code != exitRefused || counts.Accepted != 2 || counts.Duplicate != 1 || counts.Rejected != len(want) || !strings.Contains(r.err, "6 lines were rejected; the first is line 3") {
		t.Errorf("got %+v, %v", counts, r)
	}
	for _, l := range counts.Lines {
		if want[l.Line] != l.Code || l.Error == "" {
			t.Errorf("line %d: %s: %s, want %s", l.Line, l.Code, l.Error, want[l.Line])
		}
	}
	if counts, r := n.imported(t, eventLine("c", past), "--past", "skip"); r.code != exitOK || counts.Skipped != 1 || counts.Accepted != 0 {
		t.Errorf("skip: %+v, %v", counts, r)
	}
	if counts, r := n.imported(t, "nonsense\n"+eventLine("c", past), "--from-line", "2"); r.code != exitOK || counts.Accepted != 1 || counts.Past != 1 {
		t.Errorf("fire, from line 2: %+v, %v", counts, r)
	}
	waittest.Until(t, "the event of the past fires", func() bool {
		return ok[schemas.TimerInfo](t, n, "get", "c", "--source", "/i")[0].State == schemas.StateSuccess
	})
	if _, r := n.imported(t, strings.Repeat("x", maxImportLine+1)+"\n"+eventLine("g", later)); r.code != exitRefused || !strings.Contains(r.err, "line 1") || !strings.Contains(r.out, `"accepted":1`) {
		t.Errorf("a long line: %v", r)
	}
	many := strings.Repeat("x\n", maxRejectedLines+20)
	if counts, _ := n.imported(t, many); counts.Rejected != maxRejectedLines+20 || len(counts.Lines) != maxRejectedLines {
		t.Errorf("many rejected lines: %d, and %d of them shown", counts.Rejected, len(counts.Lines))
	}
	r = belfryEnv(t, []string{"NATS_URL=nats://127.0.0.1:1"}, eventLine("a", later), "import")
	r.oneLine(t, exitUnreachable)
	for _, args := range [][]string{{"--past", "maybe"}, {"--from-line", "0"}, {"a", "b"}, {"/does/not/exist"}} {
		n.client(t, append([]string{"import"}, args...)...).oneLine(t, exitUsage)
	}
	for _, args := range [][]string{{"--state", "sleeping"}, {"extra"}} {
		n.client(t, append([]string{"export"}, args...)...).oneLine(t, exitUsage)
	}
	n.client(t, "export", "--state", "success").oneLine(t, exitRefused, "success")
}

// TestImportContinues: after its node is gone, an import says from which line to continue; then it waits for
// a limit of adds.
func TestImportContinues(t *testing.T) {
	t.Parallel()
	empty := natstest.Run(t) // nothing answers there
	lines := eventLine("a", `"timerafter":"1h","timersvc":"few"`) + eventLine("b", `"timerafter":"1h","timersvc":"few"`) + eventLine("c", `"timerafter":"1h","timersvc":"few"`)
	r := belfryEnv(t, []string{"NATS_URL=" + empty.URL()}, lines, "import", "--timeout", "1s", "--from-line", "2")
	if r.code != exitUnreachable || !strings.Contains(r.err, "--from-line 2 continues") {
		t.Errorf("without a node: %v", r)
	}
	n := serve(t, "")
	if r := n.client(t, "flow", "set", "adds:few", "--rate", "1/s", "--burst", "1"); r.code != exitOK {
		t.Fatal(r)
	}
	if counts, r := n.imported(t, lines); r.code != exitOK || counts.Accepted != 3 {
		t.Errorf("with a limit of adds: %+v, %v", counts, r)
	}
}

// TestImportInterrupted: an interrupted import ends although its input does not, and says where to continue.
func TestImportInterrupted(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	var lines string
	for i := range 5 {
		lines += eventLine(fmt.Sprint(i), `"timerafter":"1h"`)
	}
	half := strings.Join(strings.SplitAfter(lines, "\n")[:3], "")
	cmd := command(t, []string{"NATS_URL=" + n.nats}, "import")
	var errOut logtest.Buffer
	cmd.Stderr = &errOut
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, half); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "three lines are added", func() bool { return strings.Count(n.client(t, "ls", "-o", "json").out, "\n") == 3 })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !regexp.MustCompile("--from-line [1-4] continues").MatchString(errOut.String()) {
		t.Errorf("interrupted: %v, %s", err, errOut.String())
	}
	if counts, r := n.imported(t, lines); r.code != exitOK || counts.Accepted != 2 || counts.Duplicate != 3 {
		t.Errorf("again: %+v, %v", counts, r)
	}
}

// TestCompletions: the shell completes the values of flags that have few.
func TestCompletions(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{"import --past": "fire\nskip\nfail\n", "export --state": "pending\npaused\nretrying\ndelivered\n", "listen --status": "200\n",
		"add --overlap": "skip\nqueue\n", "update --misfire": "one\n", "preview --days": "and\nor\n", "ls --state": "pending\ndelivered\n", "dead ls --output": "text\njson\n", "serve --profile": "safe\nfast\n", "resume --catchup": "skip\n",
	} {
		if r := belfryRun(t, append(append([]string{"__complete"}, strings.Fields(line)...), "")...); !strings.HasPrefix(r.out, want) {
			t.Errorf("%s: %v, want %q", line, r, want)
		}
	}
}

// TestMoveBetweenTenants: a tenant exports and imports its own timers, and Belfry's own account exports
// those of a tenant.
func TestMoveBetweenTenants(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../deploy/tenants/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	text = strings.Replace(text[strings.Index(text, "\naccounts {"):], "jetstream: { max_file: 90GB, max_streams: 512, max_consumers: 4096 }", "jetstream: enabled", 1)
	conf := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(conf, []byte(regexp.MustCompile(`\$[A-Z]+_PASSWORD`).ReplaceAllString(text, "p")), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := natstest.Run(t, func(o *server.Options) {
		read, err := server.ProcessConfigFile(conf)
		if err != nil {
			t.Fatal(err)
		}
		o.Accounts, o.Users, o.SystemAccount = read.Accounts, read.Users, read.SystemAccount
	})
	as := func(user string) string { return strings.Replace(srv.URL(), "nats://", "nats://"+user+":p@", 1) }
	config := writeConfig(t, "tenants:\n  acme: {account: ACME}\n  globex: {account: GLOBEX}\n")
	serveOn(t, as("belfry"), "--config", config, "--profile", "fast")
	run := func(user, stdin string, args ...string) result {
		t.Helper()
		r := belfryEnv(t, []string{"NATS_URL=" + as(user)}, stdin, args...)
		if r.code != exitOK {
			t.Fatalf("%s %v: %v", user, args, r)
		}
		return r
	}
	waittest.Until(t, "tenants are served", func() bool {
		return belfryEnv(t, []string{"NATS_URL=" + as("acme")}, "", "add", "--in", "2h", "--id", "t", "--source", "/t", "--svc", "x").code == exitOK
	})
	run("belfry", "", "add", "--in", "2h", "--id", "own", "--source", "/t")
	mine := run("acme", "", "export")
	if strings.Count(mine.out, "\n") != 1 || !strings.Contains(mine.out, `"timersvc":"x"`) {
		t.Errorf("acme exports %v", mine)
	}
	if got := run("belfry", "", "export", "--tenant", "acme"); got.out != mine.out {
		t.Errorf("the operator exports %v of acme, want %v", got, mine)
	}
	if got := run("belfry", "", "export"); strings.Count(got.out, "\n") != 1 || !strings.Contains(got.out, `"own"`) {
		t.Errorf("the operator exports %v", got)
	}
	run("globex", mine.out, "import")
	if got := run("globex", "", "ls", "-o", "json"); !strings.Contains(got.out, `"tenant":"globex"`) || strings.Count(got.out, "\n") != 1 {
		t.Errorf("globex has %v", got)
	}
	if r := belfryEnv(t, []string{"NATS_URL=" + as("acme")}, "", "export", "--tenant", "globex"); r.code != exitRefused {
		t.Errorf("acme exports globex: %v", r)
	}
}

// TestListen: listen prints callbacks over HTTP with their lateness and attempt, fails the first ones of each
// run, answers the handshake, and ends with a summary.
func TestListen(t *testing.T) {
	t.Parallel()
	key := secret
	n := serve(t, "", "--allow-loopback", "--config", writeConfig(t, "services:\n  signed: {secret: "+key+"}\n  asked: {webhook-origin: belfry.example.com}\n"))
	keys := secretFile(t, key)
	hook := n.listening(t, "127.0.0.1:0", "--fail-first", "2", "--payload", "-o", "json")
	add := func(args ...string) {
		t.Helper()
		if r := n.client(t, append([]string{"add", "--in", "0s", "--source", "/l", "--backoff", "10ms"}, args...)...); r.code != exitOK {
			t.Fatal(r)
		}
	}
	add("--id", "one", "--callback", hook.url, "--svc", "asked", "--data", `{"order":17}`)
	lines := hook.lines(t, 3)
	for i, l := range lines {
		status := http.StatusServiceUnavailable
		if i == 2 {
			status = http.StatusOK
		}
		if l.ID != "one" || l.Status != status || l.Attempt != uint32(i+1) || l.LatenessMs < 0 || l.Service != "asked" || !strings.HasSuffix(l.Key, ".1") || !strings.Contains(string(l.Event), `"order":17`) {
			t.Errorf("line %d: %+v, want attempt %d answered %d", i, l, i+1, status)
		}
	}
	hook.end(t, "3 callbacks (of 1 runs): 1 answered 200, 2 answered 503", "handshake: callbacks of belfry.example.com are allowed")

	hook = n.listening(t, "127.0.0.1:0", "--secret-file", keys)
	add("--id", "signed", "--callback", hook.url, "--svc", "signed")
	add("--id", "unsigned", "--callback", hook.url, "--max-attempts", "1")
	waittest.Until(t, "both callbacks are printed", func() bool {
		out := hook.out.String()
		return strings.Contains(out, "signed") && strings.Contains(out, "unsigned") && strings.Contains(out, "(wrong signature)")
	}, hook.out.String)
	if out := hook.out.String(); !strings.HasPrefix(out, "TIME ") || !regexp.MustCompile(`(?m)^\S+ +\+\S+s +1 +200 +signed `).MatchString(out) || !regexp.MustCompile(`(?m)1 +401 +unsigned `).MatchString(out) {
		t.Errorf("got %s", out)
	}
	hook.end(t, "1 answered 200, 1 answered 401")
}

// TestListenNATS: listen answers callbacks over NATS, "not now" first.
func TestListenNATS(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	hook := n.listening(t, "--nats", "callbacks.>", "--fail-first", "1", "--retry-after", "1s", "--answer", "done", "-o", "json")
	if hook.url != "nats:callbacks.>" {
		t.Errorf("the callback is %s", hook.url)
	}
	if r := n.client(t, "add", "--in", "0s", "--id", "n", "--source", "/l", "--callback", "nats:callbacks.x"); r.code != exitOK {
		t.Fatal(r)
	}
	lines := hook.lines(t, 2)
	if lines[0].Status != http.StatusServiceUnavailable || lines[1].Status != http.StatusOK || lines[1].Event != nil {
		t.Errorf("got %+v", lines)
	}
	waittest.Until(t, "the timer has the answer", func() bool {
		info := ok[schemas.TimerInfo](t, n, "get", "n", "--source", "/l")[0]
		return info.State == schemas.StateSuccess && info.Outcome != nil && info.Outcome.Response == "done"
	})
	hook.end(t, "1 answered 200, 1 answered 503")
}

// TestListenUsage: mistakes, and what is no callback.
func TestListenUsage(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"nowhere": "[HOST]:PORT", ":x": "[HOST]:PORT", ":8090 --status 99": "200 to 599", ":8090 --fail-first -1": "negative", ":8090 --retry-after 30s": "--status 503",
		"0.0.0.0:8090": "--secret-file", "--nats timers.work.x": "timers", "--nats a..b": "not a subject", ":8090 --secret-file /does/not/exist": "no such file",
	} {
		belfryRun(t, append([]string{"listen"}, strings.Fields(line)...)...).oneLine(t, exitUsage, want)
	}
	l := &listener{c: &cli{process: process{out: new(strings.Builder), err: new(strings.Builder)}}, heard: map[string]int{}, answers: map[int]int{}, status: 200}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serveHTTP(t.Context(), w, r) }))
	t.Cleanup(srv.Close)
	resp, err := http.Post(srv.URL, "text/plain", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if code, _ := httpGet(t, srv.URL); code != http.StatusMethodNotAllowed || resp.StatusCode != http.StatusOK {
		t.Errorf("got %d and %d, want 200 and 405", resp.StatusCode, code)
	}
	waittest.Until(t, "the line is printed", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return strings.Contains(fmt.Sprint(l.c.out), "not a callback of Belfry")
	})
	if at := parkedAt(time.Unix(0, 0), time.Unix(0, 0)); !at.Equal(time.Unix(0, 0).Add(parkStep)) {
		t.Errorf("parked at %s", at)
	}
}
