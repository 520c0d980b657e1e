//go:build unix

package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/schemas"
)

// TestRetentionOfEveryEnding reads the TTLs that the server has stored. A record has a
// TTL when it is final, and the TTL is the retention, whichever part of Belfry wrote the
// record.
func TestRetentionOfEveryEnding(t *testing.T) {
	t.Parallel()
	a := node(t, func(o *app.Options) { o.Retention = 90 * time.Minute })
	c := connect(t, a.NATSURL())
	hook := newCallee(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/gone") {
			w.WriteHeader(http.StatusGone)
		}
	})
	// Another host, because Retry-After makes all calls of a host wait.
	busy := newCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600") // a retry that waits in the wheel
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	now, far := at(0), at(time.Hour)
	c.publish(structured(attrs{"id": "busy", "timerat": now, "timercallback": busy.url}, `{}`))
	c.until("busy", schemas.StateRetrying)
	c.publish(structured(attrs{"id": "published", "timerat": now}, `{}`))
	c.publish(structured(attrs{"id": "called", "timerat": now, "timercallback": hook.url + "/ok"}, `{}`))
	c.publish(structured(attrs{"id": "dead", "timerat": now, "timercallback": hook.url + "/gone"}, `{}`))
	for _, id := range []string{"cancelled", "moved", "waits"} {
		c.publish(structured(attrs{"id": id, "timerat": far}, `{}`))
	}
	cancel := func(id string) {
		t.Helper()
		if err := c.call("cancel", schemas.TimerRef{ID: id, Source: "/e2e"}, &schemas.TimerInfo{}); err != nil {
			t.Fatal(err)
		}
	}
	c.until("cancelled", schemas.StatePending)
	cancel("cancelled")
	cancel("busy")
	c.until("moved", schemas.StatePending)
	if err := c.call("reschedule", schemas.RescheduleRequest{TimerRef: schemas.TimerRef{ID: "moved", Source: "/e2e"}, After: "2h"}, &schemas.TimerInfo{}); err != nil {
		t.Fatal(err)
	}
	endings := map[string]schemas.State{
		"published": schemas.StateSuccess, "called": schemas.StateSuccess, "dead": schemas.StateFail, "busy": schemas.StateCancelled,
		"cancelled": schemas.StateCancelled, "moved": schemas.StatePending, "waits": schemas.StatePending,
	}
	for id, state := range endings {
		c.until(id, state)
		want := ""
		if state.Final() {
			want = "5400s"
		}
		shard := a.Store().Geometry().Shard(timerID(id))
		stream, err := c.js.Stream(t.Context(), "KV_"+schemas.BucketTimers(shard))
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.GetLastMsgForSubject(t.Context(), "$KV."+schemas.BucketTimers(shard)+".timer."+timerID(id).String())
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get("Nats-TTL"); got != want {
			t.Errorf("%s, which is %s, expires after %q, want %q", id, state, got, want)
		}
	}
}
