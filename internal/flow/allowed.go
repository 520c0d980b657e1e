package flow

import "time"

// MaxPerMinute is the highest number of calls a minute that AtMost can tell from no limit.
const MaxPerMinute = int(time.Minute / MinInterval)

// perMinute returns a limit under which at most n calls begin in any minute. It has the minimum burst
// of its rate, and a rate that leaves room for that burst.
func perMinute(n int) Limit {
	n = min(max(n, 1), MaxPerMinute)
	burst := Rate{n, time.Minute}.minBurst()
	return Limit{Rate: Rate{n - (burst - 1), time.Minute}, Burst: burst}
}

// PerMinute returns the most calls that may begin in a minute under the rate and the burst of a limit; 0
// without a rate.
func (l Limit) PerMinute() int {
	if l.Rate.Count == 0 {
		return 0
	}
	interval := l.Rate.Interval()
	return int((time.Minute+interval-1)/interval) + l.Burst - 1
}

// AtMost returns the limit l with its rate and burst lowered so that at most n calls begin in any
// minute. n is 1 or more. Limit.Parallel and Limit.Paused stay.
func (l Limit) AtMost(n int) Limit {
	n = min(max(n, 1), MaxPerMinute)
	most := perMinute(n)
	if l.Rate.Count == 0 || float64(l.Rate.Count)*float64(time.Minute) >= float64(most.Rate.Count)*float64(l.Rate.Per) {
		l.Rate, l.Burst = most.Rate, most.Burst
		return l
	}
	// In a minute begin at most the calls of the rate and the burst less one.
	l.Burst = min(l.Burst, max(l.Burst-(l.PerMinute()-n), l.Rate.minBurst()))
	return l
}
