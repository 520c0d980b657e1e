package visibility

import "time"

// The search index is never urgent, but it takes CPU from timers, which are urgent: writing a change
// costs 15 to 20 µs, and reading it some 6 µs. So the follower takes a share of the machine's spare
// CPU time. On a busy machine the follower yields: it writes at minDuty, and stops reading while its
// queue is full. A stream of a bucket keeps the last record of each key, so a record that changes
// several times meanwhile is read once.
//
// A follower that yields falls behind (Progress.AsOf, Progress.Behind), for at most yieldMost. If the
// machine is still busy then, the follower goes on as if it were not: when its queue is full, it
// counts outcomes, so that counts stay current.
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
	// yieldBelow is the number of spare cores below which the follower yields.
	yieldBelow = 0.4
	// yieldMost bounds the time that the follower yields without a pause. It is also the length of that pause.
	yieldMost = 30 * time.Second
)

// pacer decides how much CPU writing takes. It is for one goroutine.
type pacer struct {
	// spare returns the cores that are not used; false if unknown. nil: unknown.
	spare func() (cores float64, ok bool)
	// worked is the time that writing took since looked. duty is the share that it may take now.
	worked time.Duration
	looked time.Time
	duty   float64
	// since is the time since which the follower yields, and until the time before which it does not
	// yield again.
	since, until time.Time
}

// look adapts the duty, and reports whether the follower yields.
func (p *pacer) look(now time.Time) (yields bool) {
	cores, ok := 0.0, false
	if p.spare != nil {
		cores, ok = p.spare()
	}
	if !ok {
		p.duty = maxDuty
		return false
	}
	if took := now.Sub(p.looked); took > 0 && !p.looked.IsZero() {
		// What writing takes itself is spare, too.
		cores += min(p.worked.Seconds()/took.Seconds(), maxDuty)
	}
	p.worked, p.looked = 0, now
	p.duty = min(max(cores*spareShare, minDuty), maxDuty)
	switch {
	case cores >= yieldBelow || now.Before(p.until):
		p.since = time.Time{}
		return false
	case p.since.IsZero():
		p.since = now
	case now.Sub(p.since) >= yieldMost:
		p.since, p.until = time.Time{}, now.Add(yieldMost)
		return false
	}
	return true
}

// wrote takes note of a write of a number of rows that ended now, and returns when the next one may
// begin. On a busy machine most of the time that a write took is time in which it waited for a CPU,
// which is not counted: a few rows shall not make a long pause.
func (p *pacer) wrote(rows int, took time.Duration, now time.Time) (next time.Time) {
	took = min(took, writeCost+time.Duration(rows)*mostRowCost)
	p.worked += took
	duty := p.duty
	if duty == 0 {
		duty = maxDuty // look was not called yet
	}
	return now.Add(time.Duration(float64(took) * (1/duty - 1)))
}
