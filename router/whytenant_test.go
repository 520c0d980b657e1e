package router_test

import (
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestWhyOfTenant: the flow key of a host is shared. A tenant sees why its event waits for the key, without
// the parts that may come from others; Belfry's own account sees them. The default tenant does not see the URL that a
// tenant has asked.
func TestWhyOfTenant(t *testing.T) {
	t.Parallel()
	f, _ := flowFixture(t)
	globex := f.r.In(router.Scope{Tenant: "globex"})
	now := f.clock.LatestNs()
	shared := map[string]func(key string) error{
		"held": func(key string) error {
			_, err := f.store.ChangeHold(t.Context(), key, now/1e6, func(h *store.FlowHold) bool {
				h.Reason = "HTTP status 429 of acme"
				return h.Hold.RetryAfter(30*time.Minute, now)
			})
			return err
		},
		"paused": func(key string) error {
			f.flow("pause", `{"key":"`+key+`","note":"acme repairs it","by":"ann of acme"}`)
			return nil
		},
		"rated": func(key string) error {
			return f.store.PutTargetRate(t.Context(), store.TargetRate{Key: key, PerMinute: 120, URL: "https://" + key + "/acme", AtMs: 1000, UntilMs: 4102444800000})
		},
	}
	for key, want := range map[string]string{
		"held":   "The target of flow held.example asked at ",
		"paused": "The limit of flow paused.example is paused since ",
		"rated":  "Its target rated.example allows 120 calls a minute.",
	} {
		host := key + ".example"
		if err := shared[key](host); err != nil {
			t.Fatal(err)
		}
		ids := map[string]schemas.TimerID{}
		for tenant, service := range map[string]string{"globex": "globex=s", "": "s"} {
			ids[tenant] = schemas.NewTenantTimerID(tenant, "/test", key)
			rec := schemas.Record{
				Definition: schemas.Definition{Service: service, Source: "/test", EventID: key, Type: "t", Callback: "https://" + host + "/own"},
				RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, MaxAttempt: 3, DueMs: now / 1e6, ScheduledMs: now / 1e6},
			}
			rec.FiredMs = rec.DueMs
			rec.Defer(host, 0, rec.DueMs, true)
			if res := f.store.Create(t.Context(), []store.Write{{ID: ids[tenant], Record: &rec}}); res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
		}
		why := func(s *router.Service, id schemas.TimerID) string {
			t.Helper()
			reply, err := available(t, "why of "+key, func() (schemas.WhyReply, error) {
				return s.Why(t.Context(), schemas.WhyRequest{TimerRef: schemas.TimerRef{Timer: id.String()}})
			})
			if err != nil || len(reply.Answers) != 1 {
				t.Fatalf("why of %s: %+v (%v)", key, reply, err)
			}
			return strings.Join(reply.Answers[0].Notes, " ")
		}
		if text := why(globex, ids["globex"]); !strings.Contains(text, want) || strings.Contains(text, "acme") {
			t.Errorf("globex sees %q, want %q and nothing of acme", text, want)
		}
		if text := why(f.r.Service, ids["globex"]); !strings.Contains(text, "acme") {
			t.Errorf("Belfry's own account sees %q, want what comes from acme, too", text)
		}
		if text := why(f.r.In(router.Scope{}), ids[""]); !strings.Contains(text, want) || strings.Contains(text, "/acme") {
			t.Errorf("the default tenant sees %q, want %q and no URL of acme", text, want)
		}
	}
}
