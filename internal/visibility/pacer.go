package visibility

import (
	"time"

	"github.com/belfryio/belfry/internal/cpuspare"
)

// The search index is never urgent, but it takes CPU from timers, which are urgent: writing a change
// costs 15 to 20 µs, and reading it some 15 µs, of which 6 µs are for decoding. So the follower takes a share
// of the machine's spare CPU time, in slices of about a millisecond with pauses between them. The rows of a full queue take a third of a second
// of one CPU, and on two cores timers would be late meanwhile. On a busy machine the duty is low, and the follower
// yields: its queue is small, so it reads no more than it writes. A stream of a bucket keeps the last record of each key, so a
// record that changes several times meanwhile is read once.
//
// A follower that yields falls behind (Progress.AsOf, Progress.Behind), for at most yieldMost without a break. When the
// machine has CPU time to spare again, the follower reads the missed changes (catchingUp). If the machine is
// still busy after yieldMost, or becomes busy for as long while the follower catches up, the follower goes on as
// if it were not: when its queue is full, it counts outcomes, so that counts stay current.
const (
	// maxDuty is the greatest share of one CPU's time that writing takes, minDuty the least.
	maxDuty = 0.5
	minDuty = 0.05
	// spareShare is the share of the spare CPU time that writing takes, so a machine with two idle
	// cores gives maxDuty.
	spareShare = 0.25
	// writeCost and mostRowCost bound the CPU time of a transaction, and of a row in it.
	writeCost   = 5 * time.Millisecond
	mostRowCost = 50 * time.Microsecond
	// readCost is the CPU time of reading a change: what the server takes to deliver it, and the node to decode it.
	readCost = 15 * time.Microsecond
	// widenMost bounds the time, added up while the follower does not yield, until a throttled queue has its whole bound:
	// otherwise a follower that yields again and again would neither catch up nor count. From then on the queue has
	// its whole bound whenever the follower does not yield, until the follower has decided about a full queue, or is
	// current (noteBehind).
	widenMost = 6 * time.Second
	// leastRows is the least limit of rows of a transaction, however slow writing is.
	leastRows = 640
	// leastPause is the least pause between two slices of a transaction. A pause that lasted longer than it should makes the
	// later ones shorter, by at most mostCredit in all.
	leastPause = time.Millisecond
	mostCredit = 2 * leastPause
	// yieldBelow is the number of spare cores below which the follower yields.
	yieldBelow = 0.4
	// yieldMost bounds the time that the follower yields without a pause, and pressFor is the length of that
	// pause.
	yieldMost = 2 * time.Minute
	pressFor  = 30 * time.Second
	// lookPace is the interval at which a follower that writes or waits looks at the machine. A burst of due timers lasts
	// a few seconds, so the duty follows the machine sooner than that. lookLeast is the least time between two looks. It
	// is a little more than cpuspare.Least, so that a look normally has a new measurement.
	lookPace  = 250 * time.Millisecond
	lookLeast = cpuspare.Least + 10*time.Millisecond
	// The follower yields when its looks have found a busy machine for peakPeriod, at lookPace two looks. Most garbage
	// collections are shorter. It goes on when the mean of loadPeriod or more is yieldBelow or more spare cores.
	peakPeriod = 400 * time.Millisecond
	loadPeriod = time.Second
)

// load is the state of the machine for the follower.
type load uint8

const (
	// free: there is CPU time to spare, or it is not known.
	free load = iota
	// busy: the follower yields.
	busy
	// pressed: the machine is busy, but the follower has yielded for yieldMost.
	pressed
)

// pacer decides how much CPU writing takes. It is for one goroutine.
type pacer struct {
	// spare returns the cores that are not used; false if unknown. nil: unknown.
	spare func() (cores float64, ok bool)
	// worked is the time that writing took since looked. duty is the share that it may take now.
	worked time.Duration
	looked time.Time
	duty   float64
	// peak is used while the load is free: for how long the last looks in a row found a busy machine. measured and left
	// are used otherwise: the time since the load was last decided, and the CPU time that was spare in it.
	peak, measured, left time.Duration
	// since is the time since which the follower yields, and until the time before which it does not
	// yield again.
	since, until time.Time
	load         load
	// cost is the CPU time of the write that ended at ended. The pause after it lasts until next.
	cost        time.Duration
	ended, next time.Time
	// widened is the time up to which readable has counted, and widening the time that it has counted since
	// recovered was last called.
	widened  time.Time
	widening time.Duration
	// debt is the time of the pauses that are still to be made between slices. It is negative after a pause that lasted too
	// long.
	debt time.Duration
}

// look adapts the duty, and reports the load of the machine. A pause becomes shorter if the duty has
// risen, so that it ends soon after the load.
func (p *pacer) look(now time.Time) load {
	if p.looked.IsZero() || now.Sub(p.looked) >= lookLeast {
		p.adapt(p.own(now), now)
	}
	return p.load
}

// own returns the cores that writing itself took since the last look. They are spare, too.
func (p *pacer) own(now time.Time) float64 {
	if p.looked.IsZero() {
		return 0
	}
	return min(p.worked.Seconds()/now.Sub(p.looked).Seconds(), maxDuty)
}

// lookInPause is look within a pause. For the duty it does not count the write before the pause as spare, because only a
// part of that write may be in the measured time. So it may find too few spare cores.
func (p *pacer) lookInPause(now time.Time) load {
	if now.Sub(p.looked) >= lookLeast {
		p.adapt(0, now)
	}
	return p.load
}

// adapt sets the duty to its share of the spare cores, of which the follower itself uses some, and the load.
func (p *pacer) adapt(own float64, now time.Time) {
	var cores float64
	ok := false
	if p.spare != nil {
		cores, ok = p.spare()
	}
	if ok {
		p.duty = min(max((cores+own)*spareShare, minDuty), maxDuty)
		p.load = p.loadOf(cores+p.own(now), now)
	} else {
		p.duty, p.load, p.since, p.peak = maxDuty, free, time.Time{}, 0
	}
	p.worked, p.looked = 0, now
	if next := p.ended.Add(p.pause(p.cost)); next.Before(p.next) {
		p.next = next
	}
}

// loadOf returns the load with a number of cores that were spare since the last look, those of the follower included.
func (p *pacer) loadOf(cores float64, now time.Time) load {
	took := peakPeriod // the first look decides
	if !p.looked.IsZero() {
		took = now.Sub(p.looked)
	}
	if p.load == free {
		if cores >= yieldBelow {
			p.peak = 0
			return p.loadWith(cores, now)
		}
		if p.peak += took; p.peak < peakPeriod {
			return free
		}
		p.peak, p.measured, p.left = 0, 0, 0
		return p.loadWith(cores, now)
	}
	p.measured += took
	if p.left += time.Duration(cores * float64(took)); p.measured < loadPeriod {
		return p.load
	}
	mean := p.left.Seconds() / p.measured.Seconds()
	p.measured, p.left = 0, 0
	return p.loadWith(mean, now)
}

// loadWith returns the load with a number of spare cores.
func (p *pacer) loadWith(cores float64, now time.Time) load {
	switch {
	case cores >= yieldBelow:
		p.since = time.Time{}
		return free
	case now.Before(p.until):
		p.since = time.Time{}
		return pressed
	case p.since.IsZero():
		p.since = now
	case now.Sub(p.since) >= yieldMost:
		p.since, p.until = time.Time{}, now.Add(pressFor)
		return pressed
	}
	return busy
}

// rows returns how many rows of a cost one transaction may have, so that it takes about as long as writePace.
func (p *pacer) rows(cost time.Duration) int {
	if cost == 0 {
		cost = mostRowCost // not measured yet
	}
	return max(int(p.share()*float64(writePace)/float64(cost)), leastRows)
}

// readable returns by how many changes the queue may grow now: as many as a CPU can read in the present duty in the time since
// readable last returned some. The tails also read as many changes as are written. Of a longer time lookPace counts, so that
// few changes are read at once. After widenMost there is no bound.
func (p *pacer) readable(now time.Time) (changes int) {
	since := min(now.Sub(p.widened), lookPace)
	changes = int(p.share() * float64(since) / float64(readCost))
	if changes == 0 {
		return 0 // the time counts in the next call
	}
	p.widened = now
	if p.widening += since; p.widening >= widenMost {
		return maxQueued
	}
	return changes
}

// recovered takes note that the follower has decided about a full queue, or that it is current.
func (p *pacer) recovered() { p.widening = 0 }

// slice takes note of a number of rows that were written, in a transaction that continues, and returns how long to pause
// now.
func (p *pacer) slice(rows int, took time.Duration) time.Duration {
	cost := min(took, time.Duration(rows)*mostRowCost)
	p.worked += cost
	if p.debt += p.pause(cost); p.debt < leastPause {
		return 0
	}
	return p.debt
}

// rested takes note of a pause between two slices.
func (p *pacer) rested(d time.Duration) { p.debt = max(p.debt-d, -mostCredit) }

// wrote takes note of a write of a number of rows that ended now. On a busy machine most of the time
// that a write took is time in which it waited for a CPU, which is not counted: a few rows shall not
// make a long pause. If the pause after an earlier write ends later, it stays.
func (p *pacer) wrote(rows int, took time.Duration, now time.Time) {
	cost := min(took, writeCost+time.Duration(rows)*mostRowCost)
	p.worked += cost
	if next := now.Add(p.pause(cost)); !next.Before(p.next) {
		p.cost, p.ended, p.next = cost, now, next
	}
}

// pause returns the pause after a write of a cost with the present duty.
func (p *pacer) pause(cost time.Duration) time.Duration {
	return time.Duration(float64(cost) * (1/p.share() - 1))
}

// share returns the present duty.
func (p *pacer) share() float64 {
	if p.duty == 0 {
		return maxDuty // look was not called yet
	}
	return p.duty
}
