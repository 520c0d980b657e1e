//go:build !unix

package bench

import "time"

// selfCPU is not known here: figures of CPU are left out.
func selfCPU() time.Duration { return 0 }
