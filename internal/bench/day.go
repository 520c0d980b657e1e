package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// dayWorkload measures a sustained rate: timers are added, fire and finish at that rate, and the
// lag must not grow.
type dayWorkload struct{}

// callbackWorkload is dayWorkload with a callback for every timer.
type callbackWorkload struct{}

const (
	defaultDayRate         = 1000
	defaultDaySeconds      = 60
	defaultCallbackRate    = 500
	defaultCallbackSeconds = 20
)

func (dayWorkload) Name() string { return "day" }
func (dayWorkload) About() string {
	return "sustained rate: adds, firing and completion at the same rate, and whether the lag grows"
}

func (dayWorkload) Defaults(c *Config) { sustainDefaults(c, defaultDayRate, defaultDaySeconds) }

func (dayWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	return e.sustain(ctx, "bench_day")
}

func (callbackWorkload) Name() string { return "callback" }
func (callbackWorkload) About() string {
	return "the same as day, with an HTTP or NATS callback for every timer"
}

func (callbackWorkload) Defaults(c *Config) {
	sustainDefaults(c, defaultCallbackRate, defaultCallbackSeconds)
	c.Callback = cmp.Or(c.Callback, CallbackHTTP)
}

func (callbackWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	return e.sustain(ctx, "bench_callback")
}

func sustainDefaults(c *Config, rate, seconds int) {
	c.Rate = cmp.Or(c.Rate, rate)
	c.Seconds = cmp.Or(c.Seconds, seconds)
	c.Lead = cmp.Or(c.Lead, defaultSteadyLead)
}

// sustain adds Rate timers a second for Seconds and follows each to its end.
func (e *Env) sustain(ctx context.Context, service string) (*Result, error) {
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	run, r, err := e.paced(ctx, service, true)
	if err != nil {
		return nil, err
	}
	r.figure("timers due", float64(e.Rate), "1/s")
	e.sustained(r, run)
	return r, nil
}

// rest waits until no more records are written. The measurement then includes the whole cost of
// the timers, and excludes the reading of the records unless that runs concurrently.
func (e *Env) rest(ctx context.Context, p *progress) error {
	const still = 3
	var last []uint64
	for same := 0; same < still; {
		now, err := e.marks(ctx)
		if err != nil {
			return err
		}
		same++
		if !slices.Equal(now, last) {
			last, same = now, 0
		}
		p.show("waiting until the last timer is concluded")
		if !waitUntil(ctx, time.Now().Add(100*time.Millisecond)) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// sustained adds figures of the lags of firing, callback and final record, and whether they
// grew.
func (e *Env) sustained(r *Result, run *pacedRun) {
	acc, st, called := run.acc, run.states, run.called
	due := acc.dueMs
	last := slices.Max(st.at)
	if took := float64(last-due[0]*int64(time.Millisecond)) / 1e9; took > 0 {
		r.figure("timers concluded", float64(st.final)/took, "1/s")
	}
	sub, str := acc.Lateness()
	r.Latencies = []*Latency{sub, str}
	if called != nil {
		r.Latencies = append(r.Latencies, latencyOf("lateness of the callback", due, called))
	}
	r.Latencies = append(r.Latencies, latencyOf(concludedLag, due, st.at))
	r.Curves = Curves{
		Title: r.title(e.Config, fmt.Sprintf("%d timers a second for %d s, end to end", e.Rate, e.Seconds)),
		X:     "seconds", Y: "milliseconds after due, of those due in that second", LogY: true,
	}
	for _, s := range []struct {
		name string
		at   []int64
		q    float64
	}{{"fired, p50", acc.stored, 50}, {"fired, p99", acc.stored, 99}, {"concluded, p50", st.at, 50}, {"concluded, p99", st.at, 99}} {
		r.Curves.Lines = append(r.Curves.Lines, bySecond(s.name, due, s.at, s.q))
	}
	lag := r.Curves.Lines[2]
	slope, early, late := trend(lag)
	r.figure("lag of the first third", early, "ms")
	r.figure("lag of the last third", late, "ms")
	r.figure("slope of the lag", slope*60, "ms a minute")
	r.figure(flatFigure, isFlat(early, late), "")
}

const (
	concludedLag = "from due to concluded"
	flatFigure   = "the lag stayed flat (1: yes)"
	// flatSlack is the greatest increase of the median lag, in milliseconds, from the first to the
	// last third of a run with which the lag counts as flat. The limit is a tenth of the first
	// median if that is more.
	flatSlack = 50
)

// isFlat returns 1 if a lag that changed from one median to another stayed flat, else 0.
func isFlat(first, last float64) float64 {
	if last-first <= max(flatSlack, first/10) {
		return 1
	}
	return 0
}

// bySecond returns a percentile of the lag of the timers due in each second.
func bySecond(name string, dueMs, at []int64, q float64) Curve {
	c := Curve{Name: name}
	for n := 0; n < len(dueMs); {
		l := newLatency("")
		second := dueMs[n] - (dueMs[n]-dueMs[0])%1000
		for ; n < len(dueMs) && dueMs[n] < second+1000; n++ {
			if at[n] != 0 {
				l.add(time.Duration(at[n] - dueMs[n]*int64(time.Millisecond)))
			}
		}
		if l.Count() > 0 {
			c.add(float64(second-dueMs[0])/1000, l.At(q))
		}
	}
	return c
}

// trend returns the slope of a line fitted to a curve by least squares, and the medians of the
// curve's first and last third.
func trend(c Curve) (slope, first, last float64) {
	n := len(c.X)
	if n == 0 {
		return 0, 0, 0
	}
	third := max(n/3, 1)
	median := func(v []float64) float64 {
		v = slices.Sorted(slices.Values(v))
		return v[len(v)/2]
	}
	first, last = median(c.Y[:third]), median(c.Y[n-third:])
	var mx, my float64
	for i := range c.X {
		mx += c.X[i] / float64(n)
		my += c.Y[i] / float64(n)
	}
	var up, down float64
	for i := range c.X {
		up += (c.X[i] - mx) * (c.Y[i] - my)
		down += (c.X[i] - mx) * (c.X[i] - mx)
	}
	if down > 0 {
		slope = up / down
	}
	return slope, first, last
}
