package clustertime

import "time"

// DriftPPM bounds the drift between two clocks, in parts per million. It is more than that
// of any intact quartz or disciplined clock.
const DriftPPM = 200

// SameClockPPM bounds the drift between the wall clock and the monotonic clock of one Linux host, in parts
// per million. The kernel derives both from one counter and slews both alike (clock_gettime(2)), so they do
// not drift apart. The bound leaves a margin for other implementations of Linux's system calls.
const SameClockPPM = 20

// readings is the number of recent readings from which the bounds are computed.
const readings = 8

// Reading is one reading of the leader's clock: it showed ServerNs (Unix nanoseconds) at
// some time between Sent and Received. Only the monotonic clock readings of Sent and
// Received count.
type Reading struct {
	Sent, Received time.Time
	ServerNs       int64
}

// Estimator computes bounds of the leader's clock from readings. It is pure: callers pass
// the current time of the monotonic clock. It is not safe for concurrent use.
type Estimator struct {
	// PPM bounds the drift between the leader's clock and the monotonic clock, in parts per million; 0 means
	// DriftPPM. It must not change after the first reading.
	PPM int64

	last [readings]Reading
	n    int // number of valid readings in last
	at   int
}

// drift returns the maximum drift of the clocks during d, in nanoseconds.
func (e *Estimator) drift(d time.Duration) int64 {
	return int64(d.Abs()) * e.ppm() / 1_000_000
}

func (e *Estimator) ppm() int64 {
	if e.PPM == 0 {
		return DriftPPM
	}
	return e.PPM
}

// carry extrapolates a reading to now. The leader's clock is then between lo and hi, in Unix
// nanoseconds.
func (e *Estimator) carry(r Reading, now time.Time) (lo, hi int64) {
	sinceReceived, sinceSent := now.Sub(r.Received), now.Sub(r.Sent)
	return r.ServerNs + int64(sinceReceived) - e.drift(sinceReceived), r.ServerNs + int64(sinceSent) + e.drift(sinceSent)
}

// Observe adds a reading. It reports whether the leader's clock was stepped, which it
// concludes from a reading outside the current bounds. It then discards the older readings.
func (e *Estimator) Observe(r Reading) (stepped bool) {
	if e.n > 0 {
		lo, hi := e.Bounds(r.Received)
		rlo, rhi := e.carry(r, r.Received)
		if stepped = rhi < lo || rlo > hi; stepped {
			e.n, e.at = 0, 0
		}
	}
	e.last[e.at] = r
	e.at = (e.at + 1) % readings
	e.n = min(e.n+1, readings)
	return stepped
}

// Known reports whether the estimator has a reading.
func (e *Estimator) Known() bool { return e.n > 0 }

// Bounds returns the tightest bounds of the leader's clock at now, in Unix
// nanoseconds. Without a reading both are 0.
func (e *Estimator) Bounds(now time.Time) (earliest, latest int64) {
	for i := range e.n {
		lo, hi := e.carry(e.last[i], now)
		if i == 0 || lo > earliest {
			earliest = lo
		}
		if i == 0 || hi < latest {
			latest = hi
		}
	}
	// The readings contradict each other by less than a step: use the newest.
	if earliest > latest {
		return e.carry(e.last[(e.at+readings-1)%readings], now)
	}
	return earliest, latest
}
