package bench

import (
	"testing"

	"github.com/belfryio/belfry/internal/testsize"
)

func TestFlow(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "four loads, one after another")
	r := run(t, "flow", func(c *Config) { c.Rate, c.Seconds = 100, 1 })
	if r.Verified.Found != 4*100 || figure(t, r, "with a limit, turn 2: timers concluded") <= 0 {
		t.Errorf("got %+v, want four times 100 timers", r)
	}
	if l := r.latency("without a limit, turn 1: lateness of the callback"); l == nil || l.Count() != 100 {
		t.Errorf("got %+v, want the lateness of 100 callbacks in each turn", r.Latencies)
	}
	for _, name := range []string{"with a limit, turn 1: " + cpuFigure, "without a limit, turn 2: " + cpuFigure, "CPU of a timer with a limit, of that without"} {
		if figure(t, r, name) <= 0 {
			t.Errorf("figure %q is 0, want more", name)
		}
	}
	with, without := figure(t, r, "with a limit, turn 1: messages stored a timer"), figure(t, r, "without a limit, turn 1: messages stored a timer")
	if with <= without {
		t.Errorf("got %v messages a timer with a limit and %v without, want more with: its decisions are stored", with, without)
	}
}

func TestFlowKeys(t *testing.T) {
	t.Parallel()
	r := run(t, "flow", func(c *Config) { c.Keys, c.Seconds = 40, 1 })
	if r.Verified.Found != 40 || figure(t, r, "keys with a state") != 40 {
		t.Errorf("got %+v, want 40 keys with a state", r)
	}
	for _, name := range []string{"CPU of the polls of an idle node", "idle CPU, with keys", "memory, without keys"} {
		if figure(t, r, name) < 0 {
			t.Errorf("figure %q is below 0", name)
		}
	}
}
