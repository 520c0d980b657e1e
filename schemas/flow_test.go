package schemas

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// TestFlowKey: the key of a callback is timerflow, else its host, or its service for NATS.
func TestFlowKey(t *testing.T) {
	for _, tt := range []struct{ flow, target, want string }{
		{"customer:7", "https://api.example.com/x", "customer:7"},
		{"", "https://API.example.com/x", "api.example.com"},
		{"", "https://api.example.com:443/x", "api.example.com"},
		{"", "http://api.example.com:443/x", "api.example.com:443"},
		{"", "http://api.example.com:80", "api.example.com"},
		{"", "https://u:p@api.example.com:8443/x", "api.example.com:8443"},
		{"", "http://[::1]:8080/x", "::1:8080"},
		{"", "http://[fe80::1%25eth0]/x", "fe80::1_eth0"},
		{"", "nats:orders.due", "service:mail"},
		{"", "/path", "service:mail"},
	} {
		if got := FlowKey(tt.flow, tt.target, "mail"); got != tt.want {
			t.Errorf("FlowKey(%q, %q): got %q, want %q", tt.flow, tt.target, got, tt.want)
		}
	}
}

// TestFlowKeyOfTenant: a tenant's timerflow is a key of its own, which no event of another tenant can name.
func TestFlowKeyOfTenant(t *testing.T) {
	for _, tt := range []struct{ flow, service, want string }{
		{"customer:7", "acme=mail", "acme=customer:7"},
		{"", "acme=mail", "service:acme=mail"},
	} {
		if got := FlowKey(tt.flow, "nats:orders.due", tt.service); got != tt.want {
			t.Errorf("FlowKey(%q) of service %s: got %q, want %q", tt.flow, tt.service, got, tt.want)
		}
	}
	longest := FlowKey(strings.Repeat("k", MaxFlowKey), "", TenantService(strings.Repeat("t", MaxTenantLength), "s"))
	for _, p := range []string{"acme=customer:*", "service:acme=mail", "group:acme=import", longest} {
		if err := CheckFlowPattern(p); err != nil || !NamesTenant(p) {
			t.Errorf("pattern %q: %v; names a tenant: %t", p, err, NamesTenant(p))
		}
		if CheckFlowKey(p) == nil {
			t.Errorf("an event may name the flow key %q", p)
		}
	}
	if err := CheckFlowPattern(longest + "k"); CodeOf(err) != CodeBadRequest {
		t.Errorf("a longer pattern: %v", err)
	}
	for _, p := range []string{"customer:7", "adds:acme=", "adds:acme=mail"} {
		if NamesTenant(p) {
			t.Errorf("%q names a tenant's callbacks", p)
		}
	}
}

// TestAttrFlow: timerflow is parsed from adds, for one-shot timers and schedules, and an invalid
// one is refused with a reason.
func TestAttrFlow(t *testing.T) {
	add := func(key, more, value string) (Spec, error) {
		hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/t"}, "ce-type": {"t"}, "ce-timerflow": {key}, more: {value}}
		_, spec, err := ParseAdd(hdr, nil, 0, Limits{})
		return spec, err
	}
	for _, more := range [][2]string{{"ce-timerafter", "1s"}, {"ce-timerevery", "1h"}} {
		for _, key := range []string{"a", "customer:7", "api.example.com:8443", "A/b_c-d@e", strings.Repeat("k", MaxFlowKey)} {
			spec, err := add(key, more[0], more[1])
			if err != nil || spec.Flow != key {
				t.Errorf("%s %q: got %q and error %v", more[0], key, spec.Flow, err)
			}
		}
		for _, key := range []string{"customer:*", "a b", "ä", "a\"b", strings.Repeat("k", MaxFlowKey+1)} {
			if _, err := add(key, more[0], more[1]); CodeOf(err) != CodeInvalidAttribute || !strings.Contains(err.Error(), "timerflow") {
				t.Errorf("%s %q: got error %v, want invalid_attribute that names timerflow", more[0], key, err)
			}
		}
	}
	if err := CheckFlowPattern("customer:*"); err != nil {
		t.Error(err)
	}
	for _, p := range []string{"", "a b", "a?"} {
		if err := CheckFlowPattern(p); CodeOf(err) != CodeBadRequest {
			t.Errorf("pattern %q: got error %v, want bad_request", p, err)
		}
	}
}

// TestDeferral: a deferral survives the record's encoding, uses no attempt, is part of the claim
// and the message id, and ends with the call.
func TestDeferral(t *testing.T) {
	r := Record{
		Definition: Definition{Service: "s", EventID: "1", Source: "/t", Type: "t", Body: Body{Mode: ModeBinary}},
		RunState:   RunState{State: StateDelivered, Run: 1, MaxAttempt: 3, DueMs: 1000, ScheduledMs: 1000, FiredMs: 1001, Epoch: 7},
	}
	id := NewTimerID("/t", "1")
	if m := r.RunID(id).RetryMsgIDAfter(2, 0); m != r.RunID(id).RetryMsgID(2) {
		t.Errorf("a retry without deferral has the message id %s", m)
	}
	short := r
	short.Defer("k", 5, 2000, false)
	if short.Queued || short.Deferrals() != 0 || !short.Deferred() || short.NextMs != 2000 || short.DueMs != 1000 {
		t.Errorf("a short deferral: got %+v", short.RunState)
	}
	long := short
	long.Defer("k", 6, 90_000, true)
	long.Defer("k", 7, 99_000, true)
	if d := *long.Deferral; !long.Queued || d != (Deferral{Count: 2, SlotMs: 99_000, Generation: 7, Flow: "k"}) || long.DueMs != 99_000 || long.Attempt != 0 || short.Deferrals() != 0 {
		t.Errorf("a long deferral: got %+v, %+v", long.RunState, d)
	}
	if !long.Pending() || !long.Extended() {
		t.Error("a deferred record must be pending and extended")
	}
	for _, f := range []RecordFormat{RecordFormat1, RecordFormat2} {
		got, err := DecodeRecord(long.AppendFormat(nil, f))
		if err != nil || got.Deferral == nil || *got.Deferral != *long.Deferral {
			t.Errorf("format %d: got %+v, error %v", f, got.Deferral, err)
		}
	}
	claimed := long
	claimed.State, claimed.Queued = StateDelivered, false
	c := NewClaim(id, 9, &claimed)
	if got, err := ParseClaim(c.String()); err != nil || got != c || got.Deferred != 2 {
		t.Errorf("claim %q: got %+v, error %v", c.String(), got, err)
	}
	for _, bad := range []string{" deferred=0", " deferred=x", " deferred=1 waited"} {
		c.Deferred = 0
		if _, err := ParseClaim(c.String() + bad); err == nil {
			t.Errorf("claim with %q: got no error", bad)
		}
	}
	info := FromRecord(id, &long, 3)
	if want := `"flow":{"key":"k","slot":"1970-01-01T00:01:39.000Z","deferrals":2}`; !strings.Contains(string(info.Append(nil)), want) {
		t.Errorf("got %s, want it to contain %s", info.Append(nil), want)
	}
	called := claimed
	called.Called()
	if called.Deferrals() != 2 || called.Deferral.SlotMs != 0 || long.Deferral.SlotMs == 0 || FromRecord(id, &called, 3).Flow != nil {
		t.Errorf("after the call: got %+v", called.Deferral)
	}
	if _, err := long.Cancel(5, Caller{}); err != nil || long.Deferral != nil || long.State != StateCancelled {
		t.Errorf("cancel: got %+v, error %v", long.RunState, err)
	}
}
