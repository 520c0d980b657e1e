package bench

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestWaitStoredRepeats: a request for the number of adds that is not answered does not end the run.
func TestWaitStoredRepeats(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	js, err := jetstream.New(server.Connect(), jetstream.WithDefaultTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: schemas.StreamAdd, Subjects: []string{schemas.SubjectAdd}}); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	e := &Env{js: js}
	if _, err := e.sut().unstored(t.Context()); err == nil {
		t.Fatal("a stopped server answers")
	}
	returned := make(chan error, 1)
	go func() {
		_, err := e.drained(t.Context(), e.progress())
		returned <- err
	}()
	select {
	case err := <-returned:
		t.Fatalf("it ended while the server was stopped: %v", err)
	case <-time.After(500 * time.Millisecond): // several requests
	}
	server.Start()
	select {
	case err := <-returned:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(waittest.Bound):
		t.Fatal("it does not end after the server has started again")
	}
}
