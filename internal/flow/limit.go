package flow

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of a limit.
const (
	// MinRatePer and MaxRatePer bound the duration of a rate.
	MinRatePer = time.Second
	MaxRatePer = 7 * 24 * time.Hour
	// MinInterval is the shortest time between two calls of a rate. A higher rate would bound
	// nothing in practice.
	MinInterval = 10 * time.Microsecond
	// MaxBurst and MaxParallel bound the burst of a rate, and the calls that run at once.
	MaxBurst    = 100_000
	MaxParallel = 100_000
	// MaxPending bounds the pending timers of a limit.
	MaxPending = 1_000_000_000
	// MaxSchedules and MaxServices bound the schedules and the services of a limit, MaxBytes its bytes.
	// An owner publishes at most MaxServices services of each shard.
	MaxSchedules = MaxPending
	MaxServices  = 4096
	MaxBytes     = 1 << 50
)

// Check returns an error that names the value of a limit that is out of range. A limit with only a
// pause is valid; a limit that bounds nothing is not.
func (l Limit) Check() error {
	r := l.Rate
	switch {
	case r.Count < 0 || r.Per < 0 || (r.Count == 0) != (r.Per == 0):
		return fmt.Errorf("rate %d/%s: write a number of calls and a duration, such as 100/1m", r.Count, r.Per)
	case r.Count > 0 && (r.Per < MinRatePer || r.Per > MaxRatePer):
		return fmt.Errorf("rate %s: the duration must be %s to %s", r, schemas.FormatDuration(MinRatePer), schemas.FormatDuration(MaxRatePer))
	case r.Count > 0 && r.Interval() < MinInterval:
		return fmt.Errorf("rate %s: the most is %d/1s", r, time.Second/MinInterval)
	case r.Count == 0 && l.Burst != 0:
		return fmt.Errorf("burst %d: a burst needs a rate", l.Burst)
	case r.Count > 0 && (l.Burst < 1 || l.Burst > MaxBurst):
		return fmt.Errorf("burst %d: it must be 1 to %d", l.Burst, MaxBurst)
	case r.Count > 0 && l.Burst > 1 && time.Duration(l.Burst) > MaxDefer/r.Interval():
		return fmt.Errorf("burst %d: at the rate %s a burst takes more than a year to recover; the most is %d", l.Burst, r, max(1, MaxDefer/r.Interval()))
	case r.Count > 0 && l.Burst < r.minBurst():
		return fmt.Errorf("burst %d: the rate %s needs %d or more, because a call starts up to %s after it was permitted", l.Burst, r, r.minBurst(), minTolerance)
	case l.Parallel < 0 || l.Parallel > MaxParallel:
		return fmt.Errorf("parallel %d: it must be 1 to %d, or 0 for no bound", l.Parallel, MaxParallel)
	case l.Pending < 0 || l.Pending > MaxPending:
		return fmt.Errorf("pending %d: it must be 1 to %d, or 0 for no bound", l.Pending, MaxPending)
	case l.Schedules < 0 || l.Schedules > MaxSchedules:
		return fmt.Errorf("schedules %d: it must be 1 to %d, or 0 for no bound", l.Schedules, MaxSchedules)
	case l.Services < 0 || l.Services > MaxServices:
		return fmt.Errorf("services %d: it must be 1 to %d, or 0 for no bound", l.Services, MaxServices)
	case l.Bytes < 0 || l.Bytes > MaxBytes:
		return fmt.Errorf("bytes %d: it must be 1 to %d, or 0 for no bound", l.Bytes, int64(MaxBytes))
	case l.Circuit < NoCircuit || l.Circuit > MaxCircuit:
		return fmt.Errorf("circuit %d: it must be 1 to %d connection errors in a row, or 0 for no circuit", l.Circuit, MaxCircuit)
	case !l.Bounds() && l.Circuit == 0 && !l.Counts():
		return fmt.Errorf("the limit limits nothing: set a rate such as 100/1m, a number of parallel calls or a circuit, or pause it")
	}
	return nil
}

// ratePeriods are the durations that a rate may name by a letter alone, as in 100/m.
var ratePeriods = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

// ParseRate reads a rate such as 5/s, 100/m, 1000/h, 1000/d or 100/10m: a number of calls, and a
// letter of ratePeriods or a duration in the format of the timer attributes. Check checks the bounds.
func ParseRate(s string) (Rate, error) {
	count, per, ok := strings.Cut(s, "/")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 1 {
		return Rate{}, fmt.Errorf("rate %.40q: write a number of calls and a duration, such as 5/s, 100/m or 100/10m", s)
	}
	d, named := ratePeriods[per]
	if !named {
		if d, err = schemas.ParseDuration(per); err != nil {
			return Rate{}, fmt.Errorf("rate %.40q: %.40q is %w; write a number of calls and a duration, such as 5/s, 100/m or 100/10m", s, per, err)
		}
	}
	r := Rate{n, d}
	if d < MinRatePer || d > MaxRatePer {
		return Rate{}, fmt.Errorf("rate %.40q: the duration must be %s to %s", s, schemas.FormatDuration(MinRatePer), schemas.FormatDuration(MaxRatePer))
	}
	return r, nil
}

// String writes a rate as ParseRate reads it; "" for none.
func (r Rate) String() string {
	if r.Count == 0 {
		return ""
	}
	return strconv.Itoa(r.Count) + "/" + schemas.FormatDuration(r.Per)
}

// Interval returns the time between two calls at the rate, rounded up so that the rate is never
// exceeded; 0 without a rate.
func (r Rate) Interval() time.Duration {
	if r.Count == 0 {
		return 0
	}
	return (r.Per + time.Duration(r.Count) - 1) / time.Duration(r.Count)
}

// DefaultBurst returns the burst of a rate without one: the calls of a tenth of a second, at least 2;
// but 1 if the interval between two calls is a second or more.
func (r Rate) DefaultBurst() int {
	if r.Count < 1 || r.Per <= 0 {
		return 0
	}
	t := r.Interval()
	if t >= time.Second {
		return 1
	}
	return int(max(2, (time.Second/10+t-1)/t))
}

// minBurst returns the minimum burst with which the rate can be reached.
func (r Rate) minBurst() int {
	t := r.Interval()
	if t >= leastInterval {
		return 1
	}
	return int(max(2, (minTolerance+t-1)/t+1))
}

const (
	// minTolerance and maxTolerance bound the validity of an admission. A write of the state
	// must take less than minTolerance most of the time; otherwise admissions are lost.
	minTolerance = 20 * time.Millisecond
	maxTolerance = 100 * time.Millisecond
	// leastInterval is the shortest interval with a burst of 1. The tolerance of such a limit
	// lowers the rate, here by a twentieth, for slower rates by a fiftieth or less.
	leastInterval = 20 * minTolerance
)

// tolerance is the validity of an admission: half of the burst or, with a burst of 1, a
// fiftieth of the interval; within minTolerance and maxTolerance.
func (l Limit) tolerance() time.Duration {
	t := l.Rate.Interval()
	d := time.Duration(l.Burst-1) * t / 2
	if l.Burst == 1 {
		d = t / 50
	}
	return min(max(d, minTolerance), maxTolerance)
}

// tau is the limit τ of the gate; see the package comment.
func (l Limit) tau() time.Duration {
	return time.Duration(l.Burst-1)*l.Rate.Interval() - l.tolerance()
}

// step returns the time between two slots of the plan: the interval between two attempts at the rate
// of the gate or, without a rate, the average interval between the ends of Parallel calls.
func (l Limit) step(s *State) (step time.Duration) {
	if l.Rate.Count > 0 {
		step = l.Rate.Interval() + max(0, -l.tau())
	}
	if l.Parallel > 0 {
		free := time.Duration(s.TookNs) / time.Duration(l.Parallel)
		if s.TookNs <= 0 {
			free = unknownStep
		}
		step = max(step, free, 1)
	}
	return step
}

const (
	// unknownTook is the assumed duration of a call that has run for this time and not ended.
	unknownTook = time.Second
	// unknownStep is the time between two slots of the plan while the duration of a call is unknown. It
	// is short, because an event that comes too early reserves another time, but an event that comes too
	// late leaves slots unused.
	unknownStep = 10 * time.Millisecond
)

// NoteRunning notes that a call has run for a time and has not ended. It changes the state only if the
// duration of a call is unknown.
func (s *State) NoteRunning(d time.Duration) {
	if s.TookNs <= 0 && d >= unknownTook {
		s.TookNs = int64(unknownTook)
	}
}

// Match reports whether a flow key matches a pattern, in which '*' stands for any run of
// characters, also for none. A pattern without '*' matches itself.
func Match(pattern, key string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == key
	}
	if !strings.HasPrefix(key, first) {
		return false
	}
	key = key[len(first):]
	for {
		part, more, wild := strings.Cut(rest, "*")
		if !wild {
			return strings.HasSuffix(key, part)
		}
		i := strings.Index(key, part)
		if i < 0 {
			return false
		}
		key, rest = key[i+len(part):], more
	}
}
