package router_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestAnswersOnlyToInboxes: a request whose reply subject is not an inbox is refused,
// counted, and logged once. An attacker could otherwise make Belfry write to that
// subject.
func TestAnswersOnlyToInboxes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	reg := prometheus.NewPedanticRegistry()
	log := &logtest.Buffer{}
	f.startWith(router.Options{
		Store: f.store, Time: f.clock, Log: zerolog.New(log), Registerer: reg,
	}, "REPLIES.shop")
	if code := f.request("add", add("1", `"timerafter":"1h"`), &schemas.AddReply{}); code != "" {
		t.Fatal(code)
	}
	ref := []byte(`{"id":"1","source":"/test"}`)
	var before schemas.TimerInfo
	if code := f.request("get", ref, &before); code != "" {
		t.Fatal(code)
	}
	requests := map[string][]byte{"add": add("2", `"timerafter":"1h"`), "list": nil, "dead.list": nil, "dead.replay": nil, "rejected.list": nil, "order.list": nil, "get": ref, "cancel": ref, "reschedule": []byte(`{"id":"1","source":"/test","after":"2h"}`)}
	subjects := []string{"$SRV.PING", "$SRV.INFO", "$SRV.STATS", "$SRV.PING.timers", "$SRV.INFO.timers", "$SRV.STATS.timers"}
	for verb := range requests {
		subjects = append(subjects, schemas.SubjectAPIPrefix+verb)
	}
	elsewhere, err := f.nc.SubscribeSync("elsewhere.>")
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for _, subject := range subjects {
		for _, reply := range []string{"elsewhere." + subject, "$KV.clock." + subject, "timers.fired.orders", "REPLIES.shopper.x"} {
			sent++
			if err := f.nc.PublishRequest(subject, reply, requests[strings.TrimPrefix(subject, schemas.SubjectAPIPrefix)]); err != nil {
				t.Fatal(err)
			}
		}
	}
	waittest.Until(f.t, "all are counted", func() bool { return metrictest.Series(t, reg)["belfry_api_replies_refused_total"] == float64(sent) })
	// Inboxes of every form are answered, on the same subjects.
	for _, reply := range []string{f.nc.NewInbox(), "_INBOX_orders.x", "REPLIES.shop.x"} {
		sub, err := f.nc.SubscribeSync(reply)
		if err != nil {
			t.Fatal(err)
		}
		for _, subject := range subjects[:7] {
			if err := f.nc.PublishRequest(subject, reply, []byte(`{}`)); err != nil {
				t.Fatal(err)
			}
			if m, err := sub.NextMsg(bound); err != nil || len(m.Data) == 0 {
				t.Errorf("%s with reply subject %s: %v", subject, reply, err)
			}
		}
	}
	if n, _, err := elsewhere.Pending(); err != nil || n != 0 {
		t.Errorf("%d answers were sent to reply subjects that are not inboxes (%v)", n, err)
	}
	for _, subject := range subjects {
		if m, err := f.js.Stream(t.Context(), "KV_clock"); err != nil {
			t.Fatal(err)
		} else if got, err := m.GetLastMsgForSubject(t.Context(), "$KV.clock."+subject); err == nil {
			t.Errorf("an answer was written into the bucket: %s", got.Data)
		}
	}
	// No refused request had an effect.
	var after schemas.TimerInfo
	if code := f.request("get", ref, &after); code != "" || after.Revision != before.Revision {
		t.Errorf("%s: the timer was %+v, and is %+v", code, before, after)
	}
	if code := f.request("get", []byte(`{"id":"2","source":"/test"}`), nil); code != "not_found" {
		t.Errorf("the add was carried out: %q", code)
	}
	waittest.Until(f.t, "one log line", func() bool { return log.Count("inbox-prefixes") == 1 })
	// A request without a reply subject is executed.
	if err := f.nc.PublishMsg(&nats.Msg{Subject: schemas.SubjectAPIPrefix + "cancel", Data: ref}); err != nil {
		t.Fatal(err)
	}
	waittest.Until(f.t, "cancelled", func() bool {
		var i schemas.TimerInfo
		return f.request("get", ref, &i) == "" && i.State == schemas.StateCancelled
	})
}
