package scheduler

import "github.com/belfryio/belfry/schemas"

// justClaimed has the entries that were claimed and done within one millisecond, with their revisions. A read that began
// before such a claim brings the revision before it again. If the core claimed that revision in the same millisecond, the
// tail or a reread could not tell the stored claim from the second one, which the store refuses, and the number of pending
// timers would be reduced twice. So that revision waits for the next millisecond.
type justClaimed struct {
	atMs int64
	revs map[schemas.TimerID]uint64
}

// add takes note of an entry that is done in the millisecond nowMs.
func (j *justClaimed) add(e *entry, nowMs int64) {
	if !e.claimedAt(nowMs) {
		return
	}
	if j.atMs != nowMs {
		j.atMs = nowMs
		clear(j.revs)
	}
	j.revs[e.id] = e.rev
}

// has reports whether a later revision of the entry's record was claimed in the millisecond nowMs.
func (j *justClaimed) has(e *entry, nowMs int64) bool {
	return j.atMs == nowMs && e.rev < j.revs[e.id]
}

// claimedAt reports whether the entry's last claim was made in a millisecond.
func (e *entry) claimedAt(ms int64) bool {
	switch {
	case e.rec.Origin != nil:
		return false // a run is claimed with its schedule
	case e.rec.Schedule != nil:
		return e.extra != nil && e.extra.turn != nil && e.extra.turnMs == ms
	}
	return e.rec.FiredMs == ms
}
