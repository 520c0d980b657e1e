// Package order decides which event of an ordering key (timerkey) is called next. The calls of a key
// are made one at a time, in due order; the next event waits until the previous one has succeeded or
// is a dead letter.
//
// Package store keeps the State of each busy key and changes it by compare-and-set; package
// functions asks before each call. The package is pure: no I/O, no clock.
//
//	Join ─▶ nobody is the head ─▶ Go: the event is the head, and the node holds its lease
//	     ─▶ another is the head ─▶ Wait: the event has a place in due order, and its record
//	                               waits in the wheel until it is woken
//	Leave: the call failed and is repeated later; the head keeps its place
//	Done: the head is concluded; the first waiting event becomes the head and is woken
//
// # What may fail
//
// A node may die between the end of a head and the wake of the next event. Therefore each waiting
// record becomes due again after a while (Answer.AtMs) and joins again. A Join that finds a head
// without a call in progress asks the caller to read the head's record (wakes of Decide): if it is
// concluded, the caller reports Done.
//
// # The lease
//
// The call of a head has a lease, which its node renews (Keep). Another delivery of the same
// event is not called while the lease lasts. Another event becomes the head only after the record
// of the head is concluded, so a wrong clock cannot let two events of a key run at once.
//
// # Overflow
//
// A State holds a bounded number of waiting events: the events that are due first. Further events
// have no place and ask again every AsideFor. They are all due at State.Bound or later. When half of
// the places are free, the State collects these events for CollectFor. By then each of them has asked,
// and only then may events that are due at Bound or later become the head.
package order

import (
	"cmp"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// MaxWaiting bounds the events that wait in a State. One takes about 40 bytes in its value,
	// which is written with each change of the key.
	MaxWaiting = 1000
	// LeaseFor is the lease of a head's call from its last renewal. A node that cannot renew it must
	// cancel the call before the lease ends.
	LeaseFor = 10 * time.Second
	// leaseMargin is added to a lease by other nodes, because their clocks may differ.
	leaseMargin = time.Second
	// AsideFor is the time until an event without a place asks again.
	AsideFor = 10 * time.Second
	// CollectFor is the duration of a collection of the events without a place. Each of them asks
	// within it, unless it is delayed for more than CollectFor - AsideFor.
	CollectFor = 15 * time.Second
	// leastWait and mostWait bound the time until a waiting event asks again without being woken. The
	// time doubles with each deferral.
	leastWait = 30 * time.Second
	mostWait  = 5 * time.Minute
	// checkAfter is the time without a call of the head after which an event that asks makes its
	// node read the record of the head.
	checkAfter = 5 * time.Second
)

// Event is an event of a key. Times are Unix milliseconds.
type Event struct {
	// DueMs is the due time that the user set, AddedMs the time of the add.
	DueMs, AddedMs int64
	// ID is the timer id of the event's record; zero for no event.
	ID schemas.TimerID
}

// Compare orders events by their due times, then by their adds, then by their ids.
func (e Event) Compare(other Event) int {
	return cmp.Or(cmp.Compare(e.DueMs, other.DueMs), cmp.Compare(e.AddedMs, other.AddedMs), slices.Compare(e.ID[:], other.ID[:]))
}

// IsZero reports whether there is no event.
func (e Event) IsZero() bool { return e.ID.IsZero() }

// State is the state of a key; the zero State is an idle key. Times are Unix milliseconds.
type State struct {
	// Head is the event whose turn it is; zero for none.
	Head Event
	// SinceMs is the time at which Head became the head, or at which its last call ended.
	SinceMs int64
	// TurnMs is the time at which Head became the head; 0 if a node of an older version wrote the
	// state.
	TurnMs int64
	// Node makes a call of Head until UntilMs, unless it renews; UntilMs is 0 for no call.
	Node    string
	UntilMs int64
	// Waiting are the events that wait, in order, at most MaxWaiting.
	Waiting []Event
	// Bound is a lower bound, in the order of Compare, of the events without a place in Waiting; zero
	// if there are none. Such events are collected until ReopenMs, 0 for no collection; NextBound is
	// the Bound after it.
	Bound, NextBound Event
	ReopenMs         int64
}

// Idle reports whether the key has no events.
func (s *State) Idle() bool { return s.Head.IsZero() && len(s.Waiting) == 0 && s.Bound.IsZero() }

// CallingAt reports whether a node holds the lease of a call of the head at nowMs, in Unix milliseconds
// of the cluster's time.
func (s *State) CallingAt(nowMs int64) bool { return s.UntilMs > nowMs }

// Clone returns a copy that can be changed.
func (s *State) Clone() State {
	c := *s
	c.Waiting = slices.Clone(s.Waiting)
	return c
}

// Kind is the kind of an Ask.
type Kind uint8

// The kinds.
const (
	Join    Kind = iota // the event asks for its call
	Confirm             // the record of an event that waits is written
	Keep                // the call of the head is in progress
	Leave               // the call of the head ended without a final result
	Done                // the record of the event is concluded, or gone
)

// Ask is a question, or a report, about an event.
type Ask struct {
	Kind  Kind
	Event Event
	// Deferrals is the number of times that the event was put back into the wheel; only for Join.
	Deferrals uint32
	// Look asks the caller to read the event's record, because another node may have recorded its
	// end; only for Leave.
	Look bool
}

// Answer is the answer to an Ask.
type Answer struct {
	// Go is true if the event is the head and the call may begin, or goes on. The node then
	// holds the lease of the call. Only for Join and Keep.
	Go bool
	// Busy is true if another node makes a call of the same event, until AtMs. Only for Join.
	Busy bool
	// AtMs is the latest time at which the event asks again. Only for Join.
	AtMs int64
}

// Wake asks the caller to read a record. If it is concluded, the caller reports Done. If it waits for
// its turn, the caller makes it due at AtMs.
type Wake struct {
	Event Event
	AtMs  int64
}

// Decide decides about questions on one node, and changes the state. nowMs is the cluster's time
// in Unix milliseconds, most is MaxWaiting (tests use less). The answers are in the order of the
// questions. They are valid only if the caller then stores the state by compare-and-set, or if the
// state is unchanged and was read after the questions arrived. A repeated Decide with the same
// questions, after a lost answer, gives the same answers.
func Decide(s *State, node string, nowMs int64, most int, asks []Ask) (answers []Answer, wakes []Wake) {
	d := decision{State: s, node: node, now: nowMs, most: most}
	d.reopen()
	for i := range asks {
		d.report(&asks[i])
	}
	for i := range asks {
		if asks[i].Kind == Join && asks[i].Event.ID != s.Head.ID {
			d.insert(asks[i].Event)
		}
	}
	d.collect()
	d.promote()
	answers = make([]Answer, len(asks))
	for i := range asks {
		answers[i] = d.answer(&asks[i])
	}
	d.overlook(asks)
	return answers, d.wakes
}

// decision is one call of Decide.
type decision struct {
	*State
	node  string
	now   int64
	most  int
	wakes []Wake
}

// calling reports whether a node holds a lease of the head.
func (d *decision) calling() bool {
	left := d.UntilMs + leaseMargin.Milliseconds() - d.now
	// A lease that ends too late was written before the clock was set back.
	return d.UntilMs != 0 && left > 0 && left <= 2*LeaseFor.Milliseconds()
}

// mine reports whether this node holds the lease of the head.
func (d *decision) mine() bool { return d.UntilMs != 0 && d.Node == d.node }

// reopen ends a collection whose time has passed or is implausible.
func (d *decision) reopen() {
	if d.ReopenMs != 0 && (d.now >= d.ReopenMs || d.ReopenMs-d.now > 2*CollectFor.Milliseconds()) {
		d.Bound, d.NextBound, d.ReopenMs = d.NextBound, Event{}, 0
	}
}

// collect begins a collection when half of the places are free.
func (d *decision) collect() {
	if !d.Bound.IsZero() && d.ReopenMs == 0 && len(d.Waiting) <= d.most/2 {
		d.ReopenMs = d.now + CollectFor.Milliseconds()
	}
}

// report applies a question that reports the state of an event: Keep, Leave or Done.
func (d *decision) report(a *Ask) {
	head := d.Head.ID == a.Event.ID
	switch a.Kind {
	case Keep:
		if head && d.mine() {
			d.UntilMs = d.now + LeaseFor.Milliseconds()
		}
	case Leave:
		if head && d.mine() {
			d.end()
		}
		if a.Look {
			d.wakes = append(d.wakes, Wake{a.Event, d.now})
		}
	case Done:
		if head && d.calling() && !d.mine() {
			return // another node calls the same event: its end is reported, or its lease ends
		}
		d.remove(a.Event)
	}
}

// end ends the call of the head.
func (d *decision) end() { d.Node, d.UntilMs, d.SinceMs = "", 0, d.now }

// remove removes a concluded event.
func (d *decision) remove(e Event) {
	if d.Head.ID == e.ID {
		d.end()
		d.Head, d.SinceMs, d.TurnMs = Event{}, 0, 0
		return
	}
	if i := d.place(e.ID); i >= 0 {
		d.Waiting = slices.Delete(d.Waiting, i, i+1)
	}
}

// place returns the index of a waiting event, -1 if it has no place.
func (d *decision) place(id schemas.TimerID) int {
	return slices.IndexFunc(d.Waiting, func(e Event) bool { return e.ID == id })
}

// insert gives an event a place in due order, unless it is due at the bound or later. If more than most
// events then wait, the last of them loses its place.
func (d *decision) insert(e Event) {
	if i := d.place(e.ID); i >= 0 {
		if d.Waiting[i] == e {
			return
		}
		d.Waiting = slices.Delete(d.Waiting, i, i+1)
	}
	bound := d.Bound
	if d.ReopenMs != 0 {
		bound = d.NextBound
	}
	if !bound.IsZero() && e.Compare(bound) >= 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(d.Waiting, e, Event.Compare)
	d.Waiting = slices.Insert(d.Waiting, i, e)
	if len(d.Waiting) <= d.most {
		return
	}
	last := d.Waiting[d.most]
	d.Waiting = d.Waiting[:d.most]
	d.wakes = append(d.wakes, Wake{last, d.now + AsideFor.Milliseconds()})
	if d.ReopenMs != 0 {
		d.NextBound = last
	} else {
		d.Bound = last
	}
}

// ready reports whether the first waiting event may become the head. During a collection an
// event at Bound or later may not: an earlier event may not have asked yet.
func (d *decision) ready() bool {
	return len(d.Waiting) > 0 && (d.Bound.IsZero() || d.Waiting[0].Compare(d.Bound) < 0)
}

// promote makes the first waiting event the head if there is none.
func (d *decision) promote() {
	switch {
	case !d.Head.IsZero():
	case d.ready():
		d.Head, d.SinceMs, d.TurnMs = d.Waiting[0], d.now, d.now
		d.Waiting = slices.Delete(d.Waiting, 0, 1)
		d.wakes = append(d.wakes, Wake{d.Head, d.now})
	case len(d.Waiting) > 0:
		d.wakes = append(d.wakes, Wake{d.Waiting[0], d.ReopenMs})
	}
}

// answer answers a question. It takes the lease for a head that may be called.
func (d *decision) answer(a *Ask) Answer {
	head := d.Head.ID == a.Event.ID
	switch a.Kind {
	case Keep:
		return Answer{Go: head && d.mine()}
	case Confirm:
		if head {
			d.wakes = append(d.wakes, Wake{a.Event, d.now})
		} else if d.place(a.Event.ID) < 0 {
			d.wakes = append(d.wakes, Wake{a.Event, d.now + AsideFor.Milliseconds()})
		}
	case Join:
		switch {
		case head && d.calling() && !d.mine():
			return Answer{Busy: true, AtMs: d.UntilMs + leaseMargin.Milliseconds()}
		case head:
			d.Node, d.UntilMs = d.node, d.now+LeaseFor.Milliseconds()
			d.drop(a.Event)
			return Answer{Go: true}
		case d.place(a.Event.ID) < 0:
			d.drop(a.Event)
			return Answer{AtMs: d.now + AsideFor.Milliseconds()}
		case d.Head.IsZero():
			return Answer{AtMs: max(d.ReopenMs, d.now+1000)}
		}
		return Answer{AtMs: d.now + waitFor(a.Deferrals)}
	}
	return Answer{}
}

// drop removes the wakes of an event that asks in this call.
func (d *decision) drop(e Event) {
	d.wakes = slices.DeleteFunc(d.wakes, func(w Wake) bool { return w.Event.ID == e.ID })
}

// overlook adds a Wake for the head if an event waits for it and it has had no call for checkAfter.
func (d *decision) overlook(asks []Ask) {
	since := d.now - max(d.SinceMs, d.UntilMs)
	if d.Head.IsZero() || d.calling() || since >= 0 && since < checkAfter.Milliseconds() {
		return
	}
	if slices.ContainsFunc(asks, func(a Ask) bool { return a.Kind == Join && a.Event.ID != d.Head.ID }) {
		d.wakes = append(d.wakes, Wake{d.Head, d.now})
	}
}

// waitFor returns the time until a waiting event asks again without being woken, in milliseconds.
func waitFor(deferrals uint32) int64 {
	return min(leastWait<<min(deferrals, 10), mostWait).Milliseconds()
}
