package quota

import "math"

// MaxTallied bounds the timers that a Tally counts, about 30 bytes each. Further ones are not
// counted.
const MaxTallied = 8 << 20

// maxTouched bounds the records that change during a scan.
const maxTouched = 1_000_000

// Count is what the owner of a shard publishes.
type Count struct {
	// Version is the revision of the published key: a later Count replaces an earlier one.
	Version uint64
	// Epoch is the owner's term.
	Epoch uint64
	// Seq is the sequence of the last record of the shard that the numbers include.
	Seq uint64
	// Services has the use of each counted service that has any.
	Services map[string]Amount
	// Rest has the sum of the services that Services leaves out, by the name of their tenant followed
	// by schemas.TenantEnd.
	Rest map[string]Amount
}

// Tally counts the use of the pending timers of a shard, by service. It keeps the keys of the timers, so
// a timer counts once, however many of its revisions the Tally gets. Not safe for concurrent use.
//
// It begins with a scan: the caller reads every record of the shard up to Through, and passes the
// pending timers to Scanned. Meanwhile it passes every later record to Note.
type Tally struct {
	counted func(service string) bool
	// waiting has the use of each pending timer, by its key.
	waiting  map[uint64]use
	services []serviceCount
	index    map[string]uint32
	free     []uint32 // unused indexes of services
	// touched has the keys of the records that Note got during the scan; nil after the scan.
	touched map[uint64]struct{}
	through uint64
	// last is the sequence of the newest record at the end of the scan.
	last uint64
}

// use is the use of one timer, and the index of its service in Tally.services.
type use struct {
	place    uint32
	bytes    uint32
	schedule bool
}

func (u use) amount() Amount { return OneTimer(u.schedule, int64(u.bytes)) }

type serviceCount struct {
	name string
	Amount
}

// Timer is a pending timer. Key identifies it.
type Timer struct {
	Key      uint64
	Service  string
	Schedule bool
	// Bytes is the size of its event; see Amount.
	Bytes int64
}

// OneTimer returns the use of one timer. bytes is the size of its event.
func OneTimer(schedule bool, bytes int64) Amount {
	a := Amount{Timers: 1, Bytes: bytes}
	if schedule {
		a.Schedules = 1
	}
	return a
}

// NewTally returns a Tally of the services for which counted returns true. through is the sequence of
// the last record that the scan reads; Note gets every later record.
func NewTally(counted func(service string) bool, through uint64) *Tally {
	return &Tally{counted: counted, waiting: map[uint64]use{}, index: map[string]uint32{}, touched: map[uint64]struct{}{}, through: through}
}

// Through is the sequence up to which the scan must read.
func (t *Tally) Through() uint64 { return t.through }

// Note processes a record of the tail; waits is true if its timer is pending. Records come in the order
// of the stream; replaced revisions may be missing. It reports whether the service of the record is
// counted.
func (t *Tally) Note(timer Timer, waits bool) bool {
	if t.touched != nil && len(t.touched) <= maxTouched {
		t.touched[timer.Key] = struct{}{}
	}
	counted := t.counted(timer.Service)
	return t.set(timer, waits && counted) || counted
}

// Scanned ends the scan. found are the pending timers at sequences up to Through, last is the sequence
// of the newest record of the shard at the end of the scan. It returns false if more than maxTouched
// records changed during the scan: then begin again with another Tally.
func (t *Tally) Scanned(found []Timer, last uint64) bool {
	if len(t.touched) > maxTouched {
		return false
	}
	for _, f := range found {
		if _, later := t.touched[f.Key]; !later {
			t.set(f, true)
		}
	}
	t.touched, t.last = nil, last
	return true
}

// Settled reports whether the numbers are correct at seq, up to which Note has got all records. A record
// that was replaced during the scan may be missing in the scan, and Note gets it at its new sequence.
// So the numbers are correct once Note has reached the newest record at the end of the scan.
func (t *Tally) Settled(seq uint64) bool { return t.touched == nil && seq >= t.last }

// set adds a timer to the counts if waits is true, and otherwise removes it. It reports whether the
// counts changed.
func (t *Tally) set(timer Timer, waits bool) (changed bool) {
	was, had := t.waiting[timer.Key]
	is := use{bytes: uint32(min(max(timer.Bytes, 0), math.MaxUint32)), schedule: timer.Schedule} //nolint:gosec // within the bounds
	if had && waits && t.services[was.place].name == timer.Service && was.bytes == is.bytes && was.schedule == is.schedule || !had && !waits {
		return false
	}
	if had {
		delete(t.waiting, timer.Key)
		s := &t.services[was.place]
		if s.Amount = s.minus(was.amount()); s.Timers == 0 {
			delete(t.index, s.name)
			s.name = ""
			t.free = append(t.free, was.place)
		}
	}
	if !waits || len(t.waiting) >= MaxTallied {
		return had
	}
	is.place = t.place(timer.Service)
	s := &t.services[is.place]
	s.Amount = s.Plus(is.amount())
	t.waiting[timer.Key] = is
	return true
}

// Full reports whether there are more pending timers than the Tally counts.
func (t *Tally) Full() bool { return len(t.waiting) >= MaxTallied }

// place returns the index of a service in services, and adds the service if it is missing.
func (t *Tally) place(service string) uint32 {
	if at, ok := t.index[service]; ok {
		return at
	}
	var at uint32
	if n := len(t.free); n > 0 {
		at, t.free = t.free[n-1], t.free[:n-1]
	} else {
		at = uint32(len(t.services)) //nolint:gosec // at most MaxTallied
		t.services = append(t.services, serviceCount{})
	}
	t.services[at].name, t.index[service] = service, at
	return at
}

// Services returns the numbers for a Count.
func (t *Tally) Services() map[string]Amount {
	all := make(map[string]Amount, len(t.index))
	for name, at := range t.index {
		all[name] = t.services[at].Amount
	}
	return all
}
