package functions

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestWebhookDown: while a target without a permission cannot be reached, its events wait and use no
// attempt. The circuit of its key opens, and then the target is only asked as a probe. When it
// answers, each event is called once.
func TestWebhookDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.canHold()
	address, serve := deadURL(t)
	r.start(func(o *Options) { withOrigin(o); o.WebhookPermission, o.AckWait = 72*time.Second, DefaultAckWait }) // asked again after 100 ms
	var ids []schemas.TimerID
	for i := range 6 {
		ids = append(ids, r.fire(timer{callback: fmt.Sprintf("http://%s/hook?%d", address, i), attributes: map[string]string{"timermaxattempts": "1"}}))
	}
	r.wheel(func() []schemas.TimerID { return ids })
	h := r.holdOf(r.store, address)
	if h.Hold.OpenNs == 0 || !strings.Contains(h.Reason, "OPTIONS") {
		t.Errorf("got the hold %+v, want an open circuit", h)
	}
	waittest.Until(t, "the events wait", func() bool {
		for _, id := range ids {
			if rec := r.get(id).Record; !rec.Deferred() {
				return false
			}
		}
		return true
	})
	var asked, called atomic.Int64
	serve(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodOptions {
			asked.Add(1)
			w.Header().Set("WebHook-Allowed-Origin", "*")
			return
		}
		called.Add(1)
	})
	for _, id := range ids {
		if rec := r.await(id, schemas.StateSuccess); rec.Attempt != 1 {
			t.Errorf("got %d attempts, want 1", rec.Attempt)
		}
	}
	if asked.Load() != 1 || called.Load() != int64(len(ids)) {
		t.Errorf("the target was asked %d times and called %d times, want 1 and %d", asked.Load(), called.Load(), len(ids))
	}
}

// TestWebhookHeld: a target is not asked while it has asked for a pause, nor while its circuit is open
// and no probe is due.
func TestWebhookHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.canHold()
	c := newWebhookTarget(t, "*")
	for key, change := range map[string]func(h *store.FlowHold) bool{
		"paused": func(h *store.FlowHold) bool { return h.Hold.RetryAfter(time.Hour, time.Now().UnixNano()) },
		"open": func(h *store.FlowHold) bool {
			h.Hold = flow.Hold{OpenNs: time.Now().UnixNano(), ProbeNs: time.Now().Add(time.Minute).UnixNano()}
			return true
		},
	} {
		if _, err := r.store.ChangeHold(t.Context(), key, nowMs(), change); err != nil {
			t.Fatal(err)
		}
	}
	r.start(withOrigin)
	for _, key := range []string{"paused", "open"} {
		id := r.fire(timer{callback: c.URL, attributes: map[string]string{"timerflow": key}})
		if rec := r.await(id, schemas.StateRetrying); rec.Attempt != 0 {
			t.Errorf("%s: got %d attempts, want none", key, rec.Attempt)
		}
	}
	if n := c.count(); n != 0 {
		t.Errorf("the target got %d requests, want none", n)
	}
}

// TestWebhookRenewal: calls go on while a target is asked again before its permission ends.
func TestWebhookRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := r.start(withOrigin)
	released := make(chan struct{})
	var asked atomic.Int64
	c := httpCallee(t, func(_ int, w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodOptions {
			return
		}
		w.Header().Set("WebHook-Allowed-Origin", "*")
		if asked.Add(1) > 1 {
			<-released
		}
	})
	t.Cleanup(func() { close(released) })
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	f.mu.Lock()
	w := f.services["s"].caller.Load().webhook
	f.mu.Unlock()
	w.mu.Lock()
	for page, p := range w.permissions {
		p.renew = time.Now()
		w.permissions[page] = p
	}
	w.mu.Unlock()
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	waittest.Until(t, "the target is asked again", func() bool { return asked.Load() == 2 })
	r.await(r.fire(timer{callback: c.URL}), schemas.StateSuccess)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.flights) != 1 {
		t.Error("the calls waited for the answer")
	}
}
