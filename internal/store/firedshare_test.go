package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestLargeEventsOfOneService: a service whose events are far larger than
// fired-max-per-service assumes evicts no events of other services, and is reported.
func TestLargeEventsOfOneService(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for the trims of a stream")
	const limit, payload, small = 32 << 20, 200 << 10, 20
	srv := natstest.Run(t)
	s, err := store.Open(t.Context(), srv.Connect(), store.Config{Node: "n", FiredMaxBytes: limit}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	publish := func(svc string, n, bytes int) {
		t.Helper()
		if _, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired(svc), MsgID: fmt.Sprint(svc, n), Data: make([]byte, bytes)}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(svc string) uint64 {
		t.Helper()
		n, err := s.CountFired(t.Context(), svc)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for n := range small {
		publish("quiet", n, 1<<10)
		publish("steady", n, 100<<10) // 2 MB, below its share of 4 MiB
	}
	// Fire twice the size of the stream. The node that trims looks once a second, and the
	// documented bound is on the events fired between two looks. So the flood waits for a trim
	// when half of the space above the threshold is used.
	for n := range 2 * limit / payload {
		publish("flood", n, payload)
		if n%10 == 9 {
			waittest.Until(t, "the flood to be trimmed", func() bool { return s.FiredFill(t.Context(), t) < 0.87 })
		}
	}
	if q, st := count("quiet"), count("steady"); q != small || st != small {
		t.Errorf("%d events of the quiet service and %d of the steady one are left of %d each", q, st, small)
	}
	if n := count("flood"); n*payload < limit/8/2 {
		t.Errorf("%d events of the flood are left: less than its share", n)
	}
	trims, err := s.ReadTrimmed(t.Context())
	if err != nil || len(trims) != 1 || trims[0].Service != "flood" || trims[0].Total < trims[0].Events || trims[0].Total == 0 || time.Since(trims[0].At) > time.Hour {
		t.Fatalf("%+v, %v", trims, err)
	}
	if text := trims[0].Problem(); !strings.Contains(text, "service flood fills TIMERS_FIRED") {
		t.Error(text)
	}
	if s.FiredTrimmed() == 0 {
		t.Error("nothing was counted")
	}
}

// TestFiredUsage: a trim takes the oldest events of the largest services, and leaves each
// service its share.
func TestFiredUsage(t *testing.T) {
	t.Parallel()
	const share = 3200 // parts of 100
	for _, c := range []struct {
		name   string
		sizes  map[string]int // events of 10 bytes
		excess uint64
		want   map[string]uint64 // bytes that stay, at most; and at least one part less
	}{
		{"one large", map[string]int{"a": 1000, "b": 100}, 2000, map[string]uint64{"a": 8000, "b": 1000}},
		{"no further than the share", map[string]int{"a": 1000, "b": 100}, 100_000, map[string]uint64{"a": share, "b": 1000}},
		{"the second joins", map[string]int{"a": 1000, "b": 800, "c": 10}, 6000, map[string]uint64{"a": 6000, "b": 6000, "c": 100}},
		{"the first alone", map[string]int{"a": 1000, "b": 500}, 4000, map[string]uint64{"a": 6000, "b": 5000}},
		{"all below the share", map[string]int{"a": 300, "b": 300}, 5000, map[string]uint64{"a": 3000, "b": 3000}},
		{"nothing", map[string]int{}, 5000, map[string]uint64{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			left := store.TrimExample(share, c.excess, c.sizes)
			for svc, want := range c.want {
				if got := left[svc]; got > want || got+share/32 < min(want, uint64(c.sizes[svc]*10)) {
					t.Errorf("%s has %d left, want %d or one part less", svc, got, want)
				}
			}
		})
	}
}

// TestFiredUsageIsBounded: the sums are bounded for any number of services, and large services
// are never dropped.
func TestFiredUsageIsBounded(t *testing.T) {
	t.Parallel()
	sizes := store.UsageOfMany(1<<20, 120_000)
	if len(sizes) > 50_000 || !slices.Contains(sizes, "large") {
		t.Errorf("%d services, large among them: %v", len(sizes), slices.Contains(sizes, "large"))
	}
}
