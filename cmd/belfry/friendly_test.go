package main

import (
	"strings"
	"testing"
	"time"

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
	if r := n.client(t, "ls"); r.code != exitOK || r.out != "" || r.err != "the list is empty\n" {
		t.Errorf("empty list: %v", r)
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
