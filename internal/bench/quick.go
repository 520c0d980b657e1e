package bench

import (
	"context"
	"io"
)

// The size of Quick's runs. With their pauses they take less than a minute on two cores in
// either profile.
const (
	quickAdds          = 20_000
	quickSteadyRate    = 1000
	quickSteadySeconds = 10
	quickBurst         = 10_000
	quickWarmup        = 500
)

// Quick measures adds per second, lateness at 1,000 timers per second, and a burst of 10,000
// timers. Each run has a new node with an embedded server in this process. Quick uses Profile,
// Dir and Progress of c. After an error it returns the results before it, like Run.
func Quick(ctx context.Context, c Config) ([]*Result, error) {
	base := Config{InProcess: true, NoSearchIndex: true, Profile: c.Profile, Dir: c.Dir, Progress: c.Progress, Live: c.Live, Warmup: quickWarmup}
	add, steady, burst := base, base, base
	add.Via, add.Count = ViaBatch, quickAdds
	steady.Rate, steady.Seconds = quickSteadyRate, quickSteadySeconds
	burst.Via, burst.Count = ViaBatch, quickBurst
	var results []*Result
	for _, run := range []struct {
		workload Workload
		config   Config
	}{{addWorkload{}, add}, {steadyWorkload{}, steady}, {burstWorkload{}, burst}} {
		r, err := Run(ctx, run.workload, run.config, 1)
		results = append(results, r...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// QuickText writes the figures of Quick for people.
func QuickText(w io.Writer, results []*Result) error {
	p := &printer{w: w}
	for _, r := range results {
		switch r.Workload {
		case addWorkload{}.Name():
			p.f("adds per second, in batches of %d    %s acknowledged, %s stored\n", batchSize, Short(r.value("adds acknowledged")), Short(r.value("timers stored")))
		case steadyWorkload{}.Name():
			if l := r.latency(latenessAtSubscriber); l != nil {
				p.f("lateness at %d a second, in ms     p50 %.1f, p99 %.1f, p99.9 %.1f, max %.1f\n", quickSteadyRate, l.At(50), l.At(99), l.At(99.9), l.At(100))
			}
		case burstWorkload{}.Name():
			p.f("burst of %d at one instant, in ms first %.0f, median %.0f, last %.0f\n", quickBurst, r.value("first, at the subscriber"), r.value("half, at the subscriber"), r.value("last, at the subscriber"))
		}
		if v := r.Verified; v.Err() != nil {
			p.f("  NOT SOUND: %v\n", v.Err())
		}
		if busy := r.value(othersFigure); busy > busyPercent {
			p.f("  other processes used %.0f %% of a core meanwhile: the machine can do better\n", busy)
		}
	}
	if len(results) > 0 {
		m := results[0].Machine
		p.f("%s profile, embedded server; %d CPUs, %s/%s, %s; server, node and clients in one process, without the search index\n", results[0].Settings["profile"], m.CPUs, m.OS, m.Arch, m.Go)
	}
	return p.err
}
