// Package wheel implements a hierarchical timing wheel: a queue of timers with millisecond
// precision, in which insert, cancel and expiry take constant time.
//
// It is scheme 7 of Varghese and Lauck, "Hashed and Hierarchical Timing Wheels"
// (SOSP 1987): levels of 64 slots, each slot of a level as wide as the whole
// level below. A timer's level is that of the highest 6 bits in which its due
// time differs from now, so eleven levels hold every int64 and nothing overflows.
// A timer moves down at most once a level: ten times in a life of 292 million
// years, twice in one of an hour.
//
// # Guarantees
//
// Advance(now) expires exactly the timers whose due time is now or earlier, each once. First
// it expires timers that were overdue when they were added, in the order of Add, then the
// others in the order of their due times, and within a millisecond in the order of Add. A
// removed timer never expires. Each level has a bitmap of its occupied slots, so periods
// without timers take no time.
//
// AdvanceSome expires a bounded number of them, and the next call continues where it ended. A timer that
// is added overdue in between may come before timers that were left. Until all are expired, Next
// returns the wheel's time.
//
// Time may be set back. No timer expires early then: the wheel sorts its timers again, once,
// which takes time proportional to their number.
//
// The wheel does no I/O, has no goroutine and reads no clock. It allocates only in New. It
// is not safe for concurrent use. No operation fails; Add moves a timer that is in the wheel
// already. A timer must not be added to a second wheel while it is in this one.
package wheel

import (
	"math"
	"math/bits"
)

const (
	slotBits = 6
	slots    = 1 << slotBits
	levels   = (63 + slotBits - 1) / slotBits
)

// Timer is one timer. It contains its list node, so embed it or keep a pointer to it; it may
// be added again after it has expired. The zero value is ready to use.
type Timer[T any] struct {
	// Value is for the caller; the wheel does not use it.
	Value T

	due        int64
	next, prev *Timer[T]
	in         *list[T]
}

// Due returns the due time given to Add, in milliseconds.
func (t *Timer[T]) Due() int64 { return t.due }

// Scheduled reports whether the timer is in a wheel.
func (t *Timer[T]) Scheduled() bool { return t.in != nil }

// list is a doubly linked list of timers. It maintains its bit in the bitmap of its level.
type list[T any] struct {
	head, tail  *Timer[T]
	level, slot int
}

func (l *list[T]) push(t *Timer[T]) {
	t.in, t.prev, t.next = l, l.tail, nil
	if l.tail == nil {
		l.head = t
	} else {
		l.tail.next = t
	}
	l.tail = t
}

func (l *list[T]) unlink(t *Timer[T]) {
	if t.prev == nil {
		l.head = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		l.tail = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.in, t.prev, t.next = nil, nil, nil
}

// Wheel is a timing wheel. Create it with New.
type Wheel[T any] struct {
	now int64 // argument of the last Advance
	// cursor is the time for which the slots are arranged: no timer in them is due at or
	// before it. It is behind now inside Advance, and ahead of now after time was set back.
	cursor   int64
	n        int
	occupied [levels]uint64
	slots    [levels][slots]list[T]
	// overdue holds timers due at or before the cursor.
	overdue list[T]
	// batch holds the timers that Advance expires, and between two calls what AdvanceSome has left
	// of them; spare holds the timers that rewind sorts. They are fields so that Advance does not
	// allocate.
	batch, spare list[T]
}

const overdueLevel = -1

// New returns an empty wheel at time startMs, in milliseconds since any epoch, not negative.
func New[T any](startMs int64) *Wheel[T] {
	w := &Wheel[T]{now: max(startMs, 0), cursor: max(startMs, 0)}
	for l := range w.slots {
		for s := range w.slots[l] {
			w.slots[l][s].level, w.slots[l][s].slot = l, s
		}
	}
	w.overdue.level, w.batch.level, w.spare.level = overdueLevel, overdueLevel, overdueLevel
	return w
}

// Len returns the number of timers in the wheel.
func (w *Wheel[T]) Len() int { return w.n }

// Now returns the wheel's time: the argument of the last Advance, also inside Advance.
func (w *Wheel[T]) Now() int64 { return w.now }

// Add schedules t for dueMs. If dueMs is not after the wheel's time, t expires at the next
// Advance. Add moves a timer that is already scheduled.
func (w *Wheel[T]) Add(t *Timer[T], dueMs int64) {
	w.Remove(t)
	t.due = dueMs
	w.n++
	w.place(t)
}

func (w *Wheel[T]) place(t *Timer[T]) {
	if t.due <= w.cursor || t.due <= w.now {
		w.overdue.push(t)
		return
	}
	w.placeSlot(t)
}

// placeSlot puts a timer that is due after the cursor into its slot.
func (w *Wheel[T]) placeSlot(t *Timer[T]) {
	level := (bits.Len64(uint64(t.due^w.cursor)) - 1) / slotBits
	slot := int(t.due>>(level*slotBits)) & (slots - 1)
	w.occupied[level] |= 1 << slot
	w.slots[level][slot].push(t)
}

// Remove removes t and reports whether it was scheduled.
func (w *Wheel[T]) Remove(t *Timer[T]) bool {
	l := t.in
	if l == nil {
		return false
	}
	w.n--
	l.unlink(t)
	if l.head == nil && l.level != overdueLevel {
		w.occupied[l.level] &^= 1 << l.slot
	}
	return true
}

// Next returns the earliest time at which Advance may expire a timer, a lower bound of the
// next due time. It returns false for an empty wheel. The result is never before the wheel's
// time, and is after it unless a timer is overdue, so a caller that sleeps until Next and
// then calls Advance makes progress. It is exact if the first occupied slot has at most
// eight timers.
func (w *Wheel[T]) Next() (ms int64, ok bool) {
	if w.overdue.head != nil || w.batch.head != nil {
		return w.now, true
	}
	level, slot, at := w.nextSlot()
	switch {
	case level < 0:
		return 0, false
	case at <= w.now: // left by AdvanceSome
		return w.now, true
	}
	if level > 0 {
		// The slot's start is a lower bound. For few timers their earliest due time is a
		// better one, which avoids a wake-up for the cascade.
		const look = 8
		best := int64(-1)
		t := w.slots[level][slot].head
		for range look {
			if best < 0 || t.due < best {
				best = t.due
			}
			if t = t.next; t == nil {
				return best, true
			}
		}
	}
	return at, true
}

// nextSlot returns the occupied slot that starts first, and its start.
func (w *Wheel[T]) nextSlot() (level, slot int, at int64) {
	for level, occupied := range w.occupied {
		if occupied == 0 {
			continue
		}
		// Every timer of a level is due after the cursor within the same slot of
		// the level above, so its slots never wrap, and lower levels come first.
		slot := bits.TrailingZeros64(occupied)
		shift := level * slotBits
		above := int64(0)
		if shift+slotBits < 63 {
			above = w.cursor >> (shift + slotBits) << (shift + slotBits)
		}
		return level, slot, above | int64(slot)<<shift
	}
	return -1, 0, 0
}

// Advance sets the wheel's time to nowMs (a negative value counts as 0) and calls fn for
// every timer that is due, in the order of the package comment. Before the call it removes
// the timer from the wheel. fn may add and remove timers, also t; a timer that it adds for
// nowMs or earlier expires at the next Advance. fn must not call Advance.
func (w *Wheel[T]) Advance(nowMs int64, fn func(t *Timer[T])) {
	w.AdvanceSome(nowMs, math.MaxInt, fn)
}

// AdvanceSome is Advance for at most the given number of timers, 1 or more. It reports whether it has
// left timers that are due.
func (w *Wheel[T]) AdvanceSome(nowMs int64, most int, fn func(t *Timer[T])) (more bool) {
	nowMs = max(nowMs, 0)
	if nowMs < w.now && w.batch.head != nil {
		w.giveBack()
	}
	w.now = nowMs
	if w.overdue.head != nil {
		w.takeOverdue()
	}
	if !w.drain(&w.batch, &most, fn) {
		return true
	}
	for {
		level, slot, at := w.nextSlot()
		if level < 0 || at > w.now {
			break
		}
		w.cursor = at
		l := &w.slots[level][slot]
		if level > 0 {
			w.occupied[level] &^= 1 << slot
			w.cascade(l)
			l = &w.batch
		}
		if !w.drain(l, &most, fn) {
			return true
		}
		if level == 0 {
			w.occupied[0] &^= 1 << slot
		}
	}
	w.cursor = max(w.cursor, w.now)
	return false
}

// giveBack moves the timers that AdvanceSome has left in the batch to the overdue ones: time was set back,
// so they may no longer be due.
func (w *Wheel[T]) giveBack() {
	t := w.batch.head
	w.batch.head, w.batch.tail = nil, nil
	for t != nil {
		next := t.next
		w.overdue.push(t)
		t = next
	}
}

// cascade distributes the timers of a slot over the levels below. Timers that are due at the
// slot's start, which is the cursor, go to the batch.
func (w *Wheel[T]) cascade(l *list[T]) {
	t := l.head
	l.head, l.tail = nil, nil
	for t != nil {
		next := t.next
		if t.due == w.cursor {
			w.batch.push(t)
		} else {
			w.placeSlot(t)
		}
		t = next
	}
}

// drain expires the timers of a list while most is above 0, and counts it down. It reports whether the
// list is empty. fn may remove timers from the list, but Add never adds to it, because all of its due
// times have passed.
func (w *Wheel[T]) drain(l *list[T], most *int, fn func(*Timer[T])) (empty bool) {
	for l.head != nil {
		if *most <= 0 {
			return false
		}
		*most--
		t := l.head
		l.unlink(t)
		w.n--
		fn(t)
	}
	return true
}

// takeOverdue moves overdue timers to the batch. If time was set back and some are no longer
// due, it rewinds the wheel.
func (w *Wheel[T]) takeOverdue() {
	t := w.overdue.head
	w.overdue.head, w.overdue.tail = nil, nil
	for t != nil {
		next := t.next
		if t.due <= w.now {
			w.batch.push(t)
		} else {
			w.spare.push(t)
		}
		t = next
	}
	if w.spare.head != nil {
		w.rewind()
	}
}

// rewind sets the cursor back to now and places every timer again: first the timers in
// spare, which are due before all others, then the timers of the slots. Timers of the slots that
// AdvanceSome has left may be due; they go to the batch.
func (w *Wheel[T]) rewind() {
	for level := range w.slots {
		for b := w.occupied[level]; b != 0; b &= b - 1 {
			l := &w.slots[level][bits.TrailingZeros64(b)]
			t := l.head
			l.head, l.tail = nil, nil
			for t != nil {
				next := t.next
				w.spare.push(t)
				t = next
			}
		}
		w.occupied[level] = 0
	}
	w.cursor = w.now
	t := w.spare.head
	w.spare.head, w.spare.tail = nil, nil
	for t != nil {
		next := t.next
		if t.due <= w.now {
			w.batch.push(t)
		} else {
			w.placeSlot(t)
		}
		t = next
	}
}
