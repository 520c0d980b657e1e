package jet

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
)

// TestSpoofedHeaders checks that headers with which a message was stored do not stand for its sequence, subject and time.
func TestSpoofedHeaders(t *testing.T) {
	t.Parallel()
	c := newClient(t, natstest.Run(t).Connect(), 5*time.Second)
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s.>"}, AllowDirect: true, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	spoofed := Header{jetstream.SequenceHeader: {"77"}, jetstream.SubjectHeader: {"s.other"}, jetstream.TimeStampHeaer: {"2001-01-01T00:00:00Z"}}
	if _, err := c.Publish(t.Context(), "write", "s.key", spoofed, []byte("x")); err != nil {
		t.Fatal(err)
	}
	msgs, _, err := c.Next(t.Context(), "S", "s.>", 0, 1)
	if err != nil || len(msgs) != 1 || msgs[0].Sequence != 1 || msgs[0].Subject != "s.key" || time.Since(msgs[0].Time) > time.Hour {
		t.Errorf("%+v, %v", msgs, err)
	}
}

func TestStale(t *testing.T) {
	t.Parallel()
	c := Reads{&Connection{}}
	for _, tt := range []struct {
		a    Answer
		rest bool
		seen uint64
		ok   bool
	}{
		{Answer{Found: true, UpTo: 10}, false, 10, true},
		{Answer{Found: true, UpTo: 9}, false, 10, false},
		{Answer{}, false, 0, false}, // without even the witness
		{Answer{}, true, 10, true},
	} {
		if err := c.checkFresh("s", &tt.a, tt.rest, tt.seen); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
