package store

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// JetStream returns the JetStream context of the store's connection.
func (s *Store) JetStream() jetstream.JetStream { return s.jet.JetStream() }

// Conn returns the store's connection.
func (s *Store) Conn() *jet.Conn { return s.jet.Conn() }

// SetShortTTL changes the TTL below which a revision rolls up.
func (s *Store) SetShortTTL(d time.Duration) { s.shortTTL = d }

// Undecodable returns how often a record or an index entry was skipped because it could not
// be decoded.
func (s *Store) Undecodable() uint64 { return s.undecodable.Load() }

// SharesFar reports whether new timers share far entries.
func (s *Store) SharesFar() bool { return s.Writes() >= LevelFarIndex }

// SharesIndex reports whether new timers share index entries.
func (s *Store) SharesIndex() bool { return s.Writes() >= LevelSharedIndex }

// AddsMost and AddsBytes bound the requests of an AddReader.
const (
	AddsMost  = addsMost
	AddsBytes = addsBytes
)

// ReadAddsExpiring is ReadAdds with another expiry of requests.
func (a *Adds) ReadAddsExpiring(ctx context.Context, d time.Duration) (*AddReader, error) {
	return a.readAdds(ctx, defaultDoor, d)
}

// Left returns how many adds are requested and not delivered yet.
func (r *AddReader) Left() int { return r.r.Requested() }

// MinPurge is minPurge.
const MinPurge = minPurge

// PurgeFilters returns the filters of a purge that leaves a number of messages: of adds on timers.add, and of tenants.
func (a *Adds) PurgeFilters(left uint64) (plain, tenants string) {
	return a.purgeFilter(defaultDoor, left), a.purgeFilter(tenantDoor, left)
}

// ManyLeft is manyLeft.
const ManyLeft = manyLeft

// PurgeWithoutFilterFrom makes purges that leave a number of messages or more have no filter.
func (a *Adds) PurgeWithoutFilterFrom(left uint64) { a.unfilteredFrom = left }

// LookForStranded sets the pause between two looks for stranded adds. Call it before OpenInbox.
func (a *Adds) LookForStranded(every time.Duration) { a.strandedLook = every }

// Stranded looks once for stranded adds on timers.add.
func (a *Adds) Stranded(ctx context.Context) ([]*Add, error) {
	return a.stranded(ctx, defaultDoor, addsMost)
}

// StrandedSet is strandedSet.
type StrandedSet = strandedSet

// Next takes the stranded adds of a look, and returns those to pass.
func (s *strandedSet) Next(ctx context.Context, adds *Adds, found []*Add) []*Add {
	return s.next(ctx, adds, found)
}

// StrandedAdd returns a stranded add with a sequence.
func (a *Adds) StrandedAdd(seq uint64) *Add {
	return addOf(&jet.Msg{Sequence: seq}, 2, strandedDelivery{a, seq}, nil)
}

// Pass passes a group to nobody.
func (in *Inbox) Pass(group []*Add) { in.pass(group, func([]*Add) {}) }

// RemoveAdds is removeAdds for adds on timers.add.
func (a *Adds) RemoveAdds(ctx context.Context, seqs []uint64) (uint64, error) {
	return a.removeAdds(ctx, defaultDoor, seqs)
}

// RemoveTenantAdds is removeAdds for adds of tenants.
func (a *Adds) RemoveTenantAdds(ctx context.Context, seqs []uint64) (uint64, error) {
	return a.removeAdds(ctx, tenantDoor, seqs)
}

// Ack acknowledges an add of a reader without an Inbox.
func (a *Add) Ack() error { return a.ack() }

// Waiting returns the number of adds and status messages that have arrived and are not read.
func (r *AddReader) Waiting() int { return r.r.Waiting() }

// drain waits until every superseded revision is removed.
func (r *remover) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.taken > 0 {
		r.idle.Wait()
	}
}

// FindFiredBatch is the number of events that FindFired reads with one request.
const FindFiredBatch = findFiredBatch

// FarInMemory reports whether the far entries of a tick's period are in memory.
func (s *Store) FarInMemory(shard int, tick int64) bool {
	f := s.far.index
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.kept[shard], func(e *farEntries) bool { return e.as.Period == s.farPeriod(tick) })
}

// RemoveOldJournals returns a function that removes the journals that were the newest ones when it was called before.
func (s *Store) RemoveOldJournals() func(context.Context) {
	newest := make([]uint64, len(s.subjects))
	return func(ctx context.Context) { s.journals.removeOld(ctx, newest) }
}

// RestoreShard restores what a power loss took from a shard.
func (s *Store) RestoreShard(ctx context.Context, shard int) error {
	return s.journals.restoreShard(ctx, shard)
}

// RestoreWrites makes writes of a journal as restoreShard does, and returns how many it made.
func (s *Store) RestoreWrites(ctx context.Context, shard int, writes []jet.JournalWrite) (restored int64, err error) {
	restored, _, err = s.journals.write(ctx, s.subjects[shard].stream, writes)
	return restored, err
}

// History is the number of journals that a shard keeps at most.
const History = history

// ReserveOf is reserveOf.
func ReserveOf(maxBytes int64) int64 { return reserveOf(maxBytes) }

// Delivered returns the greatest sequence of the adds that were delivered here, as far as AwaitAdds knows.
func (a *Adds) Delivered() uint64 { return a.arrivals.last() }

// Waits returns the number of calls of AwaitAdds that wait.
func (a *Adds) Waits() int {
	a.arrivals.mu.Lock()
	defer a.arrivals.mu.Unlock()
	return len(a.arrivals.waits)
}

// EncodeEnded and DecodeEnded are those of a chunk of ended timers.
func EncodeEnded(timers []EndedTimer) []byte { return appendEnded(nil, timers) }

// DecodeEnded decodes a chunk.
func DecodeEnded(b []byte) ([]EndedTimer, error) { return decodeEnded(b) }

// SetMostEnded bounds the timers of a chunk.
func (l *EndedLists) SetMostEnded(n int) { l.most = n }

// Ended returns the list of a shard in the order of its chunks, and the number of chunks.
func (l *EndedLists) Ended(ctx context.Context, shard int) (all []EndedTimer, chunks int, err error) {
	err = l.each(ctx, shard, func(timers []EndedTimer, _ uint64) error {
		all, chunks = append(all, timers...), chunks+1
		return nil
	})
	return all, chunks, err
}

// DeleteVoid deletes a void revision.
func (g *revisionGC) DeleteVoid(ctx context.Context, shard int, m *jet.Msg) error {
	return g.removeVoid(ctx, shard, m)
}

// SetUnanswered changes the times of the looks at revisions that unanswered writes may have replaced.
func (s *Store) SetUnanswered(first, last time.Duration) {
	u := &s.unanswered
	u.mu.Lock()
	defer u.mu.Unlock()
	u.after = [2]time.Duration{first, last}
}

// MaxUnanswered is maxUnanswered.
const MaxUnanswered = maxUnanswered

// AddUnanswered takes note of a revision as if a write that replaces it got no answer.
func (s *Store) AddUnanswered(id schemas.TimerID, rev uint64) {
	subject, stream := s.timerSubject(id)
	s.unanswered.add(0, unansweredWrite{revision: revision{stream, rev}, subject: subject, at: time.Now()})
}

// ForgetUnanswered drops the revisions that wait for a look.
func (s *Store) ForgetUnanswered(look int) { s.unanswered.due(look, time.Now().Add(24*time.Hour)) }

// CheckRemoval queues the delete of a replaced revision as if the connection was lost since.
func (s *Store) CheckRemoval(id schemas.TimerID, rev, by uint64) {
	subject, stream := s.timerSubject(id)
	_ = s.rem.reserve(context.Background(), "test")
	s.rem.put(superseded{revision: revision{stream, rev}, subject: subject, by: by, reconnects: s.jet.Reconnects() + 1})
}

// FailLook takes all writes out for a look, adds as many, and puts them back as after a failed look.
func (s *Store) FailLook(look int) {
	u := &s.unanswered
	writes := u.due(look, time.Now().Add(24*time.Hour))
	for _, w := range writes {
		u.add(0, w)
	}
	u.back(look, writes)
}

// Unanswered returns how many revisions wait for the first and for the last look.
func (s *Store) Unanswered() (first, last int) {
	u := &s.unanswered
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.waiting[0]), len(u.waiting[1])
}

// DrainRemovals waits until all queued revisions are deleted.
func (s *Store) DrainRemovals() { s.rem.drain() }

// SetMaxHolds sets the bound of holds.
func (s *Store) SetMaxHolds(n int) { s.maxHolds = n }

// WithoutExpired returns a copy of the holds after forgetHolds.
func (s *FlowSet) WithoutExpired(now time.Time) *FlowSet {
	next := &FlowSet{holds: maps.Clone(s.holds)}
	next.forgetHolds(now)
	return next
}
