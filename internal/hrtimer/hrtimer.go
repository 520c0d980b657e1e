// Package hrtimer has a timer with a high resolution.
//
// On Linux a timer of Go expires up to a millisecond late in a process that is otherwise idle, and 0.6 ms
// late in the median: the runtime waits in epoll_wait until its first timer is due, with a time-out in
// whole milliseconds (netpoll in runtime/netpoll_epoll.go of Go 1.26). A Timer is therefore a timer of the
// kernel (timerfd_create(2)), which ends epoll_wait when it is due. It uses a file descriptor and a goroutine.
// On other systems, and if the kernel gives no such timer, it is a timer of Go.
//
// A Timer may also signal without a reason. Its user must compare the time.
package hrtimer

import "time"

// Tolerance is by how much a Timer may expire earlier than set, and by how much its resolution makes it later.
// A Set to nearly the same instant then needs no system call. It is less than the time that a kernel takes to
// wake a process.
const Tolerance = 10 * time.Microsecond

// Timer signals on C when the duration of the last Set has passed. Only one goroutine may call Set and Stop.
type Timer struct {
	// C receives the signals. A signal that nobody has received replaces no other: there is at most one.
	C <-chan struct{}

	signals chan struct{}
	// at is the instant for which clock is set; it may be in the past.
	at    time.Time
	clock clock
}

// clock makes a Timer signal.
type clock interface {
	// set replaces the earlier duration. d is positive.
	set(d time.Duration)
	// stop ends the clock.
	stop()
}

// New returns a Timer that is not set. Call Stop when it is no longer used.
func New() *Timer {
	signals := make(chan struct{}, 1)
	return &Timer{C: signals, signals: signals, clock: newClock(func() { signal(signals) })}
}

func signal(signals chan<- struct{}) {
	select {
	case signals <- struct{}{}:
	default:
	}
}

// Set makes the timer expire in d, instead of what an earlier Set said. With d of 0 or less it signals at once.
func (t *Timer) Set(d time.Duration) {
	if d <= 0 {
		signal(t.signals)
		return
	}
	now := time.Now()
	at := now.Add(d)
	if t.at.After(now) && at.Sub(t.at).Abs() <= Tolerance {
		return
	}
	t.at = at
	t.clock.set(d)
}

// Stop ends the timer. It must not be set again.
func (t *Timer) Stop() { t.clock.stop() }

// goClock is a timer of Go.
type goClock struct{ t *time.Timer }

func newGoClock(expired func()) goClock {
	t := time.AfterFunc(time.Hour, expired)
	t.Stop()
	return goClock{t}
}

func (c goClock) set(d time.Duration) { c.t.Reset(d) }

func (c goClock) stop() { c.t.Stop() }
