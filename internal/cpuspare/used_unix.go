//go:build unix

package cpuspare

import (
	"syscall"
	"time"
)

// used returns the user and system CPU time of this process in seconds; -1 if unknown.
func used() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return -1
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
