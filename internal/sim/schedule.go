package sim

import (
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// schedule is one schedule: the requests of its clients, and what was stored.
type schedule struct {
	*life // of the schedule's own record
	d     dice
	// rules are the recurrences that clients asked for: that of the add, then those of
	// updates.
	rules []schemas.Recurrence
	// requests are the changes that clients asked for, by Caller.By.
	requests map[string]*request
	// applied says which of the rules were stored, left when the record left a state.
	applied map[int]bool
	left    map[schemas.State]int64
	// rejectedFor is the reason why the add was rejected; active counts the clients.
	rejectedFor error
	active      int
	endsAt      int64 // true time at which a client ends the schedule

	// What the stored revisions of the record say.
	known bool // the record was stored once
	// cal are the nominal times, also those on excluded dates.
	cal    *calendar.Schedule
	anchor int64
	// decided has what became of each nominal time. lastMs is the latest decided.
	decided map[int64]schemas.DecisionKind
	lastMs  int64
	before  int64 // lastMs before the revision that is checked
	// runs are the claimed runs by number. numbers is the highest number used.
	runs    map[uint32]*run
	numbers uint32
	counted uint32 // runs of nominal times that were claimed
	// queued counts the nominal times whose place the run that waits has taken.
	queued uint32
	again  bool // of the last backfill
	// waitingDueMs is when the run that waits was due.
	waitingDueMs int64
	// watches are the nominal times that wait, or have waited, for a success. overdue are the
	// overdue events that were claimed.
	watches []*watch
	// pauseWatchedMs is the last nominal time with an overdue event of a pause.
	pauseWatchedMs int64
	overdue        []*overdueEvent
	// pausedMs and resumedMs are the cluster's times of the last pause and resume, changed
	// is the true time of the last change by a client.
	pausedMs, resumedMs int64
	changed             int64
	latest              *request // the request whose operation was stored last

	// excludes: all of the rules exclude calendars. ruleInForce is the one of the stored
	// recurrence. cals are the nominal times by rule and version of the calendars. All times up
	// to checkedMs are decided. updatedAt is the true time of the last update, updatedMs
	// the same by the cluster's clock.
	excludes    bool
	ruleInForce int
	cals        map[calKey]*calendar.Schedule
	checkedMs   int64
	updatedAt   int64
	updatedMs   int64

	// zoned: the schedule is in the zone that moves; see zones.go. reachedMs is its latest
	// instant that was decided or waits.
	zoned bool
	// bornHalf: the record was created without its index entry.
	bornHalf  bool
	reachedMs int64
}

// run is one claimed run of a schedule.
type run struct {
	*life
	s         *schedule
	number    uint32
	nominalMs int64
	dueMs     int64
	claimedMs int64
	missed    uint32
	trigger   schemas.Trigger
	waited    bool  // for the run before
	successMs int64 // time of the success in its record, 0 before
	// quietFrom is the true time from which lateness counts: of the last change of the schedule
	// before the claim, or of its calendars; see includedFrom and heldUntil.
	quietFrom int64
}

// request is one change that a client asked for.
type request struct {
	kind  schemas.OperationKind
	again bool  // of a backfill: nominal times that fired fire again
	none  bool  // of a backfill: the answer says that it has no nominal time to fire
	rule  int   // of an update: which of the rules
	asked int64 // true time of the first try
	// stored is the true time at which a revision with it was stored, 0 before.
	stored int64
}

// schedulesFrom is the number of the first schedule in messages, so that it is not taken for
// a timer's.
const schedulesFrom = 1000

// newSchedule draws the i-th schedule. It may exclude calendars, or be in the zone that moves.
func (w *world) newSchedule(i int, excludes, zoned bool) *schedule {
	d := w.sdice
	switch {
	case excludes:
		d = w.calendars.d
	case zoned:
		d = w.zones.d
	}
	n := schedulesFrom + len(w.schedules)
	s := &schedule{
		life: &life{n: n, id: schemas.NewTimerID("/sim", strconv.Itoa(n)), service: services[d.IntN(len(services))], callback: d.oneIn(2), viaAPI: d.oneIn(4)},
		d:    d, requests: map[string]*request{}, applied: map[int]bool{0: true}, left: map[schemas.State]int64{},
		decided: map[int64]schemas.DecisionKind{}, runs: map[uint32]*run{}, cals: map[calKey]*calendar.Schedule{}, excludes: excludes, zoned: zoned,
	}
	s.sched = s
	s.endsAt = w.endSchedules()
	s.bornAt = w.epoch + int64(d.between(50*time.Millisecond, w.p.active/2))
	if s.late = i == 0; s.late {
		s.endsAt = w.settleAt() - int64(5*time.Second)
		s.bornAt = s.endsAt - int64(d.between(8*time.Second, 12*time.Second))
	}
	s.rules = append(s.rules, s.newRule(w))
	return s
}

// newRule draws a recurrence for now.
func (s *schedule) newRule(w *world) schemas.Recurrence {
	if s.excludes || s.zoned {
		var r schemas.Recurrence
		if s.zoned {
			r = w.zones.zonedRule(s.d)
		} else {
			r = w.calendars.excludingRule(s.d)
		}
		if !s.callback {
			r.Overlap = schemas.OverlapAllow
		}
		return r
	}
	r := newRule(s.d, w.era, max(w.now, s.bornAt)/int64(time.Millisecond), s.endsAt/int64(time.Millisecond))
	if !s.callback {
		r.Overlap = schemas.OverlapAllow
	}
	r.ExpectMs = s.newExpect(w.cfg.Seed, len(s.rules), &r)
	return r
}

// endSchedules is the true time at which clients end the schedules that are left.
func (w *world) endSchedules() int64 {
	if w.p.outage {
		return w.settleAt() - int64(5*time.Second)
	}
	return w.healed + int64(20*time.Second)
}
