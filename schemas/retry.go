package schemas

import "time"

// minRetryDelay is the first delay for an event without a valid backoff.
const minRetryDelay = time.Millisecond

// RetryDelay returns the delay after failed attempt n ≥ 1, without jitter: first, doubled
// for each further attempt, at most limit. A limit of 0 or less means DefaultBackoffTo.
func RetryDelay(first, limit time.Duration, n uint32) time.Duration {
	first = max(first, minRetryDelay)
	if limit <= 0 {
		limit = max(first, DefaultBackoffTo)
	}
	d := first
	for ; n > 1 && d < limit; n-- {
		if d > limit/2 {
			return limit
		}
		d *= 2
	}
	return min(d, limit)
}

// RetrySpan returns the minimum time from attempt from to attempt to: the sum of the
// delays between them, without jitter. It does not overflow.
func RetrySpan(first, limit time.Duration, from, to uint32) time.Duration {
	const most = 1<<63 - 1
	var sum time.Duration
	for n := max(from, 1); n < to; n++ {
		d := RetryDelay(first, limit, n)
		if d == RetryDelay(first, limit, n+1) { // the cap: the rest is equal
			rest := int64(to - n)
			if d > 0 && rest > int64((most-sum)/d) {
				return most
			}
			return sum + time.Duration(rest*int64(d))
		}
		sum += d
	}
	return sum
}

// retryUntilMs returns the earliest time of the last attempt of a record in state retrying,
// in Unix milliseconds, or 0 if it is unknown. It reads the retry policy from the event's
// attributes.
func (r *Record) retryUntilMs() int64 {
	if r.State != StateRetrying || r.NextMs == 0 || r.Body.Mode == ModeNone {
		return 0
	}
	hdr := r.Body.header(1)
	if r.Body.Mode == ModeStructured {
		hdr[headerContentType] = []string{contentStructured}
	}
	p, err := parse(hdr, r.Body.Data)
	if err != nil {
		return 0
	}
	spec, err := p.spec(Limits{MaxAttempts: 1<<32 - 1, MaxTimeout: 1 << 62, MaxBackoff: 1 << 62, accepted: true})
	if err != nil {
		return 0
	}
	// The next attempt is number Attempt+1. Attempts given back do not increase the delay.
	back := r.GivenBack(spec)
	return r.NextMs + RetrySpan(spec.BackoffFirst, spec.BackoffTo, r.Attempt-min(back, r.Attempt)+1, r.MaxAttempt-back).Milliseconds()
}

// GivenBack returns the number of attempts of a run that do not count towards
// timermaxattempts: those that the callback answered with "not now", and those that a
// replay granted. The record has no counter for them; the number is MaxAttempt minus
// timermaxattempts.
func (r *Record) GivenBack(spec Spec) uint32 {
	if r.MaxAttempt <= spec.MaxAttempts {
		return 0
	}
	return r.MaxAttempt - spec.MaxAttempts
}
