package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// FaultReport describes the faults of a history.
type FaultReport struct {
	Kinds []FaultKind // by name
	// Outside and Inside have the lateness of timers in sorted milliseconds. Inside has
	// the timers that were due in the window of a fault: from its start until it is
	// healed and every affected shard has fired, and windowSlack more.
	Outside, Inside []int64
}

// FaultKind describes all faults of one kind.
type FaultKind struct {
	Name string
	// Count is the number of faults.
	Count int
	// ClockMs and FiredMs are the sorted fail-over times of each affected shard: from the
	// fault until a new owner (any owner, if the fault hit no node) first writes the
	// clock, and until the first event that was due after the fault.
	ClockMs, FiredMs []int64
	// AfterMs is FiredMs without the time of the elections of the streams that the shard
	// needs: its bucket, the clocks and the fired events.
	AfterMs []int64
	// Never is the number of shards that did not fire again before the next fault.
	Never int
}

// windowSlack extends a window beyond the end of the fault.
const windowSlack = time.Second

// Max is the largest fail-over, by fired events, in milliseconds.
func (k *FaultKind) Max() int64 { return percentile(k.FiredMs, 100) }

// MaxAfter is the largest fail-over without elections, in milliseconds.
func (k *FaultKind) MaxAfter() int64 { return percentile(k.AfterMs, 100) }

func (r *FaultReport) print(b *strings.Builder) {
	if len(r.Kinds) == 0 {
		return
	}
	const line = "\n%-18s %5v %6v %20s %20s %20s"
	fmt.Fprintf(b, line, "fail-over, p50/max", "times", "shards", "clock moves", "fires again", "less elections")
	for _, k := range r.Kinds {
		fmt.Fprintf(b, line, k.Name, k.Count, len(k.FiredMs)+k.Never, span(k.ClockMs), span(k.FiredMs), span(k.AfterMs))
		if k.Never > 0 {
			fmt.Fprintf(b, "  %d never", k.Never)
		}
	}
	fmt.Fprintf(b, "\nlateness outside fault windows: %s", spread(r.Outside))
	fmt.Fprintf(b, "\nlateness inside fault windows:  %s", spread(r.Inside))
}

func span(ms []int64) string {
	if len(ms) == 0 {
		return "-"
	}
	return fmt.Sprintf("%d / %d ms", percentile(ms, 50), percentile(ms, 100))
}

func spread(ms []int64) string {
	return fmt.Sprintf("%d timers, p50 %d ms, p90 %d ms, p99 %d ms, p99.9 %d ms, max %d ms", len(ms),
		percentile(ms, 50), percentile(ms, 90), percentile(ms, 99), percentile(ms, 99.9), percentile(ms, 100))
}

// firing has the due time and the time of firing of a timer in Unix nanoseconds.
type firing struct {
	shard      int
	due, fired int64
}

// faults collects the events of a history that concern faults.
type faults struct {
	begun, healed []Event
	clocks        []Event
	elections     []Event
	firings       []firing
}

func (f *faults) take(e Event) {
	switch e.Kind {
	case Fault:
		f.begun = append(f.begun, e)
	case Heal:
		f.healed = append(f.healed, e)
	case Elected:
		f.elections = append(f.elections, e)
	default:
		f.clocks = append(f.clocks, e)
	}
}

func (f *faults) fired(shard int, due, at int64) {
	f.firings = append(f.firings, firing{shard, due, at})
}

// window is the time, in Unix nanoseconds, in which a fault may make timers late.
type window struct{ from, to int64 }

func (f *faults) report() FaultReport {
	slices.SortStableFunc(f.clocks, func(a, b Event) int { return cmp.Compare(a.TimeNs, b.TimeNs) })
	slices.SortFunc(f.firings, func(a, b firing) int { return cmp.Compare(a.fired, b.fired) })
	kinds := map[string]*FaultKind{}
	var windows []window
	for _, e := range f.begun {
		k := kinds[e.Name]
		if k == nil {
			k = &FaultKind{Name: e.Name}
			kinds[e.Name] = k
		}
		k.Count++
		windows = append(windows, f.one(k, e))
	}
	var r FaultReport
	for _, k := range kinds {
		slices.Sort(k.ClockMs)
		slices.Sort(k.FiredMs)
		slices.Sort(k.AfterMs)
		r.Kinds = append(r.Kinds, *k)
	}
	slices.SortFunc(r.Kinds, func(a, b FaultKind) int { return cmp.Compare(a.Name, b.Name) })
	for _, x := range f.firings {
		into := &r.Outside
		if slices.ContainsFunc(windows, func(w window) bool { return w.from <= x.due && x.due <= w.to }) {
			into = &r.Inside
		}
		*into = append(*into, (x.fired-x.due)/int64(time.Millisecond))
	}
	slices.Sort(r.Outside)
	slices.Sort(r.Inside)
	return r
}

// one measures the fail-overs of one fault and returns its window.
func (f *faults) one(k *FaultKind, e Event) window {
	w := window{from: e.TimeNs, to: e.TimeNs}
	for _, h := range f.healed {
		if h.Fault == e.Fault {
			w.to = h.TimeNs
		}
	}
	next := int64(1<<63 - 1)
	for _, o := range f.begun {
		if o.TimeNs > e.TimeNs {
			next = min(next, o.TimeNs)
		}
	}
	since := func(ns int64) int64 { return (ns - e.TimeNs) / int64(time.Millisecond) }
	for _, shard := range e.Shards {
		if at, ok := f.moved(shard, e); ok && at < next {
			k.ClockMs = append(k.ClockMs, since(at))
			w.to = max(w.to, at)
		}
		at, ok := f.firedAfter(shard, e.TimeNs)
		if !ok || at >= next {
			k.Never++
			continue
		}
		k.FiredMs = append(k.FiredMs, since(at))
		k.AfterMs = append(k.AfterMs, since(at)-since(f.elected(shard, e.TimeNs, at)))
		w.to = max(w.to, at)
	}
	w.to += int64(windowSlack)
	return w
}

// moved returns the time of the first write of a shard's clock after a fault. If the
// fault hit the owner, it is the first write of a new owner.
func (f *faults) moved(shard int, e Event) (int64, bool) {
	epoch := uint64(0)
	for _, c := range f.clocks {
		if c.Shard != shard {
			continue
		}
		if c.TimeNs <= e.TimeNs {
			epoch = c.Epoch
			continue
		}
		if e.Owner == "" || c.Epoch > epoch {
			return c.TimeNs, true
		}
	}
	return 0, false
}

// elected returns the time at which the last of the shard's streams got a new leader,
// between the fault and the shard's next event; without an election, the time of the
// fault.
func (f *faults) elected(shard int, from, to int64) int64 {
	last := from
	for _, e := range f.elections {
		needed := e.Name == schemas.StreamFired || e.Name == "KV_"+schemas.BucketClock || e.Name == "KV_"+schemas.BucketTimers(shard)
		if needed && e.TimeNs > last && e.TimeNs <= to {
			last = e.TimeNs
		}
	}
	return last
}

// firedAfter returns the time of the shard's first event that was due after ns.
func (f *faults) firedAfter(shard int, ns int64) (int64, bool) {
	for _, x := range f.firings {
		if x.shard == shard && x.due >= ns {
			return x.fired, true
		}
	}
	return 0, false
}
