//go:build !unix

package bench

import "time"

// selfCPU returns 0, because this system does not report CPU times. Results then lack figures of
// CPU.
func selfCPU() time.Duration { return 0 }
