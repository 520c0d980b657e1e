package natstest_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/natstest"
)

func TestMain(m *testing.M) {
	natstest.MaybeServe()
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}

func stream(t *testing.T, nc *nats.Conn, replicas int) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: replicas}); err != nil {
		t.Fatal(err)
	}
	publish(t, js)
	return js
}

// publish tries until the stream answers, which takes a while after a restart.
func publish(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		a, err := js.Publish(ctx, "s", nil)
		cancel()
		if err == nil {
			return a.Sequence
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*natstest.Server, ...nats.Option) *nats.Conn{"TCP": (*natstest.Server).Connect, "in process": (*natstest.Server).InProcess} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Run(t, natstest.SyncAlways)
			js := stream(t, connect(s), 1)
			url := s.URL()
			s.Restart()
			if s.URL() != url {
				t.Fatalf("the URL is %s after the restart, want %s", s.URL(), url)
			}
			if seq := publish(t, js); seq < 2 {
				t.Fatalf("sequence %d: the restart lost the stream", seq)
			}
			s.Stop()
			s.Stop()
		})
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	p := natstest.RunProcess(t, false)
	js := stream(t, p.Connect(), 1)
	p.Kill()
	p.Kill()
	p.Start()
	if seq := publish(t, js); seq < 2 {
		t.Fatalf("sequence %d: the kill lost the stream", seq)
	}
}

func TestCluster3(t *testing.T) {
	t.Parallel()
	c := natstest.Cluster3(t)
	js := stream(t, c.Connect(), 3)
	leader := c.WaitStreamLeader("S")
	leader.Stop()
	publish(t, js)
	if c.WaitStreamLeader("S") == leader {
		t.Fatal("the stopped server is still the leader")
	}
	leader.Start()
	c.WaitReady()
	publish(t, js)
}
