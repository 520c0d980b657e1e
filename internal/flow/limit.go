package flow

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of a limit. The times of a State are nanoseconds, so they depend on none of these.
const (
	// MinRatePer and MaxRatePer bound the duration of a rate.
	MinRatePer = time.Second
	MaxRatePer = 7 * 24 * time.Hour
	// MinInterval is the shortest time between two calls of a rate: a node cannot tell a higher
	// rate from none.
	MinInterval = 10 * time.Microsecond
	// MaxBurst and MaxParallel bound the burst of a rate, and the calls that run at once.
	MaxBurst    = 100_000
	MaxParallel = 100_000
)

// Check returns an error that says which value of a limit is out of range. A limit that only
// pauses is valid; a limit that limits nothing is not.
func (l Limit) Check() error {
	r := l.Rate
	switch {
	case r.Count < 0 || r.Per < 0 || (r.Count == 0) != (r.Per == 0):
		return fmt.Errorf("rate %d/%s: write a number of calls and a duration, such as 100/1m", r.Count, r.Per)
	case r.Count > 0 && (r.Per < MinRatePer || r.Per > MaxRatePer):
		return fmt.Errorf("rate %s: the duration must be %s to %s", r, short(MinRatePer), short(MaxRatePer))
	case r.Count > 0 && r.interval() < MinInterval:
		return fmt.Errorf("rate %s: the most is %d/1s", r, time.Second/MinInterval)
	case r.Count == 0 && l.Burst != 0:
		return fmt.Errorf("burst %d: a burst needs a rate", l.Burst)
	case r.Count > 0 && (l.Burst < 1 || l.Burst > MaxBurst):
		return fmt.Errorf("burst %d: it must be 1 to %d", l.Burst, MaxBurst)
	case l.Parallel < 0 || l.Parallel > MaxParallel:
		return fmt.Errorf("parallel %d: it must be 1 to %d, or 0 for no bound", l.Parallel, MaxParallel)
	case r.Count == 0 && l.Parallel == 0 && !l.Paused:
		return fmt.Errorf("the limit limits nothing: set a rate such as 100/1m or a number of parallel calls, or pause it")
	}
	return nil
}

// ParseRate reads a rate such as 100/1m: a number of calls, and a duration as in the timer
// attributes. Check tells its bounds.
func ParseRate(s string) (Rate, error) {
	count, per, ok := strings.Cut(s, "/")
	n, err := strconv.Atoi(count)
	if !ok || err != nil || n < 1 {
		return Rate{}, fmt.Errorf("rate %.40q: write a number of calls and a duration, such as 100/1m", s)
	}
	d, err := schemas.ParseDuration(per)
	if err != nil {
		return Rate{}, fmt.Errorf("rate %.40q: %.40q is %w; write a number of calls and a duration, such as 100/1m", s, per, err)
	}
	r := Rate{n, d}
	if d < MinRatePer || d > MaxRatePer {
		return Rate{}, fmt.Errorf("rate %.40q: the duration must be %s to %s", s, short(MinRatePer), short(MaxRatePer))
	}
	return r, nil
}

// String writes a rate as ParseRate reads it; "" for none.
func (r Rate) String() string {
	if r.Count == 0 {
		return ""
	}
	return strconv.Itoa(r.Count) + "/" + short(r.Per)
}

// short writes 1m instead of 1m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// interval returns the time between two calls at the rate, 0 without a rate.
func (r Rate) interval() time.Duration {
	if r.Count == 0 {
		return 0
	}
	return r.Per / time.Duration(r.Count)
}

// DefaultBurst is the burst of a rate for which none is given: a tenth of a second's worth of
// calls, at least 1.
func (r Rate) DefaultBurst() int {
	if r.Count < 1 || r.Per <= 0 {
		return 0
	}
	return max(1, min(MaxBurst, int((float64(r.Count)*0.1*float64(time.Second)+float64(r.Per)-1)/float64(r.Per))))
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

// Summary says how much of a key's limit is used at a time. Times are Unix nanoseconds.
type Summary struct {
	// InFlight is the number of permits for parallel calls that nodes hold.
	InFlight int
	// Waiting is the number of events that have reserved a time.
	Waiting int
	// NextNs is the earliest time of a call of a further event; 0 while the limit is paused. If
	// all permits are in use it is an estimate.
	NextNs int64
	// DrainedNs is the last reserved time; 0 if none is reserved or the limit is paused.
	DrainedNs int64
}

// Summary describes the state under a limit and its generation.
func (s *State) Summary(l Limit, generation uint64, nowNs int64) (sum Summary) {
	for _, x := range s.Leases {
		if x.UntilNs > nowNs {
			sum.InFlight += x.Slots
		}
	}
	if l.Paused {
		return sum
	}
	sum.NextNs = nowNs
	interval := int64(l.Rate.interval())
	if interval > 0 {
		sum.NextNs = max(nowNs, s.GateNs-int64(l.Burst-1)*interval)
	}
	if l.Parallel > 0 {
		each := s.TookNs / int64(l.Parallel)
		if interval = max(interval, each); sum.InFlight >= l.Parallel {
			sum.NextNs = max(sum.NextNs, nowNs+each)
		}
	}
	if s.Generation == generation && s.PlanNs > nowNs && interval > 0 {
		sum.NextNs = max(sum.NextNs, s.PlanNs)
		sum.Waiting = int((s.PlanNs - nowNs + interval - 1) / interval)
		sum.DrainedNs = max(nowNs, s.PlanNs-interval)
	}
	return sum
}
