package recurrence_test

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// oracle is a schedule without any economy: it has the fate of every nominal time in a map,
// walks all nominal times that are due at once, and spells out each policy. It shares only
// package calendar with the code under test.
type oracle struct {
	rule     schemas.Recurrence
	calendar *calendar.Schedule
	callback bool

	state string // pending, paused or completed
	// from is the first nominal time that is not decided, if it is one of the calendar.
	from int64
	fate map[int64]fate
	// backfilled has the last run of a backfill for each nominal time.
	backfilled map[int64]uint32
	log        []event

	run   uint32 // the next number
	last  uint32
	open  bool
	fired uint32

	waiting  *wait
	manual   []manual
	backfill *backfill
	catchUp  *schemas.Misfire
	resumed  int64
	caughtUp int

	// list are the nominal times that are due at listMs, while each of them fires. It only
	// saves time.
	list   []int64
	listMs int64
}

// fate is what became of a nominal time.
type fate struct {
	kind schemas.DecisionKind
	run  uint32
}

// event is a run.
type event struct {
	at, nominal int64
	run, missed uint32
	trigger     schemas.Trigger
}

type wait struct {
	nominal, since int64
	missed         uint32
}

type manual struct {
	at    int64
	allow bool
}

type backfill struct {
	left       []int64
	except     [][2]int64
	every, due int64
	allow      bool
}

// The actions of step.
const (
	actNone  = ""
	actGrace = "skips the waiting run"
	actRun   = "fires"
	actSkip  = "skips"
)

// step does one thing and says which.
func (o *oracle) step(now int64, opens func(run uint32) bool) (did string) {
	defer o.end()
	blocked := o.open && o.callback && o.last > 0 && o.rule.Overlap != schemas.OverlapAllow
	active := o.state == "pending"
	fire := func(e event) string {
		e.at, e.run = now, o.run
		o.run++
		o.log = append(o.log, e)
		o.last, o.open = e.run, opens(e.run)
		return actRun
	}
	if w := o.waiting; active && w != nil {
		if o.rule.GraceMs > 0 && now > w.since+o.rule.GraceMs {
			o.waiting = nil
			o.fate[w.nominal] = fate{schemas.DecisionGrace, 0}
			return actGrace
		}
		if !blocked {
			o.waiting = nil
			o.fired++
			o.fate[w.nominal] = fate{schemas.DecisionFired, o.run}
			return fire(event{nominal: w.nominal, missed: w.missed})
		}
	}
	for i, m := range o.manual {
		switch {
		case !blocked || m.allow:
			o.manual = append(slices.Clone(o.manual[:i]), o.manual[i+1:]...)
			return fire(event{nominal: m.at, trigger: schemas.TriggerManual})
		case o.rule.Overlap == schemas.OverlapSkip:
			o.manual = append(slices.Clone(o.manual[:i]), o.manual[i+1:]...)
			return actSkip
		}
	}
	if active {
		due := o.list
		if o.list = nil; len(due) == 0 || o.listMs != now || o.limited() {
			due = o.due(now)
		}
		if len(due) > 0 {
			return o.nominal(now, due, blocked, fire)
		}
	}
	if b := o.backfill; b != nil && b.due <= now && (!blocked || b.allow) {
		at := b.left[0]
		if b.left, b.due = b.left[1:], now+b.every; len(b.left) == 0 {
			o.backfill = nil
		}
		o.backfilled[at] = o.run
		return fire(event{nominal: at, trigger: schemas.TriggerBackfill})
	}
	return actNone
}

// nominal decides the nominal times that are due.
func (o *oracle) nominal(now int64, due []int64, blocked bool, fire func(event) string) string {
	skip := func(kind schemas.DecisionKind, run uint32, times ...int64) string {
		for _, at := range times {
			o.fate[at] = fate{kind, run}
		}
		return actSkip
	}
	policy := o.rule.Misfire
	paused := o.catchUp != nil && o.calendar.DueMs(due[0]) <= o.resumed
	if paused {
		policy = *o.catchUp
		if o.calendar.DueMs(due[len(due)-1]) > o.resumed {
			due = slices.DeleteFunc(due, func(at int64) bool { return o.calendar.DueMs(at) > o.resumed })
		}
	} else {
		o.catchUp = nil
	}
	caughtUp := func() {
		o.caughtUp = 0
		if paused {
			o.catchUp = nil
		}
	}
	if !paused && o.rule.GraceMs > 0 {
		late := func(at int64) bool { return now > o.calendar.DueMs(at)+o.rule.GraceMs }
		for len(due) > 0 && late(due[0]) {
			skip(schemas.DecisionGrace, 0, due[0])
			due = due[1:]
		}
		if len(due) == 0 {
			caughtUp()
			return actSkip
		}
	}
	latest, rest := due[len(due)-1], due[:len(due)-1]
	lateMs := now - o.calendar.DueMs(latest)
	switch {
	case paused && policy == schemas.MisfireSkip:
		caughtUp()
		return skip(schemas.DecisionPaused, 0, due...)
	case policy == schemas.MisfireAll && o.caughtUp < 1000 && !blocked:
		if o.caughtUp++; len(rest) == 0 {
			caughtUp()
		}
		o.fired++
		skip(schemas.DecisionFired, o.run, due[0])
		if o.list, o.listMs = due[1:], now; len(o.list) > 0 {
			o.from = o.list[0]
		} else {
			o.list = nil
		}
		return fire(event{nominal: due[0]})
	}
	caughtUp()
	switch {
	case blocked && o.rule.Overlap == schemas.OverlapSkip:
		return skip(schemas.DecisionOverlap, o.last, due...)
	case policy == schemas.MisfireSkip && len(rest) > 0:
		skip(schemas.DecisionMisfire, 0, rest...)
		rest = nil
		if lateMs > 10_000 {
			return skip(schemas.DecisionMisfire, 0, latest)
		}
	}
	missed := uint32(len(rest))
	if blocked {
		if w := o.waiting; w != nil {
			skip(schemas.DecisionQueue, o.last, w.nominal)
			missed += 1 + w.missed
		}
		skip(schemas.DecisionQueue, o.last, rest...)
		since := o.calendar.DueMs(latest)
		if paused {
			since = now
		}
		o.waiting = &wait{latest, since, missed}
		return actSkip
	}
	skip(schemas.DecisionCoalesced, o.run, rest...)
	o.fired++
	skip(schemas.DecisionFired, o.run, latest)
	return fire(event{nominal: latest, missed: missed})
}

// undecided returns the nominal times up to an instant that are not decided and do not wait.
func (o *oracle) undecided(to int64) []int64 {
	var list []int64
	for at := range o.calendar.Between(o.from, to) {
		if _, decided := o.fate[at]; !decided && (o.waiting == nil || o.waiting.nominal != at) {
			list = append(list, at)
		}
	}
	if len(list) > 0 {
		o.from = list[0]
	}
	return list
}

func (o *oracle) limited() bool { return o.rule.Limit > 0 && o.fired >= o.rule.Limit }

// due returns the undecided nominal times that are due.
func (o *oracle) due(now int64) []int64 {
	if o.limited() {
		return nil
	}
	return slices.DeleteFunc(o.undecided(now), func(at int64) bool { return o.calendar.DueMs(at) > now })
}

// next returns the first undecided nominal time, 0 for none.
func (o *oracle) next() int64 {
	if o.limited() {
		return 0
	}
	for at := range o.calendar.Between(o.from, math.MaxInt64) {
		if _, decided := o.fate[at]; !decided && (o.waiting == nil || o.waiting.nominal != at) {
			return at
		}
	}
	return 0
}

// end completes the schedule if nothing is left.
func (o *oracle) end() {
	if o.state == "pending" && o.waiting == nil && len(o.manual) == 0 && o.backfill == nil && o.next() == 0 {
		o.state = "completed"
	}
}

func (o *oracle) resume(now int64, catchUp schemas.Misfire) {
	if o.state != "paused" {
		return
	}
	o.state, o.resumed, o.catchUp, o.caughtUp = "pending", now, nil, 0
	if len(o.due(now)) > 0 {
		o.catchUp = &catchUp
	}
	if w := o.waiting; w != nil {
		if catchUp == schemas.MisfireSkip {
			o.waiting = nil
			o.fate[w.nominal] = fate{schemas.DecisionPaused, 0}
		} else {
			o.waiting = &wait{w.nominal, max(w.since, now), w.missed}
		}
	}
	o.end()
}

// backfills returns the nominal times of a backfill, and the spans that it leaves out.
// forgotten says which decisions the schedule does not know any more.
func (o *oracle) backfills(from, to int64, again bool, forgotten func(int64) bool) *backfill {
	b := &backfill{}
	fires := true
	for at := range o.calendar.Between(from, to) {
		f, decided := o.fate[at]
		_, filled := o.backfilled[at]
		before := fires
		switch {
		case o.waiting != nil && o.waiting.nominal == at, !decided && !o.limited() && at >= o.from && o.next() != 0:
			fires = false
		default:
			fires = again || !filled && (!decided || f.kind != schemas.DecisionFired) && !forgotten(at)
		}
		switch {
		case fires:
			b.left = append(b.left, at)
		case before:
			b.except = append(b.except, [2]int64{at, at})
		default:
			b.except[len(b.except)-1][1] = at
		}
	}
	return b
}

// update replaces the recurrence.
func (o *oracle) update(rule schemas.Recurrence, c *calendar.Schedule, now int64, sameTimes bool) {
	o.list = nil
	old := *o
	o.rule, o.calendar = rule, c
	ended := old.next() == 0 && old.rule.Limit != rule.Limit
	if !sameTimes || ended {
		var last int64
		for at := range o.fate {
			last = max(last, at)
		}
		if o.waiting != nil {
			last = max(last, o.waiting.nominal)
		}
		if old.next() == 0 { // the limit was reached: what came after it was not decided
			old.from = last + 1
		}
		passed := old.undecided(now)
		both := len(passed) > 0 && len(passed) < 1000 && old.next() != 0
		if both {
			both = slices.Equal(passed, slices.Collect(c.Between(passed[0], now)))
		}
		if both {
			o.from = passed[0]
		} else {
			o.catchUp, o.caughtUp = nil, 0
			for _, at := range passed {
				o.fate[at] = fate{schemas.DecisionUpdated, 0}
				last = max(last, at)
			}
			o.from = max(now, last) + 1
		}
		o.backfill = nil
	}
	if w := o.waiting; w != nil && o.limited() {
		o.waiting = nil
		o.fate[w.nominal] = fate{schemas.DecisionUpdated, 0}
	}
	o.end()
}

// sameTimes reports whether two recurrences have the same attributes but for policies.
func sameTimes(a, b schemas.Recurrence) bool {
	for _, r := range []*schemas.Recurrence{&a, &b} {
		r.Misfire, r.Overlap, r.GraceMs, r.Limit, r.ExpectMs = 0, 0, 0, 0, 0
	}
	return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

// newCalendar compiles a recurrence without package recurrence.
func newCalendar(r *schemas.Recurrence, anchorMs int64) (*calendar.Schedule, error) {
	s := calendar.Spec{
		ID: scriptID.String(), Cron: r.Cron, Every: r.Every, Zone: r.Zone, StartMs: r.StartMs, EndMs: r.EndMs,
		Jitter: time.Duration(r.JitterMs) * time.Millisecond,
	}
	if r.Every != "" && r.StartMs == 0 {
		s.StartMs = anchorMs
	}
	return calendar.New(s)
}
