package sim

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// This file has the clients of schedules. They add, pause, resume, trigger, update, backfill
// and delete schedules by production's router.Writer and router.Operations.

// maxSchedules bounds the schedules of a simulation.
const maxSchedules = 5

// maxExcluding bounds the schedules that exclude calendars, and those in the zone that moves.
const maxExcluding = 3

// addSchedules plans the schedules of a simulation and their clients.
func (w *world) addSchedules() {
	for i := range 2 + w.sdice.IntN(maxSchedules-1) {
		w.addSchedule(w.newSchedule(i, false, false))
	}
	if w.zones != nil {
		w.upgrades()
		for i := range 1 + w.zones.d.IntN(maxExcluding) {
			w.addSchedule(w.newSchedule(i, false, true))
		}
	}
	if w.calendars == nil {
		return
	}
	w.spawn(w.desk, w.calendars.change)
	for i := range 1 + w.calendars.d.IntN(maxExcluding) {
		w.addSchedule(w.newSchedule(i, true, false))
	}
}

func (w *world) addSchedule(s *schedule) {
	w.schedules = append(w.schedules, s)
	w.byID[s.id] = s.life
	w.at(s.bornAt, func() { w.spawn(w.desk, s.begin) })
}

// record is what router makes of the add, or of an update to one of the later rules.
func (s *schedule) record(n *node, rule int, addedMs int64) (*schemas.Record, error) {
	r := s.life.record(addedMs)
	r.Hash[0] ^= byte(rule)
	r.Schedule = &schemas.Schedule{Recurrence: s.rules[rule]}
	r.Schedule.AnchorMs = addedMs
	if at := r.Schedule.StartMs; at != 0 {
		r.Schedule.AnchorMs = at
	}
	plan, err := n.basis().PlanOf(s.id, r.Schedule)
	if err == nil {
		err = plan.Begin(r)
	}
	return r, err
}

// createSchedule adds a schedule; see node.create.
func (n *node) createSchedule(s *schedule, addedMs int64, seq uint64) outcome {
	rec, err := s.record(n, 0, addedMs)
	if errors.Is(err, schemas.ErrUnavailable) {
		return outcome{router.Delayed, err}
	}
	if err != nil {
		s.rejectedFor = err
		return outcome{router.Rejected, err}
	}
	return n.store(s.id, rec, seq)
}

// begin adds a schedule, and starts its other clients.
func (s *schedule) begin(p *proc) {
	w := p.w
	acknowledged := s.add(p)
	if s.rejectedFor != nil {
		return
	}
	s.active++
	w.spawn(w.desk, s.end) // an add that was not acknowledged may be stored
	if s.late || !acknowledged {
		return
	}
	for range 1 + s.d.IntN(2) {
		s.active++
		w.spawn(w.desk, s.operate)
	}
}

// operate changes the schedule now and then.
func (s *schedule) operate(p *proc) {
	defer func() { s.active-- }()
	w := p.w
	for w.now < w.healed+int64(8*time.Second) && !s.final && !s.rejected {
		s.wait(p)
		k := s.d.IntN(16)
		if s.zoned && 8 <= k && k < 14 {
			k -= 8 // an update or a backfill names instants, which depend on the zone data of the node
		}
		switch {
		case k < 5:
			s.pause(p)
			p.sleep(s.d.between(50*time.Millisecond, 6*time.Second))
			if !s.d.oneIn(8) {
				s.resume(p)
			}
		case k < 8:
			s.trigger(p)
		case k < 11:
			s.update(p)
		case k < 14:
			s.backfill(p)
		case k < 15:
			s.resume(p)
		case s.d.oneIn(3):
			s.delete(p)
		}
	}
}

// wait waits for a while, or until about the time of a run.
func (s *schedule) wait(p *proc) {
	w := p.w
	p.sleep(s.d.between(100*time.Millisecond, 8*time.Second))
	t, err := w.server.Record(s.id)
	if err != nil || t.Record.Schedule == nil || s.d.oneIn(2) {
		return
	}
	if d := time.Duration(t.Record.Schedule.NextDueMs*int64(time.Millisecond) - w.now); d < 10*time.Second {
		p.sleep(d + s.d.between(-30*time.Millisecond, 30*time.Millisecond))
	}
}

// end deletes or pauses the schedule at the end of the simulation.
func (s *schedule) end(p *proc) {
	defer func() { s.active-- }()
	w := p.w
	p.sleep(time.Duration(s.endsAt - w.now))
	for s.known && !s.final { // also if the add was rejected when it came again, without its calendars
		if s.active > 1 {
			p.sleep(time.Second) // the others may yet resume it
			continue
		}
		t, err := w.server.Record(s.id)
		if err == nil && t.Record.State == schemas.StatePaused && len(t.Record.Schedule.Manual) == 0 && t.Record.Schedule.Backfill == nil {
			return
		}
		if s.d.oneIn(4) {
			s.pause(p)
		} else {
			s.delete(p)
		}
		p.sleep(w.between(100*time.Millisecond, time.Second))
	}
}

// add tries until it is acknowledged, or not much longer.
func (s *schedule) add(p *proc) bool {
	w := p.w
	w.stats.Schedules++
	for range 8 {
		var err error
		if s.viaAPI {
			err = w.ask(p, func(n *node) error {
				return n.createSchedule(s, (n.latestNs()+int64(time.Millisecond)-1)/int64(time.Millisecond), 0).err
			})
		} else {
			_, _, err = p.n.client.Publish(within(callTimeout), store.Msg{Subject: schemas.SubjectAdd, Data: []byte(strconv.Itoa(s.n))})
		}
		if err == nil {
			w.trace("%s: add acknowledged", s)
			s.promised = w.now
			return true
		}
		if s.rejectedFor != nil {
			return false
		}
		p.sleep(w.between(10*time.Millisecond, time.Second))
	}
	return false
}

// operationTries is how often a client repeats a request whose answer is lost.
const operationTries = 3

// ask has a node change the schedule, and repeats the request if its answer is lost. Each try
// has a name of its own. It returns the request that was acknowledged, nil for none.
func (s *schedule) ask(p *proc, q request, f func(n *node, by schemas.Caller) error) *request {
	w := p.w
	q.asked = w.now
	for range operationTries {
		w.requests++
		by := schemas.Caller{By: fmt.Sprint("request ", w.requests)}
		made := q
		s.requests[by.By] = &made
		w.trace("%s: %s asks for %s", s, by.By, q.kind)
		err := w.ask(p, func(n *node) error { return f(n, by) })
		switch {
		case err == nil:
			w.trace("%s: %s is acknowledged", s, by.By)
			return &made
		case !errors.Is(err, schemas.ErrUnavailable) && !errors.Is(err, schemas.ErrNotFound):
			w.trace("%s: %s: %v", s, by.By, err)
			return nil
		}
		p.sleep(w.between(10*time.Millisecond, time.Second))
	}
	return nil
}

// answered sees the answer to a request: q is nil if it was not acknowledged. done reports
// whether the schedule is, or was since the request, as the client wants it.
func (s *schedule) answered(w *world, q *request, done bool) {
	switch {
	case q == nil:
	case q.stored == 0 && !done:
		w.check.fail(PropObeyed, "%s: %s was acknowledged and is not stored", s, q.kind)
	default:
		w.stats.Operations++
	}
}

func (s *schedule) pause(p *proc) {
	note := fmt.Sprint("note ", s.d.IntN(3))
	q := s.ask(p, request{kind: schemas.OperationPause}, func(n *node, by schemas.Caller) error {
		_, err := n.ops.Pause(within(apiTimeout), s.id, note, by)
		return err
	})
	s.answered(p.w, q, q != nil && s.inState(p.w, schemas.StatePaused, q.asked))
}

func (s *schedule) resume(p *proc) {
	catchUp := schemas.Misfire(s.d.IntN(3))
	q := s.ask(p, request{kind: schemas.OperationResume}, func(n *node, by schemas.Caller) error {
		_, err := n.ops.Resume(within(apiTimeout), s.id, catchUp, by)
		return err
	})
	s.answered(p.w, q, q != nil && s.inState(p.w, schemas.StatePending, q.asked))
}

func (s *schedule) trigger(p *proc) {
	allow := s.d.oneIn(3)
	q := s.ask(p, request{kind: schemas.OperationTrigger}, func(n *node, by schemas.Caller) error {
		_, err := n.ops.Trigger(within(apiTimeout), s.id, schemas.RequestID(by.By), allow, by)
		return err
	})
	s.answered(p.w, q, false)
}

func (s *schedule) update(p *proc) {
	w := p.w
	s.rules = append(s.rules, s.newRule(w))
	rule := len(s.rules) - 1
	addedMs := w.now / int64(time.Millisecond)
	q := s.ask(p, request{kind: schemas.OperationUpdate, rule: rule}, func(n *node, by schemas.Caller) error {
		next, err := s.record(n, rule, addedMs)
		if err != nil {
			return err // it would have no run
		}
		_, _, _, err = n.ops.Update(within(apiTimeout), s.id, next, 0, by)
		return err
	})
	s.answered(w, q, s.applied[rule])
}

func (s *schedule) backfill(p *proc) {
	w := p.w
	nowMs := w.now / int64(time.Millisecond)
	b := recurrence.BackfillRequest{Again: s.d.oneIn(3), Allow: s.d.oneIn(2), Every: s.d.between(0, 2*time.Second)}
	b.ToMs = nowMs - s.d.Int64N(10_000)
	b.FromMs = b.ToMs - s.d.Int64N(15_000)
	q := s.ask(p, request{kind: schemas.OperationBackfill, again: b.Again}, func(n *node, by schemas.Caller) error {
		b.Request = schemas.RequestID(by.By)
		_, times, err := n.ops.Backfill(within(apiTimeout), s.id, b, by)
		// Of this try: an earlier one, whose answer was lost, may end later and otherwise.
		s.requests[by.By].none = err == nil && len(times) == 0
		return err
	})
	s.answered(w, q, q != nil && q.none)
}

func (s *schedule) delete(p *proc) {
	q := s.ask(p, request{kind: schemas.OperationCancel}, func(n *node, by schemas.Caller) error {
		_, err := n.cancelTimer(s.id, by)
		return err
	})
	s.answered(p.w, q, s.final)
}

// inState reports whether the schedule has been in a state since a true time.
func (s *schedule) inState(w *world, state schemas.State, since int64) bool {
	t, err := w.server.Record(s.id)
	return err == nil && t.Record.State == state || s.left[state] >= since
}

// scheduleOf returns the schedule with a number; nil for that of a timer.
func (w *world) scheduleOf(n int) *schedule {
	if n < schedulesFrom {
		return nil
	}
	return w.schedules[n-schedulesFrom]
}
