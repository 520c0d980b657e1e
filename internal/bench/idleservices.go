package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// servicesWorkload measures the cost of services without work. Each service gets one callback;
// then no timer is due. The node is a separate process.
type servicesWorkload struct{}

const (
	defaultServicesCount   = 10_000
	defaultServicesSeconds = 20
	// servicesRest bounds the wait until no service has consumers.
	servicesRest = 3 * time.Minute
	// wakes is the number of services that get a second timer, one after the other.
	wakes = 100
)

func (servicesWorkload) Name() string { return "services" }
func (servicesWorkload) About() string {
	return "cost of services without work: memory, goroutines, idle CPU, and the lateness of their next callback"
}

func (servicesWorkload) Defaults(c *Config) {
	c.Count = cmp.Or(c.Count, defaultServicesCount)
	c.Seconds = cmp.Or(c.Seconds, defaultServicesSeconds)
	c.Callback, c.Services = CallbackNATS, c.Count
}

// nodeState has values from a node's metrics.
type nodeState struct{ goroutines, heapMB, awake, collections float64 }

func (servicesWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if e.NATSURL != "" {
		return nil, bad("the services workload compares a node with and without services, so it starts its own: leave out nats-url")
	}
	if err := e.startApart(ctx); err != nil {
		return nil, err
	}
	d, p := e.deployed, e.progress()
	defer p.end()
	empty, emptyIdle, err := e.quieten(ctx, d, p, "no services", 0)
	if err != nil {
		return nil, err
	}
	one, err := e.oneService(ctx, d, p)
	if err != nil {
		return nil, err
	}
	r := &Result{}
	a, err := e.NewAdder("bench_service")
	if err != nil {
		return nil, err
	}
	if err := e.beginServices(ctx, a, r); err != nil {
		return nil, err
	}
	_, peak, err := d.usage()
	if err != nil {
		return nil, err
	}
	r.figure("memory, while all had work", peak.rssMB, "MB")
	with, withIdle, err := e.quieten(ctx, d, p, "services", empty.awake)
	if err != nil {
		return nil, err
	}
	r.figure("services", float64(e.Count), "")
	r.figure("services that hold consumers", with.awake, "")
	r.figure("live heap of the node, above none", with.heapMB-empty.heapMB, "MB")
	r.figure("memory, above none", withIdle.nodeMB-emptyIdle.nodeMB, "MB")
	least, err := d.returned(ctx, p)
	if err != nil {
		return nil, err
	}
	end, err := d.state(ctx)
	if err != nil {
		return nil, err
	}
	r.figure("goroutines of the node, above none, once memory was returned", end.goroutines-empty.goroutines, "")
	r.figure("memory, above none, once it was returned", least-emptyIdle.nodeMB, "MB")
	r.figure("memory, above one service with as many timers", least-one, "MB")
	r.figure("idle CPU, above none", withIdle.cpu()-emptyIdle.cpu(), "% of a core")
	return r, e.wakeServices(ctx, a, r, p)
}

// quieten waits until no service has consumers, and returns the node's memory and CPU usage
// then.
func (e *Env) quieten(ctx context.Context, d *deployment, p *progress, what string, awake float64) (nodeState, idleness, error) {
	for until := time.Now().Add(servicesRest); ; {
		s, err := d.state(ctx)
		if err != nil {
			return nodeState{}, idleness{}, err
		}
		if s.awake <= awake || time.Now().After(until) {
			break
		}
		p.show("%.0f services hold consumers", s.awake)
		if !waitUntil(ctx, time.Now().Add(250*time.Millisecond)) {
			return nodeState{}, idleness{}, context.Cause(ctx)
		}
	}
	i, err := e.idle(ctx, d, p, what)
	if err != nil {
		return nodeState{}, i, err
	}
	s, err := d.collected(ctx)
	return s, i, err
}

// oneService fires as many timers as there will be services, all for one service, and returns
// the memory that the node then keeps, in MB. This memory is a cost of the timers, mostly in the
// server's buffers, and not of services.
func (e *Env) oneService(ctx context.Context, d *deployment, p *progress) (float64, error) {
	names := slices.Repeat([]string{"bench_one"}, e.Count)
	if _, err := e.throughServices(ctx, names[0], names); err != nil {
		return 0, err
	}
	return d.returned(ctx, p)
}

// Bounds of returned. A node returns memory to the system after 10 s without work; see gctune.
// In the first two minutes after services came to rest, the node still searches for late events
// of these services.
const (
	returnSteady = 2 * time.Minute
	returnBound  = 6 * time.Minute
)

// returned waits until the node's memory has not fallen for returnSteady, and returns the least
// value, in MB.
func (d *deployment) returned(ctx context.Context, p *progress) (float64, error) {
	const step = 1 // MB; smaller changes are noise
	_, least, err := d.usage()
	for begin, fell := time.Now(), time.Now(); err == nil && time.Since(fell) < returnSteady && time.Since(begin) < returnBound; {
		p.show("waiting for memory to be returned: %.0f MB", least.rssMB)
		if !waitUntil(ctx, time.Now().Add(time.Second)) {
			return 0, context.Cause(ctx)
		}
		var now used
		if _, now, err = d.usage(); err == nil && now.rssMB < least.rssMB-step {
			least, fell = now, time.Now()
		}
	}
	return least.rssMB, err
}

// collected returns the node's state after two more garbage collections. Its requests for metrics
// produce the garbage that starts them. It gives up after servicesRest, in which Go collects at
// least once even without garbage.
func (d *deployment) collected(ctx context.Context) (nodeState, error) {
	first, err := d.state(ctx)
	least := first
	for until := time.Now().Add(servicesRest); err == nil && least.collections < first.collections+2 && time.Now().Before(until); {
		if err = context.Cause(ctx); err == nil {
			least, err = d.state(ctx)
		}
	}
	return least, err
}

// wakeServices adds timers one at a time, each for a service at rest, and adds figures of the
// lateness of their callbacks.
func (e *Env) wakeServices(ctx context.Context, a *Adder, r *Result, p *progress) error {
	next, err := e.NewAdder(a.service)
	if err != nil {
		return err
	}
	n := min(wakes, e.Count)
	for i := range n {
		next.names = append(next.names, a.names[i*(e.Count/n)])
	}
	rx, err := e.newReceiver(ctx, next, n)
	if err != nil {
		return err
	}
	const lead = 200 * time.Millisecond
	late := make([]float64, 0, n)
	for i := range n {
		due := time.Now().Add(lead).UnixMilli()
		m := next.message("timers.add", i, due)
		if _, err := e.js.PublishMsg(ctx, m); err != nil {
			return err
		}
		until := time.Now().Add(patience)
		for rx.first(i) == 0 {
			if time.Now().After(until) {
				return fmt.Errorf("%w: the second timer of service %s was not called back", ErrUnsound, next.serviceOf(i))
			}
			if !waitUntil(ctx, time.Now().Add(time.Millisecond)) {
				return context.Cause(ctx)
			}
		}
		late = append(late, float64(rx.first(i)-due*int64(time.Millisecond))/1e6)
		p.show("waking services: %d of %d", i+1, n)
	}
	slices.Sort(late)
	r.figure("first callback of a service at rest, half", late[n/2], "ms")
	r.figure("first callback of a service at rest, 99 %", late[n*99/100], "ms")
	return nil
}

// state reads the node's metrics.
func (d *deployment) state(ctx context.Context) (nodeState, error) {
	m, err := d.askMetrics(ctx)
	return nodeState{
		goroutines: m["go_goroutines"], collections: m["go_gc_duration_seconds_count"], awake: m["belfry_functions_services_active"],
		// GOGC is the percentage by which the heap may exceed the live heap before the next
		// collection.
		heapMB: m[nextCollection] / (1e6 * (1 + m["go_gc_gogc_percent"]/100)),
	}, err
}
