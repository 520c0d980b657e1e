package clustertime

import "time"

// DriftPPM is how far two clocks are taken to drift apart, in parts per million:
// more than any sound quartz or disciplined clock does.
const DriftPPM = 200

// readings is how many of the last readings the bounds are taken from.
const readings = 8

// Reading is one look at the leader's clock: it stood at ServerNs (Unix
// nanoseconds) some time between Sent and Received. Both carry the monotonic
// clock, the only part of them that is used.
type Reading struct {
	Sent, Received time.Time
	ServerNs       int64
}

// Estimator turns readings into bounds. It is pure: whoever asks says what time
// it is on the monotonic clock. Not safe for concurrent use.
type Estimator struct {
	last [readings]Reading
	n    int // how many of last are valid
	at   int
}

// drift is how far the clocks may have drifted apart over d.
func drift(d time.Duration) int64 {
	if d < 0 {
		d = -d
	}
	return int64(d) * DriftPPM / 1_000_000
}

// carry carries a reading to now: the leader's clock is between lo and hi.
func (r Reading) carry(now time.Time) (lo, hi int64) {
	sinceReceived, sinceSent := now.Sub(r.Received), now.Sub(r.Sent)
	return r.ServerNs + int64(sinceReceived) - drift(sinceReceived), r.ServerNs + int64(sinceSent) + drift(sinceSent)
}

// Observe takes a reading. It reports whether the leader's clock was stepped: the
// reading contradicts what was carried, which is then forgotten.
func (e *Estimator) Observe(r Reading) (stepped bool) {
	if e.n > 0 {
		lo, hi := e.Bounds(r.Received)
		rlo, rhi := r.carry(r.Received)
		if stepped = rhi < lo || rlo > hi; stepped {
			e.n, e.at = 0, 0
		}
	}
	e.last[e.at] = r
	e.at = (e.at + 1) % readings
	e.n = min(e.n+1, readings)
	return stepped
}

// Known reports whether there was a reading.
func (e *Estimator) Known() bool { return e.n > 0 }

// Bounds returns the tightest bounds of the leader's clock at now, in Unix
// nanoseconds. Without a reading both are 0.
func (e *Estimator) Bounds(now time.Time) (earliest, latest int64) {
	for i := range e.n {
		lo, hi := e.last[i].carry(now)
		if i == 0 || lo > earliest {
			earliest = lo
		}
		if i == 0 || hi < latest {
			latest = hi
		}
	}
	// Readings that disagree by less than a step: the newest one rules.
	if earliest > latest {
		return e.last[(e.at+readings-1)%readings].carry(now)
	}
	return earliest, latest
}
