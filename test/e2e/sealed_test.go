//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestCallbacksDoNotTravel: credentials in a callback URL do not appear in fired events,
// dead letters or callbacks, in either mode. The callback is still made, retried, and
// replayed after the record has expired.
func TestCallbacksDoNotTravel(t *testing.T) {
	t.Parallel()
	a := node(t, func(o *app.Options) { o.Retention = 2 * time.Second })
	c := connect(t, a.NATSURL())
	var well atomic.Bool
	var mu sync.Mutex
	var requests []string
	calls := map[string]int{}
	callee := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		user, password, _ := r.BasicAuth()
		ok := r.URL.Path == "/hunter2-path" && r.URL.RawQuery == "k=hunter2-query" && user == "alice" && password == "hunter2-password"
		r.Header.Del("Authorization")
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, fmt.Sprint(r.Header, string(body)))
		calls[r.Header.Get("Ce-Id")]++
		if !ok || !well.Load() {
			w.WriteHeader(http.StatusGone)
		}
	}))
	t.Cleanup(callee.Close)
	target := strings.Replace(callee.URL, "://", "://alice:hunter2-password@", 1) + "/hunter2-path?k=hunter2-query"
	if _, err := c.nc.Subscribe("callbacks.sealed", func(m *nats.Msg) {
		mu.Lock()
		requests = append(requests, fmt.Sprint(m.Header, string(m.Data)))
		mu.Unlock()
		if err := m.Respond(nil); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	// A node hides callbacks once it has read which other nodes there are.
	waittest.Until(t, "the node hides callbacks", func() bool { return a.Store().SealCallback(timerID("n"), "nats:callbacks.sealed") != "" })
	fired := func(subject string) []string {
		t.Helper()
		cons, err := c.js.OrderedConsumer(t.Context(), map[bool]string{true: schemas.StreamFired, false: schemas.StreamDead}[strings.HasPrefix(subject, schemas.SubjectFiredPrefix)],
			jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
		if err != nil {
			t.Fatal(err)
		}
		info, err := cons.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for range info.NumPending + info.Delivered.Consumer {
			m, err := cons.Next(jetstream.FetchMaxWait(bound))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprint(m.Headers(), string(m.Data())))
		}
		return out
	}
	c.publish(structured(attrs{"id": "s", "timersvc": "sealed", "timercallback": target, "timerafter": "1ms"}, `{"timercallback":"mine"}`))
	c.publish(binary(attrs{"id": "b", "timersvc": "sealed", "timercallback": target, "timerafter": "1ms"}, "text/plain", "x"))
	c.publish(structured(attrs{"id": "n", "timersvc": "sealed", "timercallback": "nats:callbacks.sealed", "timerafter": "1ms"}, `{}`))
	c.until("n", schemas.StateSuccess)
	for _, id := range []string{"s", "b"} {
		if i := c.until(id, schemas.StateFail); i.Outcome.Code != http.StatusGone || strings.Contains(i.Callback, "hunter2-p") && !strings.Contains(i.Callback, "hunter2-path") || strings.Contains(i.Callback, "hunter2-query") {
			t.Errorf("%s: %+v", id, i)
		}
	}
	events, letters := fired(schemas.SubjectFired("sealed")), fired(schemas.SubjectDead("sealed"))
	if len(events) != 3 || len(letters) != 2 {
		t.Fatalf("%d events, %d dead letters", len(events), len(letters))
	}

	// After the records have expired, the dead letters still have the (sealed) callback.
	waittest.Until(t, "the records to expire", func() bool { return c.expired("s") && c.expired("b") })
	well.Store(true)
	var r schemas.ReplayReply
	if err := c.call("dead.replay", schemas.ReplayRequest{Service: "sealed"}, &r); err != nil || r.Replayed != 2 {
		t.Fatalf("replay: %+v %v", r, err)
	}
	waittest.Until(t, "both to be called again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return calls["s"] == 2 && calls["b"] == 2
	})
	if events = fired(schemas.SubjectFired("sealed")); len(events) != 3 {
		t.Errorf("%d events fired for three timers", len(events))
	}
	mu.Lock()
	defer mu.Unlock()
	for _, s := range slices.Concat(requests, events, letters) {
		if strings.Contains(s, "hunter2") || strings.Contains(s, "nats:callbacks.sealed") {
			t.Errorf("the callback URL is in a message: %s", s)
		}
	}
}
