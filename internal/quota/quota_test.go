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
	limits  map[string]quota.Max
	shards  []*shard
	routers []*router
	step    int
	refused map[quota.Quantity]int
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
	seq uint64
	quota.Timer
	waits bool
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
	amount    quota.Amount
	failed    bool
}

func (w *world) write(s *shard, t quota.Timer, waits bool) uint64 {
	s.last++
	s.records[t.Key] = &record{s.last, t, waits}
	return s.last
}

// timer returns a new timer of a service.
func (w *world) timer(service string) quota.Timer {
	return quota.Timer{Key: w.rng.Uint64(), Service: service, Schedule: w.rng.IntN(4) == 0, Bytes: 1 + w.rng.Int64N(100)}
}

func amount(t quota.Timer) quota.Amount { return quota.OneTimer(t.Schedule, t.Bytes) }

// used returns what a service or tenant uses, and the number of services of a tenant.
func (w *world) used(name string) (sum quota.Amount, services int64) {
	has := map[string]bool{}
	for _, s := range w.shards {
		for _, r := range s.records {
			tenant := schemas.TenantOf(r.Service)
			ofTenant := tenant != "" && tenant+schemas.TenantEnd == name
			if !r.waits || r.Service != name && !ofTenant {
				continue
			}
			sum = sum.Plus(amount(r.Timer))
			if ofTenant {
				has[r.Service] = true
			}
		}
	}
	return sum, int64(len(has))
}

var services = []string{"orders", "mail", "acme=orders", "acme=bills", "acme=mail", "acme=log"}

// add makes an add by a router, if its ledger permits it.
func (w *world) add(r *router) {
	service := services[w.rng.IntN(len(services))]
	var most []quota.Max
	for _, name := range []string{service, schemas.TenantOf(service) + schemas.TenantEnd} {
		if limit, ok := w.limits[name]; ok {
			most = append(most, limit)
		}
	}
	t := w.timer(service)
	if len(most) == 0 {
		if w.rng.IntN(5) == 0 {
			w.write(w.shards[w.rng.IntN(len(w.shards))], t, true)
		}
		return
	}
	if full := r.Reserve(service, most, []quota.Amount{amount(t)})[0]; full.Name != "" {
		if full.Has+full.Asks <= full.Limit {
			w.t.Fatalf("refused by %+v", full)
		}
		w.refused[full.Quantity]++
		return
	}
	r.admitted = append(r.admitted, w.step)
	f := flight{at: w.step + w.rng.IntN(5), shard: w.rng.IntN(len(w.shards)), service: service, amount: amount(t), failed: w.rng.IntN(50) == 0}
	if !f.failed {
		f.seq = w.write(w.shards[f.shard], t, true)
	}
	r.flights = append(r.flights, f)
}

// change ends, moves or repeats the record of some timer: revisions that the tail may pass by.
func (w *world) change(s *shard) {
	if len(s.records) == 0 {
		return
	}
	keys := slices.Sorted(maps.Keys(s.records)) // in an order that the seed decides
	key := keys[w.rng.IntN(len(keys))]
	if r := s.records[key]; r.waits {
		w.write(s, r.Timer, w.rng.IntN(3) == 0)
	} else if s.owner != nil && r.seq <= s.owner.tail {
		delete(s.records, key) // it expires long after the tail has read it
	}
}

func counted(limits map[string]quota.Max) func(string) bool {
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
	var news []*record
	for _, r := range s.records {
		if r.seq > o.tail {
			news = append(news, r)
		}
	}
	slices.SortFunc(news, func(a, b *record) int { return int(a.seq) - int(b.seq) }) //nolint:gosec // small numbers
	n := len(news)
	if !w.noFaults && w.rng.IntN(4) > 0 {
		n = w.rng.IntN(n + 1)
	}
	for _, r := range news[:n] {
		o.tally.Note(r.Timer, r.waits)
		o.tail = r.seq
	}
	if !o.scanned {
		w.scan(s, o)
		return
	}
	if w.step >= o.nextPublish && o.tally.Settled(o.tail) {
		o.nextPublish = w.step + publishEvery
		s.before = s.published
		s.published = quota.Count{Version: s.before.Version + 1, Epoch: o.epoch, Seq: o.tail, Services: o.tally.Services()}
	}
}

// scan reads some more records in the order of the stream.
func (w *world) scan(s *shard, o *owner) {
	for range 1 + w.rng.IntN(40) {
		var next *record
		for _, r := range s.records {
			if r.seq > o.scanTo && (next == nil || r.seq < next.seq) {
				next = r
			}
		}
		if next == nil || next.seq > o.tally.Through() {
			if o.scanned = o.tally.Scanned(o.found, s.newest()); !o.scanned {
				w.t.Fatal("the scan did not end")
			}
			return
		}
		if o.scanTo = next.seq; next.waits && counted(w.limits)(next.Service) {
			o.found = append(o.found, next.Timer)
		}
	}
}

// newest returns the sequence of the newest record.
func (s *shard) newest() (seq uint64) {
	for _, r := range s.records {
		seq = max(seq, r.seq)
	}
	return seq
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
					r.Release(f.service, f.amount)
				default:
					r.Stored(f.service, f.amount, f.shard, f.seq)
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
		used, services := w.used(name)
		most := limit.Amount
		if used.Timers > most.Timers || most.Schedules > 0 && used.Schedules > most.Schedules || most.Bytes > 0 && used.Bytes > most.Bytes || limit.Services > 0 && services > limit.Services {
			w.t.Fatalf("step %d: %s uses %+v and %d services, with one router and the limit %+v", w.step, name, used, services, limit)
		}
	}
}

func newWorld(t *testing.T, seed uint64, routers int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), refused: map[quota.Quantity]int{}} //nolint:gosec // a simulation
	w.limits = map[string]quota.Max{}
	for _, limit := range []quota.Max{
		{Name: "orders", Amount: quota.Amount{Timers: 60, Bytes: 2500}},
		{Name: "acme=", Amount: quota.Amount{Timers: 50, Schedules: 11, Bytes: 2300}, Services: 3},
		{Name: "acme=bills", Amount: quota.Amount{Timers: 20, Schedules: 4}},
	} {
		w.limits[limit.Name] = limit
	}
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
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed, 1+int(seed%3)) //nolint:gosec // small
			w.run(1500)
			w.noFaults = true
			w.run(800)
			for i, r := range w.routers {
				for name := range w.limits {
					used, services := r.Used(name)
					if want, wantServices := w.used(name); used != want || services != wantServices {
						t.Errorf("router %d: %s uses %+v and %d services, want %+v and %d", i, name, used, services, want, wantServices)
					}
				}
				if used, _ := r.Used("mail"); used != (quota.Amount{}) {
					t.Errorf("a service without a limit is counted")
				}
			}
		})
	}
}

// TestRefusals: the simulation reaches every kind of limit.
func TestRefusals(t *testing.T) {
	t.Parallel()
	refused := map[quota.Quantity]int{}
	for seed := range uint64(6) {
		w := newWorld(t, seed, 1)
		w.run(1500)
		for q, n := range w.refused {
			refused[q] += n
		}
	}
	for _, q := range []quota.Quantity{quota.Timers, quota.Schedules, quota.Bytes, quota.Services} {
		if refused[q] == 0 {
			t.Errorf("no add was refused for its %s", q)
		}
	}
}

// TestSettled: a timer whose record was replaced during a scan is not in the numbers before the tail has come to its new
// revision, so they are not right before.
func TestSettled(t *testing.T) {
	t.Parallel()
	tally := quota.NewTally(func(string) bool { return true }, 10)
	if tally.Settled(20) {
		t.Error("settled before the end of the scan")
	}
	// The record was at 7. The scan has not found it, because it is at 15 now.
	if !tally.Scanned(nil, 15) || tally.Settled(14) {
		t.Error("settled before the tail has come to the end of the scan")
	}
	tally.Note(quota.Timer{Key: 1, Service: "a", Bytes: 5}, true)
	if !tally.Settled(15) || tally.Services()["a"] != quota.OneTimer(false, 5) {
		t.Errorf("got %v at the end of the scan, want the timer", tally.Services())
	}
}

// TestOvershoot: two routers exceed a limit by at most what they admit while their numbers are on the way,
// and admit nothing after that; what goes makes room again.
func TestOvershoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 7, 2)
	limit := quota.Max{Name: "orders", Amount: quota.Amount{Timers: 500}}
	w.limits = map[string]quota.Max{"orders": limit}
	for range 2000 {
		w.step++
		for _, r := range w.routers {
			timer := w.timer("orders")
			if full := r.Reserve("orders", []quota.Max{limit}, []quota.Amount{amount(timer)}); full[0].Name == "" {
				r.admitted = append(r.admitted, w.step)
				r.Stored("orders", amount(timer), 0, w.write(w.shards[0], timer, true))
			}
			if w.step%pollEvery == 0 {
				r.Update(0, w.shards[0].published)
			}
		}
		w.own(w.shards[0])
	}
	if used, _ := w.used("orders"); used.Timers < 500 || used.Timers > 500+late {
		t.Errorf("%d timers are pending under a limit of 500, and a router adds one a step: want at most %d more", used.Timers, late)
	}
	for _, r := range w.routers {
		if last := r.admitted[len(r.admitted)-1]; last > 250+2*late {
			t.Errorf("a router admitted at step %d", last)
		}
	}
}

// timers returns what n timers use that have no bytes.
func timers(n int64) quota.Amount { return quota.Amount{Timers: n} }

// each returns n times one timer.
func each(n int) []quota.Amount { return slices.Repeat([]quota.Amount{timers(1)}, n) }

// TestLedger has the cases of single calls.
func TestLedger(t *testing.T) {
	t.Parallel()
	l := quota.NewLedger(2)
	most := []quota.Max{{Name: "acme=a", Amount: timers(10)}, {Name: "acme=", Amount: timers(12), Services: 2}}
	if full := l.Reserve("acme=a", most, each(11)); full[9].Name != "" || full[10] != (quota.Full{Name: "acme=a", Quantity: quota.Timers, Limit: 10, Has: 10, Asks: 1}) {
		t.Errorf("%+v", full)
	}
	if full := l.Reserve("acme=b", most[1:], each(5)); full[1].Name != "" || full[2] != (quota.Full{Name: "acme=", Quantity: quota.Timers, Limit: 12, Has: 12, Asks: 1}) {
		t.Errorf("%+v", full)
	}
	for range 9 {
		l.Release("acme=a", timers(1))
	}
	if full := l.Reserve("acme=c", most[1:], each(1)); full[0] != (quota.Full{Name: "acme=", Quantity: quota.Services, Limit: 2, Has: 2, Asks: 1}) {
		t.Errorf("a third service: %+v", full)
	}
	l.Stored("acme=a", timers(1), 1, 5)
	l.Update(1, quota.Count{Version: 7, Seq: 4, Services: map[string]quota.Amount{"acme=a": timers(3)}})
	if used, _ := l.Used("acme=a"); used.Timers != 4 {
		t.Errorf("%+v, want 3 and an add that the owner has not read", used)
	}
	l.Update(1, quota.Count{Version: 6, Seq: 9})
	l.Update(1, quota.Count{Version: 7, Seq: 5})
	if used, _ := l.Used("acme=a"); used.Timers != 4 {
		t.Errorf("%+v after older numbers, want 4", used)
	}
	l.Update(1, quota.Count{Version: 9, Seq: 5, Services: map[string]quota.Amount{"acme=a": timers(3)}, Rest: map[string]quota.Amount{"acme=": {Timers: 7, Bytes: 2}}})
	if used, services := l.Used("acme="); used != (quota.Amount{Timers: 12, Bytes: 2}) || services != 2 {
		t.Errorf("tenant: %+v and %d services, want 3 timers, 7 of other services and 2 in progress", used, services)
	}
	l.Forget()
	a, _ := l.Used("acme=a")
	if all, services := l.Used("acme="); a != (quota.Amount{}) || all != timers(2) || services != 1 {
		t.Errorf("forgotten: %+v, %+v and %d services, want none and 2 in progress", a, all, services)
	}
}

// TestOneTooLarge: an add over the limit of bytes keeps no smaller one out.
func TestOneTooLarge(t *testing.T) {
	t.Parallel()
	l := quota.NewLedger(1)
	most := []quota.Max{{Name: "s", Amount: quota.Amount{Bytes: 100}}}
	full := l.Reserve("s", most, []quota.Amount{{Timers: 1, Bytes: 60}, {Timers: 1, Bytes: 41}, {Timers: 1, Bytes: 40}, {Timers: 1, Bytes: 1}})
	want := []quota.Full{{}, {Name: "s", Quantity: quota.Bytes, Limit: 100, Has: 60, Asks: 41}, {}, {Name: "s", Quantity: quota.Bytes, Limit: 100, Has: 100, Asks: 1}}
	if !slices.Equal(full, want) {
		t.Errorf("%+v, want %+v", full, want)
	}
}

// TestManyOwnAdds: the adds of a router count also beyond those whose sequences it keeps.
func TestManyOwnAdds(t *testing.T) {
	t.Parallel()
	l := quota.NewLedger(1)
	const n = 40_000
	most := []quota.Max{{Name: "s", Amount: timers(n)}}
	l.Reserve("s", most, each(n))
	for i := range uint64(n) {
		l.Stored("s", timers(1), 0, i+1)
	}
	if full := l.Reserve("s", most, each(1)); full[0].Name == "" {
		t.Error("an add over the limit is permitted")
	}
	l.Update(0, quota.Count{Version: 1, Seq: n, Services: map[string]quota.Amount{"s": timers(7)}})
	if used, _ := l.Used("s"); used.Timers != 7 {
		t.Errorf("%+v, want 7", used)
	}
}

// TestTally: a timer counts once, a service that has none left is not published, and places are used again.
func TestTally(t *testing.T) {
	t.Parallel()
	tally := quota.NewTally(func(s string) bool { return s != "free" }, 10)
	timer := func(key uint64, service string) quota.Timer { return quota.Timer{Key: key, Service: service} }
	if tally.Note(timer(1, "free"), true) {
		t.Error("a service without a limit is counted")
	}
	tally.Note(timer(2, "a"), true)
	tally.Note(timer(3, "a"), false)
	if !tally.Scanned([]quota.Timer{timer(2, "a"), timer(3, "a"), timer(4, "b")}, 12) {
		t.Error("the scan did not end")
	}
	tally.Note(timer(2, "a"), true)
	if got := tally.Services(); !maps.Equal(got, map[string]quota.Amount{"a": timers(1), "b": timers(1)}) {
		t.Errorf("%v", got)
	}
	tally.Note(timer(4, "b"), false)
	tally.Note(quota.Timer{Key: 2, Service: "c", Schedule: true, Bytes: 9}, true)
	if got := tally.Services(); !maps.Equal(got, map[string]quota.Amount{"c": {Timers: 1, Schedules: 1, Bytes: 9}}) {
		t.Errorf("%v", got)
	}
	tally.Note(quota.Timer{Key: 2, Service: "c", Schedule: true, Bytes: 12}, true) // an update
	if got := tally.Services(); !maps.Equal(got, map[string]quota.Amount{"c": {Timers: 1, Schedules: 1, Bytes: 12}}) {
		t.Errorf("%v", got)
	}
}
