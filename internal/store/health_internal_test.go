package store

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestAddsInFlight: routers that have nearly as many adds as the server delivers at a time are a problem.
func TestAddsInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		consumer ConsumerHealth
		want     bool
	}{
		{ConsumerHealth{Stream: schemas.StreamAdd, Belfry: true, InFlight: 17_999}, false},
		{ConsumerHealth{Stream: schemas.StreamAdd, Belfry: true, InFlight: 18_000}, true},
		{ConsumerHealth{Stream: schemas.StreamAdd, InFlight: 20_000}, false},
		{ConsumerHealth{Stream: schemas.StreamFired, Belfry: true, InFlight: 20_000}, false},
	} {
		if got := c.consumer.Problem(); (got != "") != c.want {
			t.Errorf("%+v: %q", c.consumer, got)
		}
	}
}

// TestClocksDiffer: a minute between the clocks of two leaders is reported. A stream without a leader does not count.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	stream := func(name, leader string, after time.Duration) StreamHealth {
		return StreamHealth{Name: name, Clustered: true, Leader: leader, Now: at.Add(after)}
	}
	for _, c := range []struct {
		streams []StreamHealth
		want    string
	}{
		{nil, ""},
		{[]StreamHealth{stream("A", "s1", 0), stream("B", "s2", time.Minute), stream("C", "", time.Hour), {Name: "D"}}, ""},
		{
			[]StreamHealth{stream("A", "s1", time.Second), stream("B", "s2", -time.Hour), stream("C", "s3", 0)},
			"the clock of server s1, which leads A, is 1h0m1s ahead of that of server s2, which leads B",
		},
	} {
		if got := ClocksDiffer(c.streams); got != c.want {
			t.Errorf("%q; want %q", got, c.want)
		}
	}
}
