package main

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/sizing"
	"github.com/belfryio/belfry/schemas"
)

// Limits of streams that size compares with, in bytes; docs/operations.md has all.
const (
	firedLimitBytes  = 16 << 30
	shardsLimitBytes = 32 << 30
)

func (c *cli) sizeCommand() *cobra.Command {
	o := app.DefaultOptions()
	l := sizing.Load{
		Rate: 100, Pending: 100_000, Payload: 400, Services: 10, Replicas: o.Replicas, Callbacks: true,
		Retention: o.Retention, SweepDelay: o.SweepDelay, FiredMaxAge: o.FiredMaxAge, Horizon: o.Horizon,
	}
	cmd := c.printing(&cobra.Command{
		Use:   "size",
		Short: "Estimate the memory, disk and CPU that a load needs",
		Long: `Estimate the memory, disk and CPU that a load needs, with the formulas of docs/scaling.md. They come
from measurements on two cores; measure your machine with belfry-bench. The command needs no
server. Memory and disk are those of each server; the CPU is that of all servers and nodes
together, with half of it kept free.`,
		Example: `  belfry size --rate 100 --pending 1e6 --payload 400 --retention 1h
  belfry size --rate 5000 --replicas 3 --retention 10m -o json`,
		Args: exactly(0),
		RunE: func(*cobra.Command, []string) error {
			if err := l.Validate(); err != nil {
				return usagef("%v", err)
			}
			return c.printSize(l)
		},
	})
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.Float64Var(&l.Rate, "rate", l.Rate, "timers and runs of schedules that come due in a second, on average")
	fs.Float64Var(&l.Pending, "pending", l.Pending, "timers that wait at the same time, such as 1e6")
	fs.Float64Var(&l.Payload, "payload", l.Payload, "bytes of an event's data")
	fs.Var(cmdline.Duration(&l.Retention), "retention", "the setting of this name")
	fs.Var(cmdline.Duration(&l.SweepDelay), "sweep-delay", "the setting of this name")
	fs.Var(cmdline.Duration(&l.FiredMaxAge), "fired-max-age", "the setting of this name")
	fs.IntVar(&l.Services, "services", l.Services, "services in use at the same time")
	fs.IntVar(&l.Replicas, "replicas", l.Replicas, "replicas of every stream: 1, 3 or 5")
	fs.BoolVar(&l.Callbacks, "callbacks", l.Callbacks, "timers have callbacks over HTTP")
	return cmd
}

// printSize prints the needs of a load, and the limits that it exceeds.
func (c *cli) printSize(l sizing.Load) error {
	n := sizing.Of(l)
	var notes []string
	if n.DiskFired > firedLimitBytes {
		notes = append(notes, fmt.Sprintf("fired events exceed the limit of TIMERS_FIRED (16 GiB): it drops the oldest. A fired-max-age of %s fits", schemas.FormatDuration(fits(l))))
	}
	if n.DiskShards > shardsLimitBytes {
		notes = append(notes, "timers exceed the limit of all shards (32 GiB): adds are refused. Shorten retention, or spread the timers over several Belfrys")
	}
	if c.json() {
		return c.printJSON(struct {
			sizing.Need
			Notes []string `json:"notes,omitempty"`
		}{n, notes})
	}
	if err := c.printText("memory", fmt.Sprintf("%s (%s in use)", decimalBytes(n.Memory), decimalBytes(n.MemoryAlive)),
		"disk", fmt.Sprintf("%s (timers %s, fired events %s)", decimalBytes(n.Disk), decimalBytes(n.DiskShards), decimalBytes(n.DiskFired)),
		"writes", decimalBytes(n.DiskWrites)+" a second", "cores", fmt.Sprintf("%.3g", math.Max(n.Cores, 0.01)), "keys", fmt.Sprintf("%.0f", n.Keys)); err != nil {
		return err
	}
	for _, note := range notes {
		if err := c.printText("note", note); err != nil {
			return err
		}
	}
	return nil
}

// fits returns the largest age, in whole minutes, at which fired events stay below the limit of their stream.
func fits(l sizing.Load) time.Duration {
	minute := l
	minute.FiredMaxAge = time.Minute
	return time.Duration(firedLimitBytes/sizing.Of(minute).DiskFired) * time.Minute
}

// decimalBytes formats a number of bytes with a decimal unit.
func decimalBytes(n float64) string {
	for _, unit := range []string{"kB", "MB", "GB"} {
		if n /= 1000; n < 999.5 {
			return fmt.Sprintf("%.3g %s", n, unit)
		}
	}
	return fmt.Sprintf("%.4g TB", n/1000)
}
