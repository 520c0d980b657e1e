//go:build unix

package bench

import (
	"syscall"
	"time"
)

// selfCPU returns the user and system CPU time of this process, or 0 if the system does not
// report it.
func selfCPU() time.Duration { return rusage(syscall.RUSAGE_SELF) }

// childrenCPU returns the user and system CPU time of the child processes that have ended, or 0 if
// the system does not report it.
func childrenCPU() time.Duration { return rusage(syscall.RUSAGE_CHILDREN) }

func rusage(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0 // the result then lacks the figure
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
