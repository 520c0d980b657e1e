//go:build unix

// Package cputest reports the CPU time of benchmarks.
package cputest

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/cputime"
)

// Measure starts the measurement of the CPU time of this process, which includes an
// embedded server. report stops it and reports the CPU time per iteration.
func Measure(b *testing.B) (report func()) {
	b.Helper()
	before := used(b)
	return func() {
		b.Helper()
		b.ReportMetric(float64((used(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	}
}

func used(b *testing.B) time.Duration {
	b.Helper()
	used, ok := cputime.Self()
	if !ok {
		b.Fatal("the system does not report the CPU time of this process")
	}
	return used
}
