package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/status"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// watchEvery is the interval of --watch.
const watchEvery = 2 * time.Second

func (c *cli) statusCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, shards, clocks, counts, streams and consumers",
		Long: `Show the state of Belfry: the nodes, the owner and the lag of each shard, the numbers
of waiting timers, running callbacks and dead letters, and the streams and consumers.
The command only reads.

PROBLEMS lists conditions that you should check; "belfry doctor" shows how to fix them.`,
		Example: `  belfry status
  belfry status --watch
  belfry status -o json | jq .totals`,
		Args: exactly(0),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the status every "+schemas.FormatDuration(watchEvery)+" until interrupted")
	return c.following(cmd, func([]string) error { return nil }, func(ctx context.Context, s session) error {
		look, err := store.Look(s.Conn(), s.flags.requestTimeout())
		if err != nil {
			return err
		}
		defer look.Close()
		if watch {
			return c.watchStatus(ctx, s, look)
		}
		return c.showStatus(ctx, s, look)
	})
}

func (c *cli) showStatus(ctx context.Context, s session, look *store.View) error {
	ctx, cancel := s.call(ctx)
	defer cancel()
	st, err := status.Read(ctx, s.Conn(), look)
	if err != nil {
		return err
	}
	if c.json() {
		return c.printJSON(st)
	}
	return c.printStatus(st)
}

// watchStatus prints the status repeatedly. It continues after a failed request, because
// users watch the status while parts fail.
func (c *cli) watchStatus(ctx context.Context, s session, look *store.View) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if isTerminal(c.out) {
			if _, err := fmt.Fprint(c.out, "\x1b[H\x1b[2J"); err != nil {
				return err
			}
		}
		if err := c.showStatus(ctx, s, look); err != nil && ctx.Err() == nil {
			c.report(err)
		}
		select {
		case <-ctx.Done():
			return nil // the user interrupted the command
		case <-tick.C:
		}
	}
}

// kept formats the number of messages in a stream, and the number that it has dropped.
func kept(n, expired uint64) string {
	if expired == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%d (and %d expired)", n, expired)
}

func (c *cli) printStatus(st *status.Status) error {
	p := &page{}
	p.line("%s  nats-server %s  %s", st.Server, st.Version, c.zone.show(st.Time))
	if !st.Clock.IsZero() {
		p.line("development node: the clock shows %s", c.zone.show(st.Clock))
	}
	p.line("pending %s  in flight %d  dead %s  rejected %s  adds waiting %d", orUnknown(st.Totals.Pending), st.Totals.InFlight,
		kept(st.Totals.Dead, st.Totals.DeadExpired), kept(st.Totals.Rejected, st.Totals.RejectedExpired), st.Totals.Adds)
	p.line("formats: level %d, records of format %d%s", st.Formats.Level, st.Formats.Record, heldBack(st.Formats))
	columns(p, "NODE\tVERSION\tROLES\tSCHEDULER\tSHARDS\tIN FLIGHT\tUP\tHEARTBEAT", st.Nodes, func(n status.Node) []any {
		up := "?"
		if !n.Started.IsZero() {
			up = max(st.Time.Sub(n.Started), 0).Round(time.Second).String()
		}
		return []any{n.Node, cmp.Or(n.Version, "?"), strings.Join(n.Roles, ","), cmp.Or(n.Scheduler, "-"), n.Shards, n.InFlight, up, ago(n.SilentMs)}
	})
	columns(p, "SHARD\tOWNER\tEPOCH\tCLOCK\tLAG\tMOVED\tPENDING", st.Shards, func(s status.Shard) []any {
		return []any{s.Shard, cmp.Or(s.Owner, "-"), s.Epoch, c.zone.clock(s.Mark), fmt.Sprintf("%.1fs", float64(s.LagMs)/1000), ago(s.SilentMs), orUnknown(s.Pending)}
	})
	columns(p, "STREAM\tMESSAGES\tBYTES\tOF\tREPLICAS\tLEADER", st.Streams, func(h store.StreamHealth) []any {
		current := 1
		for _, r := range h.Others {
			if r.Current && !r.Offline {
				current++
			}
		}
		return []any{h.Name, h.Messages, bytesText(int64(h.Bytes)), bytesText(h.MaxBytes), fmt.Sprintf("%d/%d", min(current, h.Replicas), h.Replicas), cmp.Or(h.Leader, "-")}
	})
	columns(p, "CONSUMER\tSTREAM\tPENDING\tIN FLIGHT\tREDELIVERED\tPULLS\tLEADER", st.Consumers, func(h store.ConsumerHealth) []any {
		return []any{h.Name, h.Stream, h.Pending, h.InFlight, h.Redelivered, h.Pulls, cmp.Or(h.Leader, "-")}
	})
	services := make([]string, 0, len(st.Dead))
	for svc := range st.Dead {
		services = append(services, svc)
	}
	slices.Sort(services)
	columns(p, "DEAD LETTERS OF\tCOUNT", services, func(svc string) []any { return []any{svc, st.Dead[svc]} })
	columns(p, "PAUSED\tSINCE\tBY\tNOTE", st.Paused[:min(len(st.Paused), mostPaused)], func(k status.Paused) []any {
		return []any{k.Key, c.zone.show(k.Since), cmp.Or(k.By, "-"), cmp.Or(k.Note, "-")}
	})
	if more := len(st.Paused) - mostPaused; more > 0 {
		p.line("%d more are paused: see belfry flow ls", more)
	}
	p.line("")
	p.line("PROBLEMS: %s", cmp.Or(strings.Join(st.Problems, "; "), "none"))
	_, err := p.WriteTo(c.out)
	return err
}

// mostPaused is the number of paused keys that the text of status names. The JSON has all.
const mostPaused = 10

// heldBack names the nodes that keep the others from a newer format level.
func heldBack(f store.Formats) string {
	if len(f.HeldBackBy) == 0 {
		return ""
	}
	return fmt.Sprintf("; level %d is held back by %s", f.Newest, strings.Join(f.HeldBackBy, ", "))
}

// orUnknown formats a count, or "?" for nil.
func orUnknown(n *int64) string {
	if n == nil {
		return "?"
	}
	return strconv.FormatInt(*n, 10)
}
