//go:build !unix

package cputime

import "time"

// Self returns false: this system does not report the CPU time of a process by this call.
func Self() (used time.Duration, ok bool) { return 0, false }

// Children returns false, like Self.
func Children() (used time.Duration, ok bool) { return 0, false }
