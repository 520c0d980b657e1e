package router_test

import (
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestCallbacksThatAreNotAllowed: an add whose callback the configuration does not permit
// is rejected with the reason, on the stream and by the API, and accepted once the
// configuration permits it.
func TestCallbacksThatAreNotAllowed(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.r.SetCallbacks(&schemas.CallbackPolicy{
		Common:   schemas.CallbackRules{Subjects: []string{"callbacks.>"}, Hosts: []string{"*.example.com"}},
		Services: map[string]schemas.CallbackRules{"bills": {Subjects: []string{}, Hosts: []string{}}},
	})
	request := func(id, svc, callback string) (schemas.Code, string) {
		t.Helper()
		code, text := f.answer("add", add(id, `"timerafter":"1h","timersvc":"`+svc+`","timercallback":"`+callback+`"`), &schemas.AddReply{})
		return schemas.Code(code), text
	}
	for id, c := range map[string]struct{ svc, callback, want string }{
		"subject":         {"orders", "nats:callbacks.orders", ""},
		"host":            {"orders", "https://api.example.com/?key=hunter2", ""},
		"worker":          {"bills", "nats:timers.work.bills", ""},
		"other subject":   {"orders", "nats:else", "callback-subjects"},
		"other host":      {"orders", "https://api.example.org/?key=hunter2", "callback-hosts"},
		"own list":        {"bills", "nats:callbacks.orders", "callback-subjects"},
		"path":            {"orders", "/hooks", "base-url"},
		"another's work":  {"orders", "nats:timers.work.bills", "another service"},
		"read as subject": {"orders", "nats://timers.add", "without //"},
		"an inbox":        {"orders", "nats:_INBOX_orders.x", "reserved"},
	} {
		code, text := request(id, c.svc, c.callback)
		if c.want == "" && code != "" || c.want != "" && (code != schemas.CodeInvalidAttribute || !strings.Contains(text, c.want)) || strings.Contains(text, "hunter2") {
			t.Errorf("%s: %s %s; want %q", id, code, text, c.want)
		}
	}
	if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add("published", `"timerafter":"1h","timercallback":"nats:else"`)); err != nil {
		t.Fatal(err)
	}
	if m := f.rejected(1)[0]; m.Headers().Get(schemas.HeaderErrorCode) != string(schemas.CodeInvalidAttribute) || !strings.Contains(m.Headers().Get(schemas.HeaderError), "callback-subjects") {
		t.Errorf("rejected with %v", m.Headers())
	}
	f.r.SetCallbacks(nil)
	if code, text := request("other subject", "orders", "nats:else"); code != "" {
		t.Errorf("after the rules were removed: %s %s", code, text)
	}
}
