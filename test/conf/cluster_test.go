package conf

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
)

const clusterFile = "../../deploy/cluster/nats.conf"

// crossings returns the exports and imports of a configuration file, in their order.
func crossings(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "{ service") || strings.HasPrefix(line, "{ stream") {
			out = append(out, line)
		}
	}
	return out
}

// TestClusterConfig loads the cluster's nats.conf into three servers. Its exports and
// imports are those of the production nats.conf, and they work from any server to any
// other.
func TestClusterConfig(t *testing.T) {
	t.Parallel()
	one, three := crossings(t, file), crossings(t, clusterFile)
	if !slices.Equal(one, three) || len(one) < 20 {
		t.Errorf("exports and imports differ:\n%s\nand\n%s", strings.Join(one, "\n"), strings.Join(three, "\n"))
	}
	c := natstest.RunProductionCluster(t, clusterFile)
	as := func(s *natstest.Server, user string) *nats.Conn {
		return s.Connect(nats.UserInfo(user, user+"-pw"))
	}
	belfry := as(c.Servers[0], "belfry")
	js := natstest.JetStream(t, belfry)
	add := jetstream.StreamConfig{Name: "TIMERS_ADD", Subjects: []string{"timers.add"}, Replicas: 3}
	bucket := jetstream.StreamConfig{Name: "KV_clock", Subjects: []string{"$KV.clock.>"}, Replicas: 3}
	for _, cfg := range []jetstream.StreamConfig{add, bucket} {
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	for n, s := range c.Servers {
		orders := as(s, "orders")
		// The other servers learn of the stream's subjects a moment after it is created.
		ack, err := natstest.JetStream(t, orders).Publish(t.Context(), "timers.add", []byte("{}"), jetstream.WithRetryAttempts(40))
		if err != nil || ack.Stream != "TIMERS_ADD" {
			t.Errorf("server %d: orders cannot add: %+v, %v", n+1, ack, err)
		}
		if err := orders.PublishRequest("timers.add", "$KV.clock.clock.0", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if _, err := orders.Subscribe("callbacks.orders.x", func(m *nats.Msg) { _ = m.Respond([]byte("done")) }); err != nil {
			t.Fatal(err)
		}
		flush(t, orders)
		if _, err := natstest.JetStream(t, orders).Publish(t.Context(), "timers.add", []byte("{}")); err != nil { // after the attack, in order
			t.Fatal(err)
		}
	}
	if m, err := belfry.Request("callbacks.orders.x", nil, bound); err != nil || string(m.Data) != "done" {
		t.Errorf("callback: %+v, %v", m, err)
	}
	s, err := js.Stream(t.Context(), "KV_clock")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := s.Info(t.Context()); err != nil || info.State.Msgs != 0 {
		t.Errorf("the bucket was written to: %+v, %v", info, err)
	}
}
