package quota

// MaxTallied bounds the timers that a Tally counts, about 20 bytes each. Further ones are not
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
	// Services has the number of pending timers of each service that is counted and has any.
	Services map[string]int64
}

// Tally counts the pending timers of a shard by service. It holds the ids of the timers, so a record that
// it reads twice, or whose earlier revisions it has not read, counts once. Not safe for concurrent
// use.
//
// It begins with a scan: the caller reads every record of the shard up to Through, and passes the waiting
// ones to Scanned, while it passes every later record to Note.
type Tally struct {
	counted func(service string) bool
	// waiting has the place in services of each pending timer.
	waiting  map[uint64]uint32
	services []serviceCount
	index    map[string]uint32
	free     []uint32 // places in services without a service
	// touched has the records that Note has had during the scan; nil after the scan.
	touched map[uint64]struct{}
	through uint64
}

type serviceCount struct {
	name string
	n    int64
}

// Timer is a pending timer that a scan has found. Key identifies it.
type Timer struct {
	Key     uint64
	Service string
}

// NewTally returns a Tally of the services for which counted returns true. through is the sequence
// of the last record that Note will not have.
func NewTally(counted func(service string) bool, through uint64) *Tally {
	return &Tally{counted: counted, waiting: map[uint64]uint32{}, index: map[string]uint32{}, touched: map[uint64]struct{}{}, through: through}
}

// Through is the sequence up to which the scan must read.
func (t *Tally) Through() uint64 { return t.through }

// Note processes a record of the tail. Records come in the order of the stream; revisions that were
// replaced may be missing. It reports whether the record is one of a service that is counted.
func (t *Tally) Note(key uint64, service string, waits bool) bool {
	if t.touched != nil && len(t.touched) <= maxTouched {
		t.touched[key] = struct{}{}
	}
	counted := t.counted(service)
	return t.set(key, service, waits && counted) || counted
}

// Scanned ends the scan with the timers that it has found at sequences up to Through. It returns
// false if too many records have changed meanwhile: then begin again with another Tally.
func (t *Tally) Scanned(found []Timer) bool {
	if len(t.touched) > maxTouched {
		return false
	}
	for _, f := range found {
		if _, later := t.touched[f.Key]; !later {
			t.set(f.Key, f.Service, true)
		}
	}
	t.touched = nil
	return true
}

// set makes a timer count for a service, or for none. It reports whether that changed anything.
func (t *Tally) set(key uint64, service string, waits bool) (changed bool) {
	at, had := t.waiting[key]
	if had && waits && t.services[at].name == service || !had && !waits {
		return false
	}
	if had {
		delete(t.waiting, key)
		if t.services[at].n--; t.services[at].n == 0 {
			delete(t.index, t.services[at].name)
			t.services[at].name = ""
			t.free = append(t.free, at)
		}
	}
	if !waits || len(t.waiting) >= MaxTallied {
		return had
	}
	at = t.place(service)
	t.services[at].n++
	t.waiting[key] = at
	return true
}

// place returns the place of a service in services.
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
func (t *Tally) Services() map[string]int64 {
	all := make(map[string]int64, len(t.index))
	for name, at := range t.index {
		all[name] = t.services[at].n
	}
	return all
}
