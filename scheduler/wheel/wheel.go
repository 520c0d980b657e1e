// Package wheel is a hierarchical timing wheel: a queue of timers, to the
// millisecond, whose insert, cancel and expiry cost the same however many wait.
//
// It is scheme 7 of Varghese and Lauck, "Hashed and Hierarchical Timing Wheels"
// (SOSP 1987): levels of 64 slots, each slot of a level as wide as the whole
// level below. A timer's level is that of the highest 6 bits in which its due
// time differs from now, so eleven levels hold every int64 and nothing overflows.
// A timer moves down at most once a level: ten times in a life of 292 million
// years, twice in one of an hour.
//
// # What it guarantees
//
// Advance(now) hands out exactly the timers whose due time is now or before, each
// once: first those that were added overdue, in the order of their adding, then
// the others in the order of their due milliseconds, and within a millisecond in
// the order of their adding. A timer that is removed before is never handed out.
// A bitmap a level finds the next occupied slot, so empty time, however long,
// costs nothing.
//
// Time may be set back. Nothing is handed out early then: timers that are added
// for the time between are put in order again, once, at the cost of looking at
// every timer in the wheel.
//
// The wheel does no I/O, owns no goroutine and reads no clock; it allocates only
// in New. It is not safe for concurrent use. It cannot fail; adding a timer that
// is in the wheel already moves it. A timer must not be given to another wheel
// before it has left this one.
package wheel

import "math/bits"

const (
	slotBits = 6
	slots    = 1 << slotBits
	levels   = (63 + slotBits - 1) / slotBits
)

// Timer is one timer. It is its own list node: embed it, or keep it, and reuse
// it after it has expired. The zero value is ready.
type Timer[T any] struct {
	// Value is the caller's.
	Value T

	due        int64
	next, prev *Timer[T]
	in         *list[T]
}

// Due is the due time given to Add, in milliseconds.
func (t *Timer[T]) Due() int64 { return t.due }

// Scheduled reports whether the timer is in a wheel.
func (t *Timer[T]) Scheduled() bool { return t.in != nil }

// list is a doubly linked list of timers, and knows which bit it sets.
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

// Wheel is the timing wheel.
type Wheel[T any] struct {
	now int64 // given to the last Advance
	// cursor is where the slots stand: no timer in them is due at or before it.
	// It is behind now inside Advance, and ahead of it after time was set back.
	cursor   int64
	n        int
	occupied [levels]uint64
	slots    [levels][slots]list[T]
	// overdue holds timers due at or before the cursor.
	overdue list[T]
	// batch is what Advance is handing out, and spare what rewind puts in order:
	// kept here so that they allocate nothing.
	batch, spare list[T]
}

const overdueLevel = -1

// New makes a wheel whose time is startMs, in milliseconds of any epoch, not
// negative.
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

// Len is the number of timers in the wheel.
func (w *Wheel[T]) Len() int { return w.n }

// Now is the wheel's time: that of the last Advance, also inside it.
func (w *Wheel[T]) Now() int64 { return w.now }

// Add schedules t for dueMs. A due time at or before the wheel's time expires at
// the next Advance. A timer that is already scheduled is moved.
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

// Remove takes t out and reports whether it was scheduled.
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

// Next is the earliest time at which Advance may have something to do: a lower
// bound of the next due time. It is never before the wheel's time, and after it
// unless a timer is overdue, so that who sleeps until Next and advances makes
// progress. With up to eight timers in the slot that starts first it is exact.
// It returns false for an empty wheel.
func (w *Wheel[T]) Next() (ms int64, ok bool) {
	if w.overdue.head != nil {
		return w.now, true
	}
	level, slot, at := w.nextSlot()
	if level < 0 {
		return 0, false
	}
	if level > 0 {
		// The slot's start is a bound, but a lone or few timers' own time is a
		// better one, and saves waking up for the cascade.
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

// nextSlot finds the occupied slot that starts first.
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

// Advance moves the wheel to nowMs (negative counts as 0) and hands every timer
// due by then to fn, in the order of the package comment. fn may add and remove
// timers, also t; what it adds at or before nowMs expires at the next Advance.
// It must not call Advance. The callback's timer is already out of the wheel.
func (w *Wheel[T]) Advance(nowMs int64, fn func(t *Timer[T])) {
	w.now = max(nowMs, 0)
	if w.overdue.head != nil {
		w.takeOverdue()
		w.drain(&w.batch, fn)
	}
	for {
		level, slot, at := w.nextSlot()
		if level < 0 || at > w.now {
			break
		}
		w.cursor = at
		l := &w.slots[level][slot]
		w.occupied[level] &^= 1 << slot
		if level > 0 {
			w.cascade(l)
			l = &w.batch
		}
		w.drain(l, fn)
	}
	w.cursor = max(w.cursor, w.now)
}

// cascade spreads a slot over the levels below, and over the batch what is due
// at its very start, which is the cursor.
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

// drain hands out a list. Its timers may be removed meanwhile, and none is added
// to it, because all of its due times have passed.
func (w *Wheel[T]) drain(l *list[T], fn func(*Timer[T])) {
	for l.head != nil {
		t := l.head
		l.unlink(t)
		w.n--
		fn(t)
	}
}

// takeOverdue moves what is overdue now to the batch. What is not due any more,
// because time was set back, makes the wheel follow.
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

// rewind sets the cursor back to now and places every timer anew: those in
// spare, which are due before all others, then those of the slots.
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
		w.placeSlot(t)
		t = next
	}
}
