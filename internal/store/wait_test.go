package store_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestOpenSaysThatItWaits: while JetStream does not answer, Open logs why it waits.
func TestOpenSaysThatItWaits(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.Connect(nats.MaxReconnects(-1))
	srv.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log logtest.Buffer
	opened := make(chan error, 1)
	go func() {
		s, err := store.Open(ctx, nc, store.Config{Node: "n1", Geometry: schemas.DefaultGeometry()}, zerolog.New(&log))
		if err == nil {
			s.Close()
		}
		opened <- err
	}()
	waittest.Until(t, "a log line about the wait", func() bool {
		_, found := log.Line("JetStream is not ready for the store: waiting")
		return found || len(opened) > 0
	}, log.String)
	cancel()
	if err := waittest.Receive(t, "the end of Open", opened, log.String); err == nil {
		t.Error("Open without a server succeeded")
	}
	if _, found := log.Line("JetStream is not ready for the store: waiting"); !found {
		t.Errorf("Open has ended without a log line: %s", log.String())
	}
}
