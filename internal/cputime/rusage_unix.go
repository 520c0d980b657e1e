//go:build unix

package cputime

import (
	"syscall"
	"time"
)

// Self returns the user and system CPU time of this process; ok is false if the system does not
// report it.
func Self() (used time.Duration, ok bool) { return rusage(syscall.RUSAGE_SELF) }

// Children is Self for the child processes that have ended.
func Children() (used time.Duration, ok bool) { return rusage(syscall.RUSAGE_CHILDREN) }

func rusage(who int) (used time.Duration, ok bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
