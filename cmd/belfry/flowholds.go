package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) flowResetCommand() *cobra.Command {
	var (
		key string
		by  byFlag
	)
	cmd := &cobra.Command{
		Use:   "reset KEY",
		Short: "Let the callbacks of a flow key begin again that an answer of its target has stopped",
		Long: `End the pause for which the target of a flow key has asked with Retry-After, or close the
circuit that opened because the target could not be reached. The events that wait are called
soon; the next answer of the target counts again. "belfry flow ls" lists the keys.`,
		Example: "  belfry flow reset api.example.com",
		Args:    exactly(1),
	}
	by.add(cmd.Flags())
	check := func(args []string) error {
		key = args[0]
		switch err := schemas.CheckFlowPattern(key); {
		case err != nil:
			return usagef("%v", err)
		case strings.Contains(key, "*"):
			return usagef("%s is a pattern: name one flow key; \"belfry flow ls\" lists the stopped keys", key)
		}
		return by.check()
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		before, err := s.ResetFlow(ctx, key, belfry.FlowBy(by.by))
		switch {
		case err != nil:
			return err
		case c.json():
			return c.printJSON(before)
		}
		return c.printText("flow", key, "before", c.holdText(&before))
	})
}

// holdPairs returns the lines about what an answer of the target stops.
func (c *cli) holdPairs(h *belfry.FlowHold) []string {
	if h == nil {
		return nil
	}
	return []string{"stopped", c.holdText(h), "reason", h.Reason}
}

// holdText says in one line why the calls of a key are stopped.
func (c *cli) holdText(h *belfry.FlowHold) string {
	if !h.Open.IsZero() {
		return fmt.Sprintf("circuit open since %s, %d probes, next at %s", c.zone.show(h.Open), h.Probes, c.zone.show(latest(h.NextProbe, h.Until)))
	}
	return "until " + c.zone.show(h.Until) + ", as its target asked"
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// printHolds prints the holds of flow keys, after the limits.
func (c *cli) printHolds(holds []belfry.FlowHold) error {
	for _, h := range holds {
		if err := c.printText("flow", h.Key, "stopped", c.holdText(&h), "reason", h.Reason); err != nil {
			return err
		}
	}
	return nil
}
