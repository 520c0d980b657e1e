package hrtimer

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// kernelClock is a timer of the kernel.
type kernelClock struct {
	fd   int
	file *os.File // of fd
	done chan struct{}
}

func newClock(expired func()) clock {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil { // for instance: no file descriptor is left
		return newGoClock(expired)
	}
	c := &kernelClock{fd: fd, file: os.NewFile(uintptr(fd), "timerfd"), done: make(chan struct{})}
	if c.file.SetReadDeadline(time.Time{}) != nil { // the runtime cannot poll it
		_ = c.file.Close()
		return newGoClock(expired)
	}
	waiting := make(chan struct{})
	go c.wait(sync.OnceFunc(func() { close(waiting) }), expired)
	<-waiting // an edge before it would be lost
	return c
}

// wait calls waiting once it notices edges, and then expired each time that the timer is due, until the file
// is closed. It does not read the number of expirations from the file: the poller of the runtime waits for edges, and
// set arms the timer for the next one.
func (c *kernelClock) wait(waiting, expired func()) {
	defer close(c.done)
	defer waiting()
	conn, err := c.file.SyscallConn()
	if err != nil {
		return
	}
	act := waiting // the first call comes before any edge
	_ = conn.Read(func(uintptr) (done bool) {
		act()
		act = expired
		return false
	})
}

func (c *kernelClock) set(d time.Duration) {
	// It fails only for a wrong argument.
	_ = unix.TimerfdSettime(c.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
}

func (c *kernelClock) stop() {
	_ = c.file.Close() // ends wait
	c.fd = -1          // another file may get its number
	<-c.done
}
