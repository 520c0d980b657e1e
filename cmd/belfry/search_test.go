package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestCountsRefuseFilters: --counts knows no filter other than --svc.
func TestCountsRefuseFilters(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--state=pending", "--group=g", "--schedule", "--limit=5", "--search=x", "--error=x", "--host=x", "--attribute=a=b", "--sort=done", "--desc"} {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		belfryEnv(t, noServer, "", "ls", "--counts", flag).oneLine(t, exitUsage, "--counts", "give no --"+name)
	}
}

// TestSearchFlags: each flag of ls that asks the search index selects, orders or counts the
// timers of a real node.
func TestSearchFlags(t *testing.T) {
	t.Parallel()
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
	t.Cleanup(target.Close)
	host := strings.TrimPrefix(target.URL, "http://")
	n := serve(t, "", "--history-attributes", "orderid")
	for _, args := range [][]string{
		{"--in", "1h", "--id", "order-17", "--type", "order.timeout", "--group", "north", "--ext", "orderid=17"},
		{"--in", "2h", "--id", "order-18", "--callback", "https://shop.example/x"},
		{"--in", "0s", "--id", "order-2", "--callback", target.URL},
		{"--in", "500ms", "--id", "order-3", "--callback", target.URL},
		{"--every", "1h", "--id", "nightly"},
	} {
		if r := n.client(t, append([]string{"add", "--svc", "orders", "--source", "/shop"}, args...)...); r.code != exitOK {
			t.Fatalf("add %v: got %v", args, r)
		}
	}
	for line, want := range map[string]string{
		"--search order-17":                                      "order-17",
		"--search order-1*":                                      "order-17 order-18",
		"--search /shop --schedule":                              "nightly",
		"--search order.timeout":                                 "order-17",
		"--error status.410 --sort due":                          "order-2 order-3",
		"--error STATUS.410 --sort due --desc":                   "order-3 order-2",
		"--error teapot":                                         "",
		"--host " + host + " --state fail -n 1":                  "order-2",
		"--host shop.example":                                    "order-18",
		"--attribute orderid=17":                                 "order-17",
		"--attribute orderid=18":                                 "",
		"--sort done":                                            "order-2 order-3",
		"--sort done --desc --svc orders":                        "order-3 order-2",
		"--sort done --svc other":                                "",
		"--sort due --group north":                               "order-17",
		"--desc --state pending --schedule=false --search /shop": "order-18 order-17",
	} {
		args := append([]string{"ls", "-o", "json"}, strings.Fields(line)...)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], ".410", " 410")
		}
		var r result
		var got []string
		waittest.Until(t, line+" finds "+want, func() bool {
			r = n.client(t, args...)
			got = nil
			if r.code == exitOK {
				for _, timer := range parseLines[schemas.TimerInfo](t, r.out) {
					got = append(got, timer.ID)
				}
			}
			return r.code == exitOK && strings.Join(got, " ") == want && strings.Contains(r.err, "from the search index as of ")
		}, func() string { return r.String() })
	}
	var r result
	waittest.Until(t, "the counts are those of all timers", func() bool {
		r = n.client(t, "ls", "--counts", "--svc", "orders", "-o", "json")
		if r.code != exitOK {
			return false
		}
		counts := parseLines[schemas.CountsReply](t, r.out)
		var states []string
		for _, c := range counts[0].Totals {
			if c.Timers == 2 {
				states = append(states, c.State.String())
			}
		}
		return slices.Contains(states, "fail")
	}, func() string { return r.String() })
	if r := n.client(t, "ls", "--counts"); r.code != exitOK || !strings.Contains(r.out, "orders") || !strings.Contains(r.out, "TIMERS") || !strings.Contains(r.err, "from the search index") {
		t.Errorf("counts as text: got %v", r)
	}
	if r := n.client(t, "ls", "--search", "order-17"); r.code != exitOK || !strings.Contains(r.out, "order-17") {
		t.Errorf("a search as text: got %v", r)
	}
	for line, want := range map[string]string{"--sort up": "must be due or done", "--attribute orderid": "write name=value", "--search *": "before the *"} {
		if r := n.client(t, append([]string{"ls"}, strings.Fields(line)...)...); r.code == exitOK || !strings.Contains(r.err, want) {
			t.Errorf("ls %s: got %v, want %q", line, r, want)
		}
	}
}
