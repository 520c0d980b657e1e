package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// FaultReport is what a history tells of its faults.
type FaultReport struct {
	Kinds []FaultKind // by name
	// Outside and Inside are the lateness, sorted milliseconds, of timers that
	// were due outside, and inside, a fault's window: from the fault until all was
	// well again and every shard that it hit had fired, and windowSlack more.
	Outside, Inside []int64
}

// FaultKind is all faults of one kind.
type FaultKind struct {
	Name string
	// Count is how often it was made.
	Count int
	// ClockMs and FiredMs are the fail-over times, sorted: for each shard that was
	// hit, from the fault to the first move of its clock by a new owner (by any, if
	// the fault hit no node), and to the first event fired that was due after the
	// fault.
	ClockMs, FiredMs []int64
	// AfterMs is FiredMs without the time that the streams behind the shard (its
	// bucket, the clocks', the fired events') took to elect their leaders, which is
	// the servers' own.
	AfterMs []int64
	// Never counts the shards that did not fire again before the next fault.
	Never int
}

// windowSlack is what a window lasts beyond the fault's end.
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

// firing is one timer's: when it was due and when it fired, Unix nanoseconds.
type firing struct {
	shard      int
	due, fired int64
}

// faults collects what a history says of them.
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

// window is when a fault may have made timers late, Unix nanoseconds.
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

// one measures one fault's fail-overs and returns its window.
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

// moved is when the shard's clock first moved after a fault: by a new owner if
// the fault hit the old one.
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

// elected is when the last of the streams behind a shard had a leader, between a
// fault and the shard's next fired event; the fault's time if none had to elect.
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

// firedAfter is when the shard first fired an event that was due after a time.
func (f *faults) firedAfter(shard int, ns int64) (int64, bool) {
	for _, x := range f.firings {
		if x.shard == shard && x.due >= ns {
			return x.fired, true
		}
	}
	return 0, false
}
