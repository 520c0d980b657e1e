package scheduler

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// A shard's clock passes the number of pending timers from owner to owner. If an owner did
// not release the shard, the number is unknown, because that owner may have claimed timers
// after its last write of the clock. The new owner then counts the pending timers, and
// reports no number until the count is finished. The number is also unknown after an owner has
// begun its tail before the position of the previous owner, because the stream had ended there, or has
// deleted a void record (EvVoid), because an earlier count may have read it.
//
//	begin ─▶ ActCount: read every record up to the tail's position in the background;
//	   │     in the meantime remember by id which records change (tail, claims, void records);
//	   │     a count that follows a failed one begins with the changes of that
//	   └───▶ EvCounted, and the tail has reached the position of the reading: set pending
//
// A count also finds lost records. Each timer that was pending when the previous owner wrote
// its clock is still pending, or its record has changed since. If these are fewer than the
// previous owner had counted, ActMissing reports the difference. Void records that are deleted in the
// meantime lower the number that is compared, by one each: that owner may have counted them.
//
// A count reads the shard once. It takes 8 bytes for each pending timer and about 50 for
// each record that changes during the count and the failed counts before it.
const (
	// countAfter delays the count after a take-over, so that due timers fire first.
	countAfter = 2 * time.Second
	// countAgain is the pause after a failed count, or after a count during which too many
	// records changed.
	countAgain = 30 * time.Second
	// maxCountChanges bounds the records that change during a count and the failed counts before it.
	maxCountChanges = 1_000_000
)

// pendingCount is the number of pending timers of a shard, and the count that finds it. It is
// not safe for concurrent use.
type pendingCount struct {
	n    int64  // timers in state pending or paused; below 0 for a moment if claims come first
	from uint64 // n includes the timers that were created up to this stream sequence
	// known is false until n is exact.
	known bool
	// counted is true if n results from a count; see store.Clock.Counted.
	counted bool
	// recounted is true if n results from a count of this term.
	recounted bool
	// expected is the number of timers that the previous owner had counted, for comparison
	// with the first count; -1 if unknown. At expectedUntilMs and later the comparison is
	// void, because records of that count may have expired.
	expected        int64
	expectedUntilMs int64

	// ahead has revisions that ended a timer's wait and that the tail has yet to bring, by timer: claims and
	// final records of earlier owners, which a reread brought first, and final records of this term's rejected
	// claims. n does not include these timers.
	ahead map[schemas.TimerID]uint64

	running *recount // nil for none
	fails   int      // failed counts in a row
	// kept has the changes of failed counts, for the next one; nil for none.
	kept  map[schemas.TimerID]countChange
	round int // grows with each EvRecount
}

// newPendingCount returns the number that a clock passes on. keepMs is the retention of final
// records in milliseconds, 0 for none.
func newPendingCount(c store.Clock, keepMs int64) pendingCount {
	p := pendingCount{n: c.Pending, from: max(c.Seen, c.Tail), known: !c.PendingUnknown, counted: c.Counted, expected: -1}
	if c.Counted {
		p.expected, p.expectedUntilMs = c.Pending, math.MaxInt64
	}
	if keepMs > 0 {
		p.expectedUntilMs = c.TimeMs + keepMs*7/8
	}
	return p
}

// checkpoint sets the fields of a clock that pass the number on.
func (p *pendingCount) checkpoint(c *store.Clock, tailSeen uint64) {
	c.Seen = max(tailSeen, p.from)
	c.Pending, c.PendingUnknown, c.Counted = max(p.n, 0), !p.known, p.known && p.counted
}

// left removes a timer of which this term has stored a revision that no longer waits.
func (p *pendingCount) left(id schemas.TimerID, rev uint64) {
	p.n--
	p.note(id, countChange{rev: rev})
}

// leftAhead is like left. If the tail has yet to bring the revision, leftAhead remembers it, so that
// countEarlierClaim does not remove the timer again.
func (p *pendingCount) leftAhead(id schemas.TimerID, rev, tailSeen uint64) {
	p.left(id, rev)
	if rev <= tailSeen {
		return
	}
	if p.ahead == nil {
		p.ahead = map[schemas.TimerID]uint64{}
	}
	p.ahead[id] = rev
}

// recount is a running count.
type recount struct {
	from uint64 // the count reads records up to this sequence; the tail delivers later ones
	// changed also has the changes of the failed counts before this one.
	changed map[schemas.TimerID]countChange
	// tooMuch is true if too many records changed, so the count must start again.
	tooMuch bool
	// result is the finished count. It waits until the tail has reached its Last.
	result *EvCounted
	// newest is the result of newestKnown; nil until the count has ended.
	newest map[uint64]countChange
}

// countChange is the newest known revision of a record.
type countChange struct {
	rev     uint64
	pending bool
	// fresh is true for a timer that was added after the previous owner's count, and for a void record.
	fresh bool
	// read is true if the tail or the count has read a revision of the record, or if it was void. The
	// others are claims of this term that are ahead of the tail.
	read bool
}

// begin returns the action that starts a count, if the number is unknown and no count runs.
func (p *pendingCount) begin(tailSeen uint64) (a ActCount, ok bool) {
	if p.known || p.running != nil {
		return ActCount{}, false
	}
	p.running = &recount{from: tailSeen, changed: p.kept}
	if p.kept = nil; p.running.changed == nil {
		p.running.changed = map[schemas.TimerID]countChange{}
	}
	delay := countAfter
	if p.fails > 0 {
		delay = countAgain
	}
	return ActCount{Round: p.round, Through: tailSeen, Delay: delay}, true
}

// restart discards a running count and makes begin start a new one, after a loss of messages.
func (p *pendingCount) restart() {
	p.round++
	p.running, p.kept, p.known, p.expected = nil, nil, false, -1
}

// read records that the tail has brought a revision of a record during a count. fresh is true
// for the record that adds a timer.
func (p *pendingCount) read(id schemas.TimerID, rev uint64, pending, fresh bool) {
	p.note(id, countChange{rev: rev, pending: pending, fresh: fresh, read: true})
}

// void takes note of a deleted record, which a killed server had brought back. The last count, and that of the previous owner, may
// include its timer. So without a running count the number is unknown, and begin starts a count. With one, fewer timers are expected.
func (p *pendingCount) void(id schemas.TimerID, rev uint64) {
	c := p.running
	if c == nil {
		p.known, p.expected = false, -1
		return
	}
	p.expected = max(p.expected-1, -1)
	c.note(id, countChange{rev: rev, fresh: true, read: true}) // the tail does not bring the delete
}

func (p *pendingCount) note(id schemas.TimerID, change countChange) {
	if c := p.running; c != nil && change.rev > c.from {
		c.note(id, change)
	}
}

func (c *recount) note(id schemas.TimerID, change countChange) {
	if c.tooMuch {
		return
	}
	was, known := c.changed[id]
	if !known && len(c.changed) == maxCountChanges {
		c.tooMuch, c.changed = true, nil
		return
	}
	change.fresh, change.read = change.fresh || was.fresh, change.read || was.read
	if was.rev > change.rev {
		change.rev, change.pending = was.rev, was.pending
	}
	c.changed[id] = change
}

// fail ends a count that has failed. The next count needs its changes: the previous owner may have counted timers that have ended
// since the take-over.
func (p *pendingCount) fail() {
	if p.kept = p.running.changed; p.running.tooMuch {
		p.expected = -1
	}
	p.running = nil
	p.fails++
}

// onCounted keeps the result of the running count.
func (p *pendingCount) onCounted(ev EvCounted) {
	switch {
	case p.running == nil || ev.Round != p.round:
	case ev.Err != nil || p.running.tooMuch:
		p.fail()
	default:
		p.running.result = &ev
	}
}

// end applies the result of a count once the tail has brought all changes that the reading may
// have missed. It returns the count that has ended, nil for none, and the number of lost records.
func (p *pendingCount) end(tailSeen uint64, nowMs int64) (ended *recount, missing int64) {
	c := p.running
	if c == nil || c.result == nil || tailSeen < c.result.Last {
		return nil, 0
	}
	if c.tooMuch {
		p.fail()
		return nil, 0
	}
	// The tail brings no revision up to tailSeen again.
	maps.DeleteFunc(p.ahead, func(_ schemas.TimerID, rev uint64) bool { return rev <= tailSeen })
	c.newest = c.newestKnown()
	n, accounted := c.sum()
	if p.expected > accounted && nowMs < p.expectedUntilMs && !c.result.Behind {
		missing = p.expected - accounted
	}
	*p = pendingCount{n: n, from: tailSeen, known: true, counted: true, recounted: true, expected: -1, expectedUntilMs: p.expectedUntilMs, ahead: p.ahead, round: p.round}
	return c, missing
}

// sum returns the number of pending timers, and the number of timers of the previous owner's
// count that are pending or have changed.
func (c *recount) sum() (pending, accounted int64) {
	waiting := c.result.Waiting
	n := int64(len(waiting))
	accounted = n + c.result.Unread
	for key, change := range c.newest {
		switch _, counted := slices.BinarySearch(waiting, key); {
		case counted, !change.read:
			// Neither the tail nor the count has read a timer that is not read: it was added and
			// claimed since. The tail may yet bring its add, which counts it.
			n--
		case !change.fresh:
			accounted++
		}
		if change.pending {
			n++
		}
	}
	return n, accounted
}

// includes reports whether the number of a count that has ended includes a timer.
func (c *recount) includes(id schemas.TimerID) bool {
	key := store.CountKey(id)
	if change, changed := c.newest[key]; changed {
		return change.pending
	}
	_, waits := slices.BinarySearch(c.result.Waiting, key)
	return waits
}

// newestKnown returns the newest known revision of each record that has changed since the count
// began: the tail has brought it, or the count has read it. The tail passes a revision that
// has been replaced, so a record that has changed twice may be known to the count only.
func (c *recount) newestKnown() map[uint64]countChange {
	all := make(map[uint64]countChange, len(c.changed)+len(c.result.Late))
	for id, change := range c.changed {
		all[store.CountKey(id)] = change
	}
	for key, late := range c.result.Late {
		change := all[key]
		change.read = true
		if change.rev < late.Rev {
			change.rev, change.pending = late.Rev, late.Waiting
		}
		all[key] = change
	}
	return all
}

// countEarlierClaim removes a timer from the number of pending timers for a write of an earlier owner that
// was in flight at the take-over: this term's count was made before it was stored. t is a record that the
// tail has brought or, before the tail, a reread.
//
// If the number comes from the previous owner, it takes account of that owner's claims already.
func (k *Core) countEarlierClaim(t *store.Timer) {
	p, r := &k.pending, &t.Record
	if rev, left := p.ahead[t.ID]; left && t.Rev >= rev {
		if t.Rev <= k.tailSeen {
			delete(p.ahead, t.ID) // the tail brings rev, or has passed it
		}
		return // n does not include the timer
	}
	if !k.endsWait(r) {
		return
	}
	if p.known && !p.recounted || t.Rev <= p.from {
		return
	}
	e, ahead := k.entries[t.ID], t.Rev > k.tailSeen
	waited := e != nil && e.rev < t.Rev && e.waits()
	if !waited && (ahead || !isFirstClaim(r)) { // the timer may not be loaded yet
		return
	}
	if waited {
		e.wasPending = false
		if r.Schedule != nil {
			e.more().left = true
		}
	}
	p.leftAhead(t.ID, t.Rev, k.tailSeen)
}

// isFirstClaim reports whether a record certainly has the first claim of its timer, so that the number of pending timers
// included the timer until then. It is false for retries and deferrals, and for records with moves or a history: these may be
// an old claim that was written again by a repeated add, as those of most schedules may, or the claim of a replay.
func isFirstClaim(r *schemas.Record) bool {
	return r.State == schemas.StateDelivered && r.Moves == 0 && len(r.History) == 0 && r.Attempt == 0 && r.FirstFiredMs == 0 && r.Deferral == nil
}

// countLoadedClaim is countEarlierClaim for a record that a load or a scan has found before the tail. This term's final
// record may replace the claim in the stream, so the tail may never bring the claim.
func (k *Core) countLoadedClaim(t *store.Timer) {
	p := &k.pending
	if _, left := p.ahead[t.ID]; left || t.Rev <= k.tailSeen || !k.endsWait(&t.Record) || p.known && (!p.recounted || t.Rev <= p.from) {
		return
	}
	if e := k.entries[t.ID]; e != nil && (e.rev >= t.Rev || e.phase != phaseWaiting && e.phase != phaseReady) {
		return // known already, or the reread after this term's write counts it
	} else if p.known && !isFirstClaim(&t.Record) && (e == nil || !e.waits()) {
		return // it did not wait when it was counted
	}
	p.leftAhead(t.ID, t.Rev, k.tailSeen)
	p.read(t.ID, t.Rev, false, false) // a running count may have read the claim, or the revision before it
}

// endsWait reports whether a record may contain the write of an earlier owner that ended a timer's wait: a
// claim, which for a schedule is the last one, or the final record of a rejected claim. That of a schedule has
// no epoch, so it may also be this term's.
func (k *Core) endsWait(r *schemas.Record) bool {
	switch {
	case r.Origin != nil:
		return false
	case r.State == schemas.StateDelivered, r.State == schemas.StateFail:
		return r.Epoch != k.epoch
	case r.State == schemas.StateCompleted:
		// An operation has no epoch. A schedule whose last run has fired was delivered before.
		return r.Epoch != k.epoch && r.Epoch != 0 && r.FiredMs == 0
	}
	return false
}

// waits reports whether the number of pending timers includes the entry's timer, as far as the entry knows. The claim
// of a one-shot timer is in e.rec at once, that of a schedule is not.
func (e *entry) waits() bool {
	unclaimed := e.phase == phaseWaiting || e.phase == phaseReady || e.rec.Schedule != nil
	return e.wasPending || e.rec.State.Waits() && unclaimed && !e.left()
}

// count ends the running count and starts another, if it is time.
func (k *Core) count() {
	ended, missing := k.pending.end(k.tailSeen, k.now)
	if missing > 0 {
		k.do(ActMissing{Missing: missing})
	}
	if ended != nil {
		k.damaged.counted(ended)
		for _, e := range k.entries {
			if e.wasPending && k.leftBefore(ended, e) {
				e.wasPending = false
			}
		}
	}
	if a, ok := k.pending.begin(k.tailSeen); ok {
		k.do(a)
	}
}

// leftBefore reports whether the number of a count that has ended does not include the timer of a write in
// flight: the count knows the claim already, or it has read a record that another client had overwritten.
// If the entry is ahead of the tail and of the count, the tail has yet to bring the timer's add, which
// counts it.
func (k *Core) leftBefore(ended *recount, e *entry) bool {
	known := max(k.tailSeen, ended.newest[store.CountKey(e.id)].rev)
	return e.rev <= known && !ended.includes(e.id)
}
