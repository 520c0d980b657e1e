package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestOrderList: the list of busy ordering keys has for each the timer whose turn it is, since when,
// its state, and how many wait. It comes in pages, the longest unchanged first; an account sees
// its own keys alone; an idle key, and a value that cannot be read, are left out.
func TestOrderList(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	waittest.Until(t, "timers with a key can be stored", func() bool { return f.store.CanOrder() == nil })
	nowMs := f.clock.LatestNs() / 1e6
	ask := func(service, key string, kind order.Kind, atMs int64, ids ...string) {
		t.Helper()
		for n, id := range ids {
			asks := []order.Ask{{Kind: kind, Event: order.Event{DueMs: nowMs + int64(n), AddedMs: nowMs, ID: schemas.NewTimerID("/test", id)}}}
			if _, err := f.store.DecideOrder(t.Context(), store.OrderKey{Service: service, Key: key}, "node.1.89abcdef", func() int64 { return atMs }, asks); err != nil {
				t.Fatal(err)
			}
		}
	}
	head := func(key string, change func(r *schemas.Record)) {
		t.Helper()
		if code, text := f.answer("add", add(key, `"timerafter":"1h","timerkey":"`+key+`","timercallback":"https://example.com"`), &schemas.AddReply{}); code != "" {
			t.Fatal(code, text)
		}
		f.update(key, func(r *schemas.Record) {
			r.State, r.Queued, r.FiredMs = schemas.StateDelivered, false, r.DueMs
			change(r)
		})
	}
	head("called", func(r *schemas.Record) { r.Attempt, r.Outcome.Error = 1, "HTTP status 500" })
	ask("default", "called", order.Join, nowMs, "called", "b", "c")
	head("retried", func(r *schemas.Record) {
		r.State, r.Queued, r.NextMs, r.Attempt, r.Outcome.Error = schemas.StateRetrying, true, r.DueMs, 2, "HTTP status 503"
	})
	ask("default", "retried", order.Join, nowMs-60_000, "retried", "d")
	ask("default", "retried", order.Leave, nowMs-50_000, "retried")
	head("limited", func(r *schemas.Record) { r.Defer("api", 1, r.DueMs, true) })
	ask("default", "limited", order.Join, nowMs-60_000, "limited")
	ask("default", "gone", order.Join, nowMs-60_000, "gone")
	ask("acme=orders", "theirs", order.Join, nowMs, "theirs")
	ask("default", "idle", order.Join, nowMs, "idle")
	ask("default", "idle", order.Done, nowMs, "idle")
	if _, err := f.nc.Request("$KV.flows.order.00", []byte(`{"v":1}`), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	list := func(request string) (keys []schemas.OrderKeyInfo) {
		t.Helper()
		for {
			var page schemas.OrderListReply
			if code, text := f.answer("order.list", []byte(request), &page); code != "" {
				t.Fatal(code, text)
			}
			keys = append(keys, page.Keys...)
			if page.Cursor == "" {
				return keys
			}
			request = strings.Replace(request, "}", `,"cursor":"`+page.Cursor+`"}`, 1)
			ask("acme=orders", "theirs", order.Keep, nowMs+int64(len(keys)), "theirs") // it changes after each page: the list ends without it
		}
	}
	show := func(keys []schemas.OrderKeyInfo) (lines []string) {
		for _, k := range keys {
			h := k.Head
			lines = append(lines, fmt.Sprintf("%s%s %s %s %s %s since %d until %d, %d waiting, attempt %d %s", k.Tenant, k.Service, k.Key, h.ID, h.State, h.Node, h.Since.UnixMilli()-nowMs, max(h.Until.UnixMilli()-nowMs, 0)/1_000_000, k.Waiting, h.Attempts, h.Error))
		}
		return lines
	}
	mine := []string{
		"default called called calling node.1 since 0 until 0, 2 waiting, attempt 1 HTTP status 500",
		"default retried retried retrying  since -60000 until 3, 1 waiting, attempt 2 HTTP status 503",
		"default limited limited waiting  since -60000 until 3, 0 waiting, attempt 0 ",
		"default gone  ended  since -60000 until 0, 0 waiting, attempt 0 ",
	}
	theirs := "acmeorders theirs  ended  since 0 until 0, 0 waiting, attempt 0 "
	for _, c := range []struct {
		request string
		want    []string
	}{{`{}`, append(mine[:4:4], theirs)}, {`{"service":"acme=orders"}`, []string{theirs}}, {`{"service":"default"}`, mine}, {`{"service":"none"}`, nil}, {`{"limit":2}`, mine}} {
		if got := show(list(c.request)); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", c.request, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
	for _, scope := range []router.Scope{{}, {Tenant: "acme"}, {Tenant: "globex"}} {
		page, err := f.r.In(scope).OrderList(t.Context(), schemas.OrderListRequest{})
		if n := map[string]int{"": 4, "acme": 1}[scope.Tenant]; err != nil || len(page.Keys) != n {
			t.Errorf("tenant %q: %d keys, %v; want %d", scope.Tenant, len(page.Keys), err, n)
		}
	}
	for _, request := range []string{`{"limit":201}`, `{"limit":-1}`, `{"cursor":"7"}`, `{"cursor":"7.8 "}`, `{"service":"a b"}`} {
		if code := f.request("order.list", []byte(request), nil); code != "bad_request" {
			t.Errorf("%s: got %q, want bad_request", request, code)
		}
	}
}
