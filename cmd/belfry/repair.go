package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/store"
)

func (c *cli) repairCommand() *cobra.Command {
	var apply bool
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Show damaged clocks, records and index entries; with --apply repair them",
		Long: `Show the damage in the store, and the repair that --apply would make. The command
finds a damaged layout, damaged clocks, keys that another client has written,
records that cannot be decoded, waiting timers without an index entry, index
entries without a record, and messages that the NATS server has lost.

It repairs a record from its previous revision if the bucket still has it, else
from its event in TIMERS_DEAD or TIMERS_FIRED. If there is neither, it moves the
bytes to timers.rejected ("belfry rejected ls") and removes the key, so that the
timer can be added again. It restores damaged clocks from their copies, as running
nodes do.

Nodes may run meanwhile: every repair is a compare-and-set. The command reads
every record of every shard, and needs the permissions of a node. The exit code is
0 if nothing is damaged or everything was repaired, and 7 otherwise.`,
		Example: `  belfry repair
  belfry repair --apply
  belfry repair -o json | jq .kind`,
		Args: exactly(0),
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "repair what can be repaired")
	return c.talking(cmd, func([]string) error { return nil }, func(ctx context.Context, s session) error {
		look, err := store.Look(s.Conn(), s.flags.requestTimeout())
		if err != nil {
			return err
		}
		defer look.Close()
		return c.repair(ctx, look, apply)
	})
}

func (c *cli) repair(ctx context.Context, look *store.View, apply bool) error {
	t := table{c.out, []int{8, 7, 9}}
	left := 0
	err := look.Repair(ctx, apply, func(f store.RepairFinding) error {
		if !f.Applied {
			left++
		}
		if c.json() {
			return c.printJSON(f)
		}
		state := "DAMAGED"
		switch {
		case f.Applied:
			state = "REPAIRED"
		case f.Error != "":
			state = "FAILED"
		}
		shard := "-"
		if f.Shard >= 0 {
			shard = fmt.Sprint(f.Shard)
		}
		if err := t.row(state, f.Kind, "shard "+shard, f.Key+": "+f.Problem); err != nil {
			return err
		}
		for _, line := range []string{f.Repair, strings.TrimSpace(f.Error)} {
			if line == "" {
				continue
			}
			if err := t.row("", "", "", "-> "+line); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if left > 0 {
		return &unhealthyError{left}
	}
	return nil
}
