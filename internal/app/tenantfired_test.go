package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// testTenantFired: the fired events of a tenant come into its own account alone, once each, as they
// fire and by its consumer.
func testTenantFired(f *tenants) {
	t := f.t
	live := map[string]*listener{}
	for _, user := range []string{"acme", "globex", "ghost", "team"} {
		live[user] = f.listen(user)
	}
	if _, err := f.as("acme").Subscribe("callbacks.fx", func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
		t.Fatal(err)
	}
	if err := f.as("acme").Flush(); err != nil {
		t.Fatal(err)
	}
	events := map[string]string{
		"fx1": `"timerafter":"0s","timersvc":"orders"`,
		"fx2": `"timerafter":"20ms","timersvc":"mail"`,
		"fx3": `"timerafter":"0s","timersvc":"orders","timercallback":"nats:callbacks.fx"`,
	}
	want := map[string]map[string]string{} // by user, the subject by the id of the message
	for _, user := range []string{"acme", "globex"} {
		want[user] = map[string]string{}
		for id, more := range events {
			if user == "globex" {
				more = strings.Replace(more, `,"timercallback":"nats:callbacks.fx"`, "", 1)
			}
			f.publish(user, tenantEvent(id, more))
			subject := "timers.fired.orders"
			if id == "fx2" {
				subject = "timers.fired.mail"
			}
			want[user][schemas.NewTenantTimerID(user, "/s", id).MsgID(1)] = subject
		}
	}
	for user, ids := range want {
		f.consumeFired(user, ids)
		for id := range events {
			f.await(user, named(id), "success")
		}
	}
	for user, l := range live {
		if err := l.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		for id, subject := range want[user] {
			if got := l.got[id]; len(got) != 1 || got[0] != subject {
				t.Errorf("%s: event %s came on %q, want once on %s", user, id, got, subject)
			}
		}
		for owner, ids := range want {
			for id := range ids {
				if got := l.got[id]; owner != user && len(got) > 0 {
					t.Errorf("%s: event %s of %s came on %q", user, id, owner, got)
				}
			}
		}
		l.mu.Unlock()
	}
	f.checkCopies(want)
	testFiredAttacks(f)
}

// listener counts what an account receives.
type listener struct {
	nc  *nats.Conn
	mu  sync.Mutex
	got map[string][]string // the subjects of each Nats-Msg-Id
}

// listen subscribes to timers.> in the account of a user.
func (f *tenants) listen(user string) *listener {
	f.t.Helper()
	l := &listener{nc: f.connect(user), got: map[string][]string{}}
	if _, err := l.nc.Subscribe("timers.>", func(m *nats.Msg) {
		if id := m.Header.Get(nats.MsgIdHdr); id != "" {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.got[id] = append(l.got[id], m.Subject)
		}
	}); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(l.nc.Close) // at the end of the part: later parts expect no responders on these subjects
	if err := l.nc.Flush(); err != nil {
		f.t.Fatal(err)
	}
	return l
}

// firedConsumer returns the consumer of the fired events of a user's account.
func (f *tenants) firedConsumer(user string) jetstream.Consumer {
	f.t.Helper()
	js, err := jetstream.NewWithAPIPrefix(f.as(user), schemas.JetStreamPrefix, jetstream.WithDefaultTimeout(requestBound))
	if err != nil {
		f.t.Fatal(err)
	}
	cons, err := js.Consumer(f.t.Context(), schemas.StreamTenantFired, f.mode.accounts[user])
	if err != nil {
		f.t.Fatal(err)
	}
	return cons
}

// nextFired returns the next event of a consumer.
func (f *tenants) nextFired(cons jetstream.Consumer) jetstream.Msg {
	f.t.Helper()
	for end := time.Now().Add(bound); time.Now().Before(end); {
		batch, err := cons.Fetch(1, jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			f.t.Fatal(err)
		}
		for m := range batch.Messages() {
			return m
		}
	}
	f.t.Fatal("no event")
	return nil
}

// consumeFired reads the events with the wanted ids by the consumer of the user's account. It hands
// the first one back, which then comes again, and acknowledges all.
func (f *tenants) consumeFired(user string, ids map[string]string) {
	t := f.t
	t.Helper()
	cons := f.firedConsumer(user)
	deliveries := map[string]uint64{}
	returned := ""
	for missing := len(ids); missing > 0; {
		m := f.nextFired(cons)
		id := m.Headers().Get(nats.MsgIdHdr)
		account := f.mode.accounts[user]
		if subject := "timers.t." + account + ".fired."; !strings.HasPrefix(m.Subject(), subject) {
			t.Errorf("%s: an event on %s, want %s…", user, m.Subject(), subject)
		}
		for name := range m.Headers() {
			if strings.HasPrefix(name, schemas.HeaderPrefix) {
				t.Errorf("%s: event %s has header %s", user, id, name)
			}
		}
		if _, ours := ids[id]; ours {
			meta, err := m.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			deliveries[id]++
			if meta.NumDelivered != deliveries[id] {
				t.Errorf("%s: event %s is delivery %d, want %d", user, id, meta.NumDelivered, deliveries[id])
			}
			if returned == "" {
				returned = id
				if err := m.Nak(); err != nil {
					t.Fatal(err)
				}
				continue
			}
			missing--
		}
		if err := m.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	for id := range ids {
		want := uint64(1)
		if id == returned {
			want = 2
		}
		if deliveries[id] != want {
			t.Errorf("%s: event %s was delivered %d times, want %d", user, id, deliveries[id], want)
		}
	}
	waittest.Until(t, user+"'s events are acknowledged", func() bool {
		info, err := cons.Info(t.Context())
		return err == nil && info.NumAckPending == 0
	})
}

// checkCopies reads the whole stream as Belfry's own account.
func (f *tenants) checkCopies(want map[string]map[string]string) {
	t := f.t
	t.Helper()
	js := natstest.JetStream(t, f.as("admin"))
	stream, err := js.Stream(t.Context(), schemas.StreamTenantFired)
	if err != nil {
		t.Fatal(err)
	}
	copies := map[string]int{}
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		var m *jetstream.RawStreamMsg
		waittest.Until(t, "the copy is readable", func() (ok bool) { // also by a replica that lags behind
			m, err = stream.GetMsg(t.Context(), seq)
			return err == nil
		})
		if strings.Contains(string(m.Data), "forged") {
			t.Errorf("a forged event is stored on %s", m.Subject)
		}
		copies[m.Subject+" "+m.Header.Get(nats.MsgIdHdr)]++
	}
	for user, ids := range want {
		for id, local := range ids {
			subject := "timers.t." + f.mode.accounts[user] + strings.TrimPrefix(local, "timers")
			if n := copies[subject+" "+id]; n != 1 {
				t.Errorf("%d copies of %s on %s, want 1", n, id, subject)
			}
		}
	}
}

// testFiredAttacks: globex cannot read, acknowledge or replay the events of acme, and its messages
// on their subjects reach neither acme nor the stream. acme itself can only use its consumer.
func testFiredAttacks(f *tenants) {
	t := f.t
	account := f.mode.accounts["acme"]
	of := schemas.StreamTenantFired
	cons := f.firedConsumer("acme")
	f.publish("acme", tenantEvent("held", `"timerafter":"0s","timersvc":"orders"`))
	held := f.nextFired(cons)
	live := f.listen("acme")

	refused := func(user, subject, body string) {
		t.Helper()
		m, err := f.as(user).Request(subject, []byte(body), requestBound)
		if errors.Is(err, nats.ErrNoResponders) || err == nil && strings.Contains(string(m.Data), "JetStream not enabled for account") {
			return
		}
		t.Errorf("%s: %s: %v %v, want no responders", user, subject, m, err)
	}
	for _, api := range []string{"$JS.API.", schemas.JetStreamPrefix + "."} {
		for subject, body := range map[string]string{
			"STREAM.INFO." + of: "", "STREAM.PURGE." + of: "", "STREAM.MSG.GET." + of: `{"seq":1}`, "DIRECT.GET." + of: `{"seq":1}`,
			"CONSUMER.CREATE." + of + ".x":          fmt.Sprintf(`{"stream_name":%q,"config":{"durable_name":"x"}}`, of),
			"CONSUMER.DELETE." + of + "." + account: "", "CONSUMER.MSG.NEXT.TIMERS_FIRED." + account: "",
		} {
			refused("globex", api+subject, body)
			refused("acme", api+subject, body)
		}
		for _, verb := range []string{"CONSUMER.INFO.", "CONSUMER.MSG.NEXT."} {
			refused("globex", api+verb+of+"."+account, "")
			refused("acme", api+verb+of+"."+f.mode.accounts["globex"], "")
		}
	}
	for _, user := range []string{"globex", "ghost", "team"} {
		nc := f.as(user)
		for _, subject := range []string{"timers.t." + account + ".fired.orders", "timers.fired.orders", "timers.fired.acme=orders"} {
			forged := &nats.Msg{Subject: subject, Header: nats.Header{nats.MsgIdHdr: {"forged"}}, Data: tenantEvent("forged", `"timersvc":"orders"`)}
			if err := nc.PublishMsg(forged); err != nil {
				t.Fatal(err)
			}
		}
		for _, ack := range []string{"+ACK", "+TERM", "-NAK"} {
			if err := nc.Publish(held.Reply(), []byte(ack)); err != nil {
				t.Fatal(err)
			}
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	// The subject of its events in Belfry's account is not one of Belfry's in acme's own account.
	if err := f.as("acme").Publish("timers.t."+account+".fired.orders", tenantEvent("forged", `"timersvc":"orders"`)); err != nil {
		t.Fatal(err)
	}
	if info, err := cons.Info(t.Context()); err != nil || info.NumAckPending != 1 || info.NumRedelivered != 0 {
		t.Errorf("others acknowledged acme's event: %+v %v", info, err)
	}
	if err := held.Ack(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "acme acknowledges its event", func() bool {
		info, err := cons.Info(t.Context())
		return err == nil && info.NumAckPending == 0
	})
	if err := live.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	live.mu.Lock()
	defer live.mu.Unlock()
	if got := live.got["forged"]; len(got) > 0 {
		t.Errorf("acme received forged events on %q", got)
	}
	f.checkCopies(nil)
}

// testTenantHandled: the Go client handles the events of its account, and gets the ids of the tenant's
// timers.
func testTenantHandled(f *tenants) {
	t := f.t
	c, err := belfry.New(f.as("acme"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	calls, reported := map[string]int{}, map[string]int{}
	handler := func(_ context.Context, run *belfry.Run) error {
		id := run.Event.ID()
		if want := belfry.NewTenantTimerID("acme", "/s", id); run.Timer != want {
			t.Errorf("%s is timer %s, want %s", id, run.Timer, want)
		}
		mu.Lock()
		defer mu.Unlock()
		calls[id]++
		switch {
		case id == "h1" && calls[id] == 1:
			return errors.New("once")
		case id == "h2":
			return belfry.Permanent(errors.New("never"))
		case id == "h3":
			return belfry.RetryAfter(0)
		}
		return nil
	}
	report := func(run *belfry.Run, err error) {
		mu.Lock()
		defer mu.Unlock()
		if run == nil {
			t.Error(err)
			return
		}
		reported[run.Event.ID()]++
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	go func() {
		ended <- c.HandleTenant(ctx, f.mode.accounts["acme"], handler, belfry.WithErrorHandler(report), belfry.WithMaxDeliver(3))
	}()
	go func() { ended <- c.Work(ctx, "jobs2", handler) }()
	f.must("acme", "add", tenantEvent("h1", `"timerafter":"0s","timersvc":"orders"`))
	f.must("acme", "add", tenantEvent("h2", `"timerafter":"0s","timersvc":"mail"`))
	f.must("acme", "add", tenantEvent("h3", `"timerafter":"0s"`))
	f.must("acme", "add", tenantEvent("h4", `"timerafter":"0s","timersvc":"jobs2","timercallback":"nats:timers.work.jobs2"`))
	f.await("acme", named("h4"), "success")
	cons := f.firedConsumer("acme")
	waittest.Until(t, "all events are handled", func() bool {
		info, err := cons.Info(t.Context())
		mu.Lock()
		defer mu.Unlock()
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0 && calls["h1"] == 2 && calls["h4"] == 2
	})
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	// The event of h4 comes to the handler twice: as a worker, and by the consumer.
	if want := map[string]int{"h1": 2, "h2": 1, "h3": 3, "h4": 2}; !maps.Equal(ofPart(calls, "h"), want) {
		t.Errorf("calls %v, want %v", calls, want)
	}
	if want := map[string]int{"h1": 1, "h2": 1, "h3": 1}; !maps.Equal(ofPart(reported, "h"), want) {
		t.Errorf("errors %v, want %v", reported, want)
	}
	other, err := belfry.New(f.as("globex"))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.HandleTenant(t.Context(), f.mode.accounts["acme"], handler); !errors.Is(err, belfry.ErrUnavailable) || !strings.Contains(err.Error(), "export-fired") {
		t.Errorf("globex handles the events of acme: %v", err)
	}
}

// ofPart returns the entries whose names begin with a letter.
func ofPart(m map[string]int, letter string) map[string]int {
	out := map[string]int{}
	for name, n := range m {
		if strings.HasPrefix(name, letter) {
			out[name] = n
		}
	}
	return out
}

// testForgedFired: the JWT of MALLORY imports the fired events of acme, and its consumer. The server
// serves neither.
func testForgedFired(f *tenants) {
	t := f.t
	mallory, acme := f.listen("mallory"), f.listen("acme")
	f.publish("acme", tenantEvent("secret", `"timerafter":"0s","timersvc":"orders"`))
	id := schemas.NewTenantTimerID("acme", "/s", "secret").MsgID(1)
	waittest.Until(t, "acme receives its event", func() bool {
		acme.mu.Lock()
		defer acme.mu.Unlock()
		return len(acme.got[id]) == 1
	})
	for _, verb := range []string{"CONSUMER.INFO.", "CONSUMER.MSG.NEXT."} {
		subject := schemas.JetStreamPrefix + "." + verb + schemas.StreamTenantFired + "." + f.mode.accounts["acme"]
		if m, err := f.as("mallory").Request(subject, nil, requestBound); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("mallory: %s: %v %v, want no responders", subject, m, err)
		}
	}
	cons := f.firedConsumer("acme")
	m := f.nextFired(cons)
	if err := f.as("mallory").Publish(m.Reply(), []byte("+ACK")); err != nil {
		t.Fatal(err)
	}
	if err := f.as("mallory").Flush(); err != nil {
		t.Fatal(err)
	}
	if info, err := cons.Info(t.Context()); err != nil || info.NumAckPending != 1 {
		t.Errorf("mallory acknowledged an event of acme: %+v %v", info, err)
	}
	if err := mallory.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	mallory.mu.Lock()
	defer mallory.mu.Unlock()
	if len(mallory.got) > 0 {
		t.Errorf("mallory received %v", mallory.got)
	}
}

// TestTenantFiredImports: a server refuses the configuration of an account that imports the fired
// events of another one, or its consumer.
func TestTenantFiredImports(t *testing.T) {
	t.Parallel()
	text := confText(t)
	load := func(text string) error {
		file := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := server.ProcessConfigFile(file)
		return err
	}
	if err := load(text); err != nil {
		t.Fatal(err)
	}
	// docs/tenants.md shows these lines.
	docs, err := os.ReadFile("../../docs/tenants.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for line := range strings.Lines(string(docs)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "{ s") && strings.Contains(line, "fired.>") || strings.HasPrefix(line, "{ s") && strings.Contains(line, "TIMERS_TENANT_FIRED") {
			if shown++; !strings.Contains(text, line) {
				t.Errorf("docs/tenants.md has a line that nats.conf has not: %s", line)
			}
		}
	}
	if shown != 8 {
		t.Errorf("docs/tenants.md shows %d lines, want 8", shown)
	}
	for _, line := range firedImports(t, text) {
		stolen := strings.Replace(text, globexImports, globexImports+line+"\n", 1)
		if err := load(stolen); err == nil {
			t.Errorf("GLOBEX may import%s", line)
		}
	}
}
