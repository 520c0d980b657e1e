package bench

import (
	"context"
	"fmt"
	"time"
)

// pendingWorkload measures what timers cost that only wait. It needs Serve: the
// server is a process of its own, watched and killed from outside.
type pendingWorkload struct{}

const (
	defaultPendingCount   = 1_000_000
	defaultPendingSeconds = 30
	// quiet is how long a server is left alone before its idleness is measured, so
	// that what it does after a start or an add is over.
	quiet = 10 * time.Second
)

func (pendingWorkload) Name() string { return "pending" }
func (pendingWorkload) About() string {
	return "what waiting timers cost: memory, disk, CPU when idle, and a restart after a kill"
}

func (pendingWorkload) Defaults(c *Config) {
	if c.Count == 0 {
		c.Count = defaultPendingCount
	}
	if c.Seconds == 0 {
		c.Seconds = defaultPendingSeconds
	}
}

func (pendingWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if e.NATSURL != "" {
		return nil, bad("the pending workload kills its server, so it starts its own: leave out nats-url")
	}
	if e.Serve == nil {
		return nil, bad("the pending workload needs a program to start")
	}
	dir, err := e.TempDir()
	if err != nil {
		return nil, err
	}
	proc, err := e.newProcess(dir)
	if err != nil {
		return nil, err
	}
	p := e.progress()
	defer p.end()
	if _, err := proc.start(ctx); err != nil {
		return nil, err
	}
	e.NATSURL = proc.natsURL()
	defer func() { e.NATSURL = "" }()
	idle, err := e.idle(ctx, proc, p, "empty")
	if err != nil {
		return nil, err
	}
	if err := e.attach(ctx); err != nil {
		return nil, err
	}
	a, err := e.NewAdder("bench_pending")
	if err != nil {
		return nil, err
	}
	r, err := e.addFar(ctx, a)
	if err != nil {
		return nil, err
	}
	r.figure("idle CPU, empty", idle.cpuPercent, "% of a core")
	r.figure("memory, empty", idle.rssMB, "MB")
	return r, e.withPending(ctx, r, proc, p)
}

// withPending measures with the timers in place.
func (e *Env) withPending(ctx context.Context, r *Result, proc *process, p *progress) error {
	busy, err := proc.usage(ctx)
	if err != nil {
		return err
	}
	r.figure("memory right after the adds", busy.rssMB, "MB")
	e.disconnect()
	idle, err := e.idle(ctx, proc, p, "pending")
	if err != nil {
		return err
	}
	r.figure("idle CPU, pending", idle.cpuPercent, "% of a core")
	r.figure("memory, pending", idle.rssMB, "MB")
	disk, err := diskBytes(proc.dir)
	if err != nil {
		return err
	}
	r.figure("disk, pending", float64(disk)/1e6, "MB")
	if err := proc.kill(); err != nil {
		return err
	}
	p.show("killed; starting again")
	took, err := proc.start(ctx)
	if err != nil {
		return err
	}
	r.figure("restart after a kill, until ready", took.Seconds(), "s")
	if err := e.attach(ctx); err != nil {
		return err
	}
	found, err := e.records(ctx)
	if err != nil {
		return err
	}
	r.Verified = stored(e.Count, found)
	e.disconnect()
	if idle, err = e.idle(ctx, proc, p, "pending, restarted"); err != nil {
		return err
	}
	r.figure("idle CPU, pending, restarted", idle.cpuPercent, "% of a core")
	r.figure("memory, pending, restarted", idle.rssMB, "MB")
	return nil
}

type idleness struct{ cpuPercent, rssMB float64 }

// idle measures a server that is left alone for Seconds.
func (e *Env) idle(ctx context.Context, proc *process, p *progress, what string) (idleness, error) {
	wait := func(d time.Duration, doing string) error {
		end := time.Now().Add(d)
		for left := d; left > 0; left = time.Until(end) {
			p.show("%s (%s): %.0fs left", doing, what, left.Seconds())
			if !waitUntil(ctx, time.Now().Add(min(left, 200*time.Millisecond))) {
				return context.Cause(ctx)
			}
		}
		return nil
	}
	if err := wait(quiet, "letting it settle"); err != nil {
		return idleness{}, err
	}
	before, err := proc.usage(ctx)
	if err != nil {
		return idleness{}, err
	}
	begun := time.Now()
	if err := wait(time.Duration(e.Seconds)*time.Second, "measuring idle CPU"); err != nil {
		return idleness{}, err
	}
	after, err := proc.usage(ctx)
	if err != nil {
		return idleness{}, err
	}
	if after.cpuSeconds < before.cpuSeconds {
		return idleness{}, fmt.Errorf("the server restarted while it was watched")
	}
	return idleness{cpuPercent: (after.cpuSeconds - before.cpuSeconds) / time.Since(begun).Seconds() * 100, rssMB: after.rssMB}, nil
}
