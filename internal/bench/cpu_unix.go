//go:build unix

package bench

import (
	"syscall"
	"time"
)

// selfCPU returns the user and system CPU time of this process, or 0 if the system does not
// report it.
func selfCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // the result then lacks the figure
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
