// Package hrtimer has a timer with a high resolution.
//
// On Linux a Go timer expires up to a millisecond late in a process that is otherwise idle, and 0.6 ms
// late in the median: the runtime waits in epoll_wait until its first timer is due, with a time-out in
// whole milliseconds (netpoll in runtime/netpoll_epoll.go of Go 1.26). A Timer is therefore a kernel timer
// (timerfd_create(2)), which ends epoll_wait when it is due. It uses a file descriptor and a goroutine.
// On other systems, and if the kernel gives no such timer, it is a Go timer.
//
// A Timer may also signal without a reason, so its user must compare the time. While every processor of the runtime has
// goroutines to run, the runtime polls only every ten milliseconds, and a Timer may be that late. A Go timer is not
// late then, so a caller that needs the time also sets a Go timer as a backstop.
//
// A goroutine that waits for a kernel timer is not durably blocked, so a test in a bubble of testing/synctest
// cannot wait for one.
package hrtimer

import "time"

// Tolerance bounds by how much the instant of a Timer may differ from the last Set. A Set that changes the instant
// by less makes no system call. Tolerance is less than the time that a kernel takes to wake a process.
const Tolerance = 10 * time.Microsecond

// Timer signals on C when the duration of the last Set has passed. Only one goroutine may call Set and Stop.
type Timer struct {
	// C has a buffer of one signal. Further signals are dropped while it is full.
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

// Set replaces the earlier duration by d, and discards a signal that was not received. With d of 0 or less it signals
// at once, and the earlier duration stays.
func (t *Timer) Set(d time.Duration) {
	select {
	case <-t.signals:
	default:
	}
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
