package sim

import (
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// node is one host and the process on it.
type node struct {
	w    *world
	name string
	up   bool
	// inc counts the processes that ran here. Answers and messages for an earlier process are
	// lost.
	inc    int
	bootAt int64
	level  store.FormatLevel // that its build reads
	ppm    int64             // of the host's monotonic clock
	// wall is the sum of the moves of the host's wall clock.
	wall int64

	paused      bool
	pausedAt    int64
	pauseEnd    int64
	deferred    []func() // events that wait for the end of a pause
	unsent      []func() // requests that were about to be sent
	pauseAtSend int      // pause at this send from now, 0 for none
	midPause    time.Duration
	// pauseAtClaim pauses the process, between two of its steps, while a claim is in flight. In
	// seeds in which events are refused permanently, all processes are instead down for this
	// time when a dead letter is stored and its timer's final record is not.
	pauseAtClaim time.Duration
	cutUntil     int64

	client *fake.Client
	// backlog is shared by the terms of the process.
	backlog *scheduler.Backlog
	// near is the memory of the process for timers that are due soon; nil without Config.Near.
	near *store.NearMemory
	// calendars is the process's copy of the calendars; nil in a simulation without.
	calendars *store.Calendars
	// quotas is the process's copy of the limits; nil without Config.Quotas.
	quotas *store.FlowSet
	// zones is the zone data of the process; nil for that of all.
	zones *calendar.ZoneData
	// ops and breakers are the router's.
	ops      router.Operations
	created  map[schemas.TimerID]store.Timer // see cancelTimer
	breakers *router.Breakers
	procs    []*proc
	ended    int // an estimate of the ended procs

	est      clustertime.Estimator
	known    bool
	readings []int64 // true times of the readings that the estimator may hold
	received time.Duration
	wallThen int64 // at the last reading
	resample signal

	coordinator *coordinator
	terms       []*term
	leaving     bool
	calls       map[string]bool // callbacks under way, by key
}

// beatTimeout and beatRetry are internal/app's and internal/clustertime's.
const (
	beatTimeout = 2 * time.Second
	beatRetry   = 100 * time.Millisecond
)

func newNode(w *world, i int) *node {
	n := &node{w: w, name: fmt.Sprintf("n%d", i+1), level: store.NewestLevel}
	if w.p.drift {
		n.ppm = w.rng.Int64N(201) - 100
	}
	return n
}

// --- start, stop, crash and pause ---

// boot starts a process.
func (n *node) boot() {
	w := n.w
	n.inc++
	n.up, n.leaving, n.known = true, false, false
	n.bootAt = w.now - int64(w.between(time.Second, time.Hour)) // any start
	n.est, n.readings = clustertime.Estimator{}, nil
	n.resample = signal{}
	n.calls = map[string]bool{}
	n.backlog = &scheduler.Backlog{}
	if w.cfg.Near {
		n.near = store.NewNearMemory(nearMemory)
	}
	n.client = fake.NewClient(w.server, link{n: n, inc: n.inc}, n.name, func() int64 { return n.latestNs() / int64(time.Millisecond) })
	n.client.SetReads(n.level)
	if w.zones != nil {
		n.zones = w.zones.draw()
		w.trace("%s has zone data %s", n.name, n.zones.Release())
	}
	if w.quotas != nil {
		n.quotas = w.quotas.now
	}
	n.newRouter()
	if w.calendars != nil {
		n.readCalendars()
	}
	n.terms = make([]*term, w.p.geo.Shards)
	w.trace("%s starts", n.name)
	w.spawn(n, n.beat)
}

// kill ends the process as SIGKILL does.
func (n *node) kill() {
	if !n.up {
		return
	}
	n.up, n.paused = false, false
	n.inc++
	n.deferred, n.unsent, n.pauseAtSend = nil, nil, 0
	for _, t := range n.terms {
		if t != nil {
			t.ended = true
		}
	}
	procs := n.procs
	n.procs = nil
	for _, p := range procs {
		p.stop()
	}
}

// crash kills the process and starts another a little later.
func (n *node) crash(down time.Duration) {
	if !n.up {
		return
	}
	n.w.stats.Crashes++
	n.w.trace("%s crashes for %s", n.name, down)
	n.kill()
	n.w.after(down, func() {
		if !n.up {
			n.boot()
		}
	})
}

// pause stops the process as SIGSTOP does.
func (n *node) pause(d time.Duration) {
	if !n.up {
		return
	}
	end := n.w.now + int64(d)
	if n.paused {
		n.pauseEnd = max(n.pauseEnd, end)
		return
	}
	n.w.stats.Pauses++
	n.w.trace("%s is paused for %s", n.name, d)
	n.paused, n.pausedAt, n.pauseEnd = true, n.w.now, end
	inc := n.inc
	n.w.at(end, func() { n.resume(inc) })
}

func (n *node) resume(inc int) {
	if !n.up || n.inc != inc || !n.paused {
		return
	}
	if n.w.now < n.pauseEnd {
		n.w.at(n.pauseEnd, func() { n.resume(inc) })
		return
	}
	n.paused = false
	n.w.trace("%s goes on", n.name)
	unsent, deferred := n.unsent, n.deferred
	n.unsent, n.deferred = nil, nil
	for _, f := range unsent {
		f()
	}
	// Handle the events of the pause in random order, because different goroutines handle
	// timers, answers and messages.
	n.w.rng.Shuffle(len(deferred), func(i, j int) { deferred[i], deferred[j] = deferred[j], deferred[i] })
	for _, f := range deferred {
		n.run(inc, f)
	}
}

// run calls f in the process: now, after its pause, or, if it has died, not at all.
func (n *node) run(inc int, f func()) {
	switch {
	case !n.up || n.inc != inc:
	case n.paused:
		n.deferred = append(n.deferred, f)
	default:
		f()
	}
}

// after calls f in the process after a while by its monotonic clock.
func (n *node) after(d time.Duration, f func()) {
	inc := n.inc
	n.w.at(n.w.now+n.trueFor(d), func() { n.run(inc, f) })
}

// soon calls f after a very short random delay, or sometimes a longer one, as a busy process
// would.
func (n *node) soon(f func()) {
	d := n.w.between(0, 50*time.Microsecond)
	if n.w.now < n.w.healed && n.w.oneIn(n.w.p.slow) {
		d = n.w.between(0, 20*time.Millisecond)
	}
	n.after(d, f)
}

// --- its clocks ---

// mono returns the host's monotonic clock, which starts at a random value.
func (n *node) mono() time.Duration {
	d := n.w.now - n.bootAt
	return time.Duration(d + drift(d, n.ppm))
}

// monoTime is mono as a time.Time, for the estimator.
func (n *node) monoTime() time.Time { return time.Unix(0, 0).Add(n.mono()) }

// trueFor returns the true duration of a time by the monotonic clock, rounded up.
func (n *node) trueFor(d time.Duration) int64 { return int64(d) - drift(int64(d), n.ppm) + 1 }

func (n *node) bounds() (earliest, latest int64) { return n.est.Bounds(n.monoTime()) }

func (n *node) earliestNs() int64 {
	lo, _ := n.bounds()
	return lo
}

// EarliestNs implements scheduler.TermTime.
func (n *node) EarliestNs() int64 { return n.earliestNs() }

// JumpDetected implements scheduler.TermTime.
func (n *node) JumpDetected() bool { return n.jumped() }

// Resample implements scheduler.TermTime.
func (n *node) Resample() { n.resample.give() }

func (n *node) latestNs() int64 {
	_, hi := n.bounds()
	return hi
}

func (n *node) nowMs() int64 { return n.latestNs() / int64(time.Millisecond) }

// jumped reports that the host's wall clock moved since the last reading.
func (n *node) jumped() bool {
	d := n.wall - n.wallThen
	return n.known && (d > int64(clustertime.JumpTolerance) || d < -int64(clustertime.JumpTolerance))
}

func (n *node) age() time.Duration {
	if !n.known {
		return 1<<63 - 1
	}
	return n.mono() - n.received
}

// beat is the heartbeat: the loop of clustertime.Service.
func (n *node) beat(p *proc) {
	interval := min(clustertime.DefaultInterval, n.w.p.lease/3)
	for {
		wall := n.wall
		st, err := n.client.BeatAt(within(beatTimeout), n.monoTime)
		next := interval
		if err != nil {
			next = min(next, beatRetry)
		} else {
			n.observe(clustertime.Reading{Sent: st.Sent, Received: st.Received, ServerNs: st.ServerNs}, wall)
		}
		p.sleepOr(next, &n.resample)
	}
}

func (n *node) observe(r clustertime.Reading, wall int64) {
	stepped := n.est.Observe(r)
	if stepped {
		n.readings = n.readings[:0]
	}
	if n.w.cfg.Trace != nil {
		n.w.trace("%s reads %s, asked %s ago, stepped %v", n.name, n.w.ms(r.ServerNs/1e6), r.Received.Sub(r.Sent), stepped)
	}
	n.readings = append(n.readings, n.w.now-int64(r.Received.Sub(r.Sent))-int64(beatTimeout))
	if len(n.readings) > 8 {
		n.readings = n.readings[1:]
	}
	n.received = r.Received.Sub(time.Unix(0, 0))
	n.wallThen = wall
	if !n.known {
		n.known = true
		n.started()
	}
}

// started starts the parts that need the cluster's time.
func (n *node) started() {
	n.client.Announce(func(p *store.Presence) { p.Scheduler = store.SchedulerActive })
	n.coordinate()
}

// serves reports whether the process takes requests and messages.
func (n *node) serves() bool { return n.up && n.known && !n.leaving }
