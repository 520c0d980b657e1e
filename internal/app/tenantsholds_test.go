package app

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// testTenantHolds: tenants share the circuit of a host, but no tenant sees the path that another one calls, the
// reason of a hold, or who paused the calls and why.
func testTenantHolds(f *tenants) {
	t := f.t
	const path, note = "hook-of-acme-5cd1", "acme has not paid"
	host := tcptest.FreeAddress(t)
	for n := range flow.DefaultCircuit * len(f.apps) { // each node counts for itself
		f.must("acme", "add", tenantEvent(fmt.Sprintf("hold-%d", n), `"timerafter":"10ms","timersvc":"holds","timerbackoff":"10ms..100ms","timercallback":"http://`+host+"/"+path+`"`))
	}
	var st schemas.FlowStatus
	waittest.Until(t, "the circuit of "+host+" is open", func() bool {
		answer, code, err := f.askOnce("admin", "flow.get", schemas.FlowRequest{Key: host})
		return err == nil && code == "" && json.Unmarshal(answer, &st) == nil && st.Hold != nil && !st.Hold.Open.IsZero()
	})
	if strings.Contains(st.Hold.Reason, path) || !strings.Contains(st.Hold.Reason, "connection refused") {
		t.Errorf("the reason of the hold is %q, want the network error without the path", st.Hold.Reason)
	}
	f.must("globex", "add", tenantEvent("hold", `"timerafter":"10ms","timersvc":"holds","timercallback":"http://`+host+`/own"`))
	f.await("globex", named("hold"), "retrying")
	sees := func(want, secret string) {
		t.Helper()
		f.awaitText("globex", "schedule.why", named("hold"), want)
		f.awaitText("admin", "schedule.why", byID("globex", "hold"), want, secret)
		nats := string(f.must("globex", "schedule.why", named("hold")))
		http := f.succeed("globex", "GET", "/v1/timers/"+byID("globex", "hold").Timer+"/why", "")
		for _, answer := range []string{nats, http} {
			if !strings.Contains(answer, want) || strings.Contains(answer, secret) || strings.Contains(answer, path) {
				t.Errorf("globex gets %s, want %q, and neither %q nor %q", answer, want, secret, path)
			}
		}
	}
	sees("cannot be reached since", "connection refused")
	f.must("admin", "flow.pause", schemas.FlowRequest{Key: host, Note: note, By: "ann"})
	// The hold is reset again if a probe under way has renewed it.
	waittest.Until(t, "only the pause stops the calls", func() bool {
		_, _, _ = f.askOnce("admin", "flow.reset", schemas.FlowResetRequest{Key: host})
		answer, code, err := f.askOnce("globex", "schedule.why", named("hold"))
		return err == nil && code == "" && strings.Contains(string(answer), "is paused since")
	})
	sees("is paused since", note)
	for _, user := range []string{"acme", "globex"} {
		f.must(user, "bulk.cancel", schemas.BulkRequest{Service: "holds", States: []schemas.State{schemas.StateRetrying}})
	}
	f.must("admin", "flow.resume", schemas.FlowRequest{Key: host})
}
