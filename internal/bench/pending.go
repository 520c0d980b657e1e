package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/app"
)

// pendingWorkload measures the cost of timers that only wait. Servers and node are separate
// processes, which the workload observes and kills.
type pendingWorkload struct{}

const (
	defaultPendingCount   = 1_000_000
	defaultPendingSeconds = 30
	defaultSettle         = time.Minute
	// quiet bounds the pause before a measurement of idle CPU. In the pause a server finishes the
	// work that follows a start or an add.
	quiet = 10 * time.Second
	// probeLead is the time to the due time of the probe, the timer that marks the end of a
	// restart when it fires.
	probeLead = 2 * time.Second
)

func (pendingWorkload) Name() string { return "pending" }
func (pendingWorkload) About() string {
	return "cost of waiting timers: memory, disk, idle CPU, and a restart after SIGKILL"
}

func (pendingWorkload) Defaults(c *Config) {
	c.Count = cmp.Or(c.Count, defaultPendingCount)
	c.Seconds = cmp.Or(c.Seconds, defaultPendingSeconds)
	c.Settle = cmp.Or(c.Settle, defaultSettle)
}

// Figures that the table uses.
const (
	restartFigure = "restart after a kill, until a timer fired"
	idleFigure    = "idle CPU, pending, above empty"
	// filledFigure is the memory at Settle after the adds, restartedFigure that after a restart.
	filledFigure    = "memory a timer, settled after the adds, above empty"
	restartedFigure = "memory a timer, pending, restarted, above empty"
)

func (pendingWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	return e.pending(ctx, func(ctx context.Context) (*Result, error) {
		a, err := e.NewAdder("bench_pending")
		if err != nil {
			return nil, err
		}
		return e.addFar(ctx, a, farAhead, farAhead)
	})
}

// pending measures a node with Count timers that wait. add adds them.
func (e *Env) pending(ctx context.Context, add func(context.Context) (*Result, error)) (*Result, error) {
	if e.NATSURL != "" {
		return nil, bad("this workload kills its server, so it starts its own: leave out nats-url")
	}
	if e.Retention != 0 {
		return nil, bad("this workload counts the records of timers that have fired: leave out retention")
	}
	e.Raw = 0 // raw operations would count in the measured memory
	d, err := e.deploy(true)
	if err != nil {
		return nil, err
	}
	p := e.progress()
	defer p.end()
	if _, err := d.start(ctx); err != nil {
		return nil, err
	}
	e.NATSURL = d.url
	defer func() { e.NATSURL = "" }()
	empty, err := e.idle(ctx, d, p, "empty")
	if err != nil {
		return nil, err
	}
	if err := e.reprofile(ctx, d, p, app.ProfileFast); err != nil {
		return nil, err
	}
	r, err := e.fill(ctx, d, add)
	if err != nil {
		return nil, err
	}
	empty.figures(r, d, "empty")
	if err := e.settled(ctx, r, d, empty, p); err != nil {
		return nil, err
	}
	if err := e.reprofile(ctx, d, p, e.Profile); err != nil {
		return nil, err
	}
	return r, e.withPending(ctx, r, d, empty, p)
}

// reprofile restarts servers and node in another profile if LoadFast is set.
func (e *Env) reprofile(ctx context.Context, d *deployment, p *progress, to app.Profile) error {
	if !e.LoadFast || d.profile == to {
		return nil
	}
	p.show("starting again in the %s profile", to)
	e.disconnect()
	if err := d.stop(); err != nil {
		return err
	}
	d.profile = to
	_, err := d.start(ctx)
	return err
}

// fill adds the timers that stay pending.
func (e *Env) fill(ctx context.Context, d *deployment, add func(context.Context) (*Result, error)) (*Result, error) {
	if err := e.attach(ctx); err != nil {
		return nil, err
	}
	r, err := add(ctx)
	if err != nil {
		return nil, err
	}
	servers, node, err := d.usage()
	if err != nil {
		return nil, err
	}
	memory(r, d, servers, node, "right after the adds")
	e.disconnect()
	return r, nil
}

// settled measures the memory of the timers at Settle after they were added.
func (e *Env) settled(ctx context.Context, r *Result, d *deployment, empty idleness, p *progress) error {
	if e.Settle <= 0 {
		return nil
	}
	if err := waitShown(ctx, e.Settle, p, "letting the memory settle after the adds"); err != nil {
		return err
	}
	servers, node, err := d.usage()
	if err != nil {
		return err
	}
	memory(r, d, servers, node, "settled after the adds")
	r.figure(filledFigure, (servers.rssMB+node.rssMB-empty.serversMB-empty.nodeMB)*1e6/float64(e.Count), "B")
	return nil
}

// waitShown waits for a time and shows what for.
func waitShown(ctx context.Context, d time.Duration, p *progress, doing string) error {
	end := time.Now().Add(d)
	for left := d; left > 0; left = time.Until(end) {
		p.show("%s: %.0fs left", doing, left.Seconds())
		if !waitUntil(ctx, time.Now().Add(min(left, 200*time.Millisecond))) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// withPending measures while the timers are pending.
func (e *Env) withPending(ctx context.Context, r *Result, d *deployment, empty idleness, p *progress) error {
	idle, err := e.idle(ctx, d, p, "pending")
	if err != nil {
		return err
	}
	idle.figures(r, d, "pending")
	r.figure(idleFigure, idle.cpu()-empty.cpu(), "% of a core")
	perTimer := 1e6 / float64(e.Count)
	r.figure("memory a timer, pending, above empty", (idle.serversMB+idle.nodeMB-empty.serversMB-empty.nodeMB)*perTimer, "B")
	disk, err := diskBytes(d.dirs...)
	if err != nil {
		return err
	}
	r.figure("disk, pending", float64(disk)/1e6, "MB")
	more, err := e.beside(ctx, r, d)
	if err != nil {
		return err
	}
	if err := e.restart(ctx, r, d, p); err != nil {
		return err
	}
	found, err := e.sut().known(ctx)
	if err != nil {
		return err
	}
	all := stored(e.Count+1+more, found) // 1 for the probe
	all.add(r.Verified)
	r.Verified = all
	e.disconnect()
	if more > 0 {
		return nil // the records of fired timers would count, too
	}
	if idle, err = e.idle(ctx, d, p, "pending, restarted"); err != nil {
		return err
	}
	idle.figures(r, d, "pending, restarted")
	r.figure(restartedFigure, (idle.serversMB+idle.nodeMB-empty.serversMB-empty.nodeMB)*perTimer, "B")
	return nil
}

// restart kills all processes, starts them again, and measures the time until a timer has fired
// that became due meanwhile.
func (e *Env) restart(ctx context.Context, r *Result, d *deployment, p *progress) error {
	if err := e.attach(ctx); err != nil {
		return err
	}
	probe, err := e.NewAdder("bench_probe")
	if err != nil {
		return err
	}
	due := time.Now().Add(probeLead)
	if err := probe.Add(ctx, 1, func(int) int64 { return due.UnixMilli() }, nil, nil); err != nil {
		return err
	}
	e.disconnect()
	if err := d.kill(); err != nil {
		return err
	}
	p.show("killed; waiting until a timer is due")
	if !waitUntil(ctx, due) {
		return context.Cause(ctx)
	}
	p.show("starting again")
	begun := time.Now()
	ready, err := d.start(ctx)
	if err != nil {
		return err
	}
	r.figure("restart after a kill, until ready", ready.Seconds(), "s")
	if err := e.attach(ctx); err != nil {
		return err
	}
	at, err := e.firedAt(ctx, probe)
	if err != nil {
		return err
	}
	if at.Before(due) {
		return fmt.Errorf("%w: the timer of the restart fired %s early", ErrUnsound, due.Sub(at))
	}
	// The server runs on this machine, so the stream's timestamp and begun are of one clock.
	r.figure(restartFigure, at.Sub(begun).Seconds(), "s")
	return nil
}

// firedAt waits until the only timer of an adder has fired, and returns the time at which it
// did.
func (e *Env) firedAt(ctx context.Context, a *Adder) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("the timer that was due did not fire within %s of the restart", startBound))
	defer cancel()
	stream, subject := a.fired()
	s, err := e.js.Stream(ctx, stream)
	if err != nil {
		return time.Time{}, err
	}
	for {
		m, err := s.GetLastMsgForSubject(ctx, subject)
		if err == nil {
			return m.Time, nil
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return time.Time{}, err
		}
		if !waitUntil(ctx, time.Now().Add(10*time.Millisecond)) {
			return time.Time{}, context.Cause(ctx)
		}
	}
}

// idleness is the usage of servers and node without work: CPU in percent of a core, memory in MB.
type idleness struct{ serversCPU, serversMB, nodeCPU, nodeMB float64 }

func (i idleness) cpu() float64 { return i.serversCPU + i.nodeCPU }

func (i idleness) figures(r *Result, d *deployment, what string) {
	r.figure("idle CPU, "+what, i.cpu(), "% of a core")
	memory(r, d, used{rssMB: i.serversMB}, used{rssMB: i.nodeMB}, what)
}

func memory(r *Result, d *deployment, servers, node used, what string) {
	if len(d.servers) > 0 && d.node != nil {
		r.figure("memory of the servers, "+what, servers.rssMB, "MB")
		r.figure("memory of the node, "+what, node.rssMB, "MB")
		return
	}
	r.figure("memory, "+what, servers.rssMB+node.rssMB, "MB") // one of them is 0
}

// idle measures the usage of a deployment without work for Seconds.
func (e *Env) idle(ctx context.Context, d *deployment, p *progress, what string) (idleness, error) {
	watched := time.Duration(e.Seconds) * time.Second
	if err := waitShown(ctx, min(quiet, watched), p, "letting it settle ("+what+")"); err != nil {
		return idleness{}, err
	}
	servers, node, err := d.usage()
	if err != nil {
		return idleness{}, err
	}
	begun := time.Now()
	if err := waitShown(ctx, watched, p, "measuring idle CPU ("+what+")"); err != nil {
		return idleness{}, err
	}
	serversEnd, nodeEnd, err := d.usage()
	if err != nil {
		return idleness{}, err
	}
	percent := 100 / time.Since(begun).Seconds()
	return idleness{
		serversCPU: (serversEnd.cpuSeconds - servers.cpuSeconds) * percent, serversMB: serversEnd.rssMB,
		nodeCPU: (nodeEnd.cpuSeconds - node.cpuSeconds) * percent, nodeMB: nodeEnd.rssMB,
	}, nil
}
