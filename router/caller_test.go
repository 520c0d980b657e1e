package router_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestHistory: the time and the caller of each change of a timer are in its record, in
// answers and in the log, also for cancels that are written together, and only for
// operations that changed something.
func TestHistory(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	var log logtest.Buffer
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	const cancels = 64
	for i := range cancels {
		if code := f.request("add", add(fmt.Sprint(i), `"timerafter":"1h"`), &schemas.AddReply{}); code != "" {
			t.Fatal(code)
		}
	}
	before := f.clock.LatestNs() / 1e6
	id := schemas.NewTimerID("/test", "0")
	var moved schemas.TimerInfo
	if code := f.request("reschedule", fmt.Appendf(nil, `{"timer":%q,"after":"2h","by":"Zoë <z@desk>"}`, id), &moved); code != "" {
		t.Fatal(code)
	}
	if h := moved.History; len(h) != 1 || h[0].Op != "reschedule" || h[0].By != "Zoë <z@desk>" || h[0].Account != "" || h[0].User != "" {
		t.Errorf("moved: %+v", h)
	}
	var wg sync.WaitGroup
	for i := range cancels {
		wg.Go(func() {
			var got schemas.TimerInfo
			if code := f.request("cancel", fmt.Appendf(nil, `{"timer":%q,"by":"ann@desk"}`, schemas.NewTimerID("/test", fmt.Sprint(i))), &got); code != "" {
				t.Error(code)
			}
			if n := len(got.History); n == 0 || got.History[n-1].Op != "cancel" || got.History[n-1].By != "ann@desk" {
				t.Errorf("cancelled: %+v", got.History)
			}
		})
	}
	wg.Wait()
	// Repeating the cancel changes nothing.
	if code := f.request("cancel", fmt.Appendf(nil, `{"timer":%q,"by":"bob"}`, id), &schemas.TimerInfo{}); code != "" {
		t.Error(code)
	}
	rec := f.await("/test", "0").Record
	if len(rec.History) != 2 || rec.History[1].AtMs != rec.DoneMs || rec.History[0].AtMs < before || rec.History[0].AtMs > rec.DoneMs {
		t.Errorf("the record: %+v, done %d", rec.History, rec.DoneMs)
	}
	var got schemas.TimerInfo
	if code := f.request("get", fmt.Appendf(nil, `{"timer":%q}`, id), &got); code != "" || len(got.History) != 2 {
		t.Errorf("get: %s %+v", code, got.History)
	}
	if lines := log.Lines(t, "timer cancelled"); len(lines) != cancels || lines[0]["by"] != "ann@desk" || lines[0]["op"] != "cancel" || lines[0]["timer"] == nil || lines[0]["level"] != "info" {
		t.Errorf("%d lines of cancels: %v", len(lines), lines)
	}
	if lines := log.Lines(t, "timer rescheduled"); len(lines) != 1 || lines[0]["timer"] != id.String() {
		t.Errorf("got %v", lines)
	}
	for _, by := range []string{strings.Repeat("b", schemas.MaxBy+1), `a\nb`, `\u0000`} {
		if code := f.request("cancel", fmt.Appendf(nil, `{"timer":%q,"by":"%s"}`, id, by), nil); code != "bad_request" {
			t.Errorf("by %q: %q", by, code)
		}
		if code := f.request("reschedule", fmt.Appendf(nil, `{"timer":%q,"after":"1h","by":"%s"}`, id, by), nil); code != "bad_request" {
			t.Errorf("by %q: %q", by, code)
		}
	}
}

const callerAccounts = `
accounts {
  BELFRY {
    jetstream: enabled
    users: [ { user: belfry, password: p }, { user: admin, password: p } ]
    exports: [ { service: "timers.api.>" } ]
  }
  ORDERS { users: [ { user: orders, password: p } ], imports: [ { service: { account: BELFRY, subject: "timers.api.>" }, share: true } ] }
  BILLS { users: [ { user: bills, password: p } ], imports: [ { service: { account: BELFRY, subject: "timers.api.>" } } ] }
}`

// accounts prepares everything but the router, on a server with callerAccounts.
func accounts(t *testing.T) *fixture {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte(callerAccounts), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	srv := natstest.Run(t, func(o *server.Options) { o.Accounts, o.Users = conf.Accounts, conf.Users })
	f := newFixtureOn(t, srv.Connect(nats.UserInfo("belfry", "p")), store.Config{})
	f.srv = srv
	return f
}

// TestCallersOfOtherAccounts: the history has the server's description of a caller, and
// not a forged one.
func TestCallersOfOtherAccounts(t *testing.T) {
	t.Parallel()
	f := accounts(t)
	var log logtest.Buffer
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.New(&log)})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	forged := nats.Header{
		"Nats-Request-Info": {`{"acc":"SYS","user":"root"}`, `{"acc":"BELFRY","user":"root"}`},
		"nats-request-info": {`{"acc":"SYS","user":"root"}`},
	}
	for i, c := range []struct {
		login string
		hdr   nats.Header
		want  schemas.Caller
	}{
		{"orders", nil, schemas.Caller{Account: "ORDERS", User: "orders"}},
		{"orders", forged, schemas.Caller{Account: "ORDERS", User: "orders"}},
		{"bills", nil, schemas.Caller{Account: "BILLS"}},
		{"bills", forged, schemas.Caller{Account: "BILLS"}},
		{"admin", nil, schemas.Caller{}},
		{"admin", forged, schemas.Caller{}},
	} {
		nc := f.srv.Connect(nats.UserInfo(c.login, "p"))
		id := fmt.Sprint(i)
		if _, err := nc.Request("timers.api.add", add(id, `"timerafter":"1h"`), bound); err != nil {
			t.Fatal(err)
		}
		m, err := nc.RequestMsg(&nats.Msg{Subject: "timers.api.cancel", Header: c.hdr, Data: fmt.Appendf(nil, `{"timer":%q}`, schemas.NewTimerID("/test", id))}, bound)
		if err != nil || m.Header.Get(micro.ErrorCodeHeader) != "" {
			t.Fatalf("got %v, %v", m, err)
		}
		var got schemas.TimerInfo
		if err := json.Unmarshal(m.Data, &got); err != nil {
			t.Fatal(err)
		}
		if h := got.History; len(h) != 1 || h[0].Account != c.want.Account || h[0].User != c.want.User {
			t.Errorf("%s, headers %v: %+v", c.login, c.hdr, h)
		}
	}
	if lines := log.Lines(t, "timer cancelled"); len(lines) != 6 || lines[0]["account"] != "ORDERS" || lines[0]["user"] != "orders" {
		t.Errorf("got %v", lines)
	}
}

// TestForgedReply: no client can send a request with a reply subject of the form that the
// server uses for service imports. callerOf of natsapi relies on that.
func TestForgedReply(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	refused := make(chan error, 8)
	nc := f.srv.Connect(nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if code := f.request("add", add("1", `"timerafter":"1h"`), &schemas.AddReply{}); code != "" {
		t.Fatal(code)
	}
	for _, reply := range []string{"_R_.forged", "_GR_.a.b._R_.forged"} {
		err := nc.PublishMsg(&nats.Msg{
			Subject: "timers.api.cancel", Reply: reply, Header: nats.Header{"Nats-Request-Info": {`{"acc":"SYS","user":"root"}`}},
			Data: []byte(`{"id":"1","source":"/test"}`),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := waittest.Receive(t, "the server refuses "+reply, refused); !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s: %v, want a permission violation", reply, err)
		}
	}
	if rec := f.await("/test", "1").Record; rec.State != schemas.StatePending {
		t.Errorf("cancelled by a forged request: %+v", rec.History)
	}
}

// TestPastDueIsRemarked: an add with a due time in the past fires now, and its answer has
// a remark. The same add again is a duplicate without a remark.
func TestPastDueIsRemarked(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	past := time.UnixMilli(f.clock.LatestNs() / 1e6).Add(-3 * time.Hour).UTC().Format(time.RFC3339)
	var got schemas.AddReply
	if code := f.request("add", add("1", fmt.Sprintf(`"timerat":%q`, past)), &got); code != "" || !strings.HasPrefix(got.Remark, "due 3h") || !strings.HasSuffix(got.Remark, " ago: fires now") {
		t.Errorf("%s %+v", code, got)
	}
	for _, again := range [][]byte{add("1", fmt.Sprintf(`"timerat":%q`, past)), add("2", `"timerafter":"0s"`), add("3", `"timerafter":"1h"`)} {
		got := schemas.AddReply{}
		if code := f.request("add", again, &got); code != "" || got.Remark != "" {
			t.Errorf("%s %+v", code, got)
		}
	}
}
