package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestAddEnds: adds that are never acknowledged do not outlive the run that has ended. A
// subscriber receives them and does not answer.
func TestAddEnds(t *testing.T) {
	t.Parallel()
	for _, via := range []string{ViaPublish, ViaClientAsync} {
		t.Run(via, func(t *testing.T) {
			t.Parallel()
			server := natstest.Run(t)
			nc, err := nats.Connect(server.URL())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			var received atomic.Int64
			if _, err := nc.Subscribe(schemas.SubjectAdd, func(*nats.Msg) { received.Add(1) }); err != nil {
				t.Fatal(err)
			}
			e := &Env{Config: Config{Via: via, Workers: 2, NATSURL: server.URL()}}
			a, err := e.NewAdder("bench_ends")
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				for _, nc := range a.conns {
					nc.Close()
				}
			}()
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := errors.New("the run has ended")
			returned := make(chan error, 1)
			go func() {
				returned <- a.Add(ctx, 100, func(int) int64 { return time.Now().UnixMilli() }, nil, nil)
			}()
			waittest.Until(t, "all adds are received", func() bool { return received.Load() == 100 })
			cancel(ended)
			select {
			case err := <-returned:
				if !errors.Is(err, ended) {
					t.Errorf("got %v, want the reason why the run ended", err)
				}
			case <-time.After(addTimeout / 2): // after addTimeout the adds end by themselves
				t.Error("the adder waits for answers of a run that has ended")
				<-returned
			}
			if n := a.Done(); n != 0 {
				t.Errorf("%d adds count as acknowledged, want none", n)
			}
		})
	}
}
