package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// This file has the adds of the floor: it reads them in groups, lets them wait for others in the safe profile, and stores each
// group with its index entries. The bounds are those of a node; see router/linger.go, internal/store/index.go and far.go.
const (
	// floorReads bounds the adds that are requested and not read, floorReadBytes the bytes of a request. floorPace is the
	// minimum time between two groups of adds, unless many wait.
	floorReads     = 1024
	floorReadBytes = 32 << 20
	floorPace      = 2 * time.Millisecond
	// A group has at most floorBatch adds. floorGroups groups are stored at a time.
	floorBatch  = 512
	floorGroups = 4
	// In the safe profile an add that is due in floorLead or later waits for floorLinger, or until floorBatch adds wait, if
	// floorLeast adds or more have arrived in this or in the previous period of floorLinger.
	floorLead   = time.Second
	floorLinger = 100 * time.Millisecond
	floorLeast  = 16
	// An index entry has at most floorShared timers of a shard that are due in the same second, or if floorFarLeast timers or
	// more of a group are due in the same hour, floorFarLead ahead or later, at most floorFarShared of these. It expires
	// floorKeep after its timers are due.
	floorShared    = 64
	floorFarLead   = 2 * time.Hour
	floorFarLeast  = 4
	floorFarShared = 128
	floorKeep      = time.Hour
)

// floorAdds stores the adds of the floor.
type floorAdds struct {
	n       *floorNode
	groups  chan struct{} // permits of the groups that are being stored
	entries atomic.Int64  // numbers the index entries
	flushes sync.WaitGroup

	mu      sync.Mutex
	waiting []*floorTimer // for others
	// since is the start of the present period of floorLinger. arrived and before count the adds of it and of the previous
	// one.
	since           time.Time
	arrived, before int
}

// read stores the adds of the stream, until ctx or the reader ends.
func (f *floorAdds) read(ctx context.Context, r *jet.Reader) error {
	defer f.flushes.Wait()
	var last time.Time
	for {
		d, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if rest := floorPace - time.Since(last); rest > 0 && r.Waiting() < floorBatch/2 && !pause.For(ctx, rest) {
			return context.Cause(ctx)
		}
		last = time.Now()
		group := make([]*floorTimer, 0, 16)
		for d != nil {
			t, err := floorParse(d)
			if err != nil {
				return err
			}
			if group = append(group, t); len(group) == floorBatch {
				break
			}
			if d, err = r.TryNext(); err != nil {
				return err
			}
		}
		if f.n.linger {
			group = f.pass(ctx, group, last)
		}
		if err := f.store(ctx, group); err != nil {
			return err
		}
	}
}

// pass returns the timers to store now, and makes the others wait.
func (f *floorAdds) pass(ctx context.Context, group []*floorTimer, now time.Time) []*floorTimer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.busy(len(group), now) {
		return group
	}
	ready := group[:0]
	for _, t := range group {
		if t.dueMs < now.Add(floorLead).UnixMilli() {
			ready = append(ready, t)
			continue
		}
		if f.waiting = append(f.waiting, t); len(f.waiting) == 1 {
			f.flushes.Add(1)
			time.AfterFunc(floorLinger, func() { f.flush(ctx) })
		}
	}
	if free := floorBatch - len(ready); len(f.waiting) > free {
		ready = append(ready, f.waiting[:free]...)
		f.waiting = append([]*floorTimer(nil), f.waiting[free:]...)
	}
	return ready
}

// busy counts n further adds, and reports whether enough arrive for adds to wait. f.mu is held.
func (f *floorAdds) busy(n int, now time.Time) bool {
	switch past := now.Sub(f.since); {
	case past >= 2*floorLinger:
		f.since, f.arrived, f.before = now, 0, 0
	case past >= floorLinger:
		f.since, f.arrived, f.before = now, 0, f.arrived
	}
	f.arrived += n
	return f.arrived >= floorLeast || f.before >= floorLeast
}

// flush stores the timers that wait.
func (f *floorAdds) flush(ctx context.Context) {
	defer f.flushes.Done()
	f.mu.Lock()
	group := f.waiting
	f.waiting = nil
	f.mu.Unlock()
	if err := f.store(ctx, group); err != nil {
		f.n.fail(err)
	}
}

// floorPlace is a second of a shard, or if far is true, an hour.
type floorPlace struct {
	shard int
	far   bool
	at    int64
}

// seconds returns the length of the place.
func (p floorPlace) seconds() int64 {
	if p.far {
		return 3600
	}
	return 1
}

func floorPlaceOf(t *floorTimer, far bool) floorPlace {
	p := floorPlace{shard: t.shard, far: far}
	p.at = t.dueMs / 1000 / p.seconds()
	return p
}

// store writes the index entries and the keys of new timers.
func (f *floorAdds) store(ctx context.Context, group []*floorTimer) error {
	if len(group) == 0 {
		return nil
	}
	select {
	case f.groups <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	entries := floorEntries(group, time.Now())
	left := new(atomic.Int64)
	left.Store(int64(len(group) + len(entries)))
	answered := func() {
		if left.Add(-1) == 0 {
			<-f.groups
		}
	}
	for _, e := range entries {
		f.index(e, answered)
	}
	for _, t := range group {
		f.n.write(t, nil, t.data, func(t *floorTimer) {
			f.n.added(t)
			answered()
		})
	}
	return nil
}

// floorEntry is an index entry.
type floorEntry struct {
	floorPlace
	timers []*floorTimer
}

// floorEntries returns the index entries of new timers.
func floorEntries(group []*floorTimer, now time.Time) []*floorEntry {
	far := map[floorPlace]int{}
	for _, t := range group {
		if time.UnixMilli(t.dueMs).Sub(now) >= floorFarLead {
			far[floorPlaceOf(t, true)]++
		}
	}
	open := map[floorPlace]*floorEntry{}
	var all []*floorEntry
	for _, t := range group {
		p, most := floorPlaceOf(t, true), floorFarShared
		if far[p] < floorFarLeast {
			p, most = floorPlaceOf(t, false), floorShared
		}
		e := open[p]
		if e == nil || len(e.timers) == most {
			e = &floorEntry{floorPlace: p}
			open[p] = e
			all = append(all, e)
		}
		e.timers = append(e.timers, t)
	}
	return all
}

// index writes an index entry, and after a far one its mark.
func (f *floorAdds) index(e *floorEntry, done func()) {
	ids := make([]byte, 0, len(e.timers)*(len(schemas.TimerID{})+2))
	for _, t := range e.timers {
		id := schemas.NewTimerID(source, t.id)
		ids = append(ids, id[:]...)
		if e.far {
			ids = binary.BigEndian.AppendUint16(ids, uint16(t.dueMs/1000-e.at*e.seconds()))
		}
	}
	prefix, at := floorIndex(e.shard), strconv.FormatInt(e.at, 10)
	if e.far {
		prefix += "far."
	}
	subjects, data := []string{prefix + at + "." + strconv.FormatInt(f.entries.Add(1), 10)}, [][]byte{ids}
	if e.far {
		subjects, data = append(subjects, prefix+at), append(data, nil) // the mark
	}
	ttl := time.Until(time.Unix((e.at+1)*e.seconds(), 0)) + floorKeep
	left := new(atomic.Int64)
	left.Store(int64(len(subjects)))
	for i, subject := range subjects {
		f.n.client.WriteAsync(floorStream(e.shard), "index", subject, jet.TTLHeader(ttl), data[i], func(_ jet.Ack, err error) {
			switch {
			case err != nil:
				f.n.fail(fmt.Errorf("write an index entry: %w", err))
			case left.Add(-1) == 0:
				done()
			}
		})
	}
}

// floorParse extracts id, service and due time from an event of an Adder. It does not validate the event.
func floorParse(d *jet.Delivery) (*floorTimer, error) {
	value := func(name string) string {
		_, rest, _ := bytes.Cut(d.Data, []byte(`"`+name+`":"`))
		v, _, _ := bytes.Cut(rest, []byte{'"'})
		return string(v)
	}
	at, err := time.Parse(time.RFC3339Nano, value("timerat"))
	if err != nil {
		return nil, fmt.Errorf("an add has no due time: %w", err)
	}
	id := value("id")
	shard := floorShard(id)
	return &floorTimer{
		id: id, key: floorKey(shard, id), shard: shard, service: value("timersvc"), dueMs: at.UnixMilli(), add: d, data: d.Data,
	}, nil
}
