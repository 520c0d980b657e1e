package app

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestTenantAllowance: an add of a tenant may name the services, subjects and hosts of its settings
// alone. An event that was accepted before a setting was reduced becomes a dead letter with the reason,
// and can be replayed when the setting allows it again.
func TestTenantAllowance(t *testing.T) {
	t.Parallel()
	mode := confMode(t)
	srv := natstest.Run(t, mode.server)
	f := startTenants(t, mode, []string{srv.URL()}, 1)
	for _, subject := range []string{"callbacks.>", "timers.work.*"} {
		if _, err := f.as("acme").Subscribe(subject, func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.as("acme").Flush(); err != nil {
		t.Fatal(err)
	}
	all := schemas.TenantAllowance{Hosts: []string{"127.0.0.1"}}
	allow := func(acme schemas.TenantAllowance) {
		t.Helper()
		tenants := map[string]schemas.TenantAllowance{"acme": acme, "globex": all}
		if err := f.apps[0].Reconfigure(Options{HTTPTokens: f.tokens, Callbacks: functions.Settings{Tenants: tenants}}); err != nil {
			t.Fatal(err)
		}
	}
	allow(all)
	withdrawn := map[string]struct{ event, setting string }{
		"service":  {`"timersvc":"mail","timercallback":"nats:callbacks.paid"`, "the setting services of tenant acme does not allow service mail: use an allowed one"},
		"worker":   {`"timersvc":"mail","timercallback":"nats:timers.work.mail"`, "the setting services of tenant acme does not allow service mail: use an allowed one"},
		"subject":  {`"timersvc":"orders","timercallback":"nats:callbacks.other"`, "the setting subjects of tenant acme does not allow this subject: use an allowed one"},
		"host":     {`"timersvc":"orders","timercallback":"http://127.0.0.1:1/"`, "the setting hosts of tenant acme does not allow http://127.0.0.1:1: use an allowed one"},
		"nobody":   {`"timersvc":"mail"`, "the setting services of tenant acme does not allow service mail: use an allowed one"},
		"schedule": {`"timersvc":"mail","timerevery":"P7D"`, "the setting services of tenant acme does not allow service mail: use an allowed one"},
	}
	for id, c := range withdrawn {
		if id != "nobody" && id != "schedule" { // these have no callback that could be refused later
			f.must("acme", "add", tenantEvent(id, `"timerafter":"1h","timermaxattempts":1,`+c.event))
		}
	}
	allow(schemas.TenantAllowance{Services: []string{"orders", "ship*"}, Subjects: []string{"callbacks.paid", "callbacks.*.paid"}})

	for id, c := range withdrawn {
		event := c.event
		if id != "schedule" {
			event = `"timerafter":"1h",` + event
		}
		if b, code := f.ask("acme", "add", tenantEvent("new-"+id, event)); code != string(schemas.CodeInvalidAttribute) || !strings.Contains(string(b), c.setting) {
			t.Errorf("%s: %q %s, want %s", id, code, b, c.setting)
		}
		f.must("globex", "add", tenantEvent("new-"+id, event)) // has its own settings
		f.publish("acme", tenantEvent("stream-"+id, event))
		f.awaitText("acme", "rejected.list", nil, `"stream-`+id+`"`)
	}
	for id, event := range map[string]string{
		"ok1": `"timersvc":"orders","timercallback":"nats:callbacks.paid"`,
		"ok2": `"timersvc":"shipping","timercallback":"nats:callbacks.eu.paid"`,
		"ok3": `"timersvc":"orders","timercallback":"nats:timers.work.orders"`,
	} {
		f.must("acme", "add", tenantEvent(id, `"timerafter":"0s",`+event))
		f.await("acme", named(id), "success")
	}

	for id, c := range withdrawn {
		if id == "nobody" || id == "schedule" {
			continue
		}
		f.must("acme", "reschedule", []byte(`{"id":"`+id+`","source":"/s","after":"0s"}`))
		f.await("acme", named(id), "fail")
		f.awaitText("acme", "dead.list", []byte(`{"timer":"`+byID("acme", id).Timer+`"}`), `"not_allowed"`, c.setting)
	}
	allow(all)
	for _, id := range []string{"service", "worker", "subject"} {
		f.must("acme", "dead.replay", byID("acme", id))
		f.await("acme", named(id), "success")
	}
	// The change of one list is used by a service that has called already.
	f.must("acme", "add", tenantEvent("late", `"timerafter":"1h","timermaxattempts":1,`+withdrawn["service"].event))
	allow(schemas.TenantAllowance{Services: []string{"orders"}, Hosts: all.Hosts})
	f.must("acme", "reschedule", []byte(`{"id":"late","source":"/s","after":"0s"}`))
	f.await("acme", named("late"), "fail")
}
