package functions

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestFlowHold: a pause of a service, or of a group, holds its callbacks whatever their flow keys,
// and no others. After the resume they are called at the rates of their own keys.
func TestFlowHold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	group := func(name string) map[string]string { return map[string]string{schemas.AttrGroup: name} }
	keyed := map[string]string{schemas.AttrFlow: "keyed"}
	r.limit("service:mail", flow.Limit{Paused: true})
	r.limit("group:import-7", flow.Limit{Paused: true})
	own := flow.Limit{Rate: flow.Rate{Count: 1, Per: 10 * time.Minute}, Burst: 1}
	r.limit("keyed", own)
	r.start(nil)
	held := map[string][]schemas.TimerID{
		"service:mail":   {r.fire(timer{svc: "mail", callback: c.URL}), r.fire(timer{svc: "mail", callback: c.URL, attributes: keyed}), r.fire(timer{svc: "mail", callback: c.URL, attributes: keyed})},
		"group:import-7": {r.fire(timer{callback: c.URL, attributes: group("import-7")})},
	}
	for key, ids := range held {
		for _, id := range ids {
			r.awaitDeferredOrCalled(id)
			rec := r.get(id).Record
			if !rec.Deferred() || rec.Attempt != 0 || rec.Deferral.Flow != key || rec.Deferrals() != 1 || rec.DueMs < nowMs()+30_000 {
				t.Fatalf("%s: got %+v, deferral %+v", key, rec.RunState, rec.Deferral)
			}
		}
	}
	for _, free := range []timer{{svc: "mails", callback: c.URL}, {callback: c.URL, attributes: group("import-71")}} {
		r.await(r.fire(free), schemas.StateSuccess)
	}
	r.settled("mail")
	r.settled("s")
	if n := c.count(); n != 2 {
		t.Fatalf("got %d calls, want the 2 that no pause holds", n)
	}
	r.delete("service:mail")
	r.delete("group:import-7")
	now := nowMs()
	for key, ids := range held {
		for _, id := range ids {
			waittest.Until(t, "the events of "+key+" are due", func() bool { return r.get(id).Record.DueMs < now+30_000 })
			r.claim(r.get(id))
		}
	}
	r.await(held["service:mail"][0], schemas.StateSuccess)
	r.await(held["group:import-7"][0], schemas.StateSuccess)
	called := 0
	for _, id := range held["service:mail"][1:] {
		var rec schemas.Record
		waittest.Until(t, "the event is called, or waits for a slot of its own key", func() bool {
			rec = r.get(id).Record
			return rec.State == schemas.StateSuccess || rec.Deferred() && rec.Deferral.Flow == "keyed" && rec.Deferral.Generation != heldGeneration
		})
		if rec.State == schemas.StateSuccess {
			called++
		} else if rec.Attempt != 0 || rec.DueMs < nowMs()+8*60_000 {
			t.Errorf("got %+v, deferral %+v, want a slot 10 minutes later", rec.RunState, rec.Deferral)
		}
	}
	if called != 1 || c.count() != 5 {
		t.Errorf("%d of two events of a key were called, and %d in all; want 1 and 5", called, c.count())
	}
}

// TestFlowHoldWithRate: events that a pause of their service has held get no slots of the
// service's own key, whose rate is for other callbacks.
func TestFlowHoldWithRate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, ok)
	slow := flow.Limit{Rate: flow.Rate{Count: 1, Per: time.Hour}, Burst: 1, Paused: true}
	r.limit("service:mail", slow)
	r.start(nil)
	var ids []schemas.TimerID
	for range 3 {
		id := r.fire(timer{svc: "mail", callback: c.URL})
		r.awaitDeferredOrCalled(id)
		ids = append(ids, id)
	}
	r.settled("mail")
	slow.Paused = false
	r.limit("service:mail", slow)
	now := nowMs()
	for _, id := range ids {
		waittest.Until(t, "the events are due", func() bool { return r.get(id).Record.DueMs < now+30_000 })
		r.claim(r.get(id))
		r.await(id, schemas.StateSuccess)
	}
}
