//go:build !unix

package bench

import "time"

// selfCPU returns 0, because this system does not report CPU times. Results then lack figures of
// CPU.
func selfCPU() time.Duration { return 0 }

// childrenCPU returns 0, like selfCPU.
func childrenCPU() time.Duration { return 0 }
