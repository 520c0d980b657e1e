package quota

import (
	"slices"
	"sync"

	"github.com/belfryio/belfry/schemas"
)

// maxOwn bounds the sequences that a Ledger keeps for a service and shard. The adds beyond count, too,
// until a Count includes the last of them.
const maxOwn = 16_384

// Ledger knows how many pending timers the services and tenants with a limit have: the published
// numbers, and the adds of its router that they do not include yet. Safe for concurrent use.
type Ledger struct {
	mu     sync.Mutex
	shards []ledgerShard
	// sums has the numbers by name: that of a service, or that of a tenant with schemas.TenantEnd.
	// They include the adds in progress.
	sums map[string]int64
}

// ledgerShard is what a Ledger knows of a shard.
type ledgerShard struct {
	count Count
	own   map[string]*ownAdds
}

// ownAdds are the stored adds of a service that the Count does not include.
type ownAdds struct {
	seqs []uint64
	// more is the number of adds beyond maxOwn, and last the greatest sequence of these.
	more int64
	last uint64
}

// NewLedger returns a Ledger of a number of shards.
func NewLedger(shards int) *Ledger {
	return &Ledger{shards: make([]ledgerShard, shards), sums: map[string]int64{}}
}

// Max is the limit of the pending timers of a service or tenant.
type Max struct {
	// Name is as for Pending.
	Name string
	N    int64
}

// Pending returns the number of pending timers of a service, or of a tenant: its name and
// schemas.TenantEnd. Adds in progress count.
func (l *Ledger) Pending(name string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sums[name]
}

// Reserve returns how many of n adds of a service its limits permit, and counts these until Stored
// or Release. If it permits less than n, full is the limit, and pending the number that stands against it.
func (l *Ledger) Reserve(service string, limits []Max, n int) (permitted int, full Max, pending int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	permitted = n
	for _, limit := range limits {
		has := l.sums[limit.Name]
		if room := max(limit.N-has, 0); int64(permitted) > room {
			permitted, full, pending = int(room), limit, has
		}
	}
	l.add(service, int64(permitted))
	return permitted, full, pending
}

// Release ends reservations whose adds stored no timer.
func (l *Ledger) Release(service string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(service, -int64(n))
}

// Stored ends a reservation whose add has stored a timer with a sequence in a shard.
func (l *Ledger) Stored(service string, shard int, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.shards[shard]
	if seq <= s.count.Seq {
		l.add(service, -1) // the Count has it, or has had it
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
	if len(own.seqs) < maxOwn {
		own.seqs = append(own.seqs, seq)
		return
	}
	own.more++
	own.last = max(own.last, seq)
}

// Update replaces the numbers of a shard, unless the Ledger has newer ones.
func (l *Ledger) Update(shard int, c Count) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.shards[shard]
	if c.Version <= s.count.Version {
		return // known, or of a replica that is behind
	}
	for service, n := range s.count.Services {
		l.add(service, -n)
	}
	for service, n := range c.Services {
		l.add(service, n)
	}
	s.count = c
	for service, own := range s.own {
		before := len(own.seqs)
		own.seqs = slices.DeleteFunc(own.seqs, func(seq uint64) bool { return seq <= c.Seq })
		l.add(service, int64(len(own.seqs)-before))
		if own.last <= c.Seq {
			l.add(service, -own.more)
			own.more = 0
		}
		if len(own.seqs) == 0 && own.more == 0 {
			delete(s.own, service)
		}
	}
}

// Forget drops all numbers except the adds in progress, because nothing is limited any more.
func (l *Ledger) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.shards {
		s := &l.shards[i]
		for service, n := range s.count.Services {
			l.add(service, -n)
		}
		for service, own := range s.own {
			l.add(service, -int64(len(own.seqs))-own.more)
		}
		*s = ledgerShard{}
	}
}

// add changes the number of a service and of its tenant.
func (l *Ledger) add(service string, n int64) {
	if n == 0 {
		return
	}
	names := [2]string{service}
	if tenant := schemas.TenantOf(service); tenant != "" {
		names[1] = tenant + schemas.TenantEnd
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		if l.sums[name] += n; l.sums[name] == 0 {
			delete(l.sums, name)
		}
	}
}
