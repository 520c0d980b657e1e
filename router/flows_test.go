package router_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// flowFixture starts a router on a store whose nodes all know limits.
func flowFixture(t *testing.T) (*fixture, *logtest.Buffer) {
	t.Helper()
	f := newFixture(t, store.Config{})
	log := &logtest.Buffer{}
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.New(log).Level(zerolog.InfoLevel)})
	waittest.Until(t, "limits can be stored", func() bool { return f.store.CanLimit() == nil })
	return f, log
}

// flow carries out an operation of timers.api.flow, which must succeed. It repeats the request while the router is unavailable.
func (f *fixture) flow(verb, body string) (reply schemas.FlowReply) {
	f.t.Helper()
	var code, text string
	waittest.Available(f.t, "flow."+verb, func() bool {
		code, text = f.answer("flow."+verb, []byte(body), &reply)
		return code == string(schemas.CodeUnavailable)
	}, func() string { return text })
	if code != "" {
		f.t.Fatalf("flow.%s %s: %s: %s", verb, body, code, text)
	}
	return reply
}

// flowOf returns the status of a flow key or pattern.
func (f *fixture) flowOf(key string) (st schemas.FlowStatus) {
	f.t.Helper()
	if code, text := f.answer("flow.get", fmt.Appendf(nil, `{"key":%q}`, key), &st); code != "" {
		f.t.Fatalf("flow.get %s: %s: %s", key, code, text)
	}
	return st
}

// TestFlowLimits: a limit is stored, replaced by revision, paused, resumed and deleted; each
// change says what was before, and a pause outlives a new limit.
func TestFlowLimits(t *testing.T) {
	t.Parallel()
	f, log := flowFixture(t)
	const key = "api.example.com"
	if st := f.flowOf(key); st.Limit != nil || len(st.Keys) != 1 || st.Keys[0].Waiting != 0 {
		t.Errorf("without a limit: %+v", st)
	}
	dry := f.flow("set", `{"key":"api.example.com","rate":"100/1m","dry_run":true}`)
	if dry.Limit == nil || dry.Limit.Rate != "100/1m" || dry.Limit.Burst != 2 || dry.Limit.Revision != 0 || f.flowOf(key).Limit != nil {
		t.Errorf("a dry run: %+v", dry)
	}
	made := f.flow("set", `{"key":"api.example.com","rate":"100/1m","burst":10,"parallel":5,"by":"ann"}`)
	if l := made.Limit; made.Before != nil || l.Key != key || l.Rate != "100/1m" || l.Burst != 10 || l.Parallel != 5 || l.Paused || l.By != "ann" || l.Revision == 0 || l.Changed.IsZero() {
		t.Errorf("the new limit: %+v", made)
	}
	paused := f.flow("pause", `{"key":"api.example.com","note":"repair","by":"bob"}`)
	if l := paused.Limit; !l.Paused || l.PauseNote != "repair" || l.PausedBy != "bob" || l.PausedAt.IsZero() || l.Rate != "100/1m" || paused.Before.Paused || l.Revision <= made.Limit.Revision {
		t.Errorf("paused: %+v", paused)
	}
	if again := f.flow("pause", `{"key":"api.example.com","note":"repair"}`); again.Limit.Revision != paused.Limit.Revision {
		t.Errorf("the same pause again: %+v, want no change", again.Limit)
	}
	if again := f.flow("pause", `{"key":"api.example.com","note":"longer repair","by":"cyd"}`); again.Limit.PauseNote != "longer repair" || again.Limit.PausedBy != "cyd" || !again.Limit.PausedAt.Equal(paused.Limit.PausedAt) {
		t.Errorf("a pause with another note: %+v", again.Limit)
	}
	set := f.flow("set", fmt.Sprintf(`{"key":"api.example.com","rate":"20/1s","revision":%d}`, f.flowOf(key).Limit.Revision))
	if l := set.Limit; !l.Paused || l.PauseNote != "longer repair" || l.Rate != "20/1s" || l.Burst != 2 || l.Parallel != 0 || set.Before.Parallel != 5 {
		t.Errorf("a limit that is set while it is paused: %+v", set)
	}
	st := f.flowOf(key)
	if !reflect.DeepEqual(st.Limit, set.Limit) || len(st.Keys) != 1 || !st.Keys[0].Next.IsZero() {
		t.Errorf("got %+v, want the limit %+v and no next slot while it is paused", st, set.Limit)
	}
	if code, text := f.answer("flow.delete", []byte(`{"key":"api.example.com"}`), nil); code != "conflict" || !strings.Contains(text, "resume it first") {
		t.Errorf("deleting a paused limit: %s %s", code, text)
	}
	if r := f.flow("resume", `{"key":"api.example.com"}`); r.Limit.Paused || r.Limit.PauseNote != "" || !r.Limit.PausedAt.IsZero() || r.Limit.Rate != "20/1s" {
		t.Errorf("resumed: %+v", r.Limit)
	}
	rev := f.flowOf(key).Limit.Revision
	if r := f.flow("resume", `{"key":"api.example.com"}`); r.Limit.Revision != rev {
		t.Errorf("resumed again: %+v, want no change", r.Limit)
	}
	if next := f.flowOf(key).Keys[0].Next; next.IsZero() {
		t.Error("a key that is not paused has no next slot")
	}
	if r := f.flow("delete", `{"key":"api.example.com","by":"ann"}`); r.Limit != nil || r.Before.Revision != rev || f.flowOf(key).Limit != nil {
		t.Errorf("deleted: %+v", r)
	}
	if r := f.flow("set", `{"key":"api.example.com","parallel":1}`); r.Before != nil || r.Limit.Rate != "" || r.Limit.Parallel != 1 {
		t.Errorf("made again: %+v", r)
	}
	for _, line := range []string{"flow limit set", "flow paused", "flow resumed", "flow limit deleted"} {
		if lines := log.Lines(t, line); len(lines) == 0 || lines[0]["flow"] != key || lines[0]["revision"] == nil {
			t.Errorf("the log has the lines %v of %q", lines, line)
		}
	}
}

// TestFlowPatterns: the limit of a key comes before that of a pattern; a pause without a limit
// is removed by the resume; get of a pattern shows its keys.
func TestFlowPatterns(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	f.flow("set", `{"key":"customer:*","parallel":1}`)
	f.flow("set", `{"key":"customer:vip-*","parallel":3}`)
	f.flow("set", `{"key":"customer:7","rate":"1/1s"}`)
	for key, want := range map[string]string{"customer:1": "customer:*", "customer:vip-2": "customer:vip-*", "customer:7": "customer:7"} {
		if st := f.flowOf(key); st.Limit == nil || st.Limit.Key != want {
			t.Errorf("the limit of %s: %+v, want that of %s", key, st.Limit, want)
		}
	}
	if st := f.flowOf("other"); st.Limit != nil {
		t.Errorf("the limit of other: %+v, want none", st.Limit)
	}
	p := f.flow("pause", `{"key":"customer:*"}`)
	if got := strings.Join(p.Except, " "); got != "customer:7 customer:vip-*" {
		t.Errorf("except %q", got)
	}
	// The state of a key under the pattern, as a node writes it.
	for _, key := range []string{"customer:1", "customer:7"} {
		if _, err := f.store.PutFlowState(t.Context(), store.FlowKeyState{Key: key, State: flow.State{Leases: []flow.Lease{{Node: "n", Slots: 1, UntilNs: f.clock.LatestNs() + 1e12}}}}, 0); err != nil {
			t.Fatal(err)
		}
	}
	st := f.flowOf("customer:*")
	if st.Limit == nil || !st.Limit.Paused || len(st.Keys) != 1 || st.Keys[0].Key != "customer:1" || st.Keys[0].InFlight != 1 || len(st.Except) != 2 {
		t.Errorf("the pattern: %+v, want only customer:1 with one call in progress", st)
	}
	if code, text := f.answer("flow.get", []byte(`{"key":"none:*"}`), nil); code != "not_found" || !strings.Contains(text, "none:*") {
		t.Errorf("a pattern without a limit: %s %s", code, text)
	}
	if code, text := f.answer("flow.resume", []byte(`{"key":"customer:1"}`), nil); code != "not_found" || !strings.Contains(text, "customer:*") {
		t.Errorf("resuming a key that a pattern pauses: %s %s, want the pattern", code, text)
	}
	f.flow("resume", `{"key":"customer:*"}`)
	if r := f.flow("pause", `{"key":"hooks.example.com:8443"}`); r.Before != nil || !r.Limit.Paused || r.Limit.Rate != "" {
		t.Errorf("a pause without a limit: %+v", r)
	}
	if r := f.flow("resume", `{"key":"hooks.example.com:8443"}`); r.Limit != nil || r.Before == nil {
		t.Errorf("its resume: %+v, want the limit removed", r)
	}
	var list schemas.FlowListReply
	if code := f.request("flow.list", nil, &list); code != "" {
		t.Fatal(code)
	}
	var keys []string
	for _, l := range list.Limits {
		keys = append(keys, l.Key)
	}
	if got := strings.Join(keys, " "); got != "customer:* customer:7 customer:vip-*" {
		t.Errorf("listed %q", got)
	}
}

// TestBadFlows: wrong input of every kind is refused with a reason.
func TestBadFlows(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	type m = map[string]any
	for _, bad := range []struct {
		verb string
		body any
		code string
		text string
	}{
		{"set", m{}, "bad_request", "flow key is missing"},
		{"set", m{"key": "x"}, "bad_request", "100/1m"},
		{"set", m{"key": "x", "burst": 3}, "bad_request", "100/1m"},
		{"set", m{"key": "x", "parallel": 1, "burst": 3}, "bad_request", "burst"},
		{"set", m{"key": strings.Repeat("x", schemas.MaxFlowPattern+1), "parallel": 1}, "bad_request", "161"},
		{"set", m{"key": "a b", "parallel": 1}, "bad_request", "letters"},
		{"set", m{"key": "ü", "parallel": 1}, "bad_request", "letters"},
		{"set", m{"key": "x", "rate": "100"}, "bad_request", "100"},
		{"set", m{"key": "adds:x", "pending": 0}, "bad_request", "more than 0 pending timers"},
		{"set", m{"key": "adds:=", "rate": "1/1s"}, "bad_request", "has no tenant before the ="},
		{"set", m{"key": "adds:=x", "rate": "1/1s"}, "bad_request", "has no tenant before the ="},
		{"set", m{"key": "service:=x", "rate": "1/1s"}, "bad_request", "has no tenant before the ="},
		{"set", m{"key": "x", "rate": "100/minute"}, "bad_request", "minute"},
		{"set", m{"key": "x", "rate": "0/1s"}, "bad_request", "rate"},
		{"set", m{"key": "x", "rate": "-1/1s"}, "bad_request", "rate"},
		{"set", m{"key": "x", "rate": "1/9000h"}, "bad_request", ""},
		{"set", m{"key": "x", "rate": "1/1s", "burst": -1}, "bad_request", "burst"},
		{"set", m{"key": "x", "rate": "1/1s", "burst": 1_000_000_000}, "bad_request", "burst"},
		{"set", m{"key": "x", "parallel": -1}, "bad_request", "parallel"},
		{"set", m{"key": "x", "parallel": 1_000_000_000}, "bad_request", "parallel"},
		{"set", m{"key": "x", "parallel": 1, "revision": 3}, "conflict", "leave the revision out"},
		{"set", m{"key": "x", "parallel": 1, "by": "a\nb"}, "bad_request", "by"},
		{"set", m{"key": "x", "rate": 5}, "bad_request", "JSON object"},
		{"set", "[]", "bad_request", "JSON object"},
		{"get", m{}, "bad_request", "flow key is missing"},
		{"get", m{"key": "a b"}, "bad_request", "letters"},
		{"pause", m{}, "bad_request", "flow key is missing"},
		{"pause", m{"key": "x", "note": strings.Repeat("n", 257)}, "bad_request", "256"},
		{"pause", m{"key": "x", "note": "a\x00b"}, "bad_request", "note"},
		{"pause", m{"key": "x", "revision": 9}, "conflict", "revision 9"},
		{"resume", m{"key": "x"}, "not_found", "no limit is stored for x"},
		{"resume", m{}, "bad_request", "flow key is missing"},
		{"delete", m{"key": "x"}, "not_found", "no limit is stored for x"},
		{"delete", m{}, "bad_request", "flow key is missing"},
	} {
		b, err := json.Marshal(bad.body)
		if err != nil {
			t.Fatal(err)
		}
		if code, text := f.answer("flow."+bad.verb, b, &struct{}{}); code != bad.code || !strings.Contains(text, bad.text) {
			t.Errorf("flow.%s %.80s: %s: %s; want %s with %q", bad.verb, b, code, text, bad.code, bad.text)
		}
	}
	made := f.flow("set", `{"key":"x","parallel":1}`)
	for verb, fields := range map[string]string{"set": `"parallel":2,`, "pause": "", "resume": "", "delete": ""} {
		wrong := fmt.Appendf(nil, `{"key":"x",%s"revision":%d}`, fields, made.Limit.Revision+1)
		if code, text := f.answer("flow."+verb, wrong, nil); code != "conflict" || !strings.Contains(text, fmt.Sprint("revision ", made.Limit.Revision)) {
			t.Errorf("flow.%s of another revision: %s %s", verb, code, text)
		}
	}
	if st := f.flowOf("x"); st.Limit.Revision != made.Limit.Revision {
		t.Errorf("a refused request changed the limit: %+v", st.Limit)
	}
}

// TestFlowsOfOtherAccounts: another account cannot change limits, also if the API is exported
// to it by mistake, and neither can a request that does not show where it comes from.
func TestFlowsOfOtherAccounts(t *testing.T) {
	t.Parallel()
	f := accounts(t)
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	waittest.Until(t, "limits can be stored", func() bool { return f.store.CanLimit() == nil })
	made := f.flow("set", `{"key":"x","parallel":1}`)
	for _, login := range []string{"orders", "bills"} {
		nc := f.srv.Connect(nats.UserInfo(login, "p"))
		for _, verb := range []string{"set", "pause", "resume", "delete"} {
			m, err := nc.Request(schemas.SubjectAPIPrefix+"flow."+verb, []byte(`{"key":"x","parallel":9,"note":"n"}`), bound)
			if err != nil {
				t.Fatal(err)
			}
			if m.Header.Get(micro.ErrorCodeHeader) != "bad_request" || !strings.Contains(m.Header.Get(micro.ErrorHeader), "own account") {
				t.Errorf("%s: flow.%s: %v", login, verb, m.Header)
			}
		}
	}
	admin := f.srv.Connect(nats.UserInfo("admin", "p"))
	for _, verb := range []string{"set", "pause", "delete"} {
		if err := admin.Publish(schemas.SubjectAPIPrefix+"flow."+verb, []byte(`{"key":"x","parallel":9}`)); err != nil {
			t.Fatal(err)
		}
	}
	// The connection's requests are served in order, so the answer comes after them.
	if _, err := admin.Request(schemas.SubjectAPIPrefix+"flow.get", []byte(`{"key":"x"}`), bound); err != nil {
		t.Fatal(err)
	}
	if st := f.flowOf("x"); st.Limit.Revision != made.Limit.Revision || st.Limit.Paused || st.Limit.Parallel != 1 {
		t.Errorf("the limit is %+v, was %+v", st.Limit, made.Limit)
	}
}

// TestWhyOfWaitingTimer: why and get of a timer that waits for its slot name the slot and the
// limit that holds it back.
func TestWhyOfWaitingTimer(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	if code := f.request("add", add("w", `"timerafter":"1h","timerflow":"api","timercallback":"https://example.com"`), &schemas.AddReply{}); code != "" {
		t.Fatal(code)
	}
	slot := f.clock.LatestNs()/1e6 + 3_600_000
	f.update("w", func(r *schemas.Record) {
		r.State, r.Run, r.FiredMs = schemas.StateDelivered, 1, r.DueMs
		r.Defer("api", 1, slot, true)
	})
	why := func() schemas.Answer {
		t.Helper()
		var reply schemas.WhyReply
		if code, text := f.answer("schedule.why", []byte(`{"id":"w","source":"/test"}`), &reply); code != "" || len(reply.Answers) != 1 {
			t.Fatalf("why: %s %s %+v", code, text, reply)
		}
		return reply.Answers[0]
	}
	for _, c := range []struct{ verb, body, note string }{
		{"", "", "No limit applies to flow api any more"},
		{"set", `{"key":"a*","rate":"100/1m","burst":10,"parallel":5}`, "The limit of flow api, from a*, is 100/1m, burst 10, 5 at once."},
		{"pause", `{"key":"api","note":"repair","by":"ann"}`, "The limit of flow api is paused since "},
	} {
		if c.verb != "" {
			f.flow(c.verb, c.body)
		}
		a := why()
		if !strings.Contains(a.Text, schemas.FormatTime(slot)) || !strings.Contains(a.Text, "api") || len(a.Notes) != 1 || !strings.HasPrefix(a.Notes[0], c.note) {
			t.Errorf("after %s: %+v, want the slot and %q", c.verb, a, c.note)
		}
	}
	if n := why().Notes[0]; !strings.Contains(n, "by ann: repair") || !strings.Contains(n, "belfry flow resume api") {
		t.Errorf("the note of a pause: %q", n)
	}
	var info schemas.TimerInfo
	if code := f.request("get", []byte(`{"id":"w","source":"/test"}`), &info); code != "" || info.Flow == nil || info.Flow.Key != "api" || info.Flow.Slot.UnixMilli() != slot || info.Flow.Deferrals != 1 || info.Attempts != 0 {
		t.Errorf("get: %s %+v", code, info)
	}
	// The timer counts as waiting.
	if st := f.flowOf("api"); len(st.Keys) != 1 || st.Keys[0].Waiting != 1 {
		t.Errorf("the key: %+v, want one waiting event", st)
	}
	if r := f.flow("set", `{"key":"api","rate":"1/1s","dry_run":true}`); r.Waiting != 1 || !r.Drained.IsZero() {
		t.Errorf("a dry run while it is paused: %+v, want one waiting event and no end", r)
	}
	f.flow("resume", `{"key":"api"}`)
	if st := f.flowOf("api"); st.Keys[0].Drained.UnixMilli() < slot {
		t.Errorf("the key: %+v, want it drained at its last slot", st)
	}
	if r := f.flow("set", `{"key":"api","rate":"1/1s","dry_run":true}`); r.Waiting != 1 || r.Drained.IsZero() {
		t.Errorf("a dry run: %+v, want one waiting event and the end", r)
	}
}

// TestFlowTargetRates: the rate that a target allows is shown for its key and in the list, with the limit
// that it lowers, and is no stored limit that can be changed.
func TestFlowTargetRates(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	const until = 4102444800000
	allow := func(key string, n int) {
		t.Helper()
		if err := f.store.PutTargetRate(t.Context(), store.TargetRate{Key: key, PerMinute: n, URL: "https://" + key + "/hook", AtMs: 1000, UntilMs: until}); err != nil {
			t.Fatal(err)
		}
	}
	allow("alone", 120)
	if l := f.flowOf("alone").Limit; l == nil || l.Key != "alone" || l.Rate != "120/1m" || l.Burst != 1 || l.Revision != 0 || l.Target == nil || l.Target.PerMinute != 120 || l.Target.URL != "https://alone/hook" || l.Target.Until.UnixMilli() != until {
		t.Errorf("a key without a limit: %+v", l)
	}
	if code, text := f.answer("flow.delete", []byte(`{"key":"alone"}`), nil); code != string(schemas.CodeNotFound) || !strings.Contains(text, "its target allows 120 calls a minute") || strings.Contains(text, "hook") {
		t.Errorf("the delete of a rate that a target allows: %s: %s", code, text)
	}
	rev := f.flow("set", `{"key":"lower","rate":"100/m","parallel":3}`).Limit.Revision
	allow("lower", 120)
	if l := f.flowOf("lower").Limit; l.Rate != "100/1m" || l.Revision != rev || l.Target == nil || l.Target.PerMinute != 120 {
		t.Errorf("a key with a lower limit: %+v", l)
	}
	allow("lower", 50)
	if l := f.flowOf("lower").Limit; l.Rate != "50/1m" || l.Parallel != 3 || l.Revision != rev {
		t.Errorf("a key with a higher limit: %+v", l)
	}
	var all schemas.FlowListReply
	if code, text := f.answer("flow.list", nil, &all); code != "" {
		t.Fatal(code, text)
	}
	if l := all.Limits; len(l) != 2 || l[0].Key != "alone" || l[0].Rate != "120/1m" || l[0].Target == nil || l[1].Rate != "100/1m" || l[1].Target == nil || l[1].Revision != rev {
		t.Errorf("the list: %+v", l)
	}
	// The URL may be that of a tenant's webhook.
	team := f.r.In(router.Scope{})
	got, err := available(t, "flow.get", func() (schemas.FlowStatus, error) {
		return team.FlowGet(t.Context(), schemas.FlowRequest{Key: "alone"})
	})
	if err != nil || got.Limit == nil || got.Limit.Target == nil || got.Limit.Target.URL != "https://alone" {
		t.Errorf("a key for a caller of the default tenant: %+v, %v", got.Limit, err)
	}
	listed, err := available(t, "flow.list", func() (schemas.FlowListReply, error) { return team.FlowList(t.Context(), struct{}{}) })
	if l := listed.Limits; err != nil || len(l) != 2 || l[0].Target == nil || l[0].Target.URL != "https://alone" || l[1].Target.URL != "https://lower" {
		t.Errorf("the list for a caller of the default tenant: %+v, %v", l, err)
	}
	if l := f.flow("set", fmt.Sprintf(`{"key":"lower","rate":"20/m","revision":%d}`, rev)).Limit; l.Rate != "20/1m" || l.Target != nil {
		t.Errorf("set: %+v", l)
	}
}
