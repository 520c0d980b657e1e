package quota_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/schemas"
)

// world simulates shards, their owners and the routers that add, in steps of 10 ms of virtual time.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	limits  map[string]int64
	shards  []*shard
	routers []*router
	step    int
	// noFaults is true in the last part: then everything must become exact.
	noFaults bool
}

const (
	publishEvery = 100 // steps
	pollEvery    = 50
	// late bounds, in steps, how long the adds of one router are unknown to the others without faults: the
	// lag of the tail, the publication and the poll.
	late = 20 + publishEvery + pollEvery + 3
)

// record is the newest revision of a timer.
type record struct {
	seq     uint64
	service string
	waits   bool
}

type shard struct {
	records map[uint64]*record
	last    uint64
	// published is what the routers read; before is what a replica that is behind has.
	published, before quota.Count
	epoch             uint64
	owner             *owner // nil while there is none
}

// owner reads the tail, and scans in between.
type owner struct {
	epoch        uint64
	tail, scanTo uint64
	tally        *quota.Tally
	scanned      bool
	found        []quota.Timer
	nextPublish  int
	ready        int // the step of its first turn
}

type router struct {
	*quota.Ledger
	flights  []flight
	admitted []int // the steps of its admissions
}

// flight is an admitted add whose answer the router does not have yet.
type flight struct {
	at, shard int
	seq       uint64
	service   string
	failed    bool
}

func (w *world) write(s *shard, key uint64, service string, waits bool) uint64 {
	s.last++
	s.records[key] = &record{s.last, service, waits}
	return s.last
}

func (w *world) pending(name string) (n int64) {
	for _, s := range w.shards {
		for _, r := range s.records {
			tenant := schemas.TenantOf(r.service)
			if r.waits && (r.service == name || tenant != "" && tenant+schemas.TenantEnd == name) {
				n++
			}
		}
	}
	return n
}

var services = []string{"orders", "mail", "acme=orders", "acme=bills"}

// add makes an add by a router, if its ledger permits it.
func (w *world) add(r *router) {
	service := services[w.rng.IntN(len(services))]
	var most []quota.Max
	for _, name := range []string{service, schemas.TenantOf(service) + schemas.TenantEnd} {
		if n, ok := w.limits[name]; ok {
			most = append(most, quota.Max{Name: name, N: n})
		}
	}
	if len(most) == 0 {
		if w.rng.IntN(5) == 0 {
			w.write(w.shards[w.rng.IntN(len(w.shards))], w.rng.Uint64(), service, true)
		}
		return
	}
	n, full, pending := r.Reserve(service, most, 1)
	if n == 0 {
		if pending < full.N {
			w.t.Fatalf("refused by the limit %d of %s with %d pending", full.N, full.Name, pending)
		}
		return
	}
	r.admitted = append(r.admitted, w.step)
	f := flight{at: w.step + w.rng.IntN(5), shard: w.rng.IntN(len(w.shards)), service: service, failed: w.rng.IntN(50) == 0}
	if !f.failed {
		f.seq = w.write(w.shards[f.shard], w.rng.Uint64(), service, true)
	}
	r.flights = append(r.flights, f)
}

// change ends, moves or repeats the record of some timer: revisions that the tail may pass by.
func (w *world) change(s *shard) {
	for key, r := range s.records { // a random one
		if r.waits {
			w.write(s, key, r.service, w.rng.IntN(3) == 0)
		} else if s.owner != nil && r.seq <= s.owner.tail {
			delete(s.records, key) // it expires long after the tail has read it
		}
		return
	}
}

func counted(limits map[string]int64) func(string) bool {
	return func(service string) bool {
		_, own := limits[service]
		_, tenant := limits[schemas.TenantOf(service)+schemas.TenantEnd]
		return own || tenant
	}
}

// own does one step of an owner.
func (w *world) own(s *shard) {
	o := s.owner
	if o == nil {
		s.epoch++
		s.owner = &owner{epoch: s.epoch, tail: s.last - min(s.last, uint64(w.rng.IntN(30))), ready: w.step + w.rng.IntN(100)}
		o = s.owner
		o.tally = quota.NewTally(counted(w.limits), o.tail)
	}
	if w.step < o.ready {
		return
	}
	// Some of the tail, in order, the newest revisions only.
	type tailed struct {
		key uint64
		*record
	}
	var news []tailed
	for key, r := range s.records {
		if r.seq > o.tail {
			news = append(news, tailed{key, r})
		}
	}
	slices.SortFunc(news, func(a, b tailed) int { return int(a.seq) - int(b.seq) }) //nolint:gosec // small numbers
	n := len(news)
	if !w.noFaults && w.rng.IntN(4) > 0 {
		n = w.rng.IntN(n + 1)
	}
	for _, r := range news[:n] {
		o.tally.Note(r.key, r.service, r.waits)
		o.tail = r.seq
	}
	if !o.scanned {
		w.scan(s, o)
		return
	}
	if w.step >= o.nextPublish {
		o.nextPublish = w.step + publishEvery
		s.before = s.published
		s.published = quota.Count{Version: s.before.Version + 1, Epoch: o.epoch, Seq: o.tail, Services: o.tally.Services()}
	}
}

// scan reads some more records in the order of the stream.
func (w *world) scan(s *shard, o *owner) {
	for range 1 + w.rng.IntN(40) {
		var next *record
		var at uint64
		for key, r := range s.records {
			if r.seq > o.scanTo && (next == nil || r.seq < next.seq) {
				next, at = r, key
			}
		}
		if next == nil || next.seq > o.tally.Through() {
			if o.scanned = o.tally.Scanned(o.found); !o.scanned {
				w.t.Fatal("the scan did not end")
			}
			return
		}
		if o.scanTo = next.seq; next.waits && counted(w.limits)(next.service) {
			o.found = append(o.found, quota.Timer{Key: at, Service: next.service})
		}
	}
}

func (w *world) run(steps int) {
	for range steps {
		w.step++
		for i, r := range w.routers {
			if !w.noFaults && w.rng.IntN(3) > 0 {
				w.add(r)
			}
			r.flights = slices.DeleteFunc(r.flights, func(f flight) bool {
				switch {
				case f.at > w.step:
					return false
				case f.failed:
					r.Release(f.service, 1)
				default:
					r.Stored(f.service, f.shard, f.seq)
				}
				return true
			})
			if (w.step+i*17)%pollEvery == 0 {
				for n, s := range w.shards {
					r.Update(n, s.published)
					if !w.noFaults && w.rng.IntN(3) == 0 {
						r.Update(n, s.before)
					}
				}
			}
		}
		for _, s := range w.shards {
			if !w.noFaults && w.rng.IntN(3) == 0 {
				w.change(s)
			}
			if !w.noFaults && s.owner != nil && w.rng.IntN(600) == 0 {
				s.owner = nil
			}
			w.own(s)
		}
		w.check()
	}
}

// check checks that one router alone exceeds no limit. TestOvershoot has the bound of several.
func (w *world) check() {
	if len(w.routers) > 1 {
		return
	}
	for name, limit := range w.limits {
		if n := w.pending(name); n > limit {
			w.t.Fatalf("step %d: %s has %d pending timers, with one router and a limit of %d", w.step, name, n, limit)
		}
	}
}

func newWorld(t *testing.T, seed uint64, routers int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), limits: map[string]int64{"orders": 60, "acme=": 50, "acme=bills": 20}} //nolint:gosec // a simulation
	for range 1 + w.rng.IntN(3) {
		w.shards = append(w.shards, &shard{records: map[uint64]*record{}})
	}
	for range routers {
		w.routers = append(w.routers, &router{Ledger: quota.NewLedger(len(w.shards))})
	}
	return w
}

// TestSimulation: with one router no limit is ever exceeded, whatever owner dies; with several, all ledgers
// have the exact numbers once nothing changes any more.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed, 1+int(seed%3)) //nolint:gosec // small
			w.run(1500)
			w.noFaults = true
			w.run(800)
			for i, r := range w.routers {
				for name := range w.limits {
					if got, want := r.Pending(name), w.pending(name); got != want {
						t.Errorf("router %d: %s has %d pending timers, want %d", i, name, got, want)
					}
				}
				if r.Pending("mail") != 0 {
					t.Errorf("a service without a limit is counted")
				}
			}
		})
	}
}

// TestOvershoot: two routers exceed a limit by at most what they admit while their numbers are on the way,
// and admit nothing after that; what goes makes room again.
func TestOvershoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 7, 2)
	w.limits = map[string]int64{"orders": 500}
	for range 2000 {
		w.step++
		for _, r := range w.routers {
			if n, _, _ := r.Reserve("orders", []quota.Max{{Name: "orders", N: 500}}, 1); n == 1 {
				r.admitted = append(r.admitted, w.step)
				r.Stored("orders", 0, w.write(w.shards[0], w.rng.Uint64(), "orders", true))
			}
			if w.step%pollEvery == 0 {
				r.Update(0, w.shards[0].published)
			}
		}
		w.own(w.shards[0])
	}
	if n := w.pending("orders"); n < 500 || n > 500+late {
		t.Errorf("%d timers are pending under a limit of 500, and a router adds one a step: want at most %d more", n, late)
	}
	for _, r := range w.routers {
		if last := r.admitted[len(r.admitted)-1]; last > 250+2*late {
			t.Errorf("a router admitted at step %d", last)
		}
	}
}

// TestLedger has the cases of single calls.
func TestLedger(t *testing.T) {
	t.Parallel()
	l := quota.NewLedger(2)
	most := []quota.Max{{Name: "acme=a", N: 10}, {Name: "acme=", N: 12}}
	if n, full, pending := l.Reserve("acme=a", most, 11); n != 10 || full.Name != "acme=a" || pending != 0 {
		t.Errorf("%d permitted, %+v, %d", n, full, pending)
	}
	if n, full, pending := l.Reserve("acme=b", most[1:], 5); n != 2 || full.Name != "acme=" || pending != 10 {
		t.Errorf("%d permitted, %+v, %d", n, full, pending)
	}
	l.Release("acme=a", 9)
	l.Stored("acme=a", 1, 5)
	l.Update(1, quota.Count{Version: 7, Seq: 4, Services: map[string]int64{"acme=a": 3}})
	if n := l.Pending("acme=a"); n != 4 {
		t.Errorf("%d pending, want 3 and an add that the owner has not read", n)
	}
	l.Update(1, quota.Count{Version: 6, Seq: 9})
	l.Update(1, quota.Count{Version: 7, Seq: 5})
	if n := l.Pending("acme=a"); n != 4 {
		t.Errorf("%d pending after older numbers, want 4", n)
	}
	l.Update(1, quota.Count{Version: 9, Seq: 5, Services: map[string]int64{"acme=a": 3}})
	if n := l.Pending("acme="); n != 5 {
		t.Errorf("tenant: %d pending, want 3 and 2 in progress", n)
	}
	l.Forget()
	if a, all := l.Pending("acme=a"), l.Pending("acme="); a != 0 || all != 2 {
		t.Errorf("forgotten: %d and %d, want 0 and 2 in progress", a, all)
	}
}

// TestManyOwnAdds: the adds of a router count also beyond those whose sequences it keeps.
func TestManyOwnAdds(t *testing.T) {
	t.Parallel()
	l := quota.NewLedger(1)
	const n = 40_000
	most := []quota.Max{{Name: "s", N: n}}
	l.Reserve("s", most, n)
	for i := range uint64(n) {
		l.Stored("s", 0, i+1)
	}
	if got, _, _ := l.Reserve("s", most, 1); got != 0 {
		t.Error("an add over the limit is permitted")
	}
	l.Update(0, quota.Count{Version: 1, Seq: n, Services: map[string]int64{"s": 7}})
	if got := l.Pending("s"); got != 7 {
		t.Errorf("%d pending, want 7", got)
	}
}

// TestTally: a timer counts once, a service that has none left is not published, and places are used again.
func TestTally(t *testing.T) {
	t.Parallel()
	tally := quota.NewTally(func(s string) bool { return s != "free" }, 10)
	if tally.Note(1, "free", true) {
		t.Error("a service without a limit is counted")
	}
	tally.Note(2, "a", true)
	tally.Note(3, "a", false)
	if !tally.Scanned([]quota.Timer{{2, "a"}, {3, "a"}, {4, "b"}}) {
		t.Error("the scan did not end")
	}
	tally.Note(2, "a", true)
	if got := tally.Services(); !maps.Equal(got, map[string]int64{"a": 1, "b": 1}) {
		t.Errorf("%v", got)
	}
	tally.Note(4, "b", false)
	tally.Note(2, "c", true)
	if got := tally.Services(); !maps.Equal(got, map[string]int64{"c": 1}) {
		t.Errorf("%v", got)
	}
}
