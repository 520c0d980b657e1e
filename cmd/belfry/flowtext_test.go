package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/status"
	"github.com/belfryio/belfry/schemas"
)

// TestFlowText: flow show, flow ls and get print the rate that a target allows, the pause for which it
// has asked, and its open circuit.
func TestFlowText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	paused := belfry.FlowHold{Key: "api.example.com", Until: at.Add(time.Minute), Reason: "HTTP status 429", Changed: at, By: "n1"}
	open := belfry.FlowHold{Key: "down.example.com", Open: at, Probes: 3, NextProbe: at.Add(time.Second), Reason: "connection refused", Changed: at, By: "n1"}
	limit := belfry.FlowLimitInfo{
		Key: "api.example.com", Rate: "100/1m", Burst: 2, Revision: 7,
		Target: &schemas.FlowTarget{PerMinute: 100, URL: "https://api.example.com/hook", Asked: at, Until: at.Add(90 * time.Minute)},
	}
	pausedText := "stopped until 2026-11-23T08:01:00.000Z, as its target asked reason HTTP status 429"
	openText := "stopped circuit open since 2026-11-23T08:00:00.000Z, 3 probes, next at 2026-11-23T08:00:01.000Z reason connection refused"
	for name, c := range map[string]struct {
		json bool
		show func(c *cli) error
		want []string
	}{
		"flow show with a rate of the target and a pause": {false, func(c *cli) error {
			return c.printFlow(belfry.FlowStatus{Key: "api.example.com", Limit: &limit, Hold: &paused, Keys: []schemas.FlowKeyInfo{{Key: "api.example.com", Waiting: 4}}})
		}, []string{"flow api.example.com " + pausedText + " rate 100/1m burst 2 target 100/1m allowed by https://api.example.com/hook until 2026-11-23T09:30:00.000Z, asked at 2026-11-23T08:00:00.000Z state active", "waiting 4"}},
		"flow show of an open circuit without a limit": {false, func(c *cli) error {
			return c.printFlow(belfry.FlowStatus{Key: "down.example.com", Hold: &open, Keys: []schemas.FlowKeyInfo{{Key: "down.example.com", Waiting: 4}}})
		}, []string{"flow down.example.com limit none " + openText + " waiting 4"}},
		"flow ls": {false, func(c *cli) error {
			if err := c.printLimits([]belfry.FlowLimitInfo{limit}); err != nil {
				return err
			}
			return c.printHolds([]belfry.FlowHold{paused, open})
		}, []string{"api.example.com 100/1m 2 7 active", "flow api.example.com " + pausedText + " flow down.example.com " + openText}},
		"flow ls as JSON": {true, func(c *cli) error {
			return c.printFlowsJSON([]belfry.FlowLimitInfo{limit}, []belfry.FlowHold{paused, open})
		}, []string{
			`{"key":"api.example.com","revision":7,"rate":"100/1m","burst":2,"target":{"per_minute":100,"url":"https://api.example.com/hook","asked":"2026-11-23T08:00:00.000Z","until":"2026-11-23T09:30:00.000Z"},"hold":{"key":"api.example.com","reason":"HTTP status 429","by":"n1","until":"2026-11-23T08:01:00.000Z","changed":"2026-11-23T08:00:00.000Z"}}`,
			`{"key":"down.example.com","revision":0,"hold":{"key":"down.example.com","probes":3,"reason":"connection refused","by":"n1","open":"2026-11-23T08:00:00.000Z","next_probe":"2026-11-23T08:00:01.000Z","changed":"2026-11-23T08:00:00.000Z"}}`,
		}},
		"get of a paused timer": {false, func(c *cli) error {
			return c.printTimer(schemas.TimerInfo{Flow: &schemas.FlowInfo{Key: "api.example.com", Slot: at, Hold: schemas.HoldPause, Until: at.Add(time.Minute), Deferrals: 2}})
		}, []string{"waits until 2026-11-23T08:01:00.000Z, as its target asked (flow api.example.com), deferral 2"}},
		"get of a timer behind an open circuit": {false, func(c *cli) error {
			return c.printTimer(schemas.TimerInfo{Flow: &schemas.FlowInfo{Key: "down.example.com", Slot: at, Hold: schemas.HoldCircuit, Until: at.Add(time.Second)}})
		}, []string{"waits for its target, which cannot be reached; next probe at 2026-11-23T08:00:01.000Z (flow down.example.com)"}},
	} {
		var out bytes.Buffer
		command := &cli{process: process{out: &out, err: &out}}
		if c.json {
			command.format = cmdline.FormatJSON
		}
		if err := c.show(command); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, w := range c.want {
			if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, w) {
				t.Errorf("%s: got\n%s\nwant in it\n%s", name, got, w)
			}
		}
	}
}

// TestStatusOfManyPaused: the text of status names a bounded number of paused keys, and says how many others there are.
func TestStatusOfManyPaused(t *testing.T) {
	t.Parallel()
	st := &status.Status{}
	for i := range mostPaused + 3 {
		st.Paused = append(st.Paused, status.Paused{Key: fmt.Sprintf("key-%02d", i)})
	}
	var out bytes.Buffer
	if err := (&cli{process: process{out: &out, err: &out}}).printStatus(st); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, "key-") != mostPaused || !strings.Contains(text, "3 more are paused: see belfry flow ls") {
		t.Errorf("got\n%s", text)
	}
}
