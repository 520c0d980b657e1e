package skipped_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/skipped"
	"github.com/belfryio/belfry/schemas"
)

// TestShared: two roles of a process count in one metric. What fires is not counted.
func TestShared(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	for n := range 2 {
		c, err := skipped.NewCounter(reg)
		if err != nil {
			t.Fatal(err)
		}
		c.Init()
		c.Add(schemas.Decision{Kind: schemas.DecisionGrace, Count: 3}, schemas.Decision{Kind: schemas.DecisionFired, Count: uint32(5 + n)})
	}
	got := metrictest.Of(t, reg, "belfry_schedule_skipped_total")
	if got["grace"] != 6 || got["updated"] != 0 || len(got) < 8 {
		t.Errorf("counted %v", got)
	}
	if _, there := got["fired"]; there {
		t.Error("what fired is counted")
	}
	var none skipped.Counter
	none.Add(schemas.Decision{Kind: schemas.DecisionGrace, Count: 1})
}

// TestBetween compares the decisions before and after changes of a schedule.
func TestBetween(t *testing.T) {
	t.Parallel()
	decide := func(p *schemas.Schedule, kind schemas.DecisionKind, from, to int64) {
		p.Decide(schemas.Decision{Kind: kind, FromMs: from, ToMs: to, Count: uint32(to - from + 1)})
	}
	var s schemas.Schedule
	for n := range int64(schemas.MaxDecisions) {
		decide(&s, schemas.DecisionKind(4+n%2), 10*n+1, 10*n+2)
	}
	last := int64(10 * schemas.MaxDecisions)
	for name, c := range map[string]struct {
		change func(*schemas.Schedule)
		want   string
	}{
		"nothing":        {func(*schemas.Schedule) {}, "[]"},
		"another range":  {func(s *schemas.Schedule) { decide(s, schemas.DecisionUpdated, last+1, last+3) }, "[updated 3]"},
		"a longer range": {func(s *schemas.Schedule) { decide(s, schemas.DecisionMisfire, last-7, last-6) }, "[misfire 2]"},
		"both": {func(s *schemas.Schedule) {
			decide(s, schemas.DecisionMisfire, last-7, last-7)
			decide(s, schemas.DecisionCancelled, last, last)
		}, "[misfire 1 cancelled 1]"},
		"of another kind": {func(s *schemas.Schedule) { decide(s, schemas.DecisionPaused, last-7, last-7) }, "[paused 1]"},
	} {
		after := s.Clone()
		c.change(after)
		var got []string
		for _, d := range skipped.Between(&s, after) {
			got = append(got, fmt.Sprint(d.Kind, " ", d.Count))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
	if skipped.Between(nil, &s) != nil || skipped.Between(&s, nil) != nil {
		t.Error("a timer has decisions")
	}
}
