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
		Long: `Show what is damaged in the store, and what --apply would do about it: the recorded
layout, clocks, records that cannot be decoded, timers that no index entry names,
index entries without a record, and losses that the nodes have put on record.

A record is repaired from its previous revision if the bucket still has that, else
from its event in TIMERS_DEAD or TIMERS_FIRED. If nothing is left of it, its bytes
go to timers.rejected ("belfry rejected ls") and its key is removed, so that the
timer can be added again. Damaged clocks are written again from their copies;
nodes that run do that by themselves.

Nodes may run meanwhile: every repair is a compare-and-set. The command reads
every record of every shard, and needs the rights of a node. The exit code is 0 if
nothing is damaged or all of it was repaired, and 7 otherwise.`,
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

func (c *cli) repair(ctx context.Context, look *store.Store, apply bool) error {
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
