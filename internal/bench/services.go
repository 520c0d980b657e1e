package bench

import (
	"context"
	"fmt"
	"time"
)

// serviceOf returns the service of timer n. The services take turns.
func (a *Adder) serviceOf(n int) string {
	if len(a.names) == 0 {
		return a.service
	}
	return a.names[n%len(a.names)]
}

// fired returns the stream and the subject of the events of the adder's timers. With several
// services other timers fire there, too; their ids distinguish them.
func (a *Adder) fired() (stream, subject string) {
	if len(a.names) == 0 {
		return a.env.sut().fired(a.service)
	}
	return a.env.sut().fired("*")
}

// beginFigure is the CPU time for the first timer of a service, which creates its consumer.
const beginFigure = "CPU to begin a service"

// beginServices spreads the adder's timers over Services, and fires one timer of each before the
// measurement, with a callback if the run has callbacks. The first callback of a service creates
// the service's consumer, so its cost has a separate figure and is not in the cost of a timer.
func (e *Env) beginServices(ctx context.Context, a *Adder, r *Result) error {
	if e.Services <= 1 {
		return nil
	}
	for n := range e.Services {
		a.names = append(a.names, fmt.Sprintf("%s-%d", a.service, n))
	}
	u, err := e.throughServices(ctx, a.service, a.names)
	if err != nil {
		return err
	}
	r.figure("time to begin all services", u.took.Seconds(), "s")
	if u.cpu > 0 && !u.clientsOnly {
		r.figure(beginFigure, u.cpu/float64(e.Services)*1e6, "µs")
	}
	return nil
}

// throughServices fires one timer for each name in names, for the service with that name, and
// returns the usage. A name may occur several times.
func (e *Env) throughServices(ctx context.Context, service string, names []string) (usage, error) {
	first, err := e.NewAdder(service)
	if err != nil {
		return usage{}, err
	}
	first.names = names
	var rx *receiver
	if e.Callback != "" {
		if rx, err = e.newReceiver(ctx, first, len(names)); err != nil {
			return usage{}, err
		}
	}
	due := make([]int64, len(names))
	for n := range due {
		due[n] = time.Now().UnixMilli()
	}
	w, err := e.Watch(ctx, first, due)
	if err != nil {
		return usage{}, err
	}
	p := e.progress()
	defer p.end()
	cpu, mem := e.CPUProfile, e.MemProfile // profiles are of the run, not of these timers
	e.CPUProfile, e.MemProfile = "", ""
	defer func() { e.CPUProfile, e.MemProfile = cpu, mem }()
	m, err := e.meter(ctx)
	if err != nil {
		return usage{}, err
	}
	if err := e.addWatched(ctx, first, w, p, nil); err != nil {
		return usage{}, err
	}
	if err := w.Wait(ctx, patience, func(seen int) { p.show("beginning services: %d of %d have fired", seen, len(names)) }); err != nil {
		return usage{}, err
	}
	if rx != nil {
		if err := rx.called(ctx, p); err != nil {
			return usage{}, err
		}
	}
	return m.stop(ctx)
}

// called waits until each service has received its callback.
func (rx *receiver) called(ctx context.Context, p *progress) error {
	count := len(rx.at)
	if err := rx.wait(ctx, time.Time{}, patience, func(seen int) { p.show("beginning services: %d of %d callbacks received", seen, count) }); err != nil {
		return err
	}
	if seen := rx.Seen(); seen < count {
		return fmt.Errorf("%w: of %d services only %d have received their callback", ErrUnsound, count, seen)
	}
	return nil
}
