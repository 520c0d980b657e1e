package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Workload is one kind of measurement.
type Workload interface {
	// Name is the word on the command line.
	Name() string
	// About returns one line that describes the measurement.
	About() string
	// Defaults sets the fields that the user left zero.
	Defaults(c *Config)
	// Run measures once. Each run has a new Env. With ErrUnsound, Run also returns the Result.
	Run(ctx context.Context, e *Env) (*Result, error)
}

// Workloads returns all workloads.
func Workloads() []Workload {
	return []Workload{addWorkload{}, singlesWorkload{}, steadyWorkload{}, burstWorkload{}, dayWorkload{}, callbackWorkload{}, cancelWorkload{}, pendingWorkload{}, servicesWorkload{}, schedulesWorkload{}, flowWorkload{}, rawWorkload{}}
}

// ErrUnsound is wrapped by the error of a run with a missing, repeated or early timer, or with a
// record in a wrong state.
var ErrUnsound = errors.New("the run is not sound")

// Find returns the workload of that name.
func Find(name string) (Workload, error) {
	known := ""
	for _, w := range Workloads() {
		if w.Name() == name {
			return w, nil
		}
		known += " " + w.Name()
	}
	return nil, schemas.Errorf(schemas.CodeConfig, "workload %.40q does not exist; there are:%s", name, known)
}

// WorkloadsOf returns the workloads that measure a system.
func WorkloadsOf(system System) []Workload {
	switch system {
	case NATSSchedules:
		return []Workload{addWorkload{}, singlesWorkload{}, steadyWorkload{}, burstWorkload{}, pendingWorkload{}, cancelWorkload{}}
	case Floor:
		return []Workload{addWorkload{}, singlesWorkload{}, steadyWorkload{}, burstWorkload{}, cancelWorkload{}}
	}
	return Workloads()
}

// measures reports whether a workload measures a system.
func measures(workload string, system System) bool {
	return slices.ContainsFunc(WorkloadsOf(system), func(w Workload) bool { return w.Name() == workload })
}

// Run measures repeat times, each time on a new Env, and returns all results. It stops at the
// first error and returns it with the results so far, including that of an unsound run.
func Run(ctx context.Context, w Workload, c Config, repeat int) ([]*Result, error) {
	w.Defaults(&c)
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	if !measures(w.Name(), c.System) {
		return nil, bad("workload %s is not available for system %s", w.Name(), c.System)
	}
	if repeat < 1 {
		return nil, bad("repeat is %d; it must be 1 or more", repeat)
	}
	var results []*Result
	for n := range repeat {
		if c.Progress != nil && repeat > 1 {
			if _, err := fmt.Fprintf(c.Progress, "run %d of %d\n", n+1, repeat); err != nil {
				return results, err
			}
		}
		r, err := runOnce(ctx, w, c)
		c.CPUProfile, c.MemProfile = "", "" // only the first run is profiled
		if r != nil {
			results = append(results, r)
		}
		if err != nil {
			return results, fmt.Errorf("bench %s: %w", w.Name(), err)
		}
	}
	return results, nil
}

// runOnce measures on a new Env, and adds the load by others during the whole run.
func runOnce(ctx context.Context, w Workload, c Config) (*Result, error) {
	load := beginLoad()
	r, err := runIn(ctx, w, c)
	if r != nil {
		load.figure(r)
	}
	return r, err
}

// lostPatience bounds the wait for the end of a process after a run has failed.
const lostPatience = time.Second

func runIn(ctx context.Context, w Workload, c Config) (r *Result, err error) {
	e := &Env{Config: c}
	ctx, e.lost = context.WithCancelCause(ctx)
	defer e.lost(nil)
	defer func() { err = errors.Join(err, e.close(context.WithoutCancel(ctx))) }()
	begun := time.Now()
	r, err = w.Run(ctx, e)
	if err != nil && e.deployed != nil {
		// A lost connection may be noticed before the end of the process that explains it.
		waitUntil(ctx, time.Now().Add(lostPatience))
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err) // a process ended
	}
	if err == nil && e.System == Floor {
		err = floorSystem{e}.concluded(ctx)
	}
	if err == nil && e.Raw > 0 {
		err = e.raw(ctx, r)
	}
	if err == nil && e.deployed.whole() {
		err = e.after(ctx, r)
	}
	if r == nil {
		return nil, err
	}
	r.Workload, r.At, r.TookSeconds, r.Machine, r.Settings = w.Name(), begun.UTC().Truncate(time.Second), time.Since(begun).Seconds(), machine(), settings(e.Config)
	return r, errors.Join(err, r.Verified.Err())
}
