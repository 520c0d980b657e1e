package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestFriendlyUsage: mistakes that people make with words, flags and values end with exit code 2
// and name the mistake, before any request.
func TestFriendlyUsage(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"help", "nonsense"}, `unknown command "nonsense"`},
		{[]string{"help", "calender"}, "did you mean calendar?"},
		{[]string{"help", "calendar", "nonsense"}, `unknown command "nonsense" for "belfry calendar"`},
		{[]string{"help", "add", "nonsense"}, `unknown command "nonsense" for "belfry add"`},
		{[]string{"add", "--in", "1h", "--content-type", "application/json", "--data", `{"order":17`}, "not JSON: unexpected end of JSON input at byte 11"},
		{[]string{"add", "--in", "1h", "--content-type", "application/vnd.shop+json; charset=utf-8", "--data", "x"}, "not JSON"},
		{[]string{"add", "--in", "3 days"}, "--in"},
		{[]string{"add", "--at", "24:30"}, "--at"},
		{[]string{"add", "--at", "tomorow 9:00"}, "tomorrow 9:00"},
		{[]string{"reschedule", "x", "--at", "9"}, "--at"},
		{[]string{"preview", "0 9 * * *"}, "--cron"},
		{[]string{"add", "--every", "1d"}, "--every: timerevery"},
		{[]string{"update", "x", "--cron", "0 9 * * *", "--overlap", "sometimes"}, "--overlap: timeroverlap"},
		{[]string{"add", "--in", "1h", "--ext", "order-id=1"}, `--ext "order-id=1": the name of an attribute`},
		{[]string{"get", ""}, "the id is empty"},
	} {
		belfryRun(t, x.args...).oneLine(t, exitUsage, x.want)
	}
	if r := belfryRun(t, "--version"); r.code != exitOK || r.out != "belfry "+version+"\n" || r.err != "" {
		t.Errorf("--version: %v", r)
	}
	for _, args := range [][]string{{"help"}, {"help", "add"}, {"help", "calendar", "put"}, {"help", "exit-codes"}} {
		if r := belfryRun(t, args...); r.code != exitOK || !strings.Contains(r.out, "belfry") && !strings.Contains(r.out, "Exit codes") || r.err != "" {
			t.Errorf("%v: %v", args, r)
		}
	}
}

// TestFriendlyTimes: days and local times are accepted and shown; get and cancel find what add made
// without its source; an empty list says so on stderr.
func TestFriendlyTimes(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	for _, command := range []string{"ls", "dead ls", "rejected ls", "calendar ls", "flow ls", "order ls", "services"} {
		if r := n.client(t, strings.Fields(command)...); r.code != exitOK || r.out != "" || r.err != "the list is empty\n" {
			t.Errorf("empty list of %s: %v", command, r)
		}
	}
	n.client(t, "get", "order-17").oneLine(t, exitNotFound, "source belfry-cli")
	before := time.Now()
	if a := ok[added](t, n, "add", "--in", "1w3d", "--id", "order-17"); len(a) != 1 {
		t.Fatalf("add: %+v", a)
	}
	info := ok[schemas.TimerInfo](t, n, "get", "order-17")[0]
	if late := info.Due.Sub(before) - 10*24*time.Hour; late < -time.Second || late > time.Minute {
		t.Errorf("due at %s, want in ten days", info.Due)
	}
	r := belfryEnv(t, []string{"NATS_URL=" + n.nats, "TZ=UTC"}, "", "reschedule", "order-17", "--at", "2031-12-24 18:00")
	if r.code != exitOK || r.err != "belfry: --at \"2031-12-24 18:00\" is 2031-12-24T18:00:00Z\n" {
		t.Errorf("reschedule: %v", r)
	}
	if info = ok[schemas.TimerInfo](t, n, "cancel", "order-17")[0]; showTime(info.Due) != "2031-12-24T18:00:00.000Z" || info.State != schemas.StateCancelled {
		t.Errorf("cancelled: %+v", info)
	}
	n.stop(t)
}

// TestDurationFlags: the flags of attributes take days and weeks, which the attributes do not know, and leave
// every other text to Belfry.
func TestDurationFlags(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"1d..1w": "24h0m0s..168h0m0s", "30s..1d": "30s..24h0m0s", "1d12h": "36h0m0s", "1s..P1D": "1s..P1D", "often": "often", "1s..": "1s..", "..1w": "..168h0m0s", "1.5d": "1.5d", "": "",
	} {
		if got := attributeBackoff(text); got != want {
			t.Errorf("--backoff %q: got the attribute %q, want %q", text, got, want)
		}
	}
	n := serve(t, "")
	far := []string{"add", "--cron", "0 9 1 1 *", "--callback", "http://127.0.0.1:1"}
	ok[added](t, n, append(far, "--backoff", "1h..1d", "--grace", "1d", "--jitter", "1d", "--expect", "1w")...)
	n.client(t, "add", "--in", "1h", "--backoff", "1d..1w").oneLine(t, exitRefused, "the limit is 24h0m0s")
	belfryRun(t, append(far, "--backoff", "1d..often")...).oneLine(t, exitUsage, "timerbackoff")
	if r := belfryRun(t, "preview", "--cron", "0 9 1 1 *", "--jitter", "1d"); r.code != exitOK {
		t.Errorf("preview: %v", r)
	}
	n.stop(t)
}

// TestTailLeavesNoConsumer: tail removes its consumer when it ends by itself and when it is interrupted.
func TestTailLeavesNoConsumer(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	nc, err := nats.Connect(n.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	fired := func() (names string) {
		t.Helper()
		stream, err := natstest.JetStream(t, nc).Stream(t.Context(), schemas.StreamFired)
		if err != nil {
			t.Fatal(err)
		}
		list := stream.ConsumerNames(t.Context())
		for name := range list.Name() {
			names += name + " "
		}
		if err := list.Err(); err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := fired()
	ok[added](t, n, "add", "--in", "1ms", "--svc", "x")
	if r := n.client(t, "tail", "x", "--since", "1h", "-n", "1"); r.code != exitOK {
		t.Fatal(r)
	}
	if now := fired(); now != before {
		t.Errorf("consumers after tail -n 1: %s, want %s", now, before)
	}
	live := command(t, []string{"NATS_URL=" + n.nats}, "tail", "x")
	if err := live.Start(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "tail to have a consumer", func() bool { return fired() != before })
	if err := live.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := live.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	if now := fired(); now != before {
		t.Errorf("consumers after an interrupt: %s, want %s", now, before)
	}
	n.stop(t)
}

// TestAttemptLine: a line says once how an attempt ended, and HTTP only of one over HTTP.
func TestAttemptLine(t *testing.T) {
	t.Parallel()
	c := &cli{}
	for want, a := range map[string]schemas.AttemptInfo{
		"HTTP status 404 (Not Found)":                                    {Status: 404, Error: "HTTP status 404 (Not Found)"},
		"HTTP status 200, answer \"ok\"":                                 {Status: 200, Response: "ok"},
		"connection refused":                                             {Error: "connection refused"},
		"NATS subject orders.pay answered with error code 500: no reply": {Status: 500, Error: "NATS subject orders.pay answered with error code 500: no reply"},
		"stream S refused the message: no space (JetStream error 10047)": {Status: 503, Error: "stream S refused the message: no space (JetStream error 10047)"},
	} {
		a.Attempt, a.At, a.TookMs = 2, time.UnixMilli(0), 7
		if got, want := c.attemptLine(a), "2 at 1970-01-01T00:00:00.000Z, 7 ms: "+want; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
