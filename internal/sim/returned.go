package sim

import (
	"context"
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file is for Config.Returned. A server that is killed brings replaced revisions of records back, whose final records have
// expired (docs/adr/0033-list-of-ended-timers.md). The timers must not fire again. Some of them are added again, and must fire.
//
//	add ── cancel, or move to an earlier time ── final record expires ── killServer ── owner looks ── old due time
//	                                                           └── add again ──┘

const (
	// returnTimers is the number of timers that end long before they are due, returnBorn bounds the time in which they are added.
	returnTimers = 30
	returnBorn   = 20 * time.Second
	// returnedBound is the time after the return of a revision, and after the last fault, by which an owner has deleted it: a node
	// that is down starts, takes the shard, and repeats failed looks. returnedSpread is the time after that in which the timers
	// are due.
	returnedBound  = 25 * time.Second
	returnedSpread = 25 * time.Second
	// listBound is the time after the interval between two writes of the list by which an owner has written a timer if none of its
	// calls for the list fails: a write may be under way before.
	listBound = 15 * time.Second
	// returnKills bounds the servers of a simulation that are killed at random times, lookKills the servers that are killed while an
	// owner looks for void records, which takes up to longestLook. afterFaults is the time after the last fault in which servers are killed.
	returnKills = 4
	lookKills   = 2
	longestLook = 3 * time.Second
	afterFaults = 20 * time.Second
	// expiredFor is the time after which a record that has expired by the clock of one server has expired by those of all.
	expiredFor = 2 * time.Second
)

// comeback describes the last revision of an ended timer that a killed server has brought back.
type comeback struct {
	// expired is true once its final record has expired. listed is true if the list then had the timer, or should have had it.
	expired, listed bool

	rev uint64 // 0 for none
	// at is the true time of the return, until the time by which the revision is deleted.
	at, until int64
	// excused is true if the timer may fire again: before until, if the cluster's clock was set forward, or because a repeated add
	// came after the final record had expired.
	excused bool
}

// ownership is the owner of a shard at a moment, and the revision up to which its clock says that the list is complete.
type ownership struct {
	term  *term
	ended uint64
}

// forReturned makes final records expire while there are faults. It leaves out the outages that are longer than the retention:
// the list may then lack timers.
func (p *params) forReturned(d dice) {
	p.outage, p.riser, p.smallAge = false, false, false
	p.retention, p.firedMaxAge = d.between(40*time.Second, 50*time.Second), 6*time.Minute
	p.dedup = store.DedupWindowFor(p.retention)
	p.active = returnBorn + p.retention + d.between(5*time.Second, 30*time.Second)
	p.quiet += returnedBound + returnedSpread
}

// scheduleReturned plans the timers that end early, and the deaths of servers.
func (w *world) scheduleReturned() {
	for range returnTimers {
		n := len(w.lives)
		l := &life{n: n, id: schemas.NewTimerID("/sim", strconv.Itoa(n)), service: services[w.rng.IntN(len(services))], callback: w.oneIn(2), viaAPI: w.oneIn(5)}
		l.bornAt = w.epoch + int64(w.between(50*time.Millisecond, returnBorn))
		l.atMs = (w.healed + int64(returnedBound+w.between(time.Second, returnedSpread))) / int64(time.Millisecond)
		if w.oneIn(8) {
			l.atMs += time.Hour.Milliseconds() // after the end of the run
		}
		w.lives = append(w.lives, l)
		w.byID[l.id] = l
		w.desk.endsEarly(l)
	}
	w.owners = make([][]ownership, w.p.geo.Shards)
	w.noteOwners()
	w.lookKills = w.rng.IntN(lookKills + 1)
	for range 1 + w.rng.IntN(returnKills) {
		w.at(w.epoch+int64(w.between(w.p.retention, w.p.active+afterFaults)), w.killServer)
	}
}

// endsEarly runs the client of a timer that ends long before it is due.
func (n *node) endsEarly(l *life) {
	w := n.w
	w.at(l.bornAt, func() {
		w.spawn(n, func(p *proc) {
			if !l.add(p) {
				return
			}
			p.sleep(w.between(0, 5*time.Second))
			if l.n%3 == 0 {
				l.reschedule(p)
				return
			}
			l.cancel(p)
			if w.p.crashes && w.oneIn(6) {
				// The owner may not have written the end to the list yet.
				w.after(w.between(0, w.p.retention/4), func() { w.stopOwner(w.p.geo.Shard(l.id)) })
			}
			if l.cancelled != 0 && w.oneIn(2) {
				l.addAgain(p)
			}
		})
	})
}

// addAgain adds a cancelled timer again once its record has expired. A server may have brought a revision of it back.
func (l *life) addAgain(p *proc) {
	w := p.w
	p.sleep(w.p.retention + w.between(expiredFor, 20*time.Second))
	if w.p.jumps {
		// An expired record exists again here after the leader's clock was set back.
		p.sleep(time.Duration(w.healed-w.now) + returnedBound)
	}
	if t, err := w.server.Record(l.id); err == nil && t.Record.State.Final() {
		return
	}
	w.stats.AddedAgain++
	w.trace("%s: added again", l)
	if l.back.rev != 0 {
		l.changedUnread++ // a count may take the new record for the deleted one; see doc.go
	}
	l.cancelAsked, l.cancelled, l.endedAt, l.promised = false, 0, 0, 0
	l.dues, l.seen, l.final, l.finalAt = nil, false, false, 0
	l.back.expired, l.back.listed = false, false
	l.add(p)
}

// killServer kills a server, which brings back revisions of ended timers. All nodes lose their connections for a moment. Owners of
// some shards die or leave.
func (w *world) killServer() {
	w.trace("a server was killed")
	var shards []int
	for shard := range w.p.geo.Shards {
		returned := 0
		for _, l := range w.lives {
			if w.p.geo.Shard(l.id) == shard && w.oneIn(2) && w.returns(l) {
				returned++
			}
		}
		if returned > 0 {
			shards = append(shards, shard)
		}
	}
	w.server.Interrupt()
	for _, shard := range shards {
		if w.p.faults && w.oneIn(2) {
			w.stopOwner(shard)
		}
	}
}

// stopOwner kills the process that owns a shard, or makes it leave. It does nothing after the last fault.
func (w *world) stopOwner(shard int) {
	switch {
	case w.now >= w.healed:
	case w.oneIn(2):
		w.crashOwner(shard)
	default:
		owner := w.server.LastClock(shard).Owner
		for _, n := range w.nodes {
			if n.name == owner {
				n.leave(w.between(0, w.p.lease))
			}
		}
	}
}

// noteOwners notes the term of each shard that can work now, nil for none, once a second. A term cannot work if a call for the list
// has failed in that second. Then noteOwners looks for final records that have expired since.
func (w *world) noteOwners() {
	for shard := range w.owners {
		clock := w.server.LastClock(shard)
		var owner *term
		for _, n := range w.nodes {
			works := n.up && !n.paused && w.now >= n.cutUntil && w.net.leader[fake.StreamShard(shard)] >= 0
			t := n.terms[shard]
			if t == nil {
				continue
			}
			if works && n.name == clock.Owner && t.epoch == clock.Epoch && !t.listFailed {
				owner = t
			}
			t.listFailed = false
		}
		w.owners[shard] = append(w.owners[shard], ownership{owner, clock.Ended})
	}
	for _, l := range w.lives {
		if !l.final || l.back.expired {
			continue
		}
		if _, err := w.server.Record(l.id); err != nil {
			l.back.expired, l.back.listed = true, w.mustList(l)
		}
	}
	w.after(time.Second, w.noteOwners)
}

// mustList reports whether the list has a timer whose final record has expired in the last second, or must have it: by then the
// shard's clock said so, or an owner had the time to write the list since a tail brought the record.
func (w *world) mustList(l *life) bool {
	shard := w.p.geo.Shard(l.id)
	noted := w.owners[shard]
	if w.server.Listed(l.id, l.finalRev) || len(noted) > 1 && noted[len(noted)-2].ended >= l.finalRev {
		return true
	}
	if l.finalRead < l.finalAt {
		return false // no tail has brought the final record
	}
	owned := time.Duration(0)
	for i := int((l.finalRead-w.epoch)/int64(time.Second)) + 1; i < len(noted); i++ {
		if owned += time.Second; noted[i].term == nil || noted[i].term != noted[i-1].term {
			owned = 0
		}
		if owned >= w.p.retention/4+listBound {
			return true
		}
	}
	return false
}

// returns brings the newest waiting revision of a timer back, if its final record has expired, and its due time is so far ahead
// that an owner must delete it before. It reports whether it does.
func (w *world) returns(l *life) bool {
	if !l.back.listed || l.half {
		return false
	}
	until := max(w.now, w.healed) + int64(returnedBound)
	dueMs := (w.net.foremost() + until - w.now) / int64(time.Millisecond)
	t, err := w.server.ReturnRevision(l.id, func(was, ended store.Timer) bool {
		// If the leader's clock was set back in between, the list does not void the revision.
		return was.Record.Pending() && was.Record.DueMs > dueMs && (ended.Rev == 0 || was.StoredMs <= ended.StoredMs)
	})
	if err != nil {
		return false
	}
	w.stats.Returned++
	w.trace("%s: revision %d returns, due %s", l, t.Rev, w.ms(t.Record.DueMs))
	l.back.rev, l.back.at, l.back.until = t.Rev, w.now, until
	back := l.back
	w.at(until, func() {
		if t, err := w.server.Record(l.id); err == nil && t.Rev == back.rev && l.back.at == back.at {
			w.check.fail(PropReturned, "%s: revision %d, which returned at %s, is still its record, due %s", l, back.rev, w.rel(back.at), w.ms(t.Record.DueMs))
		}
	})
	return true
}

// overReturned checks a record that replaces a revision that has returned. Most owners have not counted that as pending.
func (c *checker) overReturned(l *life, was, now store.Timer) {
	if c.w.cfg.Returned && was.ID.IsZero() && l.final {
		// An add was under way for longer than the retention. It adds the timer again.
		l.back.excused, l.back.listed = true, false
	}
	if l.back.rev == 0 || was.Rev != l.back.rev {
		return
	}
	l.changedUnread++
	if now.Record.State != schemas.StateDelivered {
		return // the timer was added again
	}
	if l.back.excused = c.w.now < l.back.until; !l.back.excused {
		c.fail(PropReturned, "%s: revision %d, which returned at %s, was claimed", l, was.Rev, c.w.rel(l.back.at))
	}
}

// foremost returns the latest time of the clocks of all servers.
func (n *network) foremost() (latest int64) {
	for i := range n.servers {
		latest = max(latest, n.serverTime(i))
	}
	return latest
}

// AddEnded implements scheduler.EndedStore.
func (s termStore) AddEnded(ctx context.Context, shard int, nowMs, passedMs int64, timers []store.EndedTimer) error {
	err := s.Client.AddEnded(ctx, shard, nowMs, passedMs, timers)
	s.t.listFailed = s.t.listFailed || err != nil
	return err
}

// EachFinal implements scheduler.EndedStore.
func (s termStore) EachFinal(ctx context.Context, shard int, after, through uint64, fn func(*store.Timer)) error {
	err := s.Client.EachFinal(ctx, shard, after, through, fn)
	s.t.listFailed = s.t.listFailed || err != nil
	return err
}

// RemoveVoid implements scheduler.EndedStore.
func (s termStore) RemoveVoid(ctx context.Context, shard int) ([]store.VoidRecord, error) {
	w := s.t.w
	removed, err := s.Client.RemoveVoid(ctx, shard)
	w.stats.Removed += len(removed)
	if w.lookKills > 0 && w.now > w.epoch+int64(w.p.retention) && w.now < w.healed+int64(afterFaults) && w.oneIn(3) {
		// A look takes as long as the list: a server dies after a part of the records was read.
		w.lookKills--
		w.after(0, w.killServer)
		w.current.sleep(w.between(0, longestLook))
	}
	return removed, err
}
