package bench

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// schedulesWorkload has three measurements: Count schedules of a short period, compared with
// one-shot timers at the same rate; with Daily the cost of schedules that wait; with Instant
// schedules that are all due at one instant, compared with a burst of one-shot timers.
type schedulesWorkload struct{}

const (
	defaultSchedulesCount   = 10_000
	defaultSchedulesSeconds = 20
	defaultSchedulesDaily   = 60 // seconds
	defaultSchedulesEvery   = time.Second

	// scheduleMargin is the time for which schedules fire before and after the measurement. The
	// first and the last run of a schedule differ from the others.
	scheduleMargin = 2 * time.Second
	// dailyAfter is the time to the first run of a daily schedule, and dailyOver the time over
	// which they are spread, so that none is due during the measurement.
	dailyAfter = 2 * time.Hour
	dailyOver  = 20 * time.Hour
	dayMs      = int64(24 * time.Hour / time.Millisecond)
)

func (schedulesWorkload) Name() string { return "schedules" }
func (schedulesWorkload) About() string {
	return "schedules of a short period, daily ones (--daily), or many due at one instant (--instant), compared with one-shot timers"
}

func (schedulesWorkload) Defaults(c *Config) {
	switch {
	case c.Daily > 0:
		c.Count, c.Seconds = c.Daily, cmp.Or(c.Seconds, defaultSchedulesDaily)
	case c.Instant > 0:
		c.Count = c.Instant
		c.Lead = cmp.Or(c.Lead, defaultAheadLead(c, c.Count))
	default:
		c.Count = cmp.Or(c.Count, defaultSchedulesCount)
		c.Every = cmp.Or(c.Every, defaultSchedulesEvery)
		c.Seconds = cmp.Or(c.Seconds, defaultSchedulesSeconds)
		c.Lead = cmp.Or(c.Lead, defaultAheadLead(c, c.Count))
	}
}

func (schedulesWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	if e.Daily > 0 {
		return e.pending(ctx, e.addDaily)
	}
	if e.Callback != "" || e.Services > 1 {
		return nil, bad("the schedules workload has one service and no callbacks: leave out callback and services")
	}
	if err := e.Start(ctx); err != nil {
		return nil, err
	}
	if e.Instant > 0 {
		return e.scheduleBurst(ctx)
	}
	return e.scheduleRate(ctx)
}

// daily appends the attributes of a schedule that is due every day at the second of a time.
func daily(event []byte, firstMs int64) []byte {
	at := time.UnixMilli(firstMs).UTC()
	return fmt.Appendf(event, `","timercron":"%d %d %d * * *`, at.Second(), at.Minute(), at.Hour())
}

// --- schedules that wait ---

// addDaily adds Count schedules that are due once a day.
func (e *Env) addDaily(ctx context.Context) (*Result, error) {
	a, err := e.NewAdder("bench_daily")
	if err != nil {
		return nil, err
	}
	a.recur = &recurring{runs: 1, everyMs: dayMs, attributes: daily}
	return e.addFar(ctx, a, dailyAfter, dailyOver)
}

// --- schedules at one instant ---

// oneShot is the prefix of the figures of one-shot timers.
const oneShot = "one-shot timers: "

// scheduleBurst measures Count schedules that are due at one instant, then as many timers.
func (e *Env) scheduleBurst(ctx context.Context) (*Result, error) {
	p := e.progress()
	defer p.end()
	second := func(at int64, _ int) int64 { return (at + 999) / 1000 * 1000 }
	var at int64
	recur := &recurring{runs: 1, everyMs: dayMs, firstMs: func(int) int64 { return at }, attributes: daily}
	burst, err := e.burst(ctx, "bench_instant", recur, p, func(begin int64, n int) int64 {
		at = second(begin, n)
		return at
	})
	if err != nil {
		return burst, err
	}
	r := &Result{Curves: burst.Curves, Latencies: burst.Latencies, Verified: burst.Verified}
	r.runFigures(burst)
	timers, err := e.burst(ctx, "bench_burst", nil, p, second)
	if err != nil {
		return r, err
	}
	r.beside(oneShot, timers)
	r.ratio("CPU a run, of that of a one-shot timer", timers.value(cpuFigure))
	return r, nil
}

// --- schedules of a short period ---

// scheduleRate measures Count schedules that fire at a rate, then one-shot timers at that rate:
// added before the first is due, and added at the same rate.
func (e *Env) scheduleRate(ctx context.Context) (*Result, error) {
	r, err := e.recurring(ctx)
	if err != nil {
		return r, err
	}
	e.Rate = max(int(float64(e.Count)/e.Every.Seconds()), 1)
	lead := e.Lead
	e.Lead = defaultAheadLead(&e.Config, e.Rate*e.Seconds)
	before, err := e.steadyAhead(ctx)
	if err != nil {
		return r, err
	}
	e.Lead = defaultSteadyLead
	added, err := e.steady(ctx)
	if err != nil {
		return r, err
	}
	e.Lead = lead
	r.beside(oneShot+"added before: ", before)
	r.beside(oneShot+"added meanwhile: ", added)
	r.ratio("CPU a run, of that of a one-shot timer added before", before.value(cpuFigure))
	r.ratio("CPU a run, of that of a one-shot timer added meanwhile", added.value(cpuFigure))
	r.latencyCurves(r.title(e.Config, fmt.Sprintf("%d schedules of every %s for %d s", e.Count, e.Every, e.Seconds)))
	return r, nil
}

// recurring measures Count schedules with the period Every for Seconds. Their nominal times
// are spread evenly over the period. Each has an end, so that the account can be made.
func (e *Env) recurring(ctx context.Context) (*Result, error) {
	a, err := e.NewAdder("bench_schedules")
	if err != nil {
		return nil, err
	}
	margin := max(scheduleMargin, e.Every).Milliseconds()
	everyMs, spanMs := e.Every.Milliseconds(), int64(e.Seconds)*1000
	runs := int((2*margin + spanMs + everyMs - 1) / everyMs)
	if runs > maxCount/e.Count {
		return nil, bad("%d schedules fire %d times: at most %d runs can be measured", e.Count, runs, maxCount)
	}
	begin := time.Now().Add(e.Lead).UnixMilli()
	firstMs := func(n int) int64 { return begin + int64(n)*everyMs/int64(e.Count) }
	a.recur = &recurring{runs: runs, everyMs: everyMs, firstMs: firstMs, attributes: func(event []byte, firstMs int64) []byte {
		return fmt.Appendf(event, `","timerevery":"%s","timerstart":"%s","timerend":"%s`,
			e.Every, schemas.FormatTime(firstMs), schemas.FormatTime(firstMs+int64(runs-1)*everyMs))
	}}
	due := make([]int64, e.Count*runs)
	for n := range due {
		due[n] = firstMs(n/runs) + int64(n%runs)*everyMs
	}
	w, err := e.Watch(ctx, a, due)
	if err != nil {
		return nil, err
	}
	p := e.progress()
	defer p.end()
	if err := e.addWatched(ctx, a, w, p, nil); err != nil {
		return nil, err
	}
	end, err := e.drained(ctx, p)
	if err != nil {
		return nil, err
	}
	if late := end.Sub(time.UnixMilli(begin)); late > 0 {
		return nil, fmt.Errorf("the last schedule was stored %s after the first was due: give a longer lead than %s", late.Round(time.Millisecond), e.Lead)
	}
	fromMs, toMs := begin+margin, begin+margin+spanMs
	use, err := e.metered(ctx, fromMs, toMs)
	if err != nil {
		return nil, err
	}
	if err := w.Wait(ctx, patience, func(seen int) { p.show("%d of %d runs fired", seen, len(due)) }); err != nil {
		return nil, err
	}
	acc, err := w.Account(ctx, p)
	if err != nil {
		return nil, err
	}
	r := &Result{Verified: acc.Verified}
	e.recurringFigures(r, acc, use, fromMs, toMs)
	return r, nil
}

// metered returns the usage between two times.
func (e *Env) metered(ctx context.Context, fromMs, toMs int64) (usage, error) {
	if !waitUntil(ctx, time.UnixMilli(fromMs)) {
		return usage{}, context.Cause(ctx)
	}
	m, err := e.meter(ctx)
	if err != nil {
		return usage{}, err
	}
	if !waitUntil(ctx, time.UnixMilli(toMs)) {
		return usage{}, context.Cause(ctx)
	}
	return m.stop(ctx)
}

// recurringFigures adds the figures of the nominal times, and of the runs that fired, between
// two times.
func (e *Env) recurringFigures(r *Result, acc *Account, use usage, fromMs, toMs int64) {
	within := &Account{}
	fired, missed := 0, 0
	for n, due := range acc.dueMs {
		if at := acc.stored[n] / int64(time.Millisecond); at >= fromMs && at < toMs {
			fired++
		}
		if due < fromMs || due >= toMs {
			continue
		}
		if acc.covers(n) {
			missed++
		}
		within.fromMs = append(within.fromMs, acc.fromMs[n])
		within.received = append(within.received, acc.received[n])
		within.stored = append(within.stored, acc.stored[n])
	}
	seconds := float64(toMs-fromMs) / 1000
	r.figure("schedules", float64(e.Count), "")
	r.figure("runs wanted", float64(len(within.fromMs))/seconds, "1/s")
	r.figure("runs fired", float64(fired)/seconds, "1/s")
	r.figure("nominal times for which a later run fired", float64(missed), "")
	cost := &Result{}
	use.figures(cost, max(fired, 1))
	r.runFigures(cost)
	sub, str := within.Lateness()
	r.Latencies = []*Latency{sub, str}
}

// --- figures ---

// runFigures adds figures of the cost of a timer as those of a run.
func (r *Result) runFigures(of *Result) {
	for _, f := range of.Figures {
		r.figure(runName(f.Name), f.Value, f.Unit)
	}
}

func runName(figure string) string { return strings.Replace(figure, " a timer", " a run", 1) }

// beside adds the figures of another measurement of the same run, under a prefix.
func (r *Result) beside(prefix string, o *Result) {
	for _, f := range o.Figures {
		r.figure(prefix+f.Name, f.Value, f.Unit)
	}
	for _, l := range o.Latencies {
		l.Name = prefix + l.Name
	}
	r.Latencies = append(r.Latencies, o.Latencies...)
	r.Verified.add(o.Verified)
}

// ratio adds the CPU of a run in percent of that of a timer, if both are known.
func (r *Result) ratio(name string, timer float64) {
	if run := r.value(runName(cpuFigure)); run > 0 && timer > 0 {
		r.figure(name, run/timer*100, "%")
	}
}
