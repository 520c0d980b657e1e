package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// flowWorkload has two measurements of flow control: callbacks under a limit that does not bind,
// in turns with callbacks without a limit; and with Keys the cost of flow keys without work.
type flowWorkload struct{}

const (
	defaultFlowRate    = 4000
	defaultFlowSeconds = 10
	defaultKeysSeconds = 20
	// flowTurns is the number of measurements with and without a limit. They alternate, and begin
	// without, with, with, so that a slow drift of the machine counts for both.
	flowTurns = 4
	// flowLimited is the key with the limit, and flowFree a key of the same length without.
	flowLimited, flowFree = "bench-limited", "bench-without"
	// flowHeadroom is the rate of the limit, as a multiple of the measured rate.
	flowHeadroom = 4
	// copies is the number of copies that a node keeps fresh: of the limits and of the calendars.
	// copyPolls is the number of polls of each a second.
	copies, copyPolls = 2, 4
	// measuredPolls is the number of polls whose CPU is measured.
	measuredPolls = 20_000
)

func (flowWorkload) Name() string { return "flow" }
func (flowWorkload) About() string {
	return "callbacks under a limit that does not bind, in turns with callbacks without one, or the cost of flow keys without work (--keys)"
}

func (flowWorkload) Defaults(c *Config) {
	c.Callback = cmp.Or(c.Callback, CallbackNATS)
	if c.Keys > 0 {
		c.Count, c.Seconds = c.Keys, cmp.Or(c.Seconds, defaultKeysSeconds)
		return
	}
	sustainDefaults(c, defaultFlowRate, defaultFlowSeconds)
}

func (flowWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if e.Services > 1 {
		return nil, bad("the flow workload has one service: leave out services")
	}
	if e.Keys > 0 {
		return e.idleKeys(ctx)
	}
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	if err := e.limit(ctx, flowLimited, flowHeadroom*e.Rate); err != nil {
		return nil, err
	}
	return e.flowTurns(ctx)
}

// limit stores a limit of perSecond calls, or of the highest permitted rate, with the same burst.
func (e *Env) limit(ctx context.Context, key string, perSecond int) error {
	nc, err := e.Connect("belfry bench operator")
	if err != nil {
		return err
	}
	c, err := belfry.New(nc)
	if err != nil {
		return err
	}
	perSecond = min(perSecond, 100_000)
	if _, err := c.SetFlow(ctx, key, belfry.FlowLimit{Rate: fmt.Sprintf("%d/1s", perSecond), Burst: perSecond}); err != nil {
		return fmt.Errorf("store a flow limit: %w", err)
	}
	return nil
}

// flowTurns measures callbacks with and without the limit, in turns.
func (e *Env) flowTurns(ctx context.Context) (*Result, error) {
	r := &Result{}
	r.figure("calls due", float64(e.Rate), "1/s")
	cpu := map[bool]float64{}
	for turn := range flowTurns {
		limited := turn%4 == 1 || turn%4 == 2
		key, what := flowFree, "without a limit"
		if limited {
			key, what = flowLimited, "with a limit"
		}
		e.flowKey = func(int) string { return key }
		run, t, err := e.paced(ctx, fmt.Sprintf("bench_flow_%d", turn+1), true)
		if err != nil {
			return r, err
		}
		e.sustained(t, run)
		cpu[limited] += t.value(cpuFigure)
		r.Curves = t.Curves
		r.beside(fmt.Sprintf("%s, turn %d: ", what, turn/2+1), t)
	}
	if cpu[false] > 0 {
		r.figure("CPU of a timer with a limit, of that without", cpu[true]/cpu[false]*100, "%")
	}
	return r, nil
}

// --- idle keys ---

// idleKeys measures a node in a process of its own: without work, after as many callbacks as
// there will be keys, and after a callback of each key.
func (e *Env) idleKeys(ctx context.Context) (*Result, error) {
	if e.NATSURL != "" {
		return nil, bad("the flow workload with keys compares a node with and without them, so it starts its own: leave out nats-url")
	}
	if err := e.startApart(ctx); err != nil {
		return nil, err
	}
	d, p := e.deployed, e.progress()
	defer p.end()
	if err := e.limit(ctx, "bench-key:*", 1000); err != nil {
		return nil, err
	}
	r := &Result{}
	if err := e.polls(ctx, d, r); err != nil {
		return nil, err
	}
	before, err := e.throughKeys(ctx, d, p, "callbacks without keys", nil)
	if err != nil {
		return nil, err
	}
	after, err := e.throughKeys(ctx, d, p, "idle keys", func(n int) string { return fmt.Sprint("bench-key:", n) })
	if err != nil {
		return nil, err
	}
	before.figures(r, d, "without keys")
	after.figures(r, d, "with keys")
	grown := after.serversMB + after.nodeMB - before.serversMB - before.nodeMB
	r.figure("flow keys", float64(e.Keys), "")
	r.figure("memory a key, and the second half of the timers", grown/float64(e.Keys)*1e6, "B")
	r.figure("idle CPU with keys, above without", after.cpu()-before.cpu(), "% of a core")
	states, err := e.flowStates(ctx)
	if err != nil {
		return nil, err
	}
	r.figure("keys with a state", float64(states), "")
	r.Verified = Verified{Expected: e.Keys, Found: states, Missing: max(0, e.Keys-states)}
	if states < e.Keys {
		r.Verified.because("without a state")
	}
	return r, nil
}

// throughKeys fires Keys timers with callbacks, and returns what the node then uses without work.
func (e *Env) throughKeys(ctx context.Context, d *deployment, p *progress, what string, key func(int) string) (idleness, error) {
	e.flowKey = key
	defer func() { e.flowKey = nil }()
	const service = "bench_keys"
	if _, err := e.throughServices(ctx, service, slices.Repeat([]string{service}, e.Keys)); err != nil {
		return idleness{}, err
	}
	return e.idle(ctx, d, p, what)
}

// flowStates returns the number of flow keys that have a state in the store.
func (e *Env) flowStates(ctx context.Context) (int, error) {
	s, err := e.js.Stream(ctx, "KV_"+schemas.BucketFlows)
	if err != nil {
		return 0, err
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter("$KV."+schemas.BucketFlows+".state.*"))
	if err != nil {
		return 0, fmt.Errorf("read the states of flow keys: %w", err)
	}
	return len(info.State.Subjects), nil
}

// polls measures the CPU of the request by which a node confirms a copy of the limits, of the
// server and of the client, and adds what the polls of an idle node take.
func (e *Env) polls(ctx context.Context, d *deployment, r *Result) error {
	s, err := e.js.Stream(ctx, "KV_"+schemas.BucketFlows)
	if err != nil {
		return err
	}
	before, err := d.cpu()
	if err != nil {
		return err
	}
	own := selfCPU()
	polls := min(measuredPolls, 10*e.Keys)
	for range polls {
		if _, err := s.GetLastMsgForSubject(ctx, "$KV."+schemas.BucketFlows+".limit.*"); err != nil {
			return fmt.Errorf("read the newest flow limit: %w", err)
		}
	}
	own = selfCPU() - own
	after, err := d.cpu()
	if err != nil {
		return err
	}
	each := (after - before + own.Seconds()) / float64(polls)
	r.figure("CPU of a poll, of server and client", each*1e6, "µs")
	r.figure("CPU of the polls of an idle node", each*copies*copyPolls*100, "% of a core")
	return nil
}
