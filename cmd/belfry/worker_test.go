package main

import "testing"

// TestAddWorker: --worker sets the callback of the service's workers.
func TestAddWorker(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ service, callback, want string }{
		{"orders", "", "nats:timers.work.orders"}, {"", "", "nats:timers.work.default"}, {"orders", "https://shop.example", ""},
	} {
		c := &cli{}
		e, err := c.makeEvent(&addFlags{due: dueFlags{in: "1s"}, source: "s", kind: "t", service: x.service, callback: x.callback, worker: true})
		if x.want == "" {
			if err == nil {
				t.Error("--worker with --callback: got no error, want one")
			}
			continue
		}
		if got := e.Extensions()["timercallback"]; err != nil || got != x.want {
			t.Errorf("service %q: got callback %v (%v), want %s", x.service, got, err, x.want)
		}
	}
}
