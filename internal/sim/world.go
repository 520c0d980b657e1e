package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/schemas"
)

// Config says what to run.
type Config struct {
	Seed uint64
	// Plant is a bug that the simulation makes, to test that the checker finds it.
	Plant Plant
	// If Newer is set, some records are written in the format of the next build. In two thirds
	// of the seeds a node of that build joins.
	Newer bool
	// If Flow is set, each service has a limit, which is paused at times.
	Flow bool
	// If Quotas is set, the pending timers of services are limited, so that owners count them, and the
	// limits change.
	Quotas bool
	// If Damage is set, some records are damaged in the store.
	Damage bool
	// If Returned is set, killed servers bring replaced revisions of ended timers back.
	Returned bool
	// If Near is set, owners keep timers that are due soon in memory.
	Near bool
	// If Schedules is set, there are schedules, whose clients change them. The one-shot timers
	// are the same with and without them, but their histories are not.
	Schedules bool
	// Trace gets a line for every action; nil for no trace.
	Trace io.Writer
}

// Report is the result of a run.
type Report struct {
	Seed       uint64
	Schedules  bool
	Violations []Violation
	Stats      Stats
	// Shape describes the parameters of the run in one line.
	Shape string
}

// Stats are the counts of a run. Tests use them to check that faults and operations happened.
type Stats struct {
	Events, Timers, Fired, Claims, Cancelled, Moved, Called int
	DeadLetters, Refused,                                   // refused: letters of events that could never be published
	Takeovers, Crashes, Pauses, Cuts, Elections, Jumps, Refired, Lost, Late, Unanswered, Stale, Deposed, RefusedStored, Damaged int
	// Schedules were added. Runs of them were claimed, RunsFired published. Operations on
	// schedules were acknowledged. The others count decisions about nominal times.
	Overdue                                                                                    int // overdue events that were claimed
	Schedules, Runs, RunsFired, Operations                                                     int
	Fires, Triggers, Backfills, Coalesced, Misfires, Graces, Overlaps, Queued, Paused, Updated int
	// Excluded counts nominal times that were skipped as excluded, CalendarChanges the stored
	// changes of calendars. Included counts the nominal times on dates that no calendar contains
	// any more, at the end of their schedules.
	Excluded, CalendarChanges, Included int
	// Rezoned counts next runs that newer zone data has moved.
	Rezoned int
	// Newer counts records written in a newer format. Held counts the records among them
	// that never fired, because no node could read them. Both are 0 without Config.Newer.
	Newer, Held int
	// DamagedRecords counts the records that were damaged in the store, Repaired the damaged
	// records that an operator has repaired. Both are 0 without Config.Damage.
	DamagedRecords, Repaired int
	// Returned counts the revisions of ended timers that killed servers have brought back, Removed the revisions among them that
	// owners have deleted. AddedAgain counts ended timers that were added again. All are 0 without Config.Returned.
	Returned, Removed, AddedAgain int
	// Deferred counts the events that waited for their slots. It is 0 without Config.Flow.
	Deferred int
	// Near counts the timers that loads took from memory. It is 0 without Config.Near.
	Near int
	// Counted is the number of shards whose count of pending timers was checked at the end. In
	// CountedLow of them the count was too low.
	Counted, CountedLow int
	// CountedQuotas is the number of shards whose published numbers were checked at the end. It is 0
	// without Config.Quotas.
	CountedQuotas int
	// VirtualSeconds is the simulated time.
	VirtualSeconds int
}

// world is one simulation.
type world struct {
	cfg   Config
	p     params
	rng   *rand.Rand
	now   int64 // true time, Unix nanoseconds
	epoch int64 // when the simulation began, Unix nanoseconds
	era   era
	queue events
	order uint64

	server *fake.Server
	net    *network
	nodes  []*node
	lives  []*life
	byID   map[schemas.TimerID]*life
	queues []*consumer
	check  *checker
	stats  Stats
	// schedules are added if Config.Schedules is set. sdice are their draws, requests numbers
	// their clients' requests.
	schedules []*schedule
	calendars *calendars // nil for none
	zones     *zones     // nil if all nodes have the same zone data
	sdice     dice
	requests  int
	current   *proc
	desk      *node // the host of all clients

	waitingTails [][]func()          // by shard
	atTakeOver   [][]func()          // by shard: called when a node takes it
	flows        map[string]*flowKey // by service; nil without Config.Flow
	quotas       *quotas             // nil without Config.Quotas
	owners       [][]ownership       // by shard; see noteOwners
	lookKills    int                 // servers that are still to be killed while an owner looks for void records
	damaged      []bool              // by shard: another client has overwritten its clock
	healed       int64               // the time after which there are no faults, but risers
	risenAt      int64               // the time at which the last riser continues; 0 for none
	over         bool
	letters      int // for PlantUnstableLetter
	// overdueDeaths counts the processes that have died at the claim of an overdue event.
	overdueDeaths int
}

// Run runs one seed to its end.
func Run(cfg Config) Report {
	w := &world{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0x62656c667279)), byID: map[schemas.TimerID]*life{}}
	w.p = newParams(w.rng, cfg.Seed)
	w.era, w.epoch = eras[0], eras[0].beginNs
	if cfg.Returned {
		w.p.forReturned(dice{w.rng})
	}
	w.sdice = dice{rand.New(rand.NewPCG(cfg.Seed, 0x7363686564756c65))}
	if cfg.Schedules {
		w.era, w.epoch = chooseEra(w.sdice, &w.p)
	}
	w.now = w.epoch
	switch {
	case hasCalendars(cfg):
		w.calendars = newCalendars(w)
	case hasZones(cfg):
		w.zones = newZones(cfg.Seed)
	}
	w.net = newNetwork(w)
	servers := w.p.fake()
	servers.Calendars = w.calendars != nil
	if servers.Flows = cfg.Flow || cfg.Quotas; cfg.Flow {
		w.p.quiet += flowQuiet
	}
	if cfg.Quotas {
		w.p.quiet += quotaBegins
	}
	w.server = fake.NewServer(servers, w.net.clock)
	w.atTakeOver = make([][]func(), w.p.geo.Shards)
	w.waitingTails, w.damaged = make([][]func(), w.p.geo.Shards), make([]bool, w.p.geo.Shards)
	w.check = newChecker(w)
	w.server.Watch(w.check.watcher())
	w.server.FiredFloor = w.firedFloor
	w.openQueues()
	for i := range w.p.nodes {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	if cfg.Quotas {
		w.quotas = newQuotas(w)
	}
	for _, n := range w.nodes {
		n.boot()
	}
	w.scheduleClients()
	w.scheduleFaults()
	if cfg.Flow {
		w.scheduleFlow()
	}
	if cfg.Schedules {
		w.addSchedules()
	}
	if cfg.Newer {
		w.scheduleNewer()
	}
	if cfg.Returned {
		w.scheduleReturned()
	}
	w.loop()
	w.check.atEnd()
	w.close()
	w.stats.VirtualSeconds = int((w.now - w.epoch) / int64(time.Second))
	return Report{Seed: cfg.Seed, Schedules: cfg.Schedules, Violations: w.check.violations, Stats: w.stats, Shape: w.p.String()}
}

// maxEvents bounds the events of a run. A run with more events would not end.
const maxEvents = 3_000_000

// loop runs until all work is done, or the time is up.
func (w *world) loop() {
	end := w.epoch + int64(w.p.longest())
	for !w.over && w.queue.len() > 0 {
		e := w.queue.pop()
		if e.at > end {
			w.now = end
			return
		}
		w.now = e.at
		w.stats.Events++
		e.f()
		if w.stats.Events > maxEvents {
			w.check.fail(PropEnds, "%d events", w.stats.Events)
			return
		}
		if len(w.check.violations) >= maxViolations {
			return
		}
	}
}

func (w *world) close() {
	for _, n := range w.nodes {
		n.kill()
	}
	w.desk.kill()
}

// at calls f at a true time, after all functions that were put there before.
func (w *world) at(t int64, f func()) {
	w.order++
	w.queue.push(event{at: max(t, w.now), order: w.order, f: f})
}

func (w *world) after(d time.Duration, f func()) { w.at(w.now+int64(d), f) }

// --- chance ---

// oneIn is true once in n times; never for n of 0.
func (w *world) oneIn(n int) bool { return n > 0 && w.rng.IntN(n) == 0 }

// between returns a uniformly distributed duration.
func (w *world) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)))
}

// trace writes a line.
func (w *world) trace(format string, args ...any) {
	if w.cfg.Trace == nil {
		return
	}
	at := w.now - w.epoch
	// An error only loses a line of the trace.
	_, _ = fmt.Fprintf(w.cfg.Trace, "%4d.%06d  %s\n", at/1e9, at%1e9/1e3, fmt.Sprintf(format, args...))
}

// --- the event queue ---

type event struct {
	at    int64
	order uint64
	f     func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// events is a binary heap.
type events struct{ heap []event }

func (q *events) len() int { return len(q.heap) }

func (q *events) push(e event) {
	q.heap = append(q.heap, e)
	for i := len(q.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.heap[i].before(&q.heap[up]) {
			return
		}
		q.heap[i], q.heap[up] = q.heap[up], q.heap[i]
		i = up
	}
}

func (q *events) pop() event {
	top := q.heap[0]
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = event{}
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for _, c := range [2]int{2*i + 1, 2*i + 2} {
			if c < last && q.heap[c].before(&q.heap[least]) {
				least = c
			}
		}
		if least == i {
			return top
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
