package router_test

import (
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestFlowHolds: a pause that a target asked for and an open circuit are shown and listed, and a reset
// ends them by hand.
func TestFlowHolds(t *testing.T) {
	t.Parallel()
	f, log := flowFixture(t)
	now := f.clock.LatestNs()
	hold := func(key string, change func(h *store.FlowHold) bool) {
		t.Helper()
		if _, err := f.store.ChangeHold(t.Context(), key, now/1e6, func(h *store.FlowHold) bool {
			h.Reason, h.By = "because", "n1"
			return change(h)
		}); err != nil {
			t.Fatal(err)
		}
	}
	hold("paused", func(h *store.FlowHold) bool { return h.Hold.RetryAfter(30*time.Minute, now) })
	hold("open", func(h *store.FlowHold) bool { return h.Hold.Open(now) })
	if st := f.flowOf("paused"); st.Limit != nil || st.Hold == nil || st.Hold.Until.UnixMilli() != now/1e6+30*60_000 || !st.Hold.Open.IsZero() || st.Hold.Reason != "because" || st.Hold.By != "n1" {
		t.Errorf("flow.get of the paused key: %+v", st)
	}
	if st := f.flowOf("open"); st.Hold == nil || st.Hold.Open.UnixMilli() != now/1e6 || st.Hold.NextProbe.IsZero() {
		t.Errorf("flow.get of the open circuit: %+v", st)
	}
	if st := f.flowOf("other"); st.Hold != nil {
		t.Errorf("flow.get of another key: %+v", st)
	}
	for key, want := range map[string]string{"paused": schemas.HoldPause, "open": schemas.HoldCircuit, "other": ""} {
		if code, text := f.answer("add", add(key, `"timerafter":"1h","timercallback":"https://example.com","timerflow":"`+key+`"`), &schemas.AddReply{}); code != "" {
			t.Fatal(code, text)
		}
		f.update(key, func(r *schemas.Record) {
			r.FiredMs = r.DueMs
			r.Defer(key, 0, r.DueMs, true)
		})
		var info schemas.TimerInfo
		if code, text := f.answer("get", []byte(`{"id":"`+key+`","source":"/test"}`), &info); code != "" || info.Flow == nil || info.Flow.Hold != want || info.Flow.Until.IsZero() != (want == "") {
			t.Errorf("get of a timer of %s: %s %s %+v", key, code, text, info.Flow)
		}
		if key == "paused" && info.Flow.Until.UnixMilli() != now/1e6+30*60_000 {
			t.Errorf("get: until %s, want the end of the pause", info.Flow.Until)
		}
	}
	var list schemas.FlowListReply
	if code, text := f.answer("flow.list", nil, &list); code != "" || len(list.Holds) != 2 || list.Holds[0].Key != "open" || list.Holds[1].Key != "paused" {
		t.Errorf("flow.list: %s %s %+v", code, text, list)
	}
	for _, key := range []string{"paused", "open"} {
		var reply schemas.FlowResetReply
		if code, text := f.answer("flow.reset", []byte(`{"key":"`+key+`","by":"ann"}`), &reply); code != "" || reply.Before.Key != key || reply.Before.Reason != "because" {
			t.Errorf("flow.reset of %s: %s %s %+v", key, code, text, reply)
		}
		if st := f.flowOf(key); st.Hold != nil {
			t.Errorf("after the reset of %s: %+v", key, st.Hold)
		}
	}
	for body, want := range map[string]string{`{"key":"open"}`: "not_found", `{"key":"nobody"}`: "not_found", `{"key":"a*"}`: "bad_request", `{"key":""}`: "bad_request"} {
		if code, text := f.answer("flow.reset", []byte(body), &schemas.FlowResetReply{}); code != want {
			t.Errorf("flow.reset %s: %s %s, want %s", body, code, text, want)
		}
	}
	if !strings.Contains(log.String(), `"flow":"paused"`) || !strings.Contains(log.String(), "ann") {
		t.Errorf("the log has no reset by ann: %s", log.String())
	}
}
