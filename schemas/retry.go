package schemas

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"
)

// RetryPolicy defines the number of attempts of a callback and the delays between them. A router stores it in the
// record of a timer with a callback, with the defaults and limits of the time of the add, so
// that later changes of either do not change the timer.
//
// A record that an older build wrote, or any build in record format 1, does not have it. The
// event's attributes then are the policy, with implicitRetryPolicy for what they leave out.
type RetryPolicy struct {
	// MaxAttempts is the attempt after which the run becomes a dead letter.
	MaxAttempts uint32
	// BackoffFirst and BackoffTo are the first and the longest delay between attempts.
	BackoffFirst, BackoffTo time.Duration
	// Timeout is the limit of one attempt.
	Timeout time.Duration
}

// implicitRetryPolicy is the policy that is stored as an empty extension, and that a message
// without HeaderRetry has if its event has no attributes. It is part of the stored format:
// a version with other defaults keeps it, and so stores its own defaults in full.
var implicitRetryPolicy = RetryPolicy{MaxAttempts: 36, BackoffFirst: time.Second, BackoffTo: time.Hour, Timeout: 30 * time.Second}

// append appends the encoded policy: nothing for implicitRetryPolicy, otherwise the number
// of attempts and the durations in nanoseconds as uvarints.
func (p *RetryPolicy) append(dst []byte) []byte {
	if *p == implicitRetryPolicy {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(p.MaxAttempts))
	for _, d := range [...]time.Duration{p.BackoffFirst, p.BackoffTo, p.Timeout} {
		dst = binary.AppendUvarint(dst, uint64(max(d, 0)))
	}
	return dst
}

// readRetryPolicy decodes an extension's value; nil if it is malformed.
func readRetryPolicy(value []byte) *RetryPolicy {
	if len(value) == 0 {
		return &implicitRetryPolicy
	}
	d := decoder{b: value}
	p := RetryPolicy{MaxAttempts: d.uint32()}
	for _, to := range [...]*time.Duration{&p.BackoffFirst, &p.BackoffTo, &p.Timeout} {
		n := d.uvarint()
		if n > math.MaxInt64 {
			return nil
		}
		*to = time.Duration(n)
	}
	if d.bad || len(d.b) > 0 {
		return nil
	}
	return &p
}

// Shared returns the policy for Record.Retry.
func (p RetryPolicy) Shared() *RetryPolicy {
	if p == implicitRetryPolicy {
		return &implicitRetryPolicy // shared, so that most timers need no allocation
	}
	return &p
}

// RetryHeader returns the value of HeaderRetry, "" if the message needs none: the number of
// attempts, and the durations in nanoseconds.
func (p *RetryPolicy) RetryHeader() string {
	if p == nil || *p == implicitRetryPolicy {
		return ""
	}
	b := strconv.AppendUint(make([]byte, 0, 64), uint64(p.MaxAttempts), 10)
	for _, d := range [...]time.Duration{p.BackoffFirst, p.BackoffTo, p.Timeout} {
		b = strconv.AppendInt(append(b, ' '), int64(d), 10)
	}
	return string(b)
}

// parseRetryHeader parses a value of HeaderRetry. It ignores further fields, which a later
// version may add.
func parseRetryHeader(s string) (RetryPolicy, error) {
	var n [4]uint64
	for i := range n {
		field, rest, _ := strings.Cut(s, " ")
		bits := 63
		if i == 0 {
			bits = 32
		}
		var err error
		if n[i], err = strconv.ParseUint(field, 10, bits); err != nil {
			return RetryPolicy{}, Errorf(CodeBadRequest, "header %s is malformed", HeaderRetry)
		}
		s = rest
	}
	return RetryPolicy{uint32(n[0]), time.Duration(n[1]), time.Duration(n[2]), time.Duration(n[3])}, nil
}

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
// in Unix milliseconds, or 0 if it is unknown.
func (r *Record) retryUntilMs() int64 {
	if r.State != StateRetrying || r.NextMs == 0 || r.Body.Mode == ModeNone {
		return 0
	}
	policy := r.Retry
	if policy == nil {
		if policy = r.Body.retryPolicy(); policy == nil {
			return 0
		}
	}
	// The next attempt is number Attempt+1. Attempts given back do not increase the delay.
	back := r.GivenBack(policy)
	return r.NextMs + RetrySpan(policy.BackoffFirst, policy.BackoffTo, r.Attempt-min(back, r.Attempt)+1, r.MaxAttempt-back).Milliseconds()
}

// GivenBack returns the number of attempts of a run that do not count towards
// timermaxattempts: the attempts that the callback answered with "not now", the requests that
// no worker took, and the attempts that a replay granted. The record has no counter for them; the number is MaxAttempt minus the
// policy's MaxAttempts.
func (r *Record) GivenBack(policy *RetryPolicy) uint32 {
	if r.MaxAttempt <= policy.MaxAttempts {
		return 0
	}
	return r.MaxAttempt - policy.MaxAttempts
}

// NotNow returns the number of answers "not now" since the last replay: GivenBack without the attempts up to that replay
// and without the requests that no worker took.
func (r *Record) NotNow(policy *RetryPolicy) uint32 {
	back := r.GivenBack(policy)
	back -= min(r.Replayed, back)
	return back - min(r.Unattempted, back)
}

// retryPolicy parses the policy in the event's attributes; nil for an event that cannot be
// parsed.
func (b *Body) retryPolicy() *RetryPolicy {
	hdr := b.header(1)
	if b.Mode == ModeStructured {
		hdr[headerContentType] = []string{contentStructured}
	}
	p, err := parse(hdr, b.Data)
	if err != nil {
		return nil
	}
	policy, err := p.retryPolicy(unlimited)
	if err != nil {
		return nil
	}
	return &policy
}
