package functions

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file gives the events that wait in the wheel new slots after a change that permits earlier
// calls: a limit was raised, resumed or deleted, the circuit of their key was closed, or their hold
// was reset. One node does this for each change. It has a claim in the store, which it renews; if the
// node dies, another node starts again. Events that wait in their consumers ask again within
// ShortDelay by themselves. A record that is claimed, cancelled or moved meanwhile stays unchanged.

const (
	// replanEvery is the interval at which a node looks for limits whose events must be moved.
	replanEvery = time.Second
	// replanAfter is the time from the moment a node sees a change until it moves events. By then no
	// node defers events by an older copy of the limits, which is fresh for store.FlowFresh.
	replanAfter = 2 * store.FlowFresh
	// replanLease is the time for which the claim of a node is valid without a renewal.
	replanLease = 15 * time.Second
	// defaultMaxReplan is flowControl.maxReplan.
	defaultMaxReplan = 100_000
	// replanBatch is the number of events of a key that get their slots by one write of the
	// key's state.
	replanBatch = 250
	// releaseGap is the time between two events of a key without a rate after a circuit was closed or
	// a hold was reset: 100 a second, so that the target does not get all waiting events at once.
	releaseGap = 10 * time.Millisecond
)

// deferredEvent is an event that waits in the wheel.
type deferredEvent struct {
	id     schemas.TimerID
	key    string
	slotMs int64
	// held is true for an event that waits because its service or its group is paused. Then key
	// is not its flow key.
	held bool
	// dueMs is the due time of the timer if a hold stopped its key. It gives the order of such events,
	// because their slots do not.
	dueMs int64
}

// relief is a change after which events that wait may be called earlier.
type relief struct {
	// name is the name of its claim (store.Replan), key its flow key or pattern. Every change with the
	// same name has another generation.
	name, key  string
	generation uint64
	// expires is true if the change leaves the store after a while.
	expires bool
	// hold is true for the end of a hold. nextNs is then the next free time for its events.
	hold   bool
	nextNs int64
}

// releasedGeneration is schemas.Deferral.Generation of an event that was moved after the end of a
// hold. No limit has this generation, and it differs from heldGeneration, so the event is moved once.
const releasedGeneration = math.MaxUint64

// reliefs returns the changes after which events must be moved.
func reliefs(set *store.FlowSet) (all []relief) {
	for _, l := range set.Raised() {
		if !l.Limit.Paused {
			all = append(all, relief{name: l.Pattern, key: l.Pattern, generation: l.Rev, expires: l.Deleted})
		}
	}
	for _, h := range set.EndedHolds() {
		// No pattern has a blank.
		all = append(all, relief{name: "hold " + h.Key, key: h.Key, generation: uint64(h.EndedMs), expires: true, hold: true})
	}
	return all
}

// order compares two events of one key: those without a slot come last.
func (e *deferredEvent) order(o *deferredEvent) int {
	switch {
	case e.held == o.held:
		return 0
	case o.held:
		return -1
	}
	return 1
}

// replanState is the state of a node about a change.
type replanState struct {
	generation uint64
	seen       time.Time
	done       bool
}

// follow returns the states of changes by the names of their claims: the known state of a change with the same
// generation, otherwise a new one. It forgets changes that have left the store.
func follow(known map[string]*replanState, all []relief, now time.Time) map[string]*replanState {
	next := make(map[string]*replanState, len(all))
	for _, l := range all {
		k := known[l.name]
		if k == nil || k.generation != l.generation {
			k = &replanState{generation: l.generation, seen: now}
		}
		next[l.name] = k
	}
	return next
}

// replan moves waiting events after changes of limits, and ends the rates of targets, until ctx is
// done.
func (c *flowControl) replan(ctx context.Context) {
	var known map[string]*replanState
	for pause.For(ctx, replanEvery) {
		set, fresh := c.f.o.Store.FlowsNow()
		if !fresh || c.steadyFor() < flow.StepSettle {
			continue
		}
		c.endTargetRates(ctx, set)
		all := reliefs(set)
		known = follow(known, all, time.Now())
		for _, l := range all {
			k := known[l.name]
			if k.done || time.Since(k.seen) < replanAfter {
				continue
			}
			done, err := c.replanOne(ctx, l)
			if k.done = done; err != nil && ctx.Err() == nil && c.f.complaints.Allow("replan "+l.name, time.Now()) {
				c.f.o.Log.Warn().Err(err).Str("flow", l.key).Msg("the events that wait for a changed flow limit could not all be moved; trying again")
			}
		}
	}
}

// replanOne moves the events of one change, unless another node does. done is true if nothing
// is left to move.
func (c *flowControl) replanOne(ctx context.Context, l relief) (done bool, err error) {
	r, err := c.f.o.Store.FlowReplan(ctx, l.name)
	switch {
	case err != nil:
		return false, err
	case r.Generation == l.generation && r.Done:
		return true, nil
	case r.Generation == l.generation && r.Node != c.node && r.UntilMs > c.f.o.Now():
		return false, nil
	}
	claim := func() (err error) {
		r.Generation, r.Node, r.UntilMs = l.generation, c.node, c.f.o.Now()+replanLease.Milliseconds()
		r.Rev, err = c.f.o.Store.PutFlowReplan(ctx, r, l.expires)
		return err
	}
	r.Done = false
	if err := claim(); err != nil {
		if errors.Is(err, store.ErrRevision) {
			err = nil // another node was faster
		}
		return false, err
	}
	moved := 0
	for {
		events, more, err := c.waitingFor(ctx, l, claim)
		if err != nil {
			return false, err
		}
		before := moved
		for batch := range slices.Chunk(events, replanBatch) {
			if err := claim(); err != nil {
				return false, err
			}
			n, err := c.move(ctx, &l, batch)
			if moved += n; err != nil {
				return false, err
			}
		}
		if !more {
			break
		}
		if moved == before {
			return false, nil // the same events may be read again: other changes go first
		}
	}
	r.Done = true
	if err := claim(); err != nil {
		return false, err
	}
	if moved > 0 {
		c.f.o.Log.Info().Str("flow", l.key).Int("events", moved).Msg("events that waited for a changed flow limit have new slots")
	}
	return true, nil
}

// waitingFor reads the events that wait under earlier generations of a limit, or for the hold of a
// key: by key, and by their slots. It leaves out those of stopped keys, which would hide the others. more
// is true if there are others.
func (c *flowControl) waitingFor(ctx context.Context, l relief, renew func() error) (events []deferredEvent, more bool, err error) {
	renewed := time.Now()
	for shard := range c.f.o.Store.Geometry().Shards {
		err := c.f.o.Store.EachDeferred(ctx, shard, func(t store.Timer) (bool, error) {
			if time.Since(renewed) > replanLease/3 {
				if err := renew(); err != nil {
					return false, err
				}
				renewed = time.Now()
			}
			d := t.Record.Deferral
			set, _ := c.f.o.Store.FlowsNow()
			switch {
			case l.hold && d.Flow == l.key && d.Generation == heldGeneration && d.SlotMs > c.f.o.Now()+replanLease.Milliseconds() && !c.stopped(set, &l, d.Flow):
				events = append(events, deferredEvent{id: t.ID, key: d.Flow, slotMs: d.SlotMs, dueMs: t.Record.ScheduledMs})
			case !l.hold && flow.Match(l.key, d.Flow) && outdated(set, d) && !c.stopped(set, &l, d.Flow):
				events = append(events, deferredEvent{id: t.ID, key: d.Flow, slotMs: d.SlotMs, held: d.Generation == heldGeneration})
			}
			more = len(events) >= c.maxReplan
			return !more, nil
		})
		if err != nil {
			return nil, false, err
		}
		if more {
			break
		}
	}
	slices.SortStableFunc(events, func(a, b deferredEvent) int {
		return cmp.Or(cmp.Compare(a.key, b.key), a.order(&b), cmp.Compare(a.dueMs, b.dueMs), cmp.Compare(a.slotMs, b.slotMs))
	})
	return events, more, nil
}

// outdated reports whether a slot is void: its limit has another generation, or is gone.
func outdated(set *store.FlowSet, d *schemas.Deferral) bool {
	l, limited := set.Find(d.Flow)
	return !limited || l.Err == nil && l.Rev != d.Generation
}

// move gives events new slots, in their order, and returns how many it moved. The events of one
// key follow each other.
func (c *flowControl) move(ctx context.Context, l *relief, events []deferredEvent) (moved int, err error) {
	for len(events) > 0 {
		n := slices.IndexFunc(events, func(e deferredEvent) bool { return e.key != events[0].key || e.held != events[0].held })
		if n < 0 {
			n = len(events)
		}
		generation, first, spacing, ok, err := c.reserve(ctx, l, events[0], n)
		if err != nil {
			return moved, err
		}
		for i, e := range events[:n] {
			if !ok {
				break // the key is stopped again
			}
			done, err := c.moveOne(ctx, e, generation, (first+int64(i)*spacing)/int64(time.Millisecond)+1)
			if err != nil {
				return moved, err
			}
			if done {
				moved++
			}
		}
		events = events[n:]
	}
	return moved, nil
}

// stopped reports whether the events of a flow key stay where they are after a change: the key is paused,
// its limit cannot be read, or its circuit has opened again. When that ends, the end is a change of its own and moves the events.
func (c *flowControl) stopped(set *store.FlowSet, r *relief, key string) bool {
	l, limited := set.Find(key)
	switch {
	case l.Limit.Paused || l.Err != nil:
		return true
	case !r.hold || limited && l.Limit.Bounds():
		return false
	}
	h, _ := set.HoldOf(key)
	p, _ := h.Hold.Ask(c.nowNs())
	return p == flow.Probe || h.Hold.OpenNs != 0 && p == flow.Held
}

// reserve reserves slots for n events of the key of e. ok is false if the key is stopped. Without a
// limit, and for held events, which then ask under their own keys, all slots are at the present time.
// After a hold the slots are releaseGap apart.
func (c *flowControl) reserve(ctx context.Context, r *relief, e deferredEvent, n int) (generation uint64, firstNs, spacingNs int64, ok bool, err error) {
	for wait := minPause; ; {
		set, _ := c.f.o.Store.FlowsNow()
		l, limited := set.Find(e.key)
		now := c.nowNs()
		switch {
		case c.stopped(set, r, e.key):
			return 0, 0, 0, false, nil
		case r.hold && (!limited || !l.Limit.Bounds()):
			h, _ := set.HoldOf(e.key)
			_, atNs := h.Hold.Ask(now)
			firstNs = max(atNs, r.nextNs)
			r.nextNs = firstNs + int64(n)*int64(releaseGap)
			return releasedGeneration, firstNs, int64(releaseGap), true, nil
		case !limited || e.held:
			return 0, now, 0, true, nil
		}
		s, err := c.f.o.Store.FlowState(ctx, e.key)
		if err != nil {
			return 0, 0, 0, false, err
		}
		firstNs, spacingNs = flow.Reserve(l.Limit, l.Rev, &s.State, now, n)
		_, err = c.f.o.Store.PutFlowState(ctx, s, time.Duration(s.State.PlanNs-now))
		if !errors.Is(err, store.ErrRevision) {
			return l.Rev, firstNs, spacingNs, err == nil, err
		}
		c.f.metrics.flowConflicts.Inc()
		if !pause.For(ctx, time.Duration(random()*float64(wait))) {
			return 0, 0, 0, false, context.Cause(ctx)
		}
	}
}

// moveOne gives an event a new slot. It reports false if the event does not wait any more.
func (c *flowControl) moveOne(ctx context.Context, e deferredEvent, generation uint64, slotMs int64) (bool, error) {
	t, err := c.f.o.Store.Get(ctx, e.id)
	switch {
	case errors.Is(err, schemas.ErrNotFound), errors.Is(err, schemas.ErrDamaged), errors.Is(err, schemas.ErrNewer):
		return false, nil
	case err != nil:
		return false, err
	}
	rec := t.Record
	if !rec.Deferred() || !rec.Queued || rec.Deferral.SlotMs != e.slotMs {
		return false, nil
	}
	rec.MoveSlot(generation, slotMs)
	_, err = c.f.o.Store.Update(ctx, store.Write{ID: t.ID, Rev: t.Rev, Record: &rec})
	if errors.Is(err, store.ErrRevision) || store.Permanent(err) {
		return false, nil
	}
	return err == nil, err
}
