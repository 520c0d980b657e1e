package quota

import (
	"sync"

	"github.com/belfryio/belfry/schemas"
)

// maxOwn bounds the sequences that a Ledger keeps for a service and shard. Adds beyond it also count,
// together, until a Count includes the last of them.
const maxOwn = 16_384

// Ledger has the use of the services and tenants with a limit: the published numbers, plus the adds of
// its router that these do not include yet. Safe for concurrent use.
type Ledger struct {
	mu     sync.Mutex
	shards []ledgerShard
	// sums has the use by the name of a service, or the name of a tenant followed by
	// schemas.TenantEnd. It includes the adds in progress.
	sums map[string]Amount
	// services has the number of services with pending timers of each tenant, by its name with
	// schemas.TenantEnd.
	services map[string]int64
}

// ledgerShard is the part of a Ledger for one shard.
type ledgerShard struct {
	count Count
	own   map[string]*ownAdds
}

// ownAdds are the stored adds of a service that the Count does not include.
type ownAdds struct {
	adds []ownAdd
	// more is the use of the adds beyond maxOwn, and last the greatest sequence of these.
	more Amount
	last uint64
}

type ownAdd struct {
	seq    uint64
	amount Amount
}

// NewLedger returns a Ledger of a number of shards.
func NewLedger(shards int) *Ledger {
	return &Ledger{shards: make([]ledgerShard, shards), sums: map[string]Amount{}, services: map[string]int64{}}
}

// Used returns the use of a service or a tenant, including the adds in progress. The name of a tenant
// is followed by schemas.TenantEnd; services is then its number of services with pending timers.
func (l *Ledger) Used(name string) (used Amount, services int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sums[name], l.services[name]
}

// Reserve decides about adds of a service, in order. For each it returns the limit that refuses it, or
// the zero Full if all limits permit it. It counts each permitted add until Stored or Release.
func (l *Ledger) Reserve(service string, limits []Max, adds []Amount) []Full {
	l.mu.Lock()
	defer l.mu.Unlock()
	refused := make([]Full, len(adds))
	for n, a := range adds {
		if refused[n] = l.refuses(service, limits, a); refused[n].Name == "" {
			l.add(service, a)
		}
	}
	return refused
}

// refuses returns the first limit that refuses an add; the zero Full for none.
func (l *Ledger) refuses(service string, limits []Max, a Amount) Full {
	for i := range limits {
		limit := &limits[i]
		if full, over := limit.exceeds(l.sums[limit.Name], a); over {
			return full
		}
		if has := l.services[limit.Name]; limit.Services > 0 && has >= limit.Services && l.sums[service].Timers <= 0 {
			return Full{limit.Name, Services, limit.Services, has, 1}
		}
	}
	return Full{}
}

// Release ends the reservation of an add that stored no timer.
func (l *Ledger) Release(service string, a Amount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(service, a)
}

// Stored ends the reservation of an add that has stored a timer with a sequence in a shard.
func (l *Ledger) Stored(service string, a Amount, shard int, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.shards[shard]
	if seq <= s.count.Seq {
		l.remove(service, a) // a Count already includes it
		return
	}
	if s.own == nil {
		s.own = map[string]*ownAdds{}
	}
	own := s.own[service]
	if own == nil {
		own = &ownAdds{}
		s.own[service] = own
	}
	if len(own.adds) < maxOwn {
		own.adds = append(own.adds, ownAdd{seq, a})
		return
	}
	own.more = own.more.Plus(a)
	own.last = max(own.last, seq)
}

// Update replaces the numbers of a shard, unless the Ledger has newer ones.
func (l *Ledger) Update(shard int, c Count) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.shards[shard]
	if c.Version <= s.count.Version {
		return // the same Count again, or an older one from a replica that is behind
	}
	l.addCount(&c)
	l.removeCount(&s.count)
	s.count = c
	for service, own := range s.own {
		kept := own.adds[:0]
		for _, a := range own.adds {
			if a.seq > c.Seq {
				kept = append(kept, a)
			} else {
				l.remove(service, a.amount)
			}
		}
		own.adds = kept
		if own.last <= c.Seq {
			l.remove(service, own.more)
			own.more = Amount{}
		}
		if len(own.adds) == 0 && own.more == (Amount{}) {
			delete(s.own, service)
		}
	}
}

func (l *Ledger) addCount(c *Count) {
	for service, a := range c.Services {
		l.add(service, a)
	}
	for tenant, a := range c.Rest {
		l.change(tenant, a)
	}
}

func (l *Ledger) removeCount(c *Count) {
	for service, a := range c.Services {
		l.remove(service, a)
	}
	for tenant, a := range c.Rest {
		l.change(tenant, Amount{}.minus(a))
	}
}

// Forget drops all numbers except the adds in progress. Call it when no limit counts timers.
func (l *Ledger) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.shards {
		s := &l.shards[i]
		l.removeCount(&s.count)
		for service, own := range s.own {
			for _, a := range own.adds {
				l.remove(service, a.amount)
			}
			l.remove(service, own.more)
		}
		*s = ledgerShard{}
	}
}

// add adds to the numbers of a service and of its tenant.
func (l *Ledger) add(service string, a Amount) {
	tenant := schemas.TenantOf(service)
	before := l.sums[service].Timers
	after := l.change(service, a).Timers
	if tenant == "" {
		return
	}
	l.change(tenant+schemas.TenantEnd, a)
	if before <= 0 && after > 0 {
		l.services[tenant+schemas.TenantEnd]++
	}
	if before > 0 && after <= 0 {
		if l.services[tenant+schemas.TenantEnd]--; l.services[tenant+schemas.TenantEnd] == 0 {
			delete(l.services, tenant+schemas.TenantEnd)
		}
	}
}

func (l *Ledger) remove(service string, a Amount) { l.add(service, Amount{}.minus(a)) }

// change adds to a number and returns the sum.
func (l *Ledger) change(name string, a Amount) Amount {
	sum := l.sums[name].Plus(a)
	if sum == (Amount{}) {
		delete(l.sums, name)
	} else {
		l.sums[name] = sum
	}
	return sum
}
