//go:build unix

package bench

import (
	"syscall"
	"time"
)

// selfCPU is the CPU time that this process has used, user and system; 0 where
// the system does not tell.
func selfCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // no figure rather than a wrong one
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
