package app

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestManyConsumers: one service more than the server's default limit of consumers per
// stream still gets a consumer.
func TestManyConsumers(t *testing.T) {
	t.Parallel()
	a := start(t, options(t))
	nc, err := a.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js := natstest.JetStream(t, nc)
	const byDefault = server.JSDefaultMaxConsumersPerStream
	for n := range byDefault + 1 {
		// Consumers in memory and without a name are the cheapest that count.
		if _, err := js.CreateConsumer(t.Context(), schemas.StreamFired, jetstream.ConsumerConfig{
			FilterSubject: schemas.SubjectFired(fmt.Sprintf("s%d", n)), AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: true,
		}); err != nil {
			t.Fatalf("cannot create consumer %d: %v", n+1, err)
		}
	}
}
